"""`duogp.fit`: settings and their mistakes, what has no effect, what is chosen."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import duogp
from duogp.errors import DataWarning
from duogp.methods.settings import Settings
from helpers.fit_tables import table

# -- settings --------------------------------------------------------------------------------------------

BAD_SETTINGS = [
    *(
        (name, value)
        for name in (
            "num_inducing", "num_extra", "batch_size", "patience", "omega_block", "epochs", "evaluate_every"
        )
        for value in (0, -1, 2.5, True, "3")
    ),
    *(
        (name, value)
        for name in ("learning_rate", "initial_lengthscale", "initial_noise", "jitter")
        for value in (0.0, -1.0, np.nan, np.inf, "1", True)
    ),
    *((name, value) for name in ("beta1", "beta2") for value in (-1.0, np.nan, np.inf, "1", [], [1.0, -1.0])),
    ("beta1", 0.0), ("beta1", None), ("beta1", [1.0, 0.0]),
    ("gamma", 1.0), ("gamma", "2"), ("gamma", np.nan),
    ("validation_fraction", 1.0), ("validation_fraction", -0.1), ("validation_fraction", "0.1"),
    ("solver", "adam"), ("whitening", "k"), ("log_prior", "flat"), ("dtype", "float16"), ("backend", "jit"),
    ("standardize", "robust"), ("omega", "none"), ("inducing_init", "kmeanz"), ("schedule", "linear"),
    ("likelihood", "poison"), ("kernel", "matern72"), ("kernel", 3), ("mean", "quadratic"), ("mean", 3),
    ("ard", "no"), ("learn_inducing", "yes"), ("verbose", "loud"), ("early_stopping", "maybe"),
    ("device", "gpu"), ("device", "meta"), ("device", 1.5),
    ("random_state", 1.5), ("random_state", -1), ("random_state", 2**64),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_SETTINGS, ids=lambda v: repr(v))
def test_bad_settings_are_refused_by_name(name, value):
    with pytest.raises((ValueError, TypeError), match=name) as caught:
        duogp.fit(*table(), "svgp", **{"num_inducing": 5, "epochs": 1, name: value})
    shown = re.escape(repr(value)) if not isinstance(value, float) else ""
    assert re.search(shown, str(caught.value))  # what came


def test_unknown_settings_get_a_hint():
    with pytest.raises(TypeError, match="unknown setting 'num_inducin'; did you mean 'num_inducing'"):
        duogp.fit(*table(), num_inducin=3)
    with pytest.raises(TypeError, match=r"unknown setting 'zzz'; the settings are num_inducing"):
        duogp.fit(*table(), zzz=3)


def test_an_unknown_method_gets_a_hint():
    with pytest.raises(ValueError, match="unknown method 'dcsvpg'; did you mean 'dcsvgp'"):
        duogp.fit(*table(), "dcsvpg")


def test_cuda_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device is 'cuda', but this torch sees no CUDA device"):
        duogp.fit(*table(), device="cuda")
    with pytest.raises(ValueError, match="'graph' needs parameters on a CUDA device"):
        duogp.fit(*table(), "svgp", num_inducing=5, device="cpu", backend="graph")


def test_numpy_values_and_torch_dtypes_are_plain_values():
    chosen = Settings.of(
        {
            "num_inducing": np.int64(7),
            "learning_rate": np.float32(0.5),
            "ard": np.bool_(False),
            "random_state": np.int32(3),
            "beta1": np.array([0.5, 1.0]),
            "dtype": torch.float32,
        }
    )
    plain = chosen.to_dict()
    assert plain["num_inducing"] == 7 and type(plain["num_inducing"]) is int
    assert plain["learning_rate"] == 0.5 and plain["ard"] is False
    assert plain["beta1"] == [0.5, 1.0] and plain["dtype"] == "float32"


@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "ppgpr-mfd"])
def test_more_inducing_points_than_rows_are_reduced(method):
    X, y = table(12)
    with pytest.warns(DataWarning, match=r"num_inducing is 100, but there are \d+ training rows"):
        gp = duogp.fit(X, y, method, num_inducing=100, epochs=2)
    assert gp.model.basis.inducing.shape[-2] <= 12
    assert np.isfinite(gp.predict(X).mean).all()


def test_num_extra_is_the_size_of_the_second_block():
    X, y = table()
    gp = duogp.fit(X, y, "ppgpr-mfd", num_inducing=5, num_extra=11, epochs=1)
    assert gp.model.basis.mean_inducing.shape[-2] == 11
    with pytest.warns(DataWarning, match="num_extra is 99"):
        duogp.fit(X, y, "ppgpr-mfd", num_inducing=5, num_extra=99, epochs=1)


@pytest.mark.parametrize("init", ["random", "kmeans", "greedy"])
def test_inducing_points_can_stay_where_they_start(init):
    X, y = table()
    fixed = [
        duogp.fit(X, y, "svgp", num_inducing=6, inducing_init=init, learn_inducing=False, epochs=epochs)
        for epochs in (1, 6)
    ]
    assert torch.equal(fixed[0].model.basis.inducing, fixed[1].model.basis.inducing)


def test_noise_can_be_held_fixed():
    gp = duogp.fit(*table(), "svgp", num_inducing=6, epochs=5, learn_noise=False, initial_noise=0.25)
    assert gp.hyperparameters()["noise"] == pytest.approx(0.25, rel=1e-5)


def test_ard_and_isotropic_lengthscales():
    X, y = table(60, 3)
    relevant, *others = duogp.fit(X, y, "svgp", num_inducing=15, epochs=100).hyperparameters()["lengthscale"]
    assert relevant < min(others)
    one = duogp.fit(X, y, "svgp", num_inducing=15, epochs=3, ard=False).hyperparameters()["lengthscale"]
    assert isinstance(one, float)


def test_doubled_noise_trains_with_twice_the_noise_and_predicts_with_one():
    """The published script of DCPPGPR maximises log N(y | μ, v + 2s²): half the noise of the formula."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 1))
    y = 3.0 * rng.normal(size=300)
    given = {"solver": "stochastic", "steps": 600, "num_inducing": 5, "learning_rate": 0.1}
    given |= {"validation_fraction": 0, "standardize": False, "device": "cpu", "batch_size": 300}
    # A point q(u) and k(x, x) = 1: nearly all variance is noise.
    given |= {"kernel": "rbf", "output_scale": False, "initial_noise": 5.0}
    plain, doubled = (duogp.fit(X, y, "ppgpr-delta", doubled_noise=on, **given) for on in (False, True))
    noises = [float(np.ravel(model.hyperparameters()["noise"])[0]) for model in (plain, doubled)]
    assert noises[1] / noises[0] == pytest.approx(0.5, rel=0.05)
    assert np.mean(doubled.predict(X).std) < 0.85 * np.mean(plain.predict(X).std)
    with pytest.raises(ValueError, match="doubled_noise needs a Gaussian likelihood"):
        duogp.fit(X, y > 0, "ppgpr-chol", likelihood="bernoulli", doubled_noise=True, **given)
    with pytest.warns(DataWarning, match="no use for doubled_noise"):
        duogp.fit(X, y, "svgp", doubled_noise=True, **given | {"steps": 1})
