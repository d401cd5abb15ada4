"""Exported graphs say what `predict` says, to 1e-6, for every method, likelihood, tree and stack."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import duogp
from duogp import METHODS
from duogp.export import export_model, read_description
from duogp.export.graph import Predictor
from duogp.posterior.log_target import LogTargetGP
from duogp.sklearn.quantiles import predictive_quantiles

pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")

SETTINGS = {"num_inducing": 8, "epochs": 2}
LEVELS = [0.05, 0.5, 0.95]
#: One method of each kind that every run of the tests exports; the others are slow together.
QUICK = ("dcsvgp", "dgp-dc")
GPS = [name for name in METHODS if not METHODS[name].is_baseline]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)) * [1.0, 10.0, 0.1] + [0.0, 5.0, 1.0]
F = np.sin(X[:, 0])
Y = 3 + 2 * F + 0.1 * RNG.normal(size=60)
NEW = RNG.normal(size=(17, 3)) * [1.5, 15.0, 0.15] + [0.0, 5.0, 1.0]


def of_each_kind(names):
    """The first method of every basis, shallow and deep, with a network and without; all if asked for."""
    kinds = {}
    for name in names:
        method = METHODS[name]
        kinds.setdefault((method.recipe.name, method.is_deep, "extractor" in method.defaults), name)
    return names if os.environ.get("DUOGP_SLOW_TESTS") else sorted({*kinds.values(), *QUICK})


def quick(names):
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names]


def run_onnx(path, rows):
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (wanted,) = session.get_inputs()
    dtype = np.float64 if "double" in wanted.type else np.float32
    found = session.run(None, {wanted.name: rows.astype(dtype)})
    return dict(zip([output.name for output in session.get_outputs()], found, strict=True))


def run_pt2(path, rows):
    module = torch.export.load(str(path)).module()
    description = read_description(path)
    dtype = getattr(torch, description["precision"])
    return {
        name: part.numpy()
        for name, part in zip(description["outputs"], module(torch.as_tensor(rows, dtype=dtype)), strict=True)
    }


def assert_equal_to_predict(model, found, rows, tolerance=1e-6):
    prediction = model.predict(rows)
    for name in set(found) - {"quantiles"}:
        expected = np.broadcast_to(getattr(prediction, name), found[name].shape)
        np.testing.assert_allclose(found[name], expected, rtol=tolerance, atol=tolerance, err_msg=name)
    if "quantiles" in found:
        expected = predictive_quantiles(model, rows, np.array(LEVELS))
        expected = expected[..., 0].T if model.single_output else expected.transpose(1, 2, 0)
        np.testing.assert_allclose(found["quantiles"], expected, rtol=tolerance, atol=tolerance)


def check(model, tmp_path, rows=NEW, **options):
    """Export as ONNX; compare on rows that the export has not seen, on one of them, and its description."""
    made = export_model(model, tmp_path / "model.onnx", quantiles=LEVELS, rows=rows[:9], **options)
    gp = getattr(model, "gp_", model)
    for part in (rows, rows[:1]):
        found = run_onnx(made.path, part)
        assert tuple(found) == made.outputs
        assert_equal_to_predict(gp, found, part)
    description = read_description(made.path)
    assert description == made.description and max(made.error.values()) <= 1e-6
    return made


@pytest.mark.parametrize("method", quick(of_each_kind(GPS)))
def test_every_method_is_exported(method, tmp_path):
    made = check(duogp.fit(X, Y, method, **SETTINGS), tmp_path)
    assert made.outputs == ("mean", "residual", "explained", "noise", "disagreement", "quantiles")


@pytest.mark.parametrize("method", GPS)
def test_the_module_behind_the_graph_says_what_predict_says(method):
    """Every method in every run of the tests, without the seconds that tracing takes."""
    gp = duogp.fit(X, Y, method, **SETTINGS)
    predictor = Predictor(gp, LEVELS)
    assert predictor.add_quantiles() is None
    with torch.no_grad():
        found = [part.numpy() for part in predictor(torch.as_tensor(NEW))]
    assert_equal_to_predict(gp, dict(zip(predictor.names, found, strict=True)), NEW)


TARGETS = {
    "student-t": Y,
    "heteroscedastic": Y,
    "poisson": RNG.poisson(np.exp(F)),
    "gamma": np.exp(Y / 3),
    "beta": 1 / (1 + np.exp(-F)),
}


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", TARGETS)
@pytest.mark.parametrize("method", ["svgp", "dgp"])
def test_every_likelihood_of_numbers_is_exported(likelihood, method, tmp_path):
    gp = duogp.fit(X, TARGETS[likelihood], method, likelihood=likelihood, **SETTINGS)
    made = check(gp, tmp_path)
    inverted = likelihood in ("student-t", "heteroscedastic")
    assert ("quantiles" in made.outputs) == inverted
    assert (made.description["no_quantiles"] is None) == inverted  # or it says why


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["bernoulli", "logit", "robust-max", "softmax"])
@pytest.mark.parametrize("method", ["svgp", "dgp"])
def test_every_likelihood_of_classes_is_exported(likelihood, method, tmp_path):
    labels = np.digitize(F, [0.0] if likelihood in ("bernoulli", "logit") else [-0.5, 0.5])
    made = check(duogp.fit(X, labels, method, likelihood=likelihood, **SETTINGS), tmp_path)
    assert made.outputs[0] == "probabilities"
    assert made.description["classes"] == np.unique(labels).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["rbf", "matern12", "rq", "linear"])
def test_other_kernels_are_exported(kernel, tmp_path):
    check(duogp.fit(X, Y, "svgp", kernel=kernel, **SETTINGS), tmp_path)


@pytest.mark.slow
def test_several_outputs_and_unused_columns(tmp_path):
    wide = np.column_stack([X[:, :1], np.ones(60), X[:, 1:]])
    gp = duogp.fit(wide, np.column_stack([Y, -Y]), "svgp", **SETTINGS)
    new = np.column_stack([NEW[:, :1], np.ones(17), NEW[:, 1:]])
    made = check(gp, tmp_path, new)
    assert run_onnx(made.path, new)["quantiles"].shape == (17, 2, 3)


def test_trees_in_the_mean(tmp_path):
    rows = np.random.default_rng(1).normal(size=(400, 3))
    gp = duogp.fit(rows, np.sign(rows[:, 0]) + (rows[:, 1] > 0.3), "svgp", mean="trees", **SETTINGS)
    found = run_onnx(check(gp, tmp_path).path, NEW)
    assert (found["disagreement"] > 0).any()


@pytest.mark.slow
def test_trees_in_the_mean_of_classes_of_counts_and_of_a_saved_model(tmp_path):
    for likelihood, y in (("poisson", TARGETS["poisson"]), ("softmax", np.digitize(F, [-0.5, 0.5]))):
        gp = duogp.fit(X, y, "svgp", mean="trees", likelihood=likelihood, **SETTINGS)
        check(gp, tmp_path)
        gp.save(tmp_path / likelihood)
        check(duogp.load(tmp_path / likelihood), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [None, 2, 3])
def test_the_stack_of_auto(classes, tmp_path):
    rows = np.random.default_rng(1).normal(size=(150, 3))
    f = np.sin(2 * rows[:, 0]) + rows[:, 1] + 0.2 * np.random.default_rng(2).normal(size=150)
    if classes is None:
        model = duogp.GPRegressor(random_state=0).fit(rows, f)
    else:
        labels = np.digitize(f, np.linspace(-1, 1, classes + 1)[1:-1])
        model = duogp.GPClassifier(random_state=0).fit(rows, labels)
    assert model.method_ == "stack"
    made = check(model, tmp_path, rows[:40] * 1.3)
    assert "no_quantiles" in made.description and ("quantiles" in made.outputs) == (classes is None)


@pytest.mark.slow
def test_members_and_a_law_on_the_log_scale(tmp_path):
    rows = np.random.default_rng(1).uniform(-1, 1, (110, 3))
    noise = 0.5 * np.random.default_rng(2).normal(size=110)
    gp = duogp.fit(
        rows, 100 * np.exp(2 * rows[:, 0] + rows[:, 1] + noise), "auto", mean="constant", time_budget=600
    )
    assert gp.law[0].logs is not None
    check(gp, tmp_path, rows[:20] * 1.3)
    member = next(m for m in gp.members if isinstance(m, LogTargetGP))
    check(member, tmp_path, rows[:20] * 1.3)
    made = export_model(gp, tmp_path / "model.pt2", quantiles=LEVELS)
    assert_equal_to_predict(gp, run_pt2(made.path, rows[:20]), rows[:20])


@pytest.mark.slow
def test_a_law_on_a_grid(tmp_path):
    rows = np.random.default_rng(1).uniform(-1, 1, (120, 2))
    y = np.round(4 * np.sin(2 * rows[:, 0]) + 2 * rows[:, 1])
    gp = duogp.fit(rows, y, "auto", mean="constant", time_budget=600)
    assert gp.law[0].rounding is not None
    check(gp, tmp_path, rows[:20] * 1.1)
    made = export_model(gp, tmp_path / "model.pt2", quantiles=LEVELS)
    assert_equal_to_predict(gp, run_pt2(made.path, rows[:20]), rows[:20])


def test_pt2_and_float32(tmp_path):
    gp = duogp.fit(X, Y, "svgp", **SETTINGS)
    made = export_model(gp, tmp_path / "model.pt2", quantiles=LEVELS)
    for rows in (NEW, NEW[:1]):
        assert_equal_to_predict(gp, run_pt2(made.path, rows), rows)
    half = export_model(gp, tmp_path / "half.onnx", precision="float32", quantiles=LEVELS)
    found = run_onnx(half.path, NEW)
    assert {part.dtype for part in found.values()} == {np.dtype(np.float32)}
    assert 1e-12 < max(half.error.values()) < 1e-2
    assert read_description(half.path)["error"] == half.error
    assert_equal_to_predict(gp, found, NEW, 1e-2)


@pytest.mark.slow
def test_float32_in_pt2_and_of_a_stack(tmp_path):
    model = duogp.GPRegressor(random_state=0).fit(X, Y)
    made = export_model(model, tmp_path / "model.pt2", precision="float32", quantiles=LEVELS)
    assert_equal_to_predict(model.gp_, run_pt2(made.path, NEW), NEW, 1e-2)


def test_what_cannot_be_exported_is_refused(tmp_path, monkeypatch):
    gp = duogp.fit(X, Y, "svgp", **SETTINGS)
    with pytest.raises(ValueError, match="must end in"):
        export_model(gp, tmp_path / "model.bin")
    with pytest.raises(ValueError, match="precision"):
        export_model(gp, tmp_path / "model.onnx", precision="half")
    with pytest.raises(FileNotFoundError, match="no folder"):
        export_model(gp, tmp_path / "none" / "model.onnx")
    with pytest.raises(ValueError, match="quantiles"):
        export_model(gp, tmp_path / "model.onnx", quantiles=[2.0])
    network = duogp.fit(X, Y, "mc-dropout", epochs=1)
    with pytest.raises(TypeError, match="Gaussian processes"):
        export_model(network, tmp_path / "model.onnx")
    from sklearn.linear_model import Ridge

    with pytest.raises(ValueError, match="Ridge"):
        export_model(duogp.fit(X, Y, "svgp", mean=Ridge(), **SETTINGS), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_graph_that_differs_is_not_written(tmp_path, monkeypatch):
    from duogp.export import files

    gp = duogp.fit(X, Y, "svgp", **SETTINGS)
    monkeypatch.setattr(files, "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="nothing was written"):
        export_model(gp, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())
