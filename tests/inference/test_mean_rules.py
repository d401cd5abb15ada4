"""Natural steps for means that no covariance belongs to: exact, diagonal, joint (MATH §3.2, §11 B10)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from duogp.bases import Basis, Coupled, Hybrid, TwoBlock
from duogp.inference.closed_form import CollapsedObjective
from duogp.inference.mean_rules import PowerIteration
from duogp.inference.natural import NaturalGradient
from duogp.models.model import Batch, Model
from duogp.variational import BlockQ
from helpers.devices import placed
from helpers.random_models import Parts, random_problem

pytestmark = pytest.mark.usefixtures("device")


def orth(p: Parts) -> TwoBlock:
    size = p.z.shape[-2]
    return TwoBlock(p.kernel(), p.z, p.extra, p.q(mean_size=size + p.extra.shape[-2]), mean_only=True)


def solve(p: Parts) -> TwoBlock:
    return TwoBlock(p.kernel(), p.z, p.extra, BlockQ(p.q(), p.q(p.extra.shape[-2])))


def hybrid(orthogonal: bool) -> Callable[[Parts], Basis]:
    return lambda p: Hybrid(p.kernel(), p.z, p.extra, p.q(), orthogonal=orthogonal)


def step(model: Model, batch: Batch, natural: NaturalGradient) -> float:
    natural.zero_grad()
    for p in model.parameters():
        p.grad = None
    loss = model.loss(batch).sum()
    loss.backward()
    natural.compute()
    natural.write()
    return float(loss.detach())


def natural_gradient(model: Model, rate: float, rule: str) -> NaturalGradient:
    return NaturalGradient(model.basis, model.num_data, rate, mean_rule=rule, beta1=model.beta1)


def optimum(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
    best = CollapsedObjective(model, [lambda: batch]).solve()
    return best.mean, best.root @ best.root.mT


@pytest.mark.parametrize("objective", ["elbo", "vfitc"])
@pytest.mark.parametrize("beta1", [1.0, 0.5])
@pytest.mark.parametrize("build", [orth, solve], ids=["orth", "solve"])
def test_the_joint_step_lands_on_the_optimum(build, beta1, objective):
    """B10: the full precision solves for both means at once, its diagonal blocks are the covariances."""
    model, batch, _ = random_problem(build, "full", objective, beta1=beta1, replicates=2, latents=2)
    mean, S = optimum(model, batch)
    step(model, batch, natural_gradient(model, 1 / beta1, "joint"))
    assert_close(model.basis.q.mean.detach(), mean, rtol=1e-8, atol=1e-8)
    assert_close(model.basis.q.covariance().detach(), S, rtol=1e-8, atol=1e-8)


def test_small_joint_steps_get_there_too():
    model, batch, _ = random_problem(orth, beta1=1.0)
    mean, S = optimum(model, batch)
    natural = natural_gradient(model, 0.3, "joint")
    losses = [step(model, batch, natural) for _ in range(120)]
    assert_close(model.basis.q.mean.detach(), mean, rtol=1e-6, atol=1e-6)
    assert_close(model.basis.q.covariance().detach(), S, rtol=1e-6, atol=1e-6)
    assert losses[-1] < losses[0]


CASES = {"whitened-exact": (orth, "exact")} | {
    f"{'orthogonal' if o else 'hybrid'}-{rule}": (hybrid(o), rule)
    for o in (True, False)
    for rule in ("exact", "diagonal")
}


@pytest.mark.parametrize("noise", [pytest.param(0.5, marks=pytest.mark.slow), 1e-3])
@pytest.mark.parametrize("case", CASES)
def test_the_step_size_is_kept_below_the_stability_limit(case, noise):
    """A rate of 1 diverges at small noise (MATH §3.2); the limit found by power iteration does not let it."""
    build, rule = CASES[case]
    model, batch, _ = random_problem(build, beta1=1.0)
    model.likelihood.noise.set_(noise)
    natural = natural_gradient(model, 1.0, rule)
    losses = [step(model, batch, natural) for _ in range(120)]
    assert all(torch.isfinite(torch.tensor(losses)))
    assert losses[-1] <= min(losses) + 1e-6 * abs(losses[-1])
    late = losses[30:]
    assert all(b <= a + 1e-7 * abs(a) for a, b in itertools.pairwise(late))


@pytest.mark.parametrize(("factor", "converges"), [(0.95, True), (1.05, False)])
def test_the_stability_limit_is_where_math_says(factor, converges):
    """τ < 2/(1 + λ_max(Φ_⊥Φ_⊥ᵀ)/s²), for plain steps on the mean of v with u out of the way."""
    model, batch, _ = random_problem(orth, beta1=1.0)
    basis, size = model.basis, model.basis.q.size
    with torch.no_grad():
        perp = basis.features(batch.x.unsqueeze(-3), model.factors()).mean[..., size:, :]
        curvature = torch.linalg.eigvalsh(perp @ perp.mT / model.likelihood.noise()[..., None, None])
        tau = factor * 2 / (1 + curvature[..., -1])
    start = None
    for _ in range(400):
        basis.q.mean.grad = None
        model.loss(batch).sum().backward()
        g = basis.q.mean.grad[..., size:] * model.num_data
        start = float(g.norm()) if start is None else start
        with torch.no_grad():
            basis.q.mean[..., size:] -= tau.unsqueeze(-1) * g
    assert (float(g.norm()) < start) == converges


@pytest.mark.slow
@pytest.mark.parametrize("build", [orth, hybrid(True)], ids=["whitened", "coefficients"])
def test_exact_gamma_steps_reach_the_optimum_of_the_decoupled_basis(build):
    model, batch, _ = random_problem(build, beta1=1.0)
    two_block = random_problem(orth, beta1=1.0).model
    two_block.basis.kernel.load_state_dict(model.basis.kernel.state_dict())
    two_block.mean.load_state_dict(model.mean.state_dict())
    two_block.likelihood.noise.set_(1.0)
    natural = natural_gradient(model, 1.0, "exact")
    model.likelihood.noise.set_(1.0)
    best = float(CollapsedObjective(two_block, [lambda: batch]).backward().detach())
    for _ in range(400):
        last = step(model, batch, natural)
    assert last == pytest.approx(best, abs=1e-6)


def test_rules_that_a_basis_does_not_have_are_refused():
    coupled = random_problem(lambda p: Coupled(p.kernel(), p.z, p.q())).model
    with pytest.raises(ValueError, match="not defined for the Coupled"):
        natural_gradient(coupled, 0.1, "joint")
    with pytest.raises(ValueError, match="must be one of"):
        natural_gradient(coupled, 0.1, "newton")
    with pytest.raises(ValueError, match="not defined"):
        natural_gradient(random_problem(solve).model, 0.1, "exact")


def test_power_iteration_finds_the_largest_eigenvalue():
    g = torch.Generator().manual_seed(0)
    A = placed(torch.randn(3, 2, 12, 12, generator=g, dtype=torch.float64))
    A = A @ A.mT
    power = PowerIteration(A[..., 0])
    for _ in range(60):
        found = power.estimate(lambda v: (A @ v.unsqueeze(-1)).squeeze(-1))
    assert_close(found, torch.linalg.eigvalsh(A)[..., -1], rtol=1e-3, atol=0)
