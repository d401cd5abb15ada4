"""Recovery from numerical failures: snapshots, rollbacks, and more jitter.

Steps run optimistically. Every few dozen of them the guard looks at the device flags: all good, it takes a
snapshot; a factorisation failed or a loss is not finite, it puts the replicates concerned back to the last
snapshot that later steps have confirmed. A failed factorisation is answered with ten times the jitter. Any
other loss that is not finite is answered with half the learning rate and, because a negative residual
variance looks the same from here, with more jitter as long as there is little of it.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from duogp.models.model import Model
from duogp.numerics.factorisation import MAX_JITTER
from duogp.training.backends import StepBackend

logger = logging.getLogger("duogp")


class Guard:
    """Looks at failed factorisations and losses, and returns replicates to their last good state."""

    MAX_SUSPECT_JITTER = 1e-3  # where no factorisation failed
    MAX_ROLLBACKS = 25

    def __init__(self, model: Model, backend: StepBackend) -> None:
        self.model = model
        self.backend = backend
        self.rollbacks = 0
        self.rate_factor = 1.0
        self.newest = self.good = self._snapshot()

    @torch.no_grad()
    def _snapshot(self) -> list[Tensor]:
        """The parameters and the optimiser as they are now."""
        return [t.clone() for t in self.backend.state()]

    def save(self) -> None:
        """Remember this state. No loss has been seen at it yet; at the one saved before, it has."""
        self.good, self.newest = self.newest, self._snapshot()

    def accept(self) -> None:
        """Remember this state as the last good one."""
        self.good = self.newest = self._snapshot()

    @torch.no_grad()
    def healthy(self, loss: Tensor) -> bool:
        """Whether, by one look at the device, all factorisations succeeded and the loss is finite."""
        self._failed = self.model.numerics.failed.clone()
        bad = self._failed | ~torch.isfinite(loss)
        for p in self.backend.parameters:
            bad = bad | ~torch.isfinite(p.reshape(self.model.replicates, -1).sum(1))
        (bad_anywhere,) = self.backend.problem.group.add([bad.double()])  # all roll back together
        bad = bad_anywhere > 0
        self._bad = bad
        return not bool(bad.any())

    @torch.no_grad()
    def restore(self, which: Tensor | None = None) -> None:
        """Back to the last good state: of all replicates, or of those that are marked."""
        self.newest = self.good
        for t, value in zip(self.backend.state(), self.good, strict=True):
            t.copy_(self._of_marked(which, value, t))
        self.backend.restart()
        self.model.numerics.failed.zero_()

    def _of_marked(self, which: Tensor | None, value: Tensor, current: Tensor) -> Tensor:
        """The saved value where a replicate is marked; Adam's step count is shared and goes on."""
        replicates = self.model.replicates
        if which is None or replicates == 1:
            return value
        if value.dim() == 0 or value.shape[0] != replicates:
            return current
        return torch.where(which.view(-1, *[1] * (value.dim() - 1)), value, current)

    def roll_back(self) -> bool:
        """The bad replicates back to their last good state; False when there is no more to try."""
        self.restore(self._bad)
        curable = self._failed & ~self.at_limit
        if bool((self._bad & ~curable).any()) or self.rollbacks % 3 == 2:
            self.rate_factor *= 0.5
        suspect = self._bad & (self.model.numerics.jitter.squeeze(-1) < self.MAX_SUSPECT_JITTER)
        self.model.numerics.raise_jitter(curable | suspect)
        self.rollbacks += 1
        logger.info(
            "rolled back to the last good state; relative jitter now %.1e, learning rate × %g",
            float(self.model.numerics.jitter.max()),
            self.rate_factor,
        )
        return self.rollbacks < self.MAX_ROLLBACKS

    @property
    def at_limit(self) -> Tensor:
        """Which replicates have all the jitter they may get, [R]."""
        return self.model.numerics.jitter.squeeze(-1) >= MAX_JITTER
