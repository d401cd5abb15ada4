"""Never a Cholesky error in the middle of the night.

Steps run optimistically. Every few dozen of them the guard looks at the device flags: all good, it takes a
snapshot; a factorisation failed or the loss is not finite, it puts the last snapshot back that later steps
have confirmed, raises the jitter of the replicates concerned tenfold (and halves the learning rate where
jitter alone does not help) and training goes on.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from duogp.model import Model
from duogp.training.backends import StepBackend

logger = logging.getLogger("duogp")


class Guard:
    MIN_RAISED_JITTER = torch.finfo(torch.float64).eps  # less is lost in rounding: no use in trying
    MAX_JITTER = 1e-1
    MAX_ROLLBACKS = 25

    def __init__(self, model: Model, backend: StepBackend) -> None:
        self.model = model
        self.backend = backend
        self.rollbacks = 0
        self.rate_factor = 1.0
        self._newest = self._good = self._snapshot()

    @torch.no_grad()
    def _snapshot(self) -> tuple[list[Tensor], list[Tensor]]:
        """The parameters and the optimiser as they are now."""
        return [p.detach().clone() for p in self.backend.parameters], [
            t.clone() for t in self.backend.state()
        ]

    def save(self) -> None:
        """Remember this state. No loss has been seen at it yet; at the one saved before, it has."""
        self._good, self._newest = self._newest, self._snapshot()

    @torch.no_grad()
    def healthy(self, loss: Tensor) -> bool:
        """One look at the device: did every factorisation since the last look succeed, is the loss finite?"""
        bad = self.model.numerics.failed | ~torch.isfinite(loss)
        for p in self.backend.parameters:
            bad = bad | ~torch.isfinite(p.reshape(self.model.replicates, -1).sum(1))
        self._bad = bad
        return not bool(bad.any())

    @torch.no_grad()
    def restore(self) -> None:
        """Back to the last good state."""
        parameters, saved_state = self._newest = self._good
        for p, value in zip(self.backend.parameters, parameters, strict=True):
            p.copy_(value)
        state = self.backend.state()
        if len(state) == len(saved_state):
            for t, value in zip(state, saved_state, strict=True):
                t.copy_(value)
        else:  # saved before the first step created the optimiser's state
            for t in state:
                t.zero_()
        self.model.numerics.failed.zero_()

    def roll_back(self) -> bool:
        """Back to the last good state with more jitter; False when there is no more to try."""
        self.restore()
        if bool((self._bad & self.at_limit).any()) or self.rollbacks % 3 == 2:
            self.rate_factor *= 0.5
        self.raise_jitter(self._bad)
        logger.info(
            "rolled back to the last good state; relative jitter now %.1e",
            float(self.model.numerics.jitter.max()),
        )
        return self.rollbacks < self.MAX_ROLLBACKS

    @property
    def at_limit(self) -> Tensor:
        """Which replicates have all the jitter they may get, [R]."""
        return self.model.numerics.jitter.squeeze(-1) >= self.MAX_JITTER

    @torch.no_grad()
    def raise_jitter(self, bad: Tensor) -> None:
        """Ten times the jitter for the replicates concerned; the others keep theirs."""
        jitter = self.model.numerics.jitter
        raised = torch.maximum(jitter, (jitter * 10).clamp(self.MIN_RAISED_JITTER, self.MAX_JITTER))
        jitter.copy_(torch.where(bad.unsqueeze(-1), raised, jitter))
        self.rollbacks += 1
