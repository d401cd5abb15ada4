"""Saved models: every method comes back as it was, here and in another process."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

import duogp
from duogp.baselines import NeuralPredictor, fit_neural
from duogp.bases import Subspace
from duogp.io import SavedModelError, gp_from_state, gp_state, load, register_kind, save, write_folder
from duogp.likelihoods import RobustMaxLikelihood, SoftmaxLikelihood
from helpers.saving import LABELS, NEW, ROW_NOISE, X, Y, answers, assert_equal, quick, round_trip, small


@pytest.mark.parametrize("method", list(duogp.METHODS))
def test_every_method_comes_back(method, fitted, tmp_path):
    back = round_trip(fitted[method], tmp_path / "model", y=Y[:6])
    assert plain(back.settings) == plain(fitted[method].settings)


def plain(settings) -> dict:
    return json.loads(json.dumps(settings.to_dict()))


@pytest.mark.slow
def test_every_method_in_a_fresh_process(fitted, tmp_path):
    for method, model in fitted.items():
        duogp.save(model, tmp_path / method)
    np.save(tmp_path / "new.npy", NEW)
    code = """
        import sys
        import numpy as np
        import duogp
        folder = sys.argv[1]
        new, out = np.load(folder + "/new.npy"), {}
        for method in duogp.METHODS:
            p = duogp.load(folder + "/" + method).predict(new)
            out[method] = np.stack([p.mean, p.residual, p.explained, p.noise])
        np.savez(folder + "/out.npz", **out)
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], check=True, timeout=300)
    found = np.load(tmp_path / "out.npz")
    for method, model in fitted.items():
        p = model.predict(NEW)
        expected = np.stack([p.mean, p.residual, p.explained, p.noise])
        np.testing.assert_allclose(found[method], expected, rtol=1e-6, atol=1e-6, err_msg=method)


# -- labels, noise, columns ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "method", "likelihood"),
    [
        (np.array(["no", "maybe", "certainly"])[LABELS], "svgp", "classes"),
        (np.array(["äpfel", "Birnen", ""], dtype="U40")[LABELS], "svgp", "softmax"),
        (LABELS * 5 - 3, "svgp", "robust-max"),
        (LABELS.astype(np.int8), "svgp", SoftmaxLikelihood(3, eval_samples=16, eval_inner_samples=32)),
        (LABELS.astype(float), "svgp", RobustMaxLikelihood(3, 1e-2, learn_epsilon=True)),
        (Y > 0, "svgp", "classes"),
        (Y > 0, "ppgpr", "logit"),
        (np.array(["2020-01-01", "2021-01-01"], dtype="datetime64[D]")[1 * (Y > 0)], "svgp", "classes"),
        (np.array(["a", "b", "c"])[LABELS], "dgp", "classes"),
        (Y > 0, "dgp-dc", "bernoulli"),
        (np.array(["a", "b", "c"])[LABELS], "deep-ensemble", "classes"),
        (LABELS, "mc-dropout", "classes"),
        (LABELS, "svdgp", "classes"),
    ],
)  # fmt: skip
def test_labels_of_every_type(labels, method, likelihood, tmp_path):
    model = quick(method, labels, likelihood=likelihood)
    back = round_trip(model, tmp_path / "model", y=labels[:6])
    assert back.classes.dtype.kind == model.classes.dtype.kind
    assert back.predict(NEW).labels.tolist() == model.predict(NEW).labels.tolist()


def test_labels_that_json_does_not_know(tmp_path):
    model = quick(y=Y > 0, likelihood="classes")
    model.classes = np.array([object(), object()])
    with pytest.raises(SavedModelError, match="class labels of type object"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("settings", [{}, {"learn_noise": True}, {"method": "exact"}, {"method": "dcsvgp"}])
def test_known_noise(settings, tmp_path):
    model = quick(**settings, noise=ROW_NOISE)
    back = round_trip(model, tmp_path / "model", y=Y[:6], noise=np.full(6, 0.1))
    assert back.known_noise == model.known_noise
    if model.known_noise:
        with pytest.raises(ValueError, match="needs noise="):
            back.log_density(NEW, Y[:6])


def test_weights_of_exact_rows(tmp_path):
    model = quick("exact", sample_weight=ROW_NOISE, noise=ROW_NOISE)
    round_trip(model, tmp_path / "model", noise=np.full(6, 0.1))


def test_constant_columns_and_names(tmp_path):
    frame = pd.DataFrame({"a": X[:, 0], "nothing": 1.0, "ß x": X[:, 1]})
    for method in ("svgp", "deep-ensemble"):
        model = quick(method, x=frame)
        model.save(tmp_path / method)
        back = load(tmp_path / method)
        assert back.column_names == ["a", "nothing", "ß x"]
        assert back.columns.tolist() == [True, False, True]
        assert_equal(answers(back, frame[:5]), answers(model, frame[:5]))
        with pytest.raises(ValueError, match="missing a; unknown b"):
            back.predict(frame.rename(columns={"a": "b"}))


def test_the_history_can_be_plotted_again(tmp_path):
    model = quick(epochs=3)
    model.history.records[1] = type(model.history.records[1])(
        2, float("nan"), 0.1, float("inf"), -float("inf")
    )
    model.history.notes.append("a note")
    model.save(tmp_path / "model")
    back = load(tmp_path / "model").history
    assert np.isnan(back[1].loss) and back[1].validation_nll == np.inf and back[1].learning_rate == -np.inf
    assert back.series("epoch") == model.history.series("epoch")
    assert (back.notes, back.solver, back.seconds) == (
        model.history.notes,
        model.history.solver,
        model.history.seconds,
    )


# -- streams -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["svdgp", "ivsgpr", "svi"])
@pytest.mark.parametrize("rows", [12, 40])
def test_streams_at_every_stage_and_onwards(method, rows, tmp_path):
    """Tied bases, freed ones; and a loaded model goes on learning as the saved one would."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", duogp.DataWarning)
        learner = duogp.OnlineGP(method, num_inducing=6, growth=4, batch_size=10, start_rows=8)
        learner.partial_fit(X[:rows], Y[:rows])
    model = learner.gp
    back = round_trip(model, tmp_path / "model", y=Y[:6])
    if isinstance(model.model.basis, Subspace):
        assert back.model.basis.shared == model.model.basis.shared == (rows == 12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", duogp.DataWarning)
        both = [duogp.OnlineGP.from_gp(gp).partial_fit(X, Y).predict(NEW).mean for gp in (back, model)]
    np.testing.assert_allclose(*both, rtol=0, atol=1e-10)


def test_a_stream_is_saved_by_its_gp(tmp_path):
    learner = duogp.OnlineGP("svi", num_inducing=6, start_rows=40).partial_fit(X, Y)
    with pytest.raises(TypeError, match=r"got OnlineGP; save its \.gp"):
        duogp.save(learner, tmp_path / "model")


def test_a_posterior_as_prior(tmp_path):
    model = quick("decoupled")
    basis = model.model.basis
    with torch.no_grad():
        yesterday = basis.state(basis.factors(model.model.numerics))
    points = basis.mean_inducing.detach(), basis.inducing.detach()
    fresh = Subspace(basis.kernel, *points, (1, 1), preconditioner=basis.preconditioner, prior=yesterday)
    fresh.q = basis.q
    model.model.basis = fresh.eval()
    back = round_trip(model, tmp_path / "model")
    for name, value in yesterday._asdict().items():
        torch.testing.assert_close(getattr(back.model.basis.prior, name), value)


def test_replicates(tmp_path):
    rows = [np.arange(30), np.arange(10, 40)]
    for i, model in enumerate(duogp.fit_replicates(X, Y, rows, "svgp-dcdkl", **small("svgp-dcdkl"))):
        round_trip(model, tmp_path / str(i), y=Y[:6])


# -- devices, layers of the interface ------------------------------------------------------------------------


def test_devices(tmp_path, fitted):
    model = fitted["svgp"]
    elsewhere = duogp.GP(model.model, **{**vars_of(model), "settings": model.settings.but(device="cuda:0")})
    elsewhere.save(tmp_path / "model")
    if not torch.cuda.is_available():  # a model of another machine
        assert load(tmp_path / "model").settings.device is None
    back = load(tmp_path / "model", device=torch.device("cpu"))
    assert back.settings.device == "cpu"
    assert_equal(answers(back), answers(model))
    with pytest.raises(ValueError, match="device must be on 'cpu' or 'cuda'") as found:
        load(tmp_path / "model", device="meta")
    assert not isinstance(found.value, SavedModelError)


def vars_of(model: duogp.GP) -> dict:
    names = ("method", "settings", "columns", "x_scaler", "y_scaler", "single_output", "history")
    return {name: getattr(model, name) for name in names}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_to_a_gpu_and_back(fitted, tmp_path):
    for model in fitted.values():
        model.save(tmp_path / "model")
        there = load(tmp_path / "model", device="cuda")
        there.save(tmp_path / "again")
        for back in (there, load(tmp_path / "again", device="cpu")):
            np.testing.assert_allclose(back.predict(NEW).mean, model.predict(NEW).mean, atol=1e-6)


def test_a_predictor_without_a_line_in_the_registry(tmp_path):
    model = fit_neural(X, Y, "deep-ensemble", settings={"epochs": 1, "widths": [4], "members": 2})
    back = round_trip(model, tmp_path / "model")
    assert isinstance(back, NeuralPredictor) and back.method is None


def test_a_kind_of_ones_own(tmp_path, fitted):
    class Wrapper:
        def __init__(self, gp, offset):
            self.gp, self.offset = gp, offset

    def loader(manifest, tensors, *, device=None, objects=None):
        inner = {name.removeprefix("gp/"): t for name, t in tensors.items() if name.startswith("gp/")}
        gp = gp_from_state(manifest["gp"], inner, device=device, objects=objects)
        return Wrapper(gp, float(tensors["offset"]))

    register_kind("wrapper", loader)
    for method in ("dcsvgp", "mc-dropout"):
        part, tensors = gp_state(fitted[method])
        stored = {f"gp/{name}": t for name, t in tensors.items()} | {"offset": torch.tensor(2.5)}
        write_folder(tmp_path / "model", {"kind": "wrapper", "gp": part}, stored)
        back = load(tmp_path / "model")
        assert isinstance(back, Wrapper) and back.offset == 2.5
        assert_equal(answers(back.gp), answers(fitted[method]))
    with pytest.raises(ValueError, match="'gp' is taken"):
        register_kind("gp", loader)


def test_saving_leaves_the_model_alone(fitted, tmp_path):
    for method in ("dsgpc", "exact", "dgp-dc"):
        before = answers(fitted[method])
        save(fitted[method], tmp_path / method)
        assert_equal(answers(fitted[method]), before)
        assert all(p.device.type == "cpu" for p in fitted[method].model.parameters())


def test_a_loaded_model_is_saved_as_the_same_files(fitted, tmp_path):
    for method, model in fitted.items():
        model.save(tmp_path / "first")
        load(tmp_path / "first").save(tmp_path / "second")
        for name in ("manifest.json", "tensors.safetensors"):
            first, second = ((tmp_path / folder / name).read_bytes() for folder in ("first", "second"))
            assert first == second, (method, name)
