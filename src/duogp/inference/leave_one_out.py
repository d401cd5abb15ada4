"""Predictions for every training row as if it had not been there, from one solved q(u).

A row i speaks about f(xᵢ) with precision Λᵢ = wᵢ/s², so taking it away is a downdate of rank one. With the
variance vᵢ that q(u) explains there and hᵢ = Λᵢvᵢ,

    v₋ᵢ = vᵢ / (1 − hᵢ),      μ₋ᵢ = yᵢ − (yᵢ − μᵢ) / (1 − hᵢ)

exactly, where q(u) is the optimum of the ELBO on these rows: a sparse GP with its kernel and points held, and
the exact GP, for which this is the classical formula.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from duogp.models.model import Batch, Model

#: hᵢ stays this far from one: a row that alone decides the function there predicts nothing without itself.
LEAST = 1e-6


class LeftOut(NamedTuple):
    """Moments of a new observation at each row, [R, outputs, n], the row itself left out."""

    mean: Tensor
    variance: Tensor


@torch.no_grad()
def leave_one_out(model: Model, batch: Batch) -> LeftOut:
    """For a model whose q(u) is the closed-form optimum on the rows of the batch."""
    f = model.marginals(batch.x)
    mean, residual, explained = torch.broadcast_tensors(*f)
    if model.basis.points_are_rows:  # all that is left of the variance is what the rows have said
        residual, explained = torch.zeros_like(residual), (residual + explained).clamp_min(0)
    noise = model.likelihood.bind(batch.noise).noise  # type: ignore[attr-defined]
    weight = 1.0 if batch.weight is None else batch.weight.unsqueeze(-2)
    left = (1 - weight * explained / noise).clamp_min(LEAST)
    error = (batch.y - mean) / left
    return LeftOut(batch.y - error, residual.clamp_min(0) + explained / left + noise)
