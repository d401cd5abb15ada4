"""When training is over: losses that no longer improve, measured against how long it took to get here.

Both rules compare halves of what has been done, not windows of a fixed length. Losses of a training that
converges fall about as c / k with the number of steps k; then what the last half of the steps gained is what
all later steps together will gain.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Steps of a deterministic loss before it may be called at rest.
FEWEST_STEPS = 30
#: Factor of a cut of the learning rate, and cuts after which the next rest is the end.
CUT, CUTS = 0.2, 2
#: Steps of minibatches that are averaged before they are looked at, at least; whole epochs in any case.
LOOK_STEPS = 25
#: Looks at one rate before it may be cut.
FEWEST_LOOKS = 20
#: Share of the tolerance that a quarter of the steps must gain on the quarter before.
QUARTER = 0.2
#: Shares of all steps after which rates are cut in any case, so that none ends at a high rate.
LAST_SHARES = 0.7, 0.85


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


class Plateau:
    """A learning rate that is cut when the losses of minibatches rest, and an end after the last cut.

    A rate rests when the mean loss of the last quarter of its steps is less than a fifth of the tolerance
    below that of the quarter before. Replicates share rates: the one that gains most decides.
    """

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.factor = 1.0
        self.cuts = 0
        self.ended = False
        self.hurried = False  # a rate was cut because the steps ran out
        self._looks: list[list[float]] = []

    def update(self, losses: Sequence[float], done: float) -> None:
        """Take in the mean losses [R] since the last look, and the share of all steps that is over."""
        self._looks.append(list(losses))
        late = self.cuts < CUTS and done >= LAST_SHARES[self.cuts]
        if not late and not self._rests():
            return
        self.hurried |= late and not self._rests()
        if self.cuts == CUTS:
            self.ended = True
            return
        self.cuts += 1
        self.factor *= CUT
        self._looks.clear()

    def _rests(self) -> bool:
        count = len(self._looks)
        if count < FEWEST_LOOKS:
            return False
        quarter = count // 4
        last, before = self._looks[-quarter:], self._looks[-2 * quarter : -quarter]
        columns = zip(zip(*before, strict=True), zip(*last, strict=True), strict=True)
        gains = [(sum(old) - sum(new)) / quarter for old, new in columns]
        return not any(gain >= QUARTER * self.tolerance for gain in gains)
