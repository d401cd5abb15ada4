"""Tasks: values known by hand or from the plain routine, clear errors, noise that can be repeated."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest

from duogp.bo.tasks import lunar, make, names, rover
from duogp.data.benchmark import data_root

PLAIN = ("ackley", "hartmann6", "push", "rover", "rover-small")  # no optional package
needs_lunar = pytest.mark.skipif(
    importlib.util.find_spec("gymnasium") is None or importlib.util.find_spec("Box2D") is None,
    reason="gymnasium[box2d] is not installed",
)


@pytest.mark.parametrize("name", PLAIN)
def test_interface(name: str) -> None:
    task = make(name)
    X = np.random.default_rng(0).random((7, task.dims))
    y = task(X)
    assert task.name == name and task.name in names()
    assert task.bounds.shape == (2, task.dims)
    assert y.shape == (7,) and y.dtype == np.float64 and np.isfinite(y).all()
    assert task(X[:0]).shape == (0,)
    if not task.noisy:  # a row's value does not depend on its company
        np.testing.assert_allclose(np.concatenate([task(X[4:]), task(X[:4])]), np.roll(y, 3), rtol=1e-12)
    if task.optimum is not None:
        assert (y <= task.optimum).all()


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ValueError, match="did you mean rover"):
        make("rovr")
    with pytest.raises(ValueError, match="no option terrain; it knows size, noise, seed"):
        make("rover", terrain=3)
    with pytest.raises(ValueError, match="no option size"):
        make("rover-small", size="large")
    with pytest.raises(ValueError, match="noise: expected at least 0"):
        make("hartmann6", noise=-1.0)
    task = make("hartmann6")
    with pytest.raises(ValueError, match=r"expects \[n, 6\], got shape \(6,\)"):
        task(np.zeros(6))
    with pytest.raises(ValueError, match=r"cube \[0, 1\]\^6, got values from 0 to 1.5"):
        task([[0, 0, 0, 0, 0, 1.5]])
    with pytest.raises(ValueError, match="NaN"):
        task(np.full((1, 6), np.nan))


def test_noise_depends_on_seed_and_count_alone() -> None:
    X = np.full((4, 10), 0.3)
    task = make("ackley", noise=0.5, seed=3)
    y = task(X)
    assert task.noisy and len(set(y)) == 4
    again = make("ackley", noise=0.5, seed=3)
    again.evaluated = 2
    np.testing.assert_array_equal(again(X[:2]), y[2:])
    assert not np.array_equal(make("ackley", noise=0.5, seed=4)(X), y)


# --- textbook functions -------------------------------------------------------------------------------------


def test_textbook_maxima() -> None:
    best = [[0.20168952, 0.15001069, 0.47687398, 0.27533243, 0.31165162, 0.65730053]]
    hartmann = make("hartmann6")
    assert hartmann.optimum is not None
    assert hartmann(best)[0] == pytest.approx(hartmann.optimum, abs=1e-10)
    ackley = make("ackley", dims=4)
    assert ackley(np.full((1, 4), 1 / 3))[0] == pytest.approx(0.0, abs=1e-12)
    # x = (1, …, 1): every cosine is one, the distance is one
    expected = 20 * np.exp(-0.2) + np.e - 20 - np.e
    assert ackley(np.full((1, 4), 6 / 15))[0] == pytest.approx(expected, abs=1e-12)


# --- rover --------------------------------------------------------------------------------------------------


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


# --- pushing ------------------------------------------------------------------------------------------------


def push_point(**parameters: float) -> np.ndarray:
    """Hand 1 as said, hand 2 far away and at rest; in the cube."""
    task = make("push")
    own = {"x": 0.0, "y": 0.0, "vx": 0.0, "vy": 0.0, "turn": 0.0, "delay": 0.0, "duration": 1.0} | parameters
    raw = np.array([*own.values(), 5.0, 5.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    return ((raw - task.bounds[0]) / (task.bounds[1] - task.bounds[0]))[None]


def test_push() -> None:
    task = make("push", noise=0.0)
    assert task(push_point(x=-5.0, y=5.0))[0] == 0.0  # touches nothing
    # From the left through the middle of the upper disc, two units far: it ends 1.7 in front of the hand.
    gain = task(push_point(x=-2.0, y=2.0, vx=2.0, duration=2.0))[0]
    end = np.array([2.0 + 1.7, 2.0])
    assert gain == pytest.approx(np.hypot(4, 1.5) - np.linalg.norm(end - [4.0, 3.5]), abs=0.02)
    assert task(push_point(x=-2.0, y=2.0, vx=2.0, duration=2.0, delay=2.0))[0] == pytest.approx(
        gain, abs=1e-9
    )
    assert task(push_point(x=2.0, y=2.0, vx=-2.0, duration=2.0))[0] < 0  # away from its goal


# --- lunar lander -------------------------------------------------------------------------------------------


def test_lunar_controller_by_hand() -> None:
    w = lunar.HEURISTIC
    falling = np.array([0.0, 1.0, 0.0, -3.0, 0.0, 0.0, 0, 0])  # lift = (0 − 1)/2 + 3/2 = 1 > 0.05
    assert lunar.controller(falling, w) == lunar.MAIN
    tilted = np.array([0.0, 1.0, 0.0, 0.0, 0.5, 0.0, 0, 0])  # turn = −0.25, lift = −0.5
    assert lunar.controller(tilted, w) == lunar.RIGHT
    assert lunar.controller(tilted * [1, 1, 1, 1, -1, 1, 1, 1], w) == lunar.LEFT
    landed = np.array([0.0, 0.0, 0.0, -0.05, 0.5, 0.0, 1, 0])  # turn = 0, lift = 0.025 < 0.05
    assert lunar.controller(landed, w) == lunar.NOTHING


@needs_lunar
def test_lunar_controller_is_the_environments_own() -> None:
    from gymnasium.envs.box2d import lunar_lander

    environment = lunar_lander.LunarLander()
    random = np.random.default_rng(0)
    for _ in range(300):
        s = random.normal(size=8) * [0.5, 0.7, 0.5, 0.5, 0.4, 0.4, 0, 0]
        s[6:] = random.random(2) < 0.2
        assert lunar.controller(s, lunar.HEURISTIC) == lunar_lander.heuristic(environment, s)


@needs_lunar
def test_lunar_rewards() -> None:
    task = make("lunar", terrains=5)
    X = np.stack([lunar.HEURISTIC / 2, np.full(12, 0.5), np.zeros(12)])
    y = task(X)
    assert y[0] > 100 > y[2]
    np.testing.assert_array_equal(task(X[::-1])[::-1], y)  # nothing is carried from episode to episode
    assert not np.array_equal(make("lunar", terrains=5, seed=1)(X), y)
    from gymnasium.envs.box2d import lunar_lander

    assert lunar_lander.INITIAL_RANDOM == 1000.0  # left as it was found


@needs_lunar
def test_lunar_episodes_from_a_pool_keep_their_order() -> None:
    X = np.stack([lunar.HEURISTIC / 2, np.full(12, 0.3)])
    task = make("lunar", terrains=7, workers=2)
    assert isinstance(task, lunar.Lunar)
    task._pool = ThreadPoolExecutor(1)  # processes take seconds to start
    np.testing.assert_array_equal(task(X), make("lunar", terrains=7)(X))
    task.close()
    assert task._pool is None
