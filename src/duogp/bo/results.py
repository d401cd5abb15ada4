"""`Result`: the evaluations of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duogp.bo.candidates import Floats
from duogp.bo.journal import Evaluated
from duogp.bo.spaces import Point
from duogp.bo.studies.goals import MAXIMISE


@dataclass(frozen=True, eq=False)
class Result:
    """Every evaluation of a run, in order."""

    task: str
    method: str
    X: Floats  # [n, d] in the cube
    y: Floats  # [n]
    batch: NDArray[np.int64]  # [n], which batch a row belongs to
    bounds: Floats
    optimum: float | None = None  # of the task, where it is known
    direction: str = MAXIMISE
    points: list[Point] | None = None  # of a search space; their rows of the cube are X

    @classmethod
    def of(
        cls, task: str, method: str, batches: list[Evaluated], bounds: ArrayLike, optimum: float | None
    ) -> Result:
        """The batches of a run, one after the other; bounds [2, d]."""
        low_high = np.asarray(bounds, dtype=np.float64)
        X = np.concatenate([low_high[:0], *(batch.proposal.X for batch in batches)])
        y = np.concatenate([np.empty(0), *(batch.y for batch in batches)])
        sizes = np.array([len(batch.y) for batch in batches], dtype=np.int64)
        return cls(task, method, X, y, np.repeat(np.arange(len(batches)), sizes), low_high, optimum)

    @property
    def incumbent(self) -> Floats:
        """The best value after each evaluation, [n]; NaN before the first that did not fail."""
        return (np.fmax if self.direction == MAXIMISE else np.fmin).accumulate(self.y)

    @property
    def best_row(self) -> int:
        """The number of the best evaluation, from 0."""
        if not np.isfinite(self.y).any():
            raise ValueError(f"none of {len(self)} evaluations has a value")
        return int(np.nanargmax(self.y) if self.direction == MAXIMISE else np.nanargmin(self.y))

    @property
    def best_y(self) -> float:
        """The value of the best evaluation."""
        return float(self.y[self.best_row])

    @property
    def best_x(self) -> Any:
        """The point of the best value: an array in the task's own units, or a point of a search space."""
        if self.points is not None:
            return self.points[self.best_row]
        low, high = self.bounds
        return low + (high - low) * self.X[self.best_row]

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        best = f"best {self.best_y:.6g}" if np.isfinite(self.y).any() else "no value"
        return f"Result({self.task}, {self.method}, {len(self)} evaluations, {best})"
