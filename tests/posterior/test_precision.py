"""`predict(precision="float32")`: within its reported error of float64, and never negative."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import duogp
from duogp import GPClassifier, GPRegressor
from duogp.posterior import incoming, precision
from duogp.posterior.precision import comparison_rows

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (120, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=120)
QUICK: dict[str, Any] = {"num_inducing": 12, "device": "cpu", "random_state": 0}
STEPS: dict[str, Any] = {**QUICK, "steps": 6, "batch_size": 40}
CLASSES = np.digitize(Y, [-0.5, 0.5])

MODELS: dict[str, Callable[[], Any]] = {
    "svgp": lambda: duogp.fit(X, Y, "svgp", epochs=4, **QUICK),
    "stochastic": lambda: duogp.fit(X, Y, "svgp", solver="stochastic", **STEPS),
    "dcsvgp": lambda: duogp.fit(X, Y, "dcsvgp", solver="stochastic", **STEPS),
    "solvegp": lambda: duogp.fit(X, Y, "solvegp", epochs=3, **QUICK),
    "odsvgp": lambda: duogp.fit(X, Y, "odsvgp", epochs=3, **QUICK),
    "map": lambda: duogp.fit(X, Y, "map", **STEPS),
    "exact": lambda: duogp.fit(X, Y, "exact", epochs=3, device="cpu"),
    "trees": lambda: duogp.fit(X, Y, "svgp", mean="trees", epochs=3, **QUICK),
    "network": lambda: duogp.fit(X, Y, "svgp-dkl", widths=[4, 2], **STEPS),
    "features": lambda: duogp.fit(X, Y, "svgp-dkl", widths=[4, 3], inducing_space="feature", **STEPS),
    "linear": lambda: duogp.fit(X, Y, "svgp", kernel=duogp.kernels.Linear(2), epochs=3, **QUICK),
    "deep": lambda: duogp.fit(X, Y, "dgp", **STEPS),
    "outputs": lambda: duogp.fit(X, np.stack([Y, Y**2], 1), "svgp", epochs=3, **QUICK),
    "poisson": lambda: duogp.fit(X, np.round(np.exp(Y)), "svgp", likelihood="poisson", **STEPS),
    "heteroscedastic": lambda: duogp.fit(X, Y, "svgp", likelihood="heteroscedastic", **STEPS),
    "classes": lambda: duogp.fit(X, CLASSES, "svgp", likelihood="classes", **STEPS),
    "stack": lambda: GPRegressor(epochs=3, random_state=0, device="cpu").fit(X, Y).gp_,
    "stack of classes": lambda: GPClassifier(epochs=2, random_state=0, device="cpu").fit(X, Y > 0).gp_,
}


@cache
def model_of(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", duogp.DataWarning)
        return MODELS[name]()


def rows(n: int = 400) -> np.ndarray:
    """Training rows, others like them, and rows far away."""
    rng = np.random.default_rng(1)
    return np.concatenate([X, rng.uniform(-2.2, 2.2, (n, 2)), rng.uniform(-50, 50, (20, 2))])


@pytest.mark.parametrize("in_parts", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_float32_is_within_its_error(name: str, in_parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "TOLERANCE", 10.0)  # whatever the model: its error is what is tested
    model, new = copy.deepcopy(model_of(name)), rows()
    one = model.predict(new, in_parts=in_parts)
    two = model.predict(new, in_parts=in_parts, precision="float32")
    assert one.precision == "float64" and one.error is None
    assert two.precision == "float32" and two.error is not None and two.error.rows > 100
    error = max(two.error.largest, 1e-9)
    assert error < 1e-2
    if hasattr(two, "probabilities"):
        np.testing.assert_allclose(two.probabilities, one.probabilities, rtol=0, atol=error)
        total = one.residual + one.explained + one.disagreement
    else:
        total = one.variance
        assert (np.abs(two.mean - one.mean) <= 2 * error * np.sqrt(total)).all()
        assert (np.abs(two.variance - one.variance) <= 3 * error * total).all()
        assert (two.noise >= 0).all()
    for part in ("residual", "explained"):
        found = getattr(two, part)
        assert (found >= 0).all()
        assert (np.abs(found - getattr(one, part)) <= 2 * error * np.maximum(total, 1e-300)).all()


@pytest.mark.parametrize("name", ["svgp", "solvegp", "classes", "deep", "outputs", "network", "trees"])
def test_many_rows_are_as_single_ones(name: str) -> None:
    """Up to 12 rows the general form answers, from then on that for many."""
    model, new = model_of(name), rows()
    together = model.predict(new)
    alone = model.predict(new[:1]) if name == "deep" else model.predict(new[:11])
    fields = ("residual", "explained") + (() if model.classes is not None else ("mean", "noise"))
    for field in fields:
        part = getattr(alone, field)
        np.testing.assert_allclose(getattr(together, field)[: len(part)], part, rtol=1e-8, atol=1e-10)


def test_a_model_that_float32_cannot_answer_is_answered_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "TOLERANCE", 1e-12)
    model = copy.deepcopy(model_of("svgp"))
    with pytest.warns(duogp.NumericalWarning, match="predicts in float64"):
        found = model.predict(rows(), precision="float32")
    assert found.precision == "float64" and found.error.largest > 1e-12
    np.testing.assert_array_equal(found.variance, model.predict(rows()).variance)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(rows(), precision="float32")  # said once


def test_the_setting_is_the_default_of_the_keyword() -> None:
    gp = duogp.fit(X, Y, "svgp", epochs=2, predict_precision="float32", **QUICK)
    assert gp.predict(X).precision == "float32"
    assert gp.predict(X, precision="float64").precision == "float64"
    estimator = GPRegressor("svgp", settings={"predict_precision": "float32"}, epochs=2, device="cpu")
    estimator.fit(X, Y)
    assert estimator.gp_.settings.predict_precision == "float32"
    assert estimator.predict(X, return_std=True)[1].min() > 0
    with pytest.raises(ValueError, match="precision must be 'float64' or 'float32', got 'half'"):
        gp.predict(X, precision="half")


def test_the_error_is_that_of_the_model() -> None:
    gp = copy.deepcopy(model_of("svgp"))
    assert gp.prediction_error == gp.predict(X, precision="float32").error
    assert 0 <= gp.prediction_error.mean <= gp.prediction_error.largest


def test_rows_that_are_compared_are_of_every_kind() -> None:
    gp = model_of("svgp")
    found = comparison_rows(gp)
    points = gp.inducing_points
    assert np.isfinite(found).all()
    assert (np.abs(found[:, None] - points).sum(-1).min(1) < 1e-12).sum() >= len(points)
    assert np.abs(found).max() > 2 * np.abs(points).max()


def test_memory_is_bounded_by_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows come, the kernel is evaluated for a chunk of them at once."""
    monkeypatch.setattr(incoming, "CHUNK_BYTES", 2**18)
    gp, sizes = copy.deepcopy(model_of("svgp")), []
    from duogp.bases.many_rows import Norms

    before = Norms.__call__
    monkeypatch.setattr(Norms, "__call__", lambda self, k: sizes.append(k.shape[-1]) or before(self, k))
    gp.predict(np.tile(X, (50, 1)), precision="float32")
    gp.predict(np.tile(X, (50, 1)))
    assert max(sizes) <= gp._chunk_rows() < 1000 and sum(sizes) >= 2 * 50 * len(X)


def test_the_precision_of_the_process_is_put_back() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        copy.deepcopy(model_of("svgp")).predict(X, precision="float32")
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
