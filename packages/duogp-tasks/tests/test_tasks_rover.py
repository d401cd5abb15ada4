"""Rover: values of the plain routine, maps, options."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest

from duogp.bo.tasks import make, names
from duogp.data.benchmark import data_root
from duogp_tasks import rover


@pytest.mark.parametrize("name", ["rover", "rover-small"])
def test_rover_interface(name: str) -> None:
    task = make(name)
    X = np.random.default_rng(0).random((7, task.dims))
    y = task(X)
    assert task.name == name and task.name in names()
    assert task.bounds.shape == (2, task.dims)
    assert y.shape == (7,) and y.dtype == np.float64 and np.isfinite(y).all()
    assert task(X[:0]).shape == (0,)
    # A row's value does not depend on its company.
    np.testing.assert_allclose(np.concatenate([task(X[4:]), task(X[:4])]), np.roll(y, 3), rtol=1e-12)
    assert task.optimum is not None and (y <= task.optimum).all()


def test_rover_options() -> None:
    with pytest.raises(ValueError, match="no option terrain; it knows size, noise, seed"):
        make("rover", terrain=3)
    with pytest.raises(ValueError, match="no option size; it knows noise, seed"):
        make("rover-small", size="large")
    with pytest.raises(ValueError, match="size: expected 'large' or 'small', got 'huge'"):
        make("rover", size="huge")
    X = np.random.default_rng(0).random((3, 20))
    np.testing.assert_array_equal(make("rover", size="small")(X), make("rover-small")(X))


def plain_reward(task: rover.Rover, x: np.ndarray) -> float:
    """The definition, one curve and one square at a time."""
    path = rover.smoothing_spline((-0.1 + 1.2 * x).reshape(-1, 2))
    low, high = task.centres - task.side / 2, task.centres + task.side / 2
    hit = ((path[:, None] >= low) & (path[:, None] < high)).all(-1).any(-1)
    out = ~((path >= 0) & (path < 1)).all(-1)
    cost = 20.0 * (hit | out) + 0.05
    step = np.linalg.norm(np.diff(path, axis=0), axis=1)
    ends = np.abs(path[0] - 0.05).sum() + np.abs(path[-1] - 0.95).sum()
    return float(5 - (step * (cost[1:] + cost[:-1]) / 2).sum() - 10 * ends)


@pytest.mark.parametrize("name", ["rover", "rover-small"])
def test_rover_equals_the_plain_routine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make(name)
    assert isinstance(task, rover.Rover)
    random = np.random.default_rng(0)
    X = random.random((120, task.dims))
    X[60:90] = np.clip(np.round(X[60:90]), 0, 1) * random.uniform(0.95, 1, (30, task.dims))  # near corners
    # Zigzag from corner to corner: what a single cubic leaves of ten such points exceeds the smoothing.
    X[90:] = np.tile([0.0, 0, 1, 1], task.dims // 4) * random.uniform(0.97, 1, (30, task.dims))
    expected = [plain_reward(task, x + 1e-9 * np.arange(task.dims) * (x == 0)) for x in X]
    X = np.where(X == 0, 1e-9 * np.arange(task.dims), X)  # splprep refuses repeated points
    plain = Mock(side_effect=rover.smoothing_spline)
    monkeypatch.setattr(rover, "smoothing_spline", plain)
    np.testing.assert_allclose(task(X), expected, atol=1e-9)
    assert plain.call_count == (0 if name == "rover" else 31)


def test_rover_straight_way_on_a_free_map() -> None:
    path = np.linspace([0.05, 0.05], [0.95, 0.95], 30)
    task = make("rover")
    assert isinstance(task, rover.Rover)
    task._occupied = rover.Occupancy(np.zeros((0, 2)), 0.05)
    x = ((path + 0.1) / 1.2).reshape(1, -1)
    assert task(x)[0] == pytest.approx(5 - 0.05 * 0.9 * np.sqrt(2), abs=1e-9)
    np.testing.assert_allclose(task.trajectory(x[0])[[0, -1]], path[[0, -1]], atol=1e-9)


def test_rover_stays_defined_where_points_repeat() -> None:
    task = make("rover")
    assert np.isfinite(task(np.stack([np.zeros(60), np.ones(60), np.tile([0.0, 0.0, 0.0, 1.0], 15)]))).all()


def test_occupancy_is_half_open() -> None:
    centres = np.array([[0.5, 0.5], [0.525, 0.55]])
    occupied = rover.Occupancy(centres, 0.25)
    grid = np.stack(np.meshgrid(np.linspace(-0.25, 1.25, 61), np.linspace(-0.25, 1.25, 61)), -1).reshape(
        -1, 2
    )
    low, high = centres - 0.125, centres + 0.125
    expected = ((grid[:, None] >= low) & (grid[:, None] < high)).all(-1).any(-1)
    expected |= ~((grid >= 0) & (grid < 1)).all(-1)
    np.testing.assert_array_equal(occupied(grid), expected)
    assert occupied(np.array([0.375, 0.375])) and not occupied(np.array([0.625, 0.4]))


def test_maps() -> None:
    generated = rover.generated_map(113, 0.05)
    assert generated.shape == (113, 2)
    np.testing.assert_array_equal(generated, rover.generated_map(113, 0.05))
    free = rover.Occupancy(generated, 0.05)
    assert not free(rover.START) and not free(rover.GOAL)
    root = data_root()
    if root is None or not (root / "bo" / "rover_obstacles.csv").is_file():
        pytest.skip("the published map is not in DUOGP_DATA")
    published = rover.published_map()
    grid = np.stack(np.meshgrid(*[(np.arange(400) + 0.5) / 400] * 2), -1)
    assert published.shape == (113, 2)
    assert abs(rover.Occupancy(published, 0.05)(grid).mean() - free(grid).mean()) < 0.03
