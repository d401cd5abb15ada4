"""The trust region of TuRBO (Eriksson et al. 2019): a box that grows with success and shrinks with failure.

A batch succeeds when its best value exceeds the best so far by more than 1e-3 |best|. Ten successes in a row
double the length (to at most 1.6), as many failures in a row as the tolerance halve it; below 0.5⁷ the region
has converged, and starts again elsewhere without its evaluations.

The paper doubles after three successes. Three batches in a row improve now and then in a region that has the
right size, the first ones above all; it is doubled, to a box as wide as the cube, and every doubling takes
another failure tolerance to undo: of 40 batches of four points in 20 dimensions, five each time.

One region counts failures in batches, with a tolerance of ⌈max(4, d) / q⌉. Of several regions each gets a
varying share of a batch, so that their failures are counted in evaluations, with a tolerance of max(5, d).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FIRST_LENGTH, SHORTEST, LONGEST = 0.8, 0.5**7, 1.6
#: Successes in a row that double a region; the paper's own number.
SUCCESS_TOLERANCE, PAPER_SUCCESSES = 10, 3
#: Least improvement that counts as success, relative to the best value.
IMPROVEMENT = 1e-3


def failure_tolerance(dims: int, batch_size: int, regions: int) -> int:
    """Failures in a row that halve a region."""
    return max(5, dims) if regions > 1 else math.ceil(max(4.0, dims) / batch_size)


@dataclass
class TrustRegion:
    """Length and counts of a trust region; its place follows from the evaluations."""

    failure_tolerance: int
    counts_evaluations: bool = False  # failures, instead of batches
    success_tolerance: int = SUCCESS_TOLERANCE
    length: float = FIRST_LENGTH
    successes: int = 0
    failures: int = 0
    generation: int = 0  # how often it has started again

    def observe(self, best_before: float, values: NDArray[np.float64]) -> None:
        """Grow or shrink by the values [k] of its share of a batch (larger is better, NaN failed)."""
        best = np.max(values, initial=-np.inf, where=np.isfinite(values))  # a failed evaluation is no success
        if best > (best_before + IMPROVEMENT * abs(best_before) if math.isfinite(best_before) else -math.inf):
            self.successes, self.failures = self.successes + 1, 0
        else:
            self.successes = 0
            self.failures += len(values) if self.counts_evaluations else 1
        if self.successes >= self.success_tolerance:
            self.length, self.successes = min(2 * self.length, LONGEST), 0
        elif self.failures >= self.failure_tolerance:
            self.length, self.failures = self.length / 2, 0
        if self.length < SHORTEST:
            self.restart()

    def restart(self) -> None:
        """Begin again with a region of the first size; its generation counts the beginnings."""
        self.length, self.successes, self.failures = FIRST_LENGTH, 0, 0
        self.generation += 1
