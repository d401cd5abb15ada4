"""Lunar lander: twelve weights of a hand-written controller for gymnasium's environment (MATH §7.3).

State s = (x, y, ẋ, ẏ, angle, angular velocity, left leg down, right leg down), weights w in [0, 2]¹²:

    angle wanted = clip(s₀ w₀ + s₂ w₁, −w₂, w₂),   height wanted = w₃ |s₀|
    turn = (angle wanted − s₄) w₄ − s₅ w₅,   lift = (height wanted − s₁) w₆ − s₃ w₇
    once a leg is down: turn = w₈, lift = −s₃ w₉
    main engine if lift > |turn| and lift > w₁₀; else right if turn < −w₁₁, left if turn > w₁₁

The value is the mean reward of one episode on each of a fixed set of terrains (the terrain and the first push
follow from its seed), so it is deterministic. The first push is harder than in the environment as it comes.
"""

from __future__ import annotations

import importlib
import multiprocessing
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from duogp.bo.tasks import Floats, Task, at_least, box

NOTHING, LEFT, MAIN, RIGHT = range(4)
FIRST_PUSH = 1500.0  # the environment's INITIAL_RANDOM, 1000 as it comes
STEPS = 1000  # of an episode at most
#: The weights of the controller that comes with the environment.
HEURISTIC = np.array([0.5, 1.0, 0.4, 0.55, 0.5, 1.0, 0.5, 0.5, 0.0, 0.5, 0.05, 0.05])


class Lunar(Task):
    """Mean reward over `terrains` fixed terrains; ``workers`` processes share the episodes."""

    name, dims, bounds = "lunar", 12, box(12, 0.0, 2.0)

    def __init__(self, terrains: int = 50, workers: int = 1, seed: int = 0) -> None:
        super().__init__(seed)
        at_least("terrains", terrains, 1)
        at_least("workers", workers, 1)
        _environment()  # fails here rather than at the first evaluation
        self.terrains, self.workers = terrains, workers
        self._pool: Executor | None = None

    def _evaluate(self, points: Floats) -> Floats:
        first = self.seed * 10_000  # terrains of different seeds do not overlap
        jobs = [(w, first + terrain) for w in points for terrain in range(self.terrains)]
        if self.workers == 1:
            rewards = [episode(*job) for job in jobs]
        else:
            if self._pool is None:
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self.workers, mp_context=context)
            rewards = list(self._pool.map(_episode, jobs, chunksize=max(1, self.terrains // 5)))
        return np.array(rewards, dtype=np.float64).reshape(len(points), self.terrains).mean(1)

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def controller(s: Floats, w: Floats) -> int:
    """The engine to fire in state s."""
    if s[6] or s[7]:
        turn, lift = w[8], -s[3] * w[9]
    else:
        wanted = min(max(s[0] * w[0] + s[2] * w[1], -w[2]), w[2])
        turn = (wanted - s[4]) * w[4] - s[5] * w[5]
        lift = (w[3] * abs(s[0]) - s[1]) * w[6] - s[3] * w[7]
    if lift > abs(turn) and lift > w[10]:
        return MAIN
    return RIGHT if turn < -w[11] else LEFT if turn > w[11] else NOTHING


def episode(w: Floats, terrain: int) -> float:
    """The reward of one landing."""
    module, environment = _environment()
    usual, module.INITIAL_RANDOM = module.INITIAL_RANDOM, FIRST_PUSH  # read by reset alone
    try:
        state, _ = environment.reset(seed=terrain)
    finally:
        module.INITIAL_RANDOM = usual
    total, weights = 0.0, w.tolist()
    for _ in range(STEPS):
        state, reward, ended, _, _ = environment.step(controller(state.tolist(), weights))
        total += reward
        if ended:
            break
    return float(total)


def _episode(job: tuple[Floats, int]) -> float:
    return episode(*job)


@cache
def _environment() -> tuple[Any, Any]:
    """The environment's module and one instance for this process."""
    try:
        module = importlib.import_module("gymnasium.envs.box2d.lunar_lander")
    except Exception as error:  # gymnasium has its own error for a missing Box2D
        raise ImportError(
            "the lunar lander needs gymnasium and Box2D: pip install 'duogp-tasks[lunar]'"
        ) from error
    return module, module.LunarLander()
