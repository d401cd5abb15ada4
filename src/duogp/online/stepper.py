"""`Stepper`: optimiser steps on a model that grows, by Adam and natural gradients, undone where they fail.

A step whose loss or gradients are not finite, or whose factorisations failed, is refused on the device:
parameters, moments and q stay as they were. Every `CHECK_EVERY` steps the host reads whether that happened
(on a CPU, where reading is free, after every step). If so, the model returns to the last snapshot that was
followed by `CHECK_EVERY` sound steps; after a failed factorisation the jitter is multiplied by ten, after
anything else the learning rate is halved, and recovers with time: one strange batch must not slow a stream
down for ever.
"""

from __future__ import annotations

import logging
import warnings

import torch
from torch import Tensor, nn

from duogp.errors import NumericalWarning
from duogp.inference.natural import NaturalGradient
from duogp.models.model import Batch, Model
from duogp.numerics.factorisation import MAX_JITTER
from duogp.online.adam import GrowingAdam
from duogp.online.growth import Grown
from duogp.training.guard import Guard

logger = logging.getLogger("duogp")

#: Steps between two readings of the device, and between two snapshots.
CHECK_EVERY = 20
#: Factor by which a halved learning rate recovers at every snapshot.
RECOVERY = 1.1


class Stepper:
    """The optimisers of one model, with snapshots to return to.

    ``natural``: q(u) is moved by natural gradients, means apart from them by ``mean_rule``, the rest by Adam.
    """

    def __init__(self, model: Model, *, natural: bool, mean_rule: str = "adam", seed: int = 0) -> None:
        self.model = model
        self.mean_rule = mean_rule
        self.natural = self._natural() if natural else None
        self.adam = GrowingAdam(p for p in self._learned() if not self._is_natural(p))
        self.generators = [torch.Generator(model.beta1.device).manual_seed(seed)]
        self.num_steps = self.rollbacks = 0
        self.rate_factor = 1.0
        self._since_look = self._since_snapshot = 0
        # refused steps and, among them, failed factorisations since the last reading
        self._trouble = torch.zeros(2, dtype=torch.long, device=model.beta1.device)
        self._good = self._newest = self._snapshot()

    @property
    def largest_step(self) -> float:
        """Largest natural step that converges surely: 1 where it is Newton's (MATH §11 A4)."""
        return 0.5 if self.natural is not None and self.natural.always_positive else 1.0

    def step(self, batch: Batch, rate: float, natural_rate: float) -> Tensor:
        """The loss [1] of the batch, detached, before one step on it.

        The first step moves q(u) alone where it has natural gradients: at the prior the gradients of the
        other parameters are so large that Adam's second moments would hold them for a thousand steps.
        """
        model, failed = self.model, self.model.numerics.failed
        failed.zero_()
        for p in model.parameters():
            p.grad = None
        model.draw(self.generators)
        if self.natural is not None:
            self.natural.set_rate(natural_rate * self.rate_factor)
        loss = model.loss(batch)
        loss.sum().backward()
        ok = torch.isfinite(loss.detach()).all() & ~failed.any()
        for p in self._learned():
            if p.grad is not None:
                ok = ok & torch.isfinite(p.grad.sum())
        if self.natural is not None:
            self.natural.compute()
        if self.natural is None or self.num_steps > 0:
            self.adam.step(rate * self.rate_factor, ok)
        self.num_steps += 1
        if self.natural is not None:
            self._write_natural(self.natural, ok)
        self._trouble += torch.stack([~ok, ~ok & failed.any()])
        self._since_look += 1
        self._since_snapshot += 1
        if self._since_look >= (CHECK_EVERY if self._trouble.is_cuda else 1):
            self.look()
        return loss.detach()

    def look(self) -> None:
        """Read whether steps were refused since the last reading; if so, recover, else take a snapshot."""
        if self._since_look == 0:
            return
        self._since_look = 0
        refused, factorisations = self._trouble.tolist()
        if refused:
            self._trouble.zero_()
            self._recover(factorisations > 0)
        elif self._since_snapshot >= CHECK_EVERY:
            self._since_snapshot = 0
            self.rate_factor = min(1.0, RECOVERY * self.rate_factor)
            self._good, self._newest = self._newest, self._snapshot()

    def grow(self, grown: Grown) -> None:
        """Put the grown basis in place of the old one; the optimisers keep the moments of old entries."""
        self.look()
        self.model.basis = grown.basis
        self.adam.inherit(grown.heirs)
        if self.natural is not None:
            shrink = self.natural.shrink
            self.natural = self._natural()
            self.natural.shrink.copy_(shrink)
        self._since_snapshot = 0
        self._good = self._newest = self._snapshot()

    # -- inside ----------------------------------------------------------------------------------------------

    def _learned(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def _natural(self) -> NaturalGradient:
        model = self.model
        # A log-concave ELBO or VFITC keeps the precision positive by itself, predictive objectives do not.
        safe = model.objective.keeps_precision_positive and model.likelihood.is_log_concave
        return NaturalGradient(
            model.basis,
            model.num_data,
            0.0,
            always_positive=not safe,
            mean_rule=self.mean_rule,
            beta1=model.beta1,
        )

    def _is_natural(self, p: Tensor) -> bool:
        return self.natural is not None and any(p is own for own in self.natural.parameters)

    @torch.no_grad()
    def _write_natural(self, natural: NaturalGradient, ok: Tensor) -> None:
        moved = [*self.model.basis.q.parameters(), *natural.parameters]
        before = [p.clone() for p in moved]
        natural.write()
        for p, value in zip(moved, before, strict=True):
            p.copy_(torch.where(ok, p, value))

    def _tracked(self) -> list[Tensor]:
        natural = [] if self.natural is None else self.natural.state
        return [*self._learned(), *self.adam.state(), *natural]

    @torch.no_grad()
    def _snapshot(self) -> list[Tensor]:
        return [t.detach().clone() for t in self._tracked()]

    @torch.no_grad()
    def _recover(self, factorisation: bool) -> None:
        self._newest = self._good
        for t, value in zip(self._tracked(), self._good, strict=True):
            t.copy_(value)
        self._since_snapshot = 0
        numerics = self.model.numerics
        # A loss that is not finite may come from a negative residual variance: a little more jitter.
        limit = MAX_JITTER if factorisation else Guard.MAX_SUSPECT_JITTER
        if not factorisation or bool((numerics.jitter >= limit).all()):
            self.rate_factor *= 0.5
        numerics.raise_jitter(torch.ones_like(numerics.failed), limit)
        self.rollbacks += 1
        now = f"relative jitter now {float(numerics.jitter.max()):.0e}, learning rate × {self.rate_factor:g}"
        logger.info("a step was refused; back to the last good state, %s", now)
        if self.rollbacks == 1:
            warnings.warn(
                "a numerical difficulty while learning from a stream (a covariance that could not be "
                f"factorised, or a loss that was not finite) was undone; {now}",
                NumericalWarning,
                stacklevel=5,
            )
