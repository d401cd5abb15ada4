"""The exact posterior mean in a basis of training rows: weights a = (k(X, X) + Σ)⁻¹ (y − μ₀).

A mean k(x, X)a on all rows costs O(n) a prediction, while a variance on all rows costs O(n²): the hybrid
basis (Cheng and Boots 2017; Salimbeni et al. 2018) takes this mean and the covariance of a few inducing
points. Its closed form has the same optimum, but by way of the Gram matrix k(X, X)Σ⁻¹k(X, X), which has half
the digits and three times the products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from duogp.models.model import Batch, Model
from duogp.numerics.factorisation import jittered_root


@torch.no_grad()
def mean_of_rows(model: Model, batch: Batch) -> None:
    """Set a hybrid model's coefficients to the exact posterior mean's; its mean points are the batch's rows.

    Nothing is left for m, which becomes zero; S is not touched, and its optimum is that of the coupled basis.
    """
    basis: Any = model.basis
    assert basis.has_mean_coefficients
    basis.a.copy_(posterior_weights(model, batch))
    basis.q.mean.zero_()


@torch.no_grad()
def posterior_weights(model: Model, batch: Batch) -> Tensor:
    """a = (k(X, X) + Σ)⁻¹ (y − μ₀), [R, outputs, n], in float64; one output after the other."""
    x = batch.x.unsqueeze(-3).double()
    target = (batch.y - model.mean(batch.x.unsqueeze(-3))).double()
    noise = model.likelihood.bind(batch.noise).noise.double()  # type: ignore[attr-defined]
    if batch.weight is not None:
        noise = noise / batch.weight.unsqueeze(-2)
    noise = noise.expand_as(target)
    every = model.basis.kernel(x, x)
    diagonal = every.diagonal(dim1=-2, dim2=-1).clone()
    weights = []
    for p in range(target.shape[-2]):
        own = p if every.shape[1] > 1 else 0  # one kernel may serve many outputs
        K = every[:, own]  # [R, n, n]
        K.diagonal(dim1=-2, dim2=-1).copy_(diagonal[:, own] + noise[:, p])
        scale = diagonal[:, own].mean(-1)
        root = jittered_root(K, scale, first=0.0, failure="the kernel matrix of all rows is singular")
        weights.append(torch.cholesky_solve(target[:, p].unsqueeze(-1), root).squeeze(-1))
    return torch.stack(weights, -2)
