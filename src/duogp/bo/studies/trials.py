"""`Trial`, a point of a study and its result, and `History`, all of them as a proposer sees them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from duogp.bo.candidates import Floats
from duogp.bo.spaces import Point, Value

PENDING, DONE, FAILED = "pending", "done", "failed"
#: Quartile of the objectives that a failed evaluation is given in the model, from below.
UNPROMISING = 0.25
#: Interquartile ranges below the lower quartile beyond which values are cut for the model.
OUTLYING = 5.0


@dataclass
class Trial:
    """A point that was asked for or told; a new state replaces the old one."""

    number: int
    point: Point
    state: str = PENDING
    values: dict[str, float] | None = None  # of a trial that is done
    reason: str | None = None  # of a failure
    started: float = 0.0  # seconds since the epoch
    ended: float | None = None

    def __getitem__(self, name: str) -> Value:
        return self.point[name]


@dataclass(frozen=True, eq=False)
class History:
    """Evaluations in the order in which they were told, and points whose evaluation is not known yet."""

    X: Floats  # [n, columns] of the cube
    Y: Floats  # [n, objectives], larger is better; NaN where the evaluation failed
    C: Floats  # [n, constraints], at most 0 where they hold; NaN where the evaluation failed
    pending: Floats  # [p, columns]
    asked: int  # points asked for so far

    @property
    def known(self) -> np.ndarray:
        """Evaluations that did not fail."""
        return ~np.any(np.isnan(self.Y), axis=1)

    @property
    def feasible(self) -> np.ndarray:
        """Evaluations that did not fail and whose constraints hold."""
        return self.known & np.all(self.C <= 0, axis=1)

    @property
    def taken(self) -> Floats:
        """Points that need not be proposed: evaluated or pending, [n + p, d]."""
        return np.concatenate([self.X, self.pending])

    def targets(self) -> Floats:
        """What a model is fitted to [n, objectives + constraints], without NaN.

        A failed evaluation gets the lower quartile of the objectives and the upper one of the excesses,
        enough to lead away from its point. Values far below the rest, such as those of a diverged training,
        are cut, or they would be all that the model sees.
        """
        known = self.known
        columns = [_completed(y, known) for y in self.Y.T]
        columns += [-_completed(-c, known) for c in self.C.T]
        return np.stack(columns, 1)

    def merit(self) -> Floats:
        """The first objective [n], of infeasible points less than of all others."""
        y = _completed(self.Y[:, 0], self.known)
        wrong = np.where(self.known[:, None], np.maximum(self.C, 0.0), 0.0).sum(1)
        worst = y.min() if len(y) else 0.0
        return np.where(wrong > 0, worst - wrong, y)


def _completed(values: Floats, known: np.ndarray) -> Floats:
    """Values without outliers at the lower end, failures replaced by the lower quartile."""
    if not known.any():
        return np.zeros_like(values)
    quarter, upper = np.quantile(values[known], [UNPROMISING, 1 - UNPROMISING])
    floor = quarter - OUTLYING * (upper - quarter) if upper > quarter else -np.inf
    return np.maximum(np.where(known, values, quarter), floor)
