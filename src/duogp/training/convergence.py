"""When training is over: losses that no longer improve, measured against how long it took to get here.

Both rules ask what twice the steps have gained, not windows of a fixed length. Losses of a training that
converges fall about as c / k with the number of steps k; then what the last half of the steps gained is what
all later steps together will gain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from duogp.training.schedules import cosine

#: Steps of a deterministic loss before it may be called at rest.
FEWEST_STEPS = 30
#: Steps of the first cycle of minibatches, at least; those after it are twice as long each.
FIRST_CYCLE = 400
#: Share of a cycle, its last, whose losses are what it leads to: the rate is below 4 % of the highest there.
ANNEALED = 0.1


class Rest:
    """Which replicates' deterministic losses are at rest: the last half of the steps gained too little.

    ``fewest``: steps before that, `FEWEST_STEPS` or fewer. An end before `FEWEST_STEPS` needs two signs more,
    because a handful of steps may have been trials that led nowhere: the half did gain something, and what
    the curvature that is known promises of the next step is too little as well.
    """

    def __init__(self, tolerance: float, replicates: int, fewest: int = FEWEST_STEPS) -> None:
        self.tolerance, self.fewest = tolerance, fewest
        self.reached = [False] * replicates
        self.at: list[int | None] = [None] * replicates  # the step of it
        self._seen: list[tuple[int, list[float]]] = []

    def update(self, step: int, losses: Sequence[float], promised: Sequence[float] | None = None) -> None:
        """Take in the losses [R] after so many steps, and what the next one promises to gain."""
        self._seen.append((step, list(losses)))
        before = [seen for at, seen in self._seen if at <= step // 2]
        if step < self.fewest or not before:
            return
        for r, loss in enumerate(losses):
            gain = before[-1][r] - loss
            rests = gain < self.tolerance  # not for NaN
            if step < FEWEST_STEPS:
                rests &= gain > 0 and (promised is None or promised[r] < self.tolerance)
            if rests and not self.reached[r]:
                self.end(r, step)

    def end(self, r: int, step: int) -> None:
        self.reached[r], self.at[r] = True, step

    def forget(self) -> None:
        """After a rollback: losses under more jitter are not those from before."""
        self._seen.clear()


class Cycles:
    """A learning rate that falls along half a cosine, again and again, each time over twice as many steps.

    ``steps`` in all are divided into cycles, the first of at least `FIRST_CYCLE`. A cycle leads to the mean
    loss of its last steps, where the rate is small: losses at a high rate say little of what is behind their
    noise. Training ends after a cycle that gains less than the tolerance on the one before, for twice the
    steps. Replicates share rates: the one that gains most decides.
    """

    def __init__(self, tolerance: float, steps: int) -> None:
        self.tolerance, self.steps = tolerance, steps
        self.count = max(1, int(math.log2(steps / FIRST_CYCLE + 1)))
        self.index = 0  # the cycle
        self.ended = False
        self.ends: list[list[float]] = []  # the loss [R] that every cycle led to

    def share(self, done: float) -> float:
        """How much of the cycle is over, where ``done`` of all steps are."""
        return min(max((done - self._starts(self.index)) / self._length, 0.0), 1.0)

    def factor(self, done: float) -> float:
        """Of the learning rate."""
        return cosine(self.share(done))

    def is_annealed(self, done: float) -> bool:
        """Whether losses are those that the cycle leads to."""
        return self.share(done) > 1.0 - ANNEALED

    def is_over(self, done: float) -> bool:
        """Whether the cycle is; not sooner for rounding."""
        return self.share(done) > 1.0 - 0.5 / (self.steps * self._length)

    def end(self, losses: Sequence[float]) -> None:
        """The cycle led to these losses [R]: go on with the next one, or end."""
        if self.ends:
            gains = [old - new for old, new in zip(self.ends[-1], losses, strict=True)]
            self.ended = self.tolerance > 0 and all(gain < self.tolerance for gain in gains)  # not for NaN
        self.ends.append(list(losses))
        if self.index < self.count - 1:
            self.index += 1

    @property
    def _length(self) -> float:
        return self._starts(self.index + 1) - self._starts(self.index)

    def _starts(self, index: int) -> float:
        """The share of all steps before a cycle."""
        return (2.0**index - 1.0) / (2.0**self.count - 1.0)
