"""Devices of a fit: CUDA by itself where there is a GPU, arrays come back, and the numbers agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import duogp
from duogp.methods.settings import Settings
from duogp.sklearn import GPRegressor
from helpers.devices import DEVICES
from helpers.fit_tables import table

BEST = DEVICES[-1]  # "cuda" where there is one
METHODS = ["svgp", "dcsvgp", "ppgpr", "solvegp", "hybrid", "exact", "dgp"]


def settings_of(method: str) -> dict:
    return {} if method == "exact" else {"num_inducing": 8}


def device_of(gp: duogp.GP) -> str:
    (found,) = {p.device.type for p in gp.model.parameters()}
    return found


@pytest.mark.usefixtures("product_default_device")
def test_the_default_is_cuda_where_there_is_one() -> None:
    assert Settings().torch_device.type == BEST
    assert Settings(device="cpu").torch_device.type == "cpu"


def test_tests_fit_on_the_cpu() -> None:
    assert Settings().torch_device.type == "cpu"
    assert device_of(duogp.fit(*table(), "svgp", epochs=1, num_inducing=4)) == "cpu"


@pytest.mark.usefixtures("product_default_device")
@pytest.mark.parametrize("method", METHODS)
def test_a_fit_goes_there_by_itself_and_predicts_arrays(method: str) -> None:
    X, y = table()
    gp = duogp.fit(X, y, method, epochs=2, **settings_of(method))
    assert device_of(gp) == BEST
    prediction = gp.predict(X[:5])
    for part in (prediction.mean, prediction.std, prediction.residual, prediction.noise):
        assert isinstance(part, np.ndarray) and np.isfinite(part).all()
    assert isinstance(gp.log_density(X, y), np.ndarray)
    assert isinstance(gp.sample(X[:5], 3, seed=0), np.ndarray)


@pytest.mark.usefixtures("product_default_device")
@pytest.mark.parametrize("ridge", ["printed", "kernel", "contracting"])
def test_ridge_covariances_of_many_columns_and_points_train_there(ridge: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 70))
    y = X[:, 0] + 0.1 * rng.normal(size=150)
    gp = duogp.fit(X, y, "dsgpc", ridge=ridge, num_inducing=70, num_extra=70, solver="stochastic", steps=3)
    assert device_of(gp) == BEST
    assert np.isfinite(gp.predict(X[:5]).std).all()


@pytest.mark.usefixtures("product_default_device")
def test_labels_and_estimators_go_there_too(tmp_path) -> None:
    X, y = table()
    labels = np.where(y > np.median(y), "high", "low")
    classifier = duogp.fit(X, labels, "svgp", likelihood="classes", epochs=2, num_inducing=8)
    assert device_of(classifier) == BEST
    assert isinstance(classifier.predict_proba(X[:5]), np.ndarray)
    duogp.save(classifier, tmp_path / "model")
    assert device_of(duogp.load(tmp_path / "model")) == BEST
    estimator = GPRegressor("svgp", num_inducing=8, epochs=2).fit(X, y)
    assert isinstance(estimator.predict(X[:5]), np.ndarray)


@pytest.mark.parametrize("method", [m for m in METHODS if m != "dgp"])  # whose draws are the device's own
def test_every_device_learns_the_same(method: str, device: torch.device) -> None:
    """Two epochs in float64: sums differ in their order alone."""
    X, y = table()
    given = {"epochs": 2, **settings_of(method)}
    found = duogp.fit(X, y, method, device=str(device), **given).predict(X)
    expected = duogp.fit(X, y, method, device="cpu", **given).predict(X)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.std, expected.std, rtol=1e-6, atol=1e-6)
