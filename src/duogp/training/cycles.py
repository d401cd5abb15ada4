"""Learning rates of minibatch training in cycles that double, and the end of it: what twice the steps gain.

A cycle is half a cosine, from the whole rate to a hundredth of it. Losses at a high rate say little of what
is behind their noise; where the rate is small they say what so many steps lead to. Twice the steps that gain
less than the tolerance were the last; those that lose more than it were too large, and are undone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from duogp.training.schedules import cosine
from duogp.training.validation import BestState

#: Steps of the first cycle, at least; those after it are twice as long each. And its rows, unless ten epochs
#: have fewer: the mean loss over its last tenth says little where batches are small.
FIRST_CYCLE, FIRST_ROWS = 400, 400_000
#: What is left of the rates after a cycle that led up.
SLOWER = 0.3
#: Share of a cycle, its last, whose losses are what it leads to: the rate is below 4 % of the highest there.
ANNEALED = 0.1


def first_cycle(epoch: int, batch: int | None) -> int:
    """Steps that the first cycle has at least, for so many steps an epoch and rows a step, where known."""
    rows = 0 if batch is None else min(-(-FIRST_ROWS // batch), round(epoch / ANNEALED))
    return max(FIRST_CYCLE, rows)


class Cycles:
    """The cycles of a training of so many ``steps``, its losses at their ends, and the best of these states.

    ``first``: steps of the first cycle, at least. ``best`` keeps states by the loss that a cycle led to; of
    two that differ by less than the tolerance it is the later one. Replicates share rates: the one that gains
    most decides when training ends.
    """

    def __init__(self, tolerance: float, steps: int, best: BestState, first: int | None = None) -> None:
        self.tolerance, self.steps, self.best = tolerance, steps, best
        self.count = max(1, int(math.log2(steps / (first or FIRST_CYCLE) + 1)))
        self.index = 0  # the cycle
        self.ended = False
        self.slower = 1.0  # factor of all rates, after cycles that led up
        self.ends: list[list[float]] = []  # the loss [R] that every cycle led to
        self.total = torch.zeros_like(best.nll)  # of the losses that this one leads to
        self.taken = 0  # their number

    def factor(self, done: float) -> float:
        """Of the learning rate, where a share ``done`` of all steps is over."""
        return self.slower * cosine(self._share(done))

    def take(self, done: float, loss: Tensor | None, epoch: int, is_sound: Callable[[], bool]) -> bool:
        """Take in the loss [R] of a step; after the last of a cycle, see where it led.

        Whether the cycle was undone, and left a sound state.

        ``loss``: None where the step was undone, and with it those before: their losses are forgotten.
        ``is_sound``: whether the state is worth keeping, asked then.
        """
        if len(self.ends) == self.count:  # by the clock the last step may come after its end
            return False
        share = self._share(done)
        if loss is None:
            self._forget()
        elif share > 1.0 - ANNEALED:
            self.total, self.taken = self.total + loss, self.taken + 1
        if share <= 1.0 - 0.5 / (self.steps * self._length):  # half a step, for rounding
            return False
        led_to = self.total / self.taken if self.taken else torch.full_like(self.total, torch.nan)
        sound = is_sound()
        if sound:
            best, found = self.best, torch.where(torch.isfinite(led_to), led_to, torch.inf)
            best.nll = torch.where(found < best.nll + self.tolerance, torch.inf, best.nll)
            best.update(found, epoch)
        self.end(led_to.tolist())
        self._forget()
        return self.led_up and sound

    def _forget(self) -> None:
        self.total, self.taken = torch.zeros_like(self.total), 0

    def end(self, losses: Sequence[float]) -> None:
        """The cycle led to these losses [R]: go on with the next one, or end.

        Where nobody gained and somebody lost, the rate was too high: back to the best ends, and lower rates.
        """
        self.ends.append(list(losses))
        gains = self._gains()
        self.ended = bool(gains) and all(abs(gain) < self.tolerance for gain in gains)  # not for NaN
        if self.led_up:
            self.best.restore()
            self.slower *= SLOWER
        if self.index < self.count - 1:
            self.index += 1

    @property
    def led_up(self) -> bool:
        """Whether the last cycle did, and was undone."""
        gains = self._gains()
        return bool(gains) and not self.ended and all(gain < self.tolerance for gain in gains)

    def _gains(self) -> list[float]:
        """By what the last end is lower than the best before it; nothing where that does not matter."""
        *before, last = self.ends or [[]]
        if not before or self.tolerance <= 0:
            return []
        best = [min(each, key=_or_infinity) for each in zip(*before, strict=True)]
        return [old - new for old, new in zip(best, last, strict=True)]

    def _share(self, done: float) -> float:
        """How much of the cycle is over."""
        return min(max((done - self._start(self.index)) / self._length, 0.0), 1.0)

    @property
    def _length(self) -> float:
        """Of the cycle, as a share of all steps."""
        return self._start(self.index + 1) - self._start(self.index)

    def _start(self, index: int) -> float:
        """The share of all steps before a cycle."""
        return (2.0**index - 1.0) / (2.0**self.count - 1.0)


def _or_infinity(loss: float) -> float:
    return math.inf if math.isnan(loss) else loss
