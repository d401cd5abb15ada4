"""Random problems of every decoupled basis, and natural steps on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from duogp.bases import Basis, Coupled, Hybrid, Subspace
from duogp.inference.natural import NaturalGradient
from duogp.likelihoods import BernoulliLikelihood, Likelihood, PoissonLikelihood
from duogp.models.model import Batch, Model
from duogp.numerics.parameters import batched
from helpers.conformance import components, conditional, orthogonal, separate, solve
from helpers.dense import t
from helpers.devices import placed
from helpers.identities import bound_problem
from helpers.random_models import Parts, Problem, learned


def hybrid(orthogonal: bool) -> Callable[[Parts], Basis]:
    return lambda p: Hybrid(p.kernel(), p.z, p.extra, p.q(), orthogonal=orthogonal)


def subspace(p: Parts) -> Basis:
    return Subspace(p.kernel(), p.extra, p.z, p.batch_shape)


BASES: dict[str, Callable[[Parts], Basis]] = {
    "coupled": lambda p: Coupled(p.kernel(), p.z, p.q()),
    "conditional-Q": conditional("Q"),
    "conditional-K": conditional("K"),
    "separate": separate(+1),
    "solve": solve(+1),
    "orthogonal": orthogonal(+1),
    "orthogonal-a": hybrid(True),
    "hybrid": hybrid(False),
    "components-eps": components(+1, 0.2),
    "subspace": subspace,
}
LIKELIHOODS: dict[str, Callable[[], Likelihood] | None] = {
    "gaussian": None,
    "probit": lambda: BernoulliLikelihood("probit"),
    "logit": lambda: BernoulliLikelihood("logit"),
    "poisson": PoissonLikelihood,
}

every_basis = pytest.mark.parametrize("name", BASES)


def normal(like: Tensor, generator: torch.Generator, scale: float = 1.0) -> Tensor:
    return placed(scale * torch.randn(like.shape, generator=generator, dtype=torch.float64))


def problem(name: str, likelihood: str = "gaussian", **options: Any) -> Problem:
    """β₁ = β₂ = 1, every parameter random, plain coefficients too; targets as the likelihood wants them."""
    model, batch, x = bound_problem(BASES[name], **options)
    generator = torch.Generator().manual_seed(options.get("seed", 0))
    with torch.no_grad():
        if isinstance(model.basis, Hybrid):
            model.basis.a.copy_(normal(model.basis.a, generator))
        if isinstance(model.basis, Subspace):
            model.basis.q.raw_root.copy_(normal(model.basis.q.raw_root, generator, 0.6))
    if (make := LIKELIHOODS[likelihood]) is not None:
        model.likelihood = placed(batched(make(), (model.replicates,)).double())
        y = batch.y.exp().floor() if likelihood == "poisson" else (batch.y > 0).double()
        batch = batch._replace(y=y)
    return Problem(model, batch, x)


def of_q(model: Model) -> Iterator[tuple[str, nn.Parameter]]:
    """The variational parameters."""
    return ((n, p) for n, p in learned(model.basis) if n == "a" or n.startswith("q."))


def objective(model: Model, batch: Batch) -> Tensor:
    """Σ data − β₁ KL − β₂ Ω: [R]."""
    return -model.loss(batch).detach() * model.num_data


def natural_step(model: Model, batch: Batch, rho: float, **rules: Any) -> NaturalGradient:
    natural = NaturalGradient(model.basis, model.num_data, rho, beta1=model.beta1, **rules)
    descend(model, batch, natural)
    return natural


def descend(model: Model, batch: Batch, natural: NaturalGradient) -> Tensor:
    """One full-batch step; the objective before it: [R]."""
    model.zero_grad()
    loss = model.loss(batch)
    loss.sum().backward()
    natural.compute()
    natural.write()
    return -loss.detach() * model.num_data


def coefficients(model: Model) -> Tensor:
    """a_γ of ORTH, in either parametrisation."""
    if isinstance(model.basis, Hybrid):
        return model.basis.a.detach().clone()
    m_v = model.basis.q.mean.detach()[..., model.basis.q.size :]
    return t(m_v, model.factors().v.L_inv.mT.detach())


def climb(model: Model, batch: Batch, natural: NaturalGradient, steps: int) -> Tensor:
    """Objectives before each of so many steps, one column for each replicate; all of them taken."""
    values = torch.stack([descend(model, batch, natural) for _ in range(steps)])
    assert (natural.shrink == 1).all()
    return values


SEEDS = 15
