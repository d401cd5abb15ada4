"""Predictions for every training row as if it had not been there, from one solved q(u).

Row i observes f(xᵢ) with precision Λᵢ = wᵢ/s², so removing it is a downdate of rank one. With the
variance vᵢ that q(u) explains there and hᵢ = Λᵢvᵢ,

    v₋ᵢ = vᵢ / (1 − hᵢ),      μ₋ᵢ = yᵢ − (yᵢ − μᵢ) / (1 − hᵢ)

exactly, where q(u) is the optimum of the ELBO on these rows: a sparse GP with its kernel and points held, and
the exact GP, for which this is the classical formula.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from duogp.models.model import Batch, Model
from duogp.numerics.factorisation import Factor

#: hᵢ stays this far from one: a row that alone decides the function there predicts nothing without itself.
LEAST = 1e-6


class LeftOut(NamedTuple):
    """Moments of a new observation at each row, [R, outputs, n], the row itself left out."""

    mean: Tensor
    variance: Tensor


@torch.no_grad()
def leave_one_out(model: Model, batch: Batch, factors: Any | None = None) -> LeftOut:
    """For a model whose q(u) is the closed-form optimum on the rows of the batch.

    An exact GP must have been conditioned on these rows, in this order. ``factors``: the model's, if known.
    """
    if model.basis.points_are_rows:
        return _exact(model, batch, model.factors() if factors is None else factors)
    f = model.marginals(batch.x, factors)
    mean, residual, explained = torch.broadcast_tensors(*f)
    noise = model.likelihood.bind(batch.noise).noise  # type: ignore[attr-defined]
    weight = 1.0 if batch.weight is None else batch.weight.unsqueeze(-2)
    left = (1 - weight * explained / noise).clamp_min(LEAST)
    error = (batch.y - mean) / left
    return LeftOut(batch.y - error, residual.clamp_min(0) + explained / left + noise)


def _exact(model: Model, batch: Batch, factors: Factor) -> LeftOut:
    """With C = K + noise: yᵢ − μ₋ᵢ = [C⁻¹(y − μ₀)]ᵢ / [C⁻¹]ᵢᵢ and the variance is 1/[C⁻¹]ᵢᵢ.

    The same numbers, without the difference 1 − hᵢ, which has no digits left where there is little noise.
    """
    white = factors.L_inv  # C⁻¹ = LᵀL with L its rows
    target = (batch.y - model.mean(batch.x.unsqueeze(-3))).to(white)
    precision = white.square().sum(-2)
    away = (white.mT @ (white @ target.unsqueeze(-1))).squeeze(-1) / precision
    # The noise of a weighed row is that of its mean; a new observation has weight one.
    noise = model.likelihood.bind(batch.noise).noise.to(white)  # type: ignore[attr-defined]
    weight = 1.0 if batch.weight is None else batch.weight.unsqueeze(-2).to(white)
    variance = 1 / precision + (1 - 1 / weight) * noise
    return LeftOut(batch.y - away.to(batch.y), variance.to(batch.y))
