"""``method="auto"`` on targets that take few values: the law is rounded to them where that pays."""

from __future__ import annotations

import numpy as np
import pytest

import duogp
from duogp.errors import SavedModelError
from duogp.fitting.stacking import mixture_law
from duogp.numerics.rounding import Rounding

LONG = {"time_budget": 600.0, "device": "cpu", "random_state": 0}


def steps(n: int, seed: int = 0, gap: float = 10.0) -> tuple[np.ndarray, np.ndarray]:
    """Smooth values with little noise, recorded in tens."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 2))
    return X, gap * np.round((40 * np.sin(2 * X[:, 0]) + 20 * X[:, 1] + rng.normal(size=n)) / gap)


@pytest.fixture(scope="module")
def fitted():
    X, y = steps(150)
    return duogp.fit(X, y, "auto", **LONG)


def test_a_coarse_grid_is_found_and_said(fitted):
    (law,) = fitted.law
    assert law.rounding is not None
    assert any("takes" in note and "values" in note for note in fitted.history.notes)
    new, truth = steps(400, seed=1)
    prediction = fitted.predict(new)
    plain = prediction.__class__(**{**vars(prediction), "roundings": ()})
    ours, before = prediction.metrics(truth), plain.metrics(truth)
    assert ours["crps"] < 0.97 * before["crps"] and ours["nll"] < before["nll"]
    assert ours["coverage"] >= before["coverage"] and ours["rmse"] == before["rmse"]


def test_quantiles_intervals_and_draws_are_on_the_grid(fitted):
    X, _ = steps(30, seed=2)
    values = fitted.law[0].rounding.values
    prediction = fitted.predict(X)
    for found in (prediction.quantiles([0.1, 0.5, 0.9]), np.stack(prediction.interval())):
        assert np.isin(found, values).all()
    draws = fitted.sample(X, 500, seed=0, observation_noise=True)
    assert np.isin(draws, values).all()
    assert not np.isin(fitted.sample(X, 5, seed=0), values).all()  # of the function
    low, high = prediction.interval(0.8)
    assert ((draws >= low) & (draws <= high)).mean() > 0.75


def test_targets_off_the_grid_have_a_density(fitted):
    X, _ = steps(20, seed=3)
    y = fitted.predict_mean(X) + 1.234
    assert np.isfinite(fitted.log_density(X, y)).all()


def test_saved_and_loaded(fitted, tmp_path):
    X, y = steps(30, seed=4)
    fitted.save(tmp_path / "model")
    again = duogp.load(tmp_path / "model")
    np.testing.assert_array_equal(again.law[0].rounding.values, fitted.law[0].rounding.values)
    np.testing.assert_allclose(again.log_density(X, y), fitted.log_density(X, y), rtol=1e-9)
    np.testing.assert_array_equal(again.predict(X).interval(), fitted.predict(X).interval())


def test_impossible_grids_are_refused():
    from duogp.io.models import _roundings

    good = {"grid_sizes": np.array([2.0]), "grid_values": np.array([1.0, 2.0]), "grid_off": np.array([0.1])}
    assert _roundings(dict(good), 1)[0].off == pytest.approx(0.1)
    for name, value in (
        ("grid_sizes", [3.0]),
        ("grid_sizes", [1.0]),
        ("grid_values", [2.0, 1.0]),
        ("grid_values", [1.0, np.nan]),
        ("grid_off", [0.0]),
        ("grid_off", [1.0]),
    ):
        with pytest.raises(SavedModelError, match="grid"):
            _roundings({**good, name: np.array(value)}, 1)


def test_a_fine_grid_changes_nothing():
    rng = np.random.default_rng(0)
    mean = rng.normal(size=(2, 300))
    y = np.round(mean[0] + rng.normal(size=300), 1)  # steps of a tenth of the errors
    given = y, mean, np.ones((2, 300)), np.zeros(300)
    grid = Rounding(np.unique(y), 0.01)
    law, value = mixture_law(*given, rounding=grid)
    plain, expected = mixture_law(*given)
    assert law.rounding is None and value == expected
    np.testing.assert_array_equal(law.weights, plain.weights)


def test_two_outputs_each_with_a_law_of_its_own():
    X, y = steps(150)
    other = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(5).normal(size=150)
    gp = duogp.fit(X, np.column_stack([y, other]), "auto", **LONG)
    assert gp.law[0].rounding is not None and gp.law[1].rounding is None
    low, high = gp.predict(X[:9]).interval()
    values = gp.law[0].rounding.values
    assert np.isin(low[:, 0], values).all() and not np.isin(low[:, 1], values).any()
    assert (low < high + 1e-12).all()
