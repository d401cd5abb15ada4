"""Saved models: every method and every option comes back as it was, here and in another process."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import duogp
from duogp.baselines import NeuralPredictor, fit_neural
from duogp.bases import Subspace
from duogp.io import SavedModelError, gp_from_state, gp_state, load, register_kind, save, write_folder
from duogp.kernels import (
    RBF,
    ActiveDims,
    Constant,
    Deep,
    Hamming,
    Kernel,
    Linear,
    Matern52,
    Periodic,
    RationalQuadratic,
    Scale,
)
from duogp.likelihoods import GammaLikelihood, GaussianLikelihood, RobustMaxLikelihood, SoftmaxLikelihood
from duogp.means import ConstantMean, ModuleMean
from duogp.numerics.networks import MLP
from duogp.numerics.parameters import GammaPrior, LogNormalPrior, Positive, Prior

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=40)
THREE = np.stack([Y, Y**2, -Y], 1)
COUNTS = RNG.poisson(np.exp(Y)).astype(float)
LABELS = np.digitize(Y, [-0.5, 0.5])
NEW = RNG.normal(size=(6, 2))
ROW_NOISE = RNG.uniform(0.05, 0.2, size=40)


def small(method: str) -> dict:
    """Settings of a quick fit."""
    recipe = duogp.METHODS[method]
    if recipe.is_baseline:
        return {"epochs": 1, "widths": [6, 4], "dtype": "float64"}
    points = {} if recipe.basis == "exact" else {"num_inducing": 5}
    networks = {"widths": [6, 3]} if recipe.has_network else {}
    return {"epochs": 1, **points, **networks}


def quick(method: str = "svgp", y=Y, x=X, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", duogp.DataWarning)
        return duogp.fit(x, y, method, **{**small(method), **settings})


@pytest.fixture(scope="module")
def fitted() -> dict:
    """Every method of the registry."""
    return {method: quick(method) for method in duogp.METHODS}


def answers(model, new=NEW, y=None, noise=None) -> dict[str, np.ndarray]:
    """All that a fitted model says about new rows."""
    known = {} if noise is None else {"noise": noise}
    prediction = model.predict(new, **known)
    out = {name: value for name, value in vars(prediction).items() if isinstance(value, np.ndarray)}
    if isinstance(prediction, duogp.ClassPrediction):
        out["proba"] = model.predict_proba(new)
    if y is not None:
        out["log_density"] = model.log_density(new, y, **known)
    if isinstance(model, duogp.GP):
        out["sample"] = model.sample(new, 2, seed=1)
        out["observations"] = model.sample(new, 2, seed=1, observation_noise=True, **known)
        try:
            out["inducing"] = model.inducing_points
        except ValueError as error:
            out["inducing"] = np.array([str(error)])
        out["size"] = np.array(model.num_variational_parameters())
    return out


def assert_equal(found: dict, expected: dict, tolerance: float = 1e-10) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if value.dtype.kind in "fiu":
            np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def round_trip(model, folder: Path, *, new=NEW, y=None, noise=None, objects=None):
    """Save, load, compare everything, and hand the loaded model on."""
    model.save(folder)
    back = load(folder, objects=objects)
    assert type(back) is type(model)
    assert_equal(answers(back, new, y, noise), answers(model, new, y, noise))
    assert back.hyperparameters() == model.hyperparameters()
    if getattr(model.settings, "inducing_space", "input") == "input":
        assert repr(back) == repr(model)
    assert back.history == model.history
    assert back.method is model.method
    own, other = (m.model if isinstance(m, duogp.GP) else m.network for m in (back, model))
    flags = [{name: p.requires_grad for name, p in m.named_parameters()} for m in (own, other)]
    assert flags[0] == flags[1]
    assert not any(m.training for m in own.modules())
    for wrong in (np.zeros((2, 5)), [["a", "b"]], np.full((2, 2), np.nan)):
        with pytest.raises((ValueError, TypeError)) as ours:
            model.predict(wrong)
        with pytest.raises(type(ours.value)) as theirs:
            back.predict(wrong)
        assert str(theirs.value) == str(ours.value)
    return back


@pytest.mark.parametrize("method", list(duogp.METHODS))
def test_every_method_comes_back(method, fitted, tmp_path):
    back = round_trip(fitted[method], tmp_path / "model", y=Y[:6])
    assert plain(back.settings) == plain(fitted[method].settings)


def plain(settings) -> dict:
    return json.loads(json.dumps(settings.to_dict()))


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


# -- options -------------------------------------------------------------------------------------------------

Given = dict
OPTIONS: dict[str, Given] = {
    "float32": Given(dtype="float32"),
    "float32 conditional": Given(method="dcppgpr", dtype="float32"),
    "float32 deep": Given(method="dgp-solve", dtype="float32"),
    "float32 network": Given(method="mc-dropout", dtype="float32"),
    "several outputs": Given(y=THREE),
    "several outputs, exact": Given(method="exact", y=THREE),
    "several outputs, deep": Given(method="ddgpc", y=THREE),
    "several outputs, ensemble": Given(method="deep-ensemble", y=THREE),
    "one output in a column": Given(y=Y[:, None]),
    "mixed latents": Given(y=THREE, num_latents=2),
    "mixed latents, ridge": Given(method="dsgpc", y=THREE, num_latents=2, ridge="contracting"),
    "mixed latents, deep": Given(method="dgp", y=THREE, num_latents=2),
    "shared kernel": Given(y=THREE, shared_kernel=True),
    "heteroscedastic": Given(likelihood="heteroscedastic"),
    "student-t": Given(likelihood="student-t"),
    "poisson": Given(likelihood="poisson", y=COUNTS),
    "gamma": Given(likelihood="gamma", y=COUNTS + 0.5),
    "beta": Given(likelihood="beta", y=1 / (1 + np.exp(-Y))),
    "likelihood object": Given(likelihood=GammaLikelihood(shape=2.0, nodes=12), y=COUNTS + 0.5),
    "gaussian object": Given(likelihood=GaussianLikelihood(floor=1e-5, prior=LogNormalPrior(-2.0, 1.0))),
    "noise that stays": Given(learn_noise=False, initial_noise=0.2),
    "K-whitening": Given(method="dcsvgp", whitening="K", mean_jitter=1e-5, solver="stochastic"),
    "omega of rows": Given(method="dcsvgp", omega="rows", beta2=0.5),
    "blocks of omega": Given(method="dcppgpr", omega="blocks", beta2=0.5),
    "a list of betas": Given(method="ppgpr", beta1=[0.5, 1.0], validation_fraction=0.2),
    "unwhitened point": Given(method="map", log_prior="unwhitened"),
    "robust": Given(method="gamma-robust", gamma=1.1),
    "shrunk": Given(method="dsgpc-eps", epsilon=0.3),
    "more mean points": Given(method="hybrid", num_extra=9, mean_columns=3),
    "nystrom": Given(method="decoupled", preconditioner="nystrom", num_extra=8),
    "generalised points": Given(method="decoupled", kernel="generalised-rbf"),
    "points that stay": Given(learn_inducing=False),
    "a sum by name": Given(kernel="rbf + linear", initial_lengthscale=[0.5, 1.0]),
    "no ard, no scale": Given(ard=False, output_scale=False),
    "linear mean": Given(mean="linear"),
    "mean object": Given(mean=ConstantMean(0.3)),
    "minmax": Given(standardize="minmax"),
    "not scaled": Given(standardize=False),
    "other jitter": Given(jitter=1e-5),
    "feature space": Given(method="svgp-dkl", inducing_space="feature"),
    "feature space, two sets": Given(method="ppgpr-mfd-dkl", inducing_space="feature"),
    "default widths": Given(method="svgp-dcdkl", widths=None),
    "mean widths": Given(method="svgp-dcdkl", mean_widths=[4, 3]),
    "batch normalisation": Given(method="svgp-dkl", normalisation="batch", epochs=2),
    "spectral normalisation": Given(method="nnsvgp", normalisation="spectral"),
    "layer normalisation": Given(method="ppgpr-meandkl", normalisation="layer", activation="tanh"),
    "extractor of ours": Given(method="svgp-dkl", extractor=MLP(2, [5, 2], activation="tanh")),
    "narrow layers": Given(method="dgp", hidden_width=1, num_layers=3),
    "wide layers": Given(method="dgp-dc", hidden_width=3, num_samples=2),
    "few residual points": Given(method="ddgpc-ridge", num_residual=2, ridge="kernel"),
    "one layer": Given(method="dgp", num_layers=1),
    "dropout with its noise": Given(method="mc-dropout", passes=7, dropout=0.3, normalisation="batch"),
    "ensemble of two": Given(method="deep-ensemble", members=2, heteroscedastic=False),
    "a schedule": Given(schedule=lambda fraction: 1.0 - fraction),
    # kernel objects
    "scaled kernel": Given(kernel=Scale(RBF(2, lengthscale=[0.5, 2.0]), 2.0)),
    "sum of kernels": Given(kernel=Scale(RBF(2)) + Scale(Linear(2)) + 0.5),
    "product of kernels": Given(kernel=Scale(Matern52(2, ard=False) * Periodic(2, period=2.0))),
    "columns of kernels": Given(kernel=ActiveDims(RBF(1), 0) + ActiveDims(RationalQuadratic(1), [1])),
    "constant kernel": Given(kernel=Scale(RBF(2)) * Constant() + Constant()),
    "kernel with a prior": Given(kernel=RBF(2, prior=GammaPrior(2.0, 3.0))),
    "scale with a prior": Given(kernel=Scale(RBF(2), prior=LogNormalPrior(0.0, 1.0))),
    "deep kernel object": Given(kernel=Scale(Deep(MLP(2, [4, 3]), RBF(3), 2, 3))),
    "kernel object, conditional": Given(method="dcsvgp", kernel=Scale(RBF(2)), solver="stochastic"),
    "kernel object, deep": Given(method="dgp", kernel=Scale(RBF(2))),
}  # fmt: skip


@pytest.mark.parametrize("name", list(OPTIONS))
def test_options_come_back(name, tmp_path):
    given = dict(OPTIONS[name])
    y = given.get("y", Y)
    model = quick(**given)
    round_trip(model, tmp_path / "model", y=y[:6])


def test_categories(tmp_path):
    codes = np.column_stack([X[:, 0], RNG.integers(0, 3, 40)])
    kernel = Scale(ActiveDims(RBF(1), 0) * ActiveDims(Hamming(1), 1))
    model = quick(x=codes, kernel=kernel)
    back = round_trip(model, tmp_path / "model", new=codes[:5], y=Y[:5])
    assert back.settings.kernel.categorical_columns(2) == {1}
    assert back.x_scaler.scale[1] == 1.0


def test_a_default_likelihood_of_draws_keeps_its_draws(tmp_path, monkeypatch):
    """Predictions do not change if a later version draws other numbers."""
    model = quick(y=LABELS, likelihood="softmax")
    model.save(tmp_path / "model")
    before = model.predict_proba(NEW)
    real = torch.quasirandom.SobolEngine

    def other(dims, scramble, seed):
        return real(dims, scramble=scramble, seed=seed + 7)

    monkeypatch.setattr(torch.quasirandom, "SobolEngine", other)
    np.testing.assert_array_equal(load(tmp_path / "model").predict_proba(NEW), before)


def test_floors_stay_what_they_were(tmp_path, monkeypatch):
    model = quick(likelihood="gamma", y=COUNTS + 0.5)
    model.save(tmp_path / "model")
    made = Positive.__init__

    def later(self, *args, floor=0.0, **kwargs):
        made(self, *args, floor=floor + 0.25, **kwargs)

    monkeypatch.setattr(Positive, "__init__", later)
    back = load(tmp_path / "model")
    assert_equal(answers(back), answers(model))


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


# -- objects of the user -------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, width), nn.Linear(width, 3)
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x))) + self.shift


class OwnKernel(Kernel):
    """A kernel of somebody else's."""

    def __init__(self) -> None:
        super().__init__()
        self.width = Positive(1.0)

    def forward(self, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        return torch.exp(-torch.cdist(x1, x2).square() * self.width()[..., None, None].to(x1))

    def diag(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x, x).diagonal(dim1=-2, dim2=-1)


class OwnPrior(Prior):
    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return -value


def test_own_extractor(tmp_path):
    torch.manual_seed(0)
    model = quick("svgp-dkl", extractor=Net())
    model.save(tmp_path / "model")
    with pytest.raises(
        SavedModelError, match=r"'extractor' \(it was a .*Net\).*objects=\{'extractor': \.\.\.\}"
    ):
        load(tmp_path / "model")
    mine = Net()
    before = mine.a.weight.detach().clone()
    back = round_trip(model, tmp_path / "model", y=Y[:6], objects={"extractor": mine})
    assert torch.equal(mine.a.weight, before)  # what was handed over is left alone
    assert back.settings.extractor is mine
    for wrong in (Net(5), nn.Linear(2, 3), nn.Linear(7, 3), "net", object()):
        with pytest.raises(SavedModelError):
            load(tmp_path / "model", objects={"extractor": wrong})
    with pytest.raises(SavedModelError, match=r"'extracter', unknown to this model: .* extractor"):
        load(tmp_path / "model", objects={"extracter": mine})
    with pytest.raises(TypeError, match="objects must be a mapping"):
        load(tmp_path / "model", objects=[mine])


def test_two_extractors(tmp_path):
    model = quick("svgp-dcdkl", extractor=Net(), mean_extractor=Net(3))
    round_trip(model, tmp_path / "model", objects={"extractor": Net(), "mean_extractor": Net(3)})


def test_places_within_kernels_and_means(tmp_path):
    kernel = Scale(RBF(2)) + Scale(Deep(Net(), Matern52(3), 2, 3)) + Scale(OwnKernel())
    model = quick(kernel=kernel, mean=ModuleMean(nn.Linear(2, 1)))
    model.save(tmp_path / "model")
    places = {
        "kernel.1.kernel.extractor": Net(),
        "kernel.2.kernel": OwnKernel(),
        "mean.module": nn.Linear(2, 1),
    }
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert manifest["objects"].keys() == places.keys()
    round_trip(model, tmp_path / "model", objects=places)
    del places["mean.module"]
    with pytest.raises(SavedModelError, match=r"'mean\.module' \(it was a torch\.nn.*\.Linear\)"):
        load(tmp_path / "model", objects=places)


def test_own_mean_of_a_deep_gp(tmp_path):
    model = quick("dgp", mean=nn.Linear(2, 1))
    round_trip(model, tmp_path / "model", objects={"mean": nn.Linear(2, 1)})


def test_gpytorch_kernels(tmp_path):
    gpytorch = pytest.importorskip("gpytorch")

    def kernel():
        return gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))

    model = quick(kernel=kernel())
    round_trip(model, tmp_path / "model", y=Y[:6], objects={"kernel": kernel()})
    model = quick(kernel=duogp.kernels.GPyTorchKernel(kernel()) + RBF(2))
    round_trip(model, tmp_path / "sum", y=Y[:6], objects={"kernel.0.kernel": kernel()})


def test_what_training_alone_needs_may_be_missing(tmp_path):
    def schedule(fraction: float) -> float:
        return 1.0 - fraction

    model = quick(kernel=RBF(2, prior=OwnPrior()), schedule=schedule)
    back = round_trip(model, tmp_path / "model")
    assert back.settings.schedule is None
    assert back.settings.kernel.lengthscale.prior is None
    network = quick("deep-ensemble", schedule=schedule)
    assert round_trip(network, tmp_path / "network").settings.schedule == "cosine"
    prior = OwnPrior()
    back = load(tmp_path / "model", objects={"schedule": schedule, "kernel.prior": prior})
    assert back.settings.schedule is schedule
    assert back.settings.kernel.lengthscale.prior is prior


def test_kernel_objects_come_back_as_they_were_given(tmp_path):
    kernel = Scale(RBF(2, lengthscale=[0.5, 2.0]), 3.0) + Periodic(2, ard=False, period=4.0)
    kernel.kernels[0].kernel.lengthscale.raw.requires_grad_(False)
    model = quick(kernel=kernel)
    model.save(tmp_path / "model")
    back = load(tmp_path / "model").settings.kernel
    assert repr(back) == repr(kernel)
    flags = [{name: p.requires_grad for name, p in k.named_parameters()} for k in (back, kernel)]
    assert flags[0] == flags[1]


def test_loading_leaves_the_random_numbers_of_the_process_alone(tmp_path):
    quick("svgp-dkl", extractor=MLP(2, [4, 2])).save(tmp_path / "model")
    state = torch.get_rng_state()
    load(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), state)


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
