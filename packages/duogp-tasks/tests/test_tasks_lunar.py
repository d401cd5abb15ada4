"""Lunar lander: the controller by hand and beside the environment's own, rewards, the worker pool."""

from __future__ import annotations

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from duogp.bo.tasks import make
from duogp_tasks import lunar

needs_lunar = pytest.mark.skipif(
    importlib.util.find_spec("gymnasium") is None or importlib.util.find_spec("Box2D") is None,
    reason="gymnasium[box2d] is not installed",
)


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


def test_absent_gymnasium_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium.envs.box2d.lunar_lander", None)
    lunar._environment.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'duogp-tasks\[lunar\]'"):
        make("lunar")
