"""Validation NLL of every replicate, the best state seen, and when to stop."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from duogp.models.model import Batch, Model

CHUNK = 8192


@torch.no_grad()
def mean_nll(model: Model, batch: Batch) -> Tensor:
    """−mean log p(y | x, data) of every replicate, [R]. A failed factorisation reads as infinity."""
    failed_before = model.numerics.failed.clone()
    was_training = model.training
    model.eval()  # Monte Carlo likelihoods then have one fixed set of draws
    model.numerics.failed.zero_()
    factors = model.factors()
    nll = weighted_nll(lambda part: model.log_predictive(part, factors), batch, CHUNK)
    bad = model.numerics.failed.clone()
    model.train(was_training)
    model.numerics.failed.copy_(failed_before)
    return torch.where(bad | ~torch.isfinite(nll), torch.inf, nll)


@torch.no_grad()
def weighted_nll(density: Callable[[Batch], Tensor], batch: Batch, size: int) -> Tensor:
    """−Σ w log p / Σ w of the rows, [*]; ``density``: log p [*, n] of a batch, of at most ``size`` rows."""
    total = torch.zeros((), dtype=torch.float64, device=batch.x.device)
    for part in batch.split(size):
        log_p = density(part).double()
        total = total + (log_p if part.weight is None else log_p * part.weight).sum(-1)
    return -total / (batch.x.shape[-2] if batch.weight is None else batch.weight.double().sum(-1))


class BestState:
    """The parameters with the lowest validation NLL, kept for each replicate separately."""

    def __init__(self, replicates: int, parameters: list[Tensor], patience: int | None) -> None:
        self.parameters = parameters
        self.patience = patience
        self.values = [p.detach().clone() for p in parameters]
        self.nll = torch.full((replicates,), torch.inf, dtype=torch.float64, device=parameters[0].device)
        self.epoch = [0] * replicates
        self.waited = [0] * replicates
        self.stopped = [False] * replicates

    @torch.no_grad()
    def update(self, nll: Tensor, epoch: int) -> bool:
        """Take in one evaluation; True when every replicate has run out of patience."""
        running = torch.tensor([not s for s in self.stopped], device=nll.device)
        better = (nll < self.nll) & running
        self.nll = torch.where(better, nll, self.nll)
        for best, p in zip(self.values, self.parameters, strict=True):
            best.copy_(
                torch.where(better.view(-1, *[1] * (p.dim() - 1)) if p.dim() else better.all(), p, best)
            )
        for r, improved in enumerate(better.tolist()):
            if improved:
                self.epoch[r], self.waited[r] = epoch, 0
            else:
                self.waited[r] += 1
            if self.patience is not None and self.waited[r] >= self.patience:
                self.stopped[r] = True
        return all(self.stopped)

    @torch.no_grad()
    def restore(self) -> None:
        for p, value in zip(self.parameters, self.values, strict=True):
            p.copy_(value)
