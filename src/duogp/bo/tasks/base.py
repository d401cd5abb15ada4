"""The base class of tasks: points of the unit cube in, values to be maximised out."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import ArrayLike

from duogp.bo.candidates import Floats


class Task(ABC):
    """A function on [0, 1]^d; larger is better.

    Noise of the i-th evaluation depends on `seed` and i alone. `evaluated` counts the evaluations, so a run
    that is resumed at evaluation n sets it to n and draws the same noise as an uninterrupted one.
    """

    name: str
    dims: int
    bounds: Floats  # [2, d], the cube in the task's own units
    noisy = False
    optimum: float | None = None  # the best noise-free value, where it is known
    perturbed: int | None = None  # coordinates to move at once, where they mean something only together

    def __init__(self, seed: int = 0, noise: float = 0.0) -> None:
        at_least("noise", noise, 0)
        self.seed, self.noise, self.noisy = seed, noise, self.noisy or noise > 0
        self.evaluated = 0

    def __call__(self, X: ArrayLike) -> Floats:
        """Values [n] of the points X [n, d] of the cube."""
        points = self._in_units(X)
        values = self._evaluate(points) if len(points) else np.zeros(0)
        self.evaluated += len(points)
        return values

    @abstractmethod
    def _evaluate(self, points: Floats) -> Floats:
        """Values of points in the task's own units; called before `evaluated` counts them."""

    def close(self) -> None:
        """Release what the task holds beyond memory, such as worker processes."""

    def _gaussian(self, count: int, *shape: int) -> Floats:
        """Standard normal numbers [count, *shape] for the next `count` evaluations."""
        seeds = ([self.seed, self.evaluated + i] for i in range(count))
        return np.stack([np.random.default_rng(seed).standard_normal(shape) for seed in seeds])

    def _in_units(self, X: ArrayLike) -> Floats:
        """Points [n, d] of the cube in the task's own units; an error where they are none of the cube."""
        points = np.asarray(X, dtype=np.float64)
        if points.ndim != 2 or points.shape[1] != self.dims:
            raise ValueError(f"X: {self.name} expects [n, {self.dims}], got shape {points.shape}")
        if not np.isfinite(points).all():
            raise ValueError("X: contains NaN or infinity")
        if points.size and (points.min() < 0 or points.max() > 1):
            raise ValueError(
                f"X: points must lie in the cube [0, 1]^{self.dims}, got values from {points.min():g} to "
                f"{points.max():g}"
            )
        return self.bounds[0] + (self.bounds[1] - self.bounds[0]) * points

    def __repr__(self) -> str:
        return f"<task {self.name}, {self.dims} dimensions>"


def box(dims: int, low: float, high: float) -> Floats:
    """Bounds [2, dims], the same in every dimension."""
    return np.array([[low] * dims, [high] * dims])


def at_least(name: str, value: float, smallest: float) -> None:
    """A ValueError that names the option where its value is too small."""
    if not value >= smallest:
        raise ValueError(f"{name}: expected at least {smallest:g}, got {value!r}")
