"""Split-conformal intervals and sets: coverage for any model, from rows that were not used in training.

If the calibration rows and a new row are exchangeable, and the score of a row is a function of the row and of
a model fitted without them, then the new score is at most the ⌈(n+1) level⌉-th smallest of the n known ones
with probability at least ``level`` (Vovk, Gammerman, Shafer 2005).

    numbers   s = (y − m)/(q₉₅ − m) above the model's median m, (m − y)/(m − q₀₅) below
              interval [m − ŝ (m − q₀₅), m + ŝ (q₉₅ − m)]
    classes   s = 1 − p(y | x);   set {c : p(c | x) ≥ 1 − ŝ}

For Gaussian noise s is |y − μ|/σ up to a constant; for others the interval is as skewed as the likelihood.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.data.rows import hold_out
from duogp.errors import DataWarning
from duogp.sklearn.new_rows import NewRows

Array = NDArray[np.float64]

#: Quantiles whose distances from the median are the units of a score.
REFERENCE = np.array([0.05, 0.5, 0.95])
#: Least unit as a share of the standard deviation: the lower quantile of small counts is the median.
LEAST_UNIT = 0.1


@dataclass(frozen=True, eq=False)
class Calibration:
    """Scores of the calibration rows, sorted, [n, outputs]."""

    scores: Array

    @classmethod
    def of(cls, scores: Array) -> Calibration:
        """The calibration of scores [n, outputs] in any order."""
        return cls(np.sort(scores, axis=0))

    def __len__(self) -> int:
        return len(self.scores)

    def threshold(self, level: float) -> Array:
        """ŝ [outputs]; infinite, with a warning, where there are too few rows for the level."""
        n = len(self.scores)
        rank = math.ceil(round((n + 1) * level, 9))  # 0.9 · 10 is 9, without rounding error
        if rank > n:
            needed = math.ceil(round(level / (1 - level), 9))
            warnings.warn(
                f"{n} calibration rows cannot guarantee a coverage of {level:g} ({needed} can): nothing is "
                "excluded",
                DataWarning,
                stacklevel=4,
            )
            return np.full(self.scores.shape[1], np.inf)
        return self.scores[rank - 1]


@dataclass(frozen=True)
class Scale:
    """Predictive median and the units of a score below and above it, [n, outputs]."""

    median: Array
    below: Array
    above: Array

    @classmethod
    def of(cls, rows: NewRows, noise: Any = None) -> Scale:
        low, median, high = rows.quantiles(REFERENCE, noise)
        std = rows.predict(noise).std.reshape(median.shape)
        least = np.maximum(LEAST_UNIT * std, np.finfo(np.float64).tiny)
        return cls(median, np.maximum(median - low, least), np.maximum(high - median, least))

    def scores(self, y: Array) -> Array:
        away = y.reshape(self.median.shape) - self.median
        return np.where(away < 0, -away / self.below, away / self.above)

    def interval(self, threshold: Array, target: str) -> tuple[Array, Array]:
        """Ends of the interval, clipped to the support of the likelihood, which costs no coverage."""
        low, high = self.median - threshold * self.below, self.median + threshold * self.above
        if target == "real":
            return low, high
        low, high = np.maximum(low, 0.0), np.maximum(high, 0.0)
        if target == "count":
            return np.ceil(low - 1e-9), np.floor(high + 1e-9)
        return (low, high) if target == "positive" else (np.minimum(low, 1.0), np.minimum(high, 1.0))


def class_scores(probabilities: Array, codes: NDArray[np.intp]) -> Array:
    """1 − p(label) of each row, [n, 1]; infinite for a label that the model does not know (code −1)."""
    p = probabilities[np.arange(len(codes)), np.maximum(codes, 0)]
    return np.where(codes < 0, np.inf, 1 - p)[:, None]


def calibration_rows(n: int, fraction: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Indices of the rows to train on, [t] (at least two), and to calibrate on, [n − t], each in order."""
    size = min(round(fraction * n), n - 2)
    if size < 1:
        return np.arange(n), np.arange(0)
    train, held_out = hold_out(np.arange(n), size, (seed, 1))
    return np.sort(train), np.sort(held_out)


def check_level(level: Any) -> float:
    """A level as a float; an error outside (0, 1)."""
    if isinstance(level, bool) or not isinstance(level, int | float | np.number) or not 0 < level < 1:
        percent = isinstance(level, int | float) and 1 < level < 100
        hint = f"; did you mean {level / 100:g}?" if percent else ""
        raise ValueError(f"level must be in (0, 1), got {level!r}{hint}")
    return float(level)
