"""Learning rates of minibatch training in cycles that double, and the end of it: what twice the steps gain.

A cycle is half a cosine, from the whole rate to a hundredth of it. Losses at a high rate say little of what
is behind their noise; where the rate is small they say what so many steps lead to. Twice the steps that gain
less than the tolerance were the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from duogp.training.schedules import cosine
from duogp.training.validation import BestState

#: Steps of the first cycle, at least; those after it are twice as long each.
FIRST_CYCLE = 400
#: Share of a cycle, its last, whose losses are what it leads to: the rate is below 4 % of the highest there.
ANNEALED = 0.1


class Cycles:
    """The cycles of a training of so many ``steps``, its losses at their ends, and the best of these states.

    ``best`` keeps states by the loss that a cycle led to. Replicates share rates: the one that gains most
    decides when training ends.
    """

    def __init__(self, tolerance: float, steps: int, best: BestState) -> None:
        self.tolerance, self.steps, self.best = tolerance, steps, best
        self.count = max(1, int(math.log2(steps / FIRST_CYCLE + 1)))
        self.index = 0  # the cycle
        self.ended = False
        self.ends: list[list[float]] = []  # the loss [R] that every cycle led to
        self.total = torch.zeros_like(best.nll)  # of the losses that this one leads to
        self.taken = 0  # their number

    def factor(self, done: float) -> float:
        """Of the learning rate, where a share ``done`` of all steps is over."""
        return cosine(self._share(done))

    def take(self, done: float, loss: Tensor, epoch: int, is_sound: Callable[[], bool]) -> None:
        """Take in the loss [R] of a step; after the last of a cycle, see where it led.

        ``is_sound``: whether the state is worth keeping, asked then.
        """
        share = self._share(done)
        if share > 1.0 - ANNEALED:
            self.total, self.taken = self.total + loss, self.taken + 1
        if share <= 1.0 - 0.5 / (self.steps * self._length):  # half a step, for rounding
            return
        led_to = self.total / max(self.taken, 1)
        if is_sound():
            self.best.update(torch.where(torch.isfinite(led_to), led_to, torch.inf), epoch)
        self.end(led_to.tolist())
        self.total, self.taken = torch.zeros_like(self.total), 0

    def end(self, losses: Sequence[float]) -> None:
        """The cycle led to these losses [R]: go on with the next one, or end."""
        if self.ends and self.tolerance > 0:
            gains = [old - new for old, new in zip(self.ends[-1], losses, strict=True)]
            self.ended = all(gain < self.tolerance for gain in gains)  # not for NaN
        self.ends.append(list(losses))
        if self.index < self.count - 1:
            self.index += 1

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
