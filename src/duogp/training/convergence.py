"""When L-BFGS is done: losses that no longer improve, measured against how long it took to get here.

The rule compares halves of what has been done, not windows of a fixed length. Losses of a training that
converges fall about as c / k with the number of steps k; then what the last half of the steps gained is what
all later steps together will gain.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Steps of a deterministic loss before it may be called at rest.
FEWEST_STEPS = 30


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
