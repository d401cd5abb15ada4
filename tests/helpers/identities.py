"""Problems whose ELBO is a bound, their collapsed values and their optima."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from duogp.bases import Basis, Coupled
from duogp.inference.closed_form import CollapsedObjective
from duogp.inference.optimal_q import Optimum
from duogp.models.model import Batch, Model
from helpers import dense
from helpers.dense import inv, k
from helpers.random_models import Parts, Problem, random_problem


def coupled(p: Parts) -> Basis:
    return Coupled(p.kernel(), p.z, p.q())


def bound_problem(build: Callable[[Parts], Basis], **settings: object) -> Problem:
    """β₁ = β₂ = 1."""
    return random_problem(build, **{"beta1": 1.0, "beta2": 1.0, **settings})


def collapsed_value(model: Model, batch: Batch) -> Tensor:
    """The best objective, summed over data: [R]."""
    return -CollapsedObjective(model, [lambda: batch]).backward() * model.num_data


def put_optimum(model: Model, batch: Batch) -> Optimum:
    best = CollapsedObjective(model, [lambda: batch]).solve()
    model.basis.q.set_(best.mean, best.root)
    return best


def objective_value(model: Model, batch: Batch) -> Tensor:
    """Σ data − β₁ KL − β₂ Ω: [R]."""
    return -model.loss(batch) * model.num_data


def pieces(model: Model, batch: Batch) -> tuple[Tensor, ...]:
    """y − μ₀, s² I, K_Z, K_xz, K̃ of a coupled or conditional model."""
    kernel, z, x = model.basis.kernel, model.basis.inducing, batch.x.unsqueeze(-3)
    K, K_xz = k(kernel, z, z), k(kernel, x, z)
    residual = k(kernel, x, x) - K_xz @ inv(K) @ K_xz.mT
    noise = torch.diag_embed(dense.noise_variance(model, batch))
    return batch.y - dense.prior_mean(model, batch.x), noise, K, K_xz, residual


def diagonal(A: Tensor) -> Tensor:
    return A.diagonal(dim1=-2, dim2=-1)


def penalties_of(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    _, found = model.basis.evaluate(x.unsqueeze(-3), model.factors(), model.numerics, with_omega=True)
    assert found.omega is not None
    return found.kl, found.omega
