"""Never a Cholesky error in the middle of the night.

Steps run optimistically. Every few dozen of them the guard looks at the device flags: all good, it takes a
snapshot; a factorisation failed or the loss is not finite, it puts the last snapshot back, raises the
jitter of the replicates concerned tenfold (and halves the learning rate where jitter alone does not help)
and training goes on.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from duogp.model import Model
from duogp.training.backends import StepBackend

logger = logging.getLogger("duogp")


class Guard:
    MAX_JITTER = 1e-1
    MAX_ROLLBACKS = 25

    def __init__(self, model: Model, backend: StepBackend) -> None:
        self.model = model
        self.backend = backend
        self.rollbacks = 0
        self.rate_factor = 1.0
        self._saved: list[Tensor] | None = None
        self._saved_state: list[Tensor] | None = None

    @torch.no_grad()
    def save(self) -> None:
        """Remember the parameters and the optimiser as they are now."""
        state = self.backend.state()
        if self._saved is None:
            self._saved = [p.detach().clone() for p in self.backend.parameters]
        else:
            torch._foreach_copy_(self._saved, [p.detach() for p in self.backend.parameters])
        self._saved_state = [t.clone() for t in state]

    @torch.no_grad()
    def healthy(self, loss: Tensor) -> bool:
        """One look at the device: did every factorisation since the last look succeed, is the loss finite?"""
        bad = self.model.numerics.failed | ~torch.isfinite(loss)
        for p in self.backend.parameters:
            bad = bad | ~torch.isfinite(p.reshape(self.model.replicates, -1).sum(1))
        self._bad = bad
        return not bool(bad.any())

    @torch.no_grad()
    def roll_back(self) -> bool:
        """Back to the last good state with more jitter; False when there is no more to try."""
        assert self._saved is not None and self._saved_state is not None
        for p, value in zip(self.backend.parameters, self._saved, strict=True):
            p.copy_(value)
        state = self.backend.state()
        if len(state) == len(self._saved_state):
            for t, value in zip(state, self._saved_state, strict=True):
                t.copy_(value)
        else:  # saved before the first step created the optimiser's state
            for t in state:
                t.zero_()
        numerics = self.model.numerics
        numerics.failed.zero_()
        raised = torch.where(self._bad.unsqueeze(-1), numerics.jitter * 10, numerics.jitter)
        if bool((raised > self.MAX_JITTER).any()) or self.rollbacks % 3 == 2:
            self.rate_factor *= 0.5
        numerics.jitter.copy_(raised.clamp(max=self.MAX_JITTER))
        self.rollbacks += 1
        logger.info(
            "rolled back to the last good state; relative jitter now %.1e", float(numerics.jitter.max())
        )
        return self.rollbacks < self.MAX_ROLLBACKS
