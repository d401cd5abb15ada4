"""`optimise` of plain functions: in the user's units, up or down, over bounds or a space, on disk."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from duogp.bo import Categorical, Integer, Real, optimise
from duogp.errors import DuoGPWarning

QUICK = {"num_inducing": 10, "first_steps": 5, "warm_start": 0, "candidates": 100}
#: The same for strategies whose GP is chosen by the study: the exact one.
FIRST = {"first_steps": 5, "candidates": 100}
BOUNDS = [(-1.0, 3.0), (10.0, 20.0)]
SPACE = {"x": Real(-1, 3), "n": Integer(1, 9), "kind": Categorical(["a", "b"])}


def bowl(x: np.ndarray) -> float:
    assert -1 <= x[0] <= 3 and 10 <= x[1] <= 20  # in the user's units
    return (x[0] - 1) ** 2 + (x[1] - 12) ** 2 / 10


def of_point(point: dict) -> float:
    assert type(point["n"]) is int
    return (point["x"] - 1) ** 2 + abs(point["n"] - 4) + (point["kind"] == "b")


def test_a_function_with_bounds_is_minimised():
    found = optimise(bowl, "svgp", bounds=BOUNDS, direction="minimise", evaluations=20, **QUICK)
    assert found.task == "bowl" and len(found) == 20
    assert found.best_y == found.y.min() == pytest.approx(bowl(found.best_x))
    assert (np.diff(found.incumbent) <= 0).all() and found.incumbent[-1] == found.best_y


def test_a_function_is_maximised_unless_told_otherwise():
    found = optimise(lambda x: -bowl(x), "random", bounds=BOUNDS, evaluations=20)
    assert found.best_y == found.y.max()


def test_the_default_is_the_model():
    pytest.importorskip("botorch")
    found = optimise(bowl, bounds=BOUNDS, direction="minimise", evaluations=14, initial=6)
    assert found.method == "model" and found.best_y < 0.5


def test_a_function_of_a_space(tmp_path):
    seen = []
    options = {"space": SPACE, "direction": "minimise", "batch_size": 3, "folder": tmp_path / "run"}
    found = optimise(of_point, "turbo", evaluations=12, callback=seen.append, **options, **FIRST)
    assert [trial.number for trial in seen] == list(range(12))
    assert found.best_x == found.points[found.best_row] and of_point(found.best_x) == found.best_y
    assert (tmp_path / "run" / "incumbent.png").stat().st_size > 1000

    calls = []

    def counted(point: dict) -> float:
        calls.append(point)
        return of_point(point)

    longer = optimise(counted, "turbo", evaluations=15, **options, **FIRST)
    assert len(longer) == 15 and len(calls) == 3  # nothing is evaluated twice
    np.testing.assert_array_equal(longer.y[:12], found.y)


def test_a_stopped_run_evaluates_what_was_pending_first(tmp_path):
    options = {"bounds": BOUNDS, "direction": "minimise", "batch_size": 4, "folder": tmp_path / "run"}
    calls = []

    def stopped(x: np.ndarray) -> float:
        if len(calls) == 6:
            raise KeyboardInterrupt
        calls.append(tuple(x))
        return bowl(x)

    with pytest.raises(KeyboardInterrupt):
        optimise(stopped, "random", evaluations=10, **options)

    def counted(x: np.ndarray) -> float:
        calls.append(tuple(x))
        return bowl(x)

    resumed = optimise(counted, "random", evaluations=10, **options)
    assert len(calls) == len(set(calls)) == 10 == len(resumed)
    whole = optimise(bowl, "random", evaluations=10, **options | {"folder": None})
    np.testing.assert_array_equal(resumed.X, whole.X)


@pytest.mark.parametrize("method", ["random", "svgp"])
def test_failures_are_part_of_a_run(method):
    def fragile(x: np.ndarray) -> float:
        if x[0] > 1.5:
            raise ValueError("too large")
        return float("nan") if x[0] < -0.5 else bowl(x)

    settings = QUICK if method == "svgp" else {}
    with pytest.warns(DuoGPWarning, match="trial . failed: ValueError: too large"):
        found = optimise(fragile, method, bounds=BOUNDS, direction="min", evaluations=20, **settings)
    assert len(found) == 20 and np.isnan(found.y).any() and np.isfinite(found.best_y)


def test_a_function_that_never_succeeds_is_an_error():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DuoGPWarning)
        with pytest.raises(RuntimeError, match="all 10 evaluations failed, the last: TypeError"):
            optimise(lambda a, b: a, "random", bounds=BOUNDS)
        with pytest.raises(RuntimeError, match="must be a number"):
            optimise(lambda x: "many", "random", bounds=BOUNDS)


def test_mistakes():
    with pytest.raises(ValueError, match="a function needs bounds"):
        optimise(bowl)
    with pytest.raises(ValueError, match="not both"):
        optimise(bowl, bounds=BOUNDS, space=SPACE)
    with pytest.raises(ValueError, match="regions: only for tasks"):
        optimise(bowl, bounds=BOUNDS, regions=2)
    with pytest.raises(ValueError, match="tasks are maximised"):
        optimise("hartmann6", direction="minimise")
    with pytest.raises(ValueError, match="did you mean 'svgp'"):
        optimise(bowl, "svpg", bounds=BOUNDS)
    with pytest.raises(ValueError, match="evaluations must be"):
        optimise(bowl, bounds=BOUNDS, evaluations=0)


def test_starting_points_are_in_the_users_units():
    found = optimise(bowl, "random", bounds=BOUNDS, evaluations=4, initial=[[0.0, 15.0], [1.0, 12.0]])
    assert found.y[1] == pytest.approx(0.0)
    assert found.y[0] == pytest.approx(bowl(np.array([0.0, 15.0])))
