"""The model of an optimisation where its user names none, and the priors of its hyperparameters."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import duogp
from duogp.bo import GPSurrogate, choice, optimise
from duogp.bo.choice import choose_method, default_settings, exact_is_affordable, mixed_kernel
from duogp.bo.refit import untrained
from duogp.fitting.factories import lengthscale_prior
from duogp.kernels import RBF, Stationary
from duogp.methods.settings import Settings
from duogp.models.model import Model
from duogp.numerics.parameters import GammaPrior, LogNormalPrior
from helpers.bowl import Bowl


def rows(n: int = 30, d: int = 3) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).random((n, d))
    return X, np.sin(4 * X[:, 0]) + X[:, 1]


# -- the choice ----------------------------------------------------------------------------------------------


def test_the_exact_gp_while_it_is_affordable(monkeypatch):
    X, y = rows()
    assert choose_method(X, y, {"device": "cpu"}) == "exact"
    monkeypatch.setattr(choice, "EXACT_ROWS", {"cpu": 20, "cuda": 20})
    assert choose_method(X, y, {"device": "cpu"}) == "svgp"
    monkeypatch.setattr(choice, "DECOUPLED_ROWS", 20)
    answers = iter([True, False])
    monkeypatch.setattr(choice, "decoupling_helps", lambda *_, **__: next(answers))
    assert choose_method(X, y, {"device": "cpu"}) == "dcsvgp"
    assert choose_method(X, y, {"device": "cpu"}) == "svgp"


def test_a_gpu_affords_more_rows_and_a_loop_fewer():
    assert exact_is_affordable(4000, "cuda") and not exact_is_affordable(4000, "cpu")
    assert exact_is_affordable(900, "cpu") and not exact_is_affordable(900, "cpu", refits=True)


@pytest.mark.parametrize(
    "settings",
    [{"num_inducing": 10}, {"likelihood": "student-t"}, {"solver": "stochastic"}, {"num_latents": 1}],
)
def test_settings_that_only_sparse_methods_read(settings):
    assert choose_method(*rows(), {"device": "cpu"} | settings) == "svgp"


def test_what_the_default_adds_to_the_users_settings():
    own = default_settings({"standardize": True})
    assert own["standardize"] is True and own["lengthscale_prior"] == "dimension"
    assert "lengthscale_prior" not in default_settings({"kernel": RBF(3)})
    assert "noise_prior" not in default_settings({"likelihood": "student-t"})


def test_held_out_rows_decide_on_decoupling(monkeypatch):
    X, y = rows(60)
    noise = np.random.default_rng(1).normal(size=20)
    monkeypatch.setattr(choice, "COMPARED_ROWS", 60)
    monkeypatch.setattr(choice, "HELD_OUT", 20)
    for gain, expected in ((1.0, True), (0.0, False), (-1.0, False)):
        found = {"dcsvgp": noise + gain, "svgp": np.zeros(20)}
        monkeypatch.setattr(choice, "_density", lambda X, y, method, *_, found=found: found[method])
        assert choice.decoupling_helps(X, y, {}) is expected
    assert not choice.decoupling_helps(X, y, {}, noise=np.ones(60))


def test_the_comparison_itself(monkeypatch):
    X, y = rows(60)
    monkeypatch.setattr(choice, "COMPARED_ROWS", 60)
    monkeypatch.setattr(choice, "HELD_OUT", 20)
    monkeypatch.setattr(choice, "COMPARED_POINTS", 8)
    found = choice._density(X, y, "svgp", {"steps": 5, "device": "cpu"}, np.arange(40), np.arange(40, 60))
    assert found.shape == (20,) and np.isfinite(found).all()


def test_turbos_default_begins_exact_and_goes_on_sparse(monkeypatch):
    monkeypatch.setattr(choice, "EXACT_ROWS_OF_LOOPS", {"cpu": 30, "cuda": 30})
    X, y = rows(50)
    first = GPSurrogate.of(first_steps=20).fit(X[:25], y[:25], seed=0)
    assert first.gp.method.name == "exact"
    later = first.fit(X, y, seed=0)
    assert later.gp.method.name == "svgp" and later.rows == 50
    ratio = later.lengthscales() / first.lengthscales()  # it starts from the kernel of the exact one
    assert (np.abs(np.log(ratio)) < 1.5).all()
    assert np.corrcoef(later.draw(X, 1, seed=0)[0], y)[0, 1] > 0.9
    assert GPSurrogate.of("auto", num_inducing=10).method == "svgp"


# -- priors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("standardize", "unit"), [(True, math.sqrt(12)), ("minmax", 2.0), ("cube", 2.0), (False, 1.0)]
)
def test_lengthscales_are_expected_to_grow_with_the_dimension(standardize, unit):
    prior = lengthscale_prior(Settings(lengthscale_prior="dimension", standardize=standardize), 9)
    assert isinstance(prior, LogNormalPrior)
    assert prior.loc == pytest.approx(math.sqrt(2) + math.log(3) + math.log(unit))
    assert prior.scale == pytest.approx(math.sqrt(3))
    own = GammaPrior(3.0, 6.0)
    assert lengthscale_prior(Settings(lengthscale_prior=own), 9) is own
    assert lengthscale_prior(Settings(), 9) is None


def test_training_starts_at_the_modes_of_priors():
    X, y = rows(20)
    gp = untrained(X, y, "exact", **default_settings({}))
    prior = LogNormalPrior(math.sqrt(2) + 0.5 * math.log(3), math.sqrt(3))
    assert _lengthscales(gp.model) / 2 == pytest.approx(prior.mode)  # the cube is [−1, 1] to the model
    assert gp.model.likelihood.noise().item() == pytest.approx(math.exp(-5))
    own = untrained(X, y, "exact", lengthscale_prior=GammaPrior(3.0, 6.0))
    assert _lengthscales(own.model).tolist() == pytest.approx(3 * [2 / 6])
    assert GammaPrior(1.0, 6.0).mode is None  # at the edge: the start is that without a prior
    edge = untrained(X, y, "exact", lengthscale_prior=GammaPrior(1.0, 6.0))
    free = untrained(X, y, "exact")
    np.testing.assert_array_equal(_lengthscales(edge.model), _lengthscales(free.model))


@pytest.mark.parametrize("prior", [LogNormalPrior(-1.0, 0.7), GammaPrior(3.0, 6.0)])
def test_the_mode_of_a_prior_is_where_its_density_is_largest(prior):
    grid = torch.linspace(1e-3, 3, 30_000, dtype=torch.float64)
    assert prior.mode == pytest.approx(float(grid[prior(grid).argmax()]), abs=2e-4)


@pytest.mark.parametrize("method", ["exact", "svgp", "dcsvgp"])
def test_training_minds_the_priors(method):
    X, y = rows(20, 8)
    settings = {"num_inducing": 10} if method != "exact" else {}
    settings |= {
        "steps": 60,
        "optimizer": "adam",
        "learning_rate": 0.2,
        "warm_start": 0,
        "early_stopping": False,
    }
    narrow = {
        "lengthscale_prior": LogNormalPrior(math.log(7.0), 0.01),
        "noise_prior": LogNormalPrior(-2.0, 0.01),
    }
    free = duogp.fit(X, y, method, initial_lengthscale=3.0, **settings)
    tied = duogp.fit(X, y, method, initial_lengthscale=3.0, **settings, **narrow)
    off = [(_lengthscales(gp.model).log() - math.log(7.0)).abs().max() for gp in (tied, free)]
    assert off[0] < 0.3 < off[1]
    noise = tied.model.likelihood.noise().detach().log().flatten()
    assert abs(float(noise[0]) + 2.0) < 0.3


def _lengthscales(model: Model) -> torch.Tensor:
    kernels = [part for part in model.basis.kernel.modules() if isinstance(part, Stationary)]
    return kernels[0].lengthscale().detach().flatten()


def test_a_model_with_priors_is_saved(tmp_path):
    X, y = rows(12)
    priors = {"lengthscale_prior": "dimension", "noise_prior": LogNormalPrior(-4.0, 1.0)}
    gp = duogp.fit(X, y, "exact", steps=3, **priors)
    gp.save(tmp_path / "gp")
    np.testing.assert_allclose(duogp.load(tmp_path / "gp").predict(X).mean, gp.predict(X).mean)


def test_priors_are_checked():
    with pytest.raises(ValueError, match="lengthscale_prior must be 'dimension'"):
        Settings(lengthscale_prior="long")
    with pytest.raises(TypeError, match="noise_prior must be a prior"):
        Settings(noise_prior=0.1)
    X, y = rows(12)
    with pytest.raises(ValueError, match="noise_prior is of Gaussian noise"):
        duogp.fit(X, y, "svgp", likelihood="student-t", noise_prior=LogNormalPrior(0, 1))


def test_the_kernel_of_numbers_and_categories():
    kernel = mixed_kernel(4, [1, -1])
    assert kernel.categorical_columns(4) == {1, 3}
    x = torch.tensor([[0.1, 0.0, 0.3, 2.0], [0.1, 1.0, 0.3, 2.0]], dtype=torch.float64)
    K = kernel(x, x).detach()
    assert K[0, 1] < K[0, 0] == pytest.approx(3.0)
    assert mixed_kernel(1, [0]).categorical_columns(1) == {0}


# -- a run on disk -------------------------------------------------------------------------------------------


def test_a_stopped_run_of_the_default_goes_on(tmp_path, monkeypatch):
    """Also where the model goes over from exact to sparse after the stop."""
    monkeypatch.setattr(choice, "EXACT_ROWS_OF_LOOPS", {"cpu": 16, "cuda": 16})
    options = {"batch_size": 5, "initial": 8, "first_steps": 5, "steps": 3, "plot": False}
    whole = optimise(Bowl(3), evaluations=28, **options)
    assert whole.method == "auto"
    optimise(Bowl(3), evaluations=13, folder=tmp_path / "run", **options)
    resumed = optimise(Bowl(3), evaluations=28, folder=tmp_path / "run", **options)
    np.testing.assert_array_equal(resumed.X, whole.X)
