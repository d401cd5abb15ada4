"""Deep GPs through `duogp.fit`: what a user sees of them."""

from __future__ import annotations

import numpy as np
import pytest

import duogp
from duogp.kernels import RBF, Scale
from duogp.methods import METHODS
from duogp.posterior.deep import DeepGP
from helpers.fit_tables import table

DEEP = [name for name in METHODS if METHODS[name].is_deep]
QUICK = {"num_inducing": 8, "epochs": 3, "batch_size": 16}
#: The shallow method that one layer of each is.
ONE_LAYER = {"dgp": "svgp", "dgp-solve": "solvegp", "dgp-dc": "dcsvgp", "ddgpc": "dsgpc-free"}


@pytest.mark.parametrize(("deep", "shallow"), ONE_LAYER.items())
def test_one_layer_is_the_shallow_method(deep, shallow):
    X, y = table(60)
    settings = QUICK | {"solver": "stochastic", "epochs": 5}
    one = duogp.fit(X, y, deep, num_layers=1, **settings)
    other = duogp.fit(X, y, shallow, **settings)
    assert isinstance(one, DeepGP) and one.history[-1].loss == pytest.approx(other.history[-1].loss, rel=1e-8)
    for part in ("mean", "residual", "explained", "noise"):
        np.testing.assert_allclose(
            getattr(one.predict(X), part), getattr(other.predict(X), part), rtol=1e-8, atol=1e-8
        )


@pytest.mark.parametrize("layers", [2, 3, 4])
@pytest.mark.parametrize("method", DEEP)
def test_layers_train_in_single_precision_without_a_nan(method, layers):
    X, y = table(60)
    gp = duogp.fit(X, 1e3 + 50 * y, method, num_layers=layers, hidden_width=2, dtype="float32", **QUICK)
    assert len(gp.layer_variances(X)) == layers == len(gp.hyperparameters()["layers"])
    p = gp.predict(X)
    assert np.isfinite(p.mean).all() and (p.variance > 0).all() and 900 < p.mean.mean() < 1100
    assert np.isfinite(gp.log_density(X, 1e3 + 50 * y)).all()
    assert gp.sample(X[:5], 3, seed=0).shape == (3, 5)


@pytest.mark.parametrize("method", [DEEP[0], *(pytest.param(m, marks=pytest.mark.slow) for m in DEEP[1:])])
def test_depth_pays_where_the_function_has_a_step(method):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (200, 1))
    y = np.sign(X[:, 0]) + 0.05 * rng.standard_normal(200)
    gp = duogp.fit(X, y, method, num_inducing=15, kernel="rbf", learning_rate=0.03, steps=300)
    before = duogp.fit(X, y, method, num_inducing=15, kernel="rbf", learning_rate=0.03, steps=2)
    assert gp.predict(X).metrics(y)["rmse"] < 0.5 * before.predict(X).metrics(y)["rmse"]


def test_replicates_are_what_fits_alone_would_be():
    X, y = table(80)
    rows = [np.arange(40), np.arange(40, 80)]
    together = duogp.fit_replicates(X, y, rows, "dgp", **QUICK)
    for r, gp in enumerate(together):
        (alone,) = duogp.fit_replicates(X, y, [rows[r]], "dgp", random_state=r, **QUICK)
        np.testing.assert_allclose(gp.predict(X).mean, alone.predict(X).mean, rtol=1e-6, atol=1e-8)


def test_validation_looks_at_the_mixture_and_not_at_its_moments():
    X, y = table(60)
    gp = duogp.fit(X[:40], y[:40], "dgp", validation=(X[40:], y[40:]), **QUICK)
    scale = gp.y_scaler.scale[0]
    expected = -gp.log_density(X[40:], y[40:]).mean() - np.log(scale)
    assert gp.history.validation_nll == pytest.approx(expected, abs=2e-2)  # other draws


@pytest.mark.parametrize("method", ["dgp", "ddgpc"])
def test_labels_of_any_type(method):
    X, y = table(60)
    labels = np.where(y > 0, "up", "down")
    p = duogp.fit(X, labels, method, likelihood="classes", solver="natural", **QUICK).predict(X)
    assert set(p.labels) <= {"up", "down"} and np.allclose(p.probabilities.sum(1), 1)


def test_several_outputs_and_mixed_ones():
    X, y = table(60)
    Y = np.column_stack([y, -y, X[:, 0]])
    for settings in ({}, {"num_latents": 2}):
        assert duogp.fit(X, Y, "dgp", **QUICK, **settings).predict(X).mean.shape == (60, 3)


def test_a_kernel_object_must_fit_every_layer():
    X, y = table(60, d=3)
    kernel = Scale(RBF(3))
    assert duogp.fit(X, y, "dgp", kernel=kernel, **QUICK).predict(X).mean.shape == (60,)
    with pytest.raises(ValueError, match="hidden_width=3"):
        duogp.fit(X, y, "dgp", kernel=kernel, hidden_width=2, **QUICK)
    with pytest.raises(ValueError, match="shallow methods"):
        duogp.fit(X, y, "dgp", kernel="generalised-rbf", **QUICK)


def test_what_makes_no_sense_is_refused_or_named():
    X, y = table()
    with pytest.raises(ValueError, match="through which nothing is quadratic"):
        duogp.fit(X, y, "dgp", solver="closed-form")
    with pytest.raises(ValueError, match="warm_start trains the last layer on X itself"):
        duogp.fit(X, y, "dgp-dc", warm_start=5, **QUICK | {"hidden_width": 1})
    with pytest.raises(ValueError, match="num_layers must be a positive integer"):
        duogp.fit(X, y, "dgp", num_layers=0)
    with pytest.warns(duogp.DataWarning, match="'svgp' has no use for num_layers"):
        duogp.fit(X, y, "svgp", num_layers=2, **QUICK)
    with pytest.warns(duogp.DataWarning, match="'dgp' has no use for num_residual"):
        duogp.fit(X, y, "dgp", num_residual=2, **QUICK)


def test_the_printed_divergence_is_another():
    X, y = table(60)
    losses = [
        duogp.fit(X, y, "ddgpc", printed_kl=printed, num_residual=4, **QUICK).history[-1].loss
        for printed in (False, True)
    ]
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)
