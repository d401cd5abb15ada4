"""Identities of the decoupled bases that no other file has: convexity, invariance, bounds by the registry.

    convexity of the negative ELBO        Salimbeni et al. 2018, appendix B    (MATH §3.2)
    invariance of natural steps           appendix C.3                         (MATH §3.2, §11 A4, A5)
    natural steps beyond the Gaussian     MATH §11 A4, B10
    8   ORTH is the decoupled basis on γ ∪ β, as a model
    9   the chain of bounds on more real data
    23  minibatch gradients average to the full one, Ω's do not
    24  KL ≥ 0 for any q; and no method that claims a bound exceeds log p(y)

What is elsewhere: 8, 9, 11, 14, 16, 17 of the whitened bases in test_conformance_two_block.py, of plain
coefficients in test_conformance_hybrid.py; 10, 15 in test_conformance_subspace.py; 13 in the gpytorch files;
exactness of natural steps in test_natural.py and test_natural_means.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_conformance import close, components, conditional, orthogonal, separate, solve
from test_conformance_identities import bound_problem, penalties_of, put_optimum
from test_conformance_two_block import chain, full_q, kl, twin
from torch import Tensor, nn
from torch.testing import assert_close

import dense
from dense import inv, k, log_evidence, t
from duogp import data
from duogp.bases import (
    Basis,
    Conditional,
    Coupled,
    Exact,
    Hybrid,
    Marginals,
    Separate,
    Subspace,
    TwoBlock,
    optimal_decoupled,
)
from duogp.fitting.build import build_model
from duogp.inference.natural import NaturalGradient
from duogp.kernels import RBF, Scale
from duogp.likelihoods import BernoulliLikelihood, Likelihood, PoissonLikelihood
from duogp.means import LinearMean
from duogp.methods import METHODS, Method
from duogp.methods.settings import Settings
from duogp.models.model import Batch, Model, take_replicate
from duogp.numerics.parameters import batched
from duogp.variational import BlockQ, CholeskyQ
from random_models import Parts, Problem, learned, random_problem


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
    return scale * torch.randn(like.shape, generator=generator, dtype=torch.float64)


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
        model.likelihood = batched(make(), (model.replicates,)).double()
        y = batch.y.exp().floor() if likelihood == "poisson" else (batch.y > 0).double()
        batch = batch._replace(y=y)
    return Problem(model, batch, x)


def of_q(model: Model) -> Iterator[tuple[str, nn.Parameter]]:
    """The variational parameters."""
    return ((n, p) for n, p in learned(model.basis) if n == "a" or n.startswith("q."))


def objective(model: Model, batch: Batch) -> Tensor:
    """Σ data − β₁ KL − β₂ Ω: [R]."""
    return -model.loss(batch).detach() * model.num_data


# -- convexity (appendix B) -----------------------------------------------------------------------------

DRAWS = 40
STEPS = torch.linspace(0, 1, 9, dtype=torch.float64)


def random_end(model: Model, generator: torch.Generator) -> dict[str, Tensor]:
    """Variational parameters of any size; the factors of S are triangular with a positive diagonal."""
    end = {}
    for name, p in of_q(model):
        scale = 10 ** (torch.rand(p.shape[0], generator=generator, dtype=torch.float64) - 0.5)
        end[name] = normal(p, generator) * scale.view(-1, *[1] * (p.dim() - 1))
        if name.endswith("raw_root"):
            end[name] = end[name].tril()
            end[name].diagonal(dim1=-2, dim2=-1).abs_().clamp_min_(1e-2)
    return end


@torch.no_grad()
def along(model: Model, batch: Batch, start: dict[str, Tensor], end: dict[str, Tensor]) -> Tensor:
    """The negative objective at points of the segment between two q: [points, R]."""
    values = []
    for step in STEPS:
        for name, p in of_q(model):
            p.copy_((1 - step) * start[name] + step * end[name])
        values.append(-objective(model, batch))
    return torch.stack(values)


def curvature(values: Tensor) -> Tensor:
    """Second differences: [points − 2, R]."""
    return values[:-2] - 2 * values[1:-1] + values[2:]


def least_curvature(start: dict[str, Tensor], end: dict[str, Tensor]) -> Tensor:
    """h²‖ΔL‖², the second difference of ½ tr S, whitened: KL alone bends as much: [R]."""
    change = sum((end[n] - start[n]).square().flatten(1).sum(1) for n in start if n.endswith("raw_root"))
    return (STEPS[1] - STEPS[0]) ** 2 * change


def bulge(values: Tensor) -> Tensor:
    """What the midpoint has above the mean of the ends; never positive for a convex function: [R]."""
    return values[len(values) // 2] - 0.5 * (values[0] + values[-1])


CONVEX = ["coupled", "orthogonal", "orthogonal-a", "hybrid", "solve", "separate"]


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", CONVEX)
def test_the_negative_elbo_is_convex_in_the_means_and_the_factor_of_s(name: str, likelihood: str) -> None:
    """Log-concave likelihoods: convex in (a_γ, a_β, L), S = LLᵀ, diag L > 0, and in any affine image of them.

    Strongly, because the KL is. Quadrature keeps it exactly: Σ w F(μ + √v z) with symmetric nodes is convex
    in (μ, √v), and √v in L.
    """
    model, batch, _ = problem(name, likelihood, replicates=DRAWS)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        assert_convex(model, batch, random_end(model, generator), random_end(model, generator))


def assert_convex(model: Model, batch: Batch, start: dict[str, Tensor], end: dict[str, Tensor]) -> None:
    values, least = along(model, batch, start, end), least_curvature(start, end)
    assert values.isfinite().all() and (least > 0).all()
    rounding = 1e-13 * values.abs().max(0).values
    assert (curvature(values) > least - rounding).all()
    assert (bulge(values) < 0).all()


@pytest.mark.parametrize("likelihood", ["gaussian", "probit"])
@pytest.mark.parametrize("name", ["coupled", "orthogonal", "orthogonal-a"])
def test_so_is_the_negative_vfitc_objective(name: str, likelihood: str) -> None:
    """E_{f|u} p(y|f) is log-concave in E[f|u]: a log-concave density convolved with a Gaussian (§11 A4)."""
    model, batch, _ = problem(name, likelihood, objective="vfitc", replicates=DRAWS)
    generator = torch.Generator().manual_seed(2)
    assert_convex(model, batch, random_end(model, generator), random_end(model, generator))


def test_the_inverse_form_of_the_covariance_is_not_convex() -> None:
    """Σ⁻¹ = I + Ψ_β B Ψ_βᵀ, B = LLᵀ: segments bulge by nats, although diag L keeps its sign along them.

    The mean is not to blame: with L held, the objective is convex in a. And between the same two posteriors
    the segment in the S form does not bulge.
    """
    model, batch, _ = problem("subspace", replicates=DRAWS)
    model.likelihood.noise.set_(0.05)
    generator = torch.Generator().manual_seed(3)
    start, end = random_end(model, generator), random_end(model, generator)
    values = along(model, batch, start, end | {"q.a0": start["q.a0"]})
    assert (curvature(values).min(0).values < -0.1).double().mean() > 0.5
    assert bulge(values).max() > 3

    same_covariance = end | {"q.raw_root": start["q.raw_root"]}
    assert curvature(along(model, batch, start, same_covariance)).min() > 1e-3

    s_form = twin(model, separate_like(model.basis))
    ends = []
    for place in (start, end):
        with torch.no_grad():
            for name, p in of_q(model):
                p.copy_(place[name])
            factors = model.factors()
            root = torch.linalg.cholesky(model.basis.q_of(factors).covariance())
            m = t(factors.a, s_form.factors().mean.L.mT)  # a = L_α⁻ᵀ m
        ends.append({"q.mean": m, "q.raw_root": root})
    inverse_form, values = along(model, batch, start, end), along(s_form, batch, *ends)
    assert_close(values[[0, -1]], inverse_form[[0, -1]], rtol=1e-8, atol=1e-8)
    assert_convex(s_form, batch, *ends)


def separate_like(basis: Subspace) -> Separate:
    alpha, beta = (p.detach().clone() for p in (basis.mean_inducing, basis.inducing))
    q = CholeskyQ(beta.shape[-2], basis.q.a0.shape[:-1], mean_size=alpha.shape[-2])
    return Separate(basis.kernel, alpha, beta, q.double())


def test_the_predictive_objective_is_not_convex_either() -> None:
    """log E p(y|f) is no expectation of a concave function: even the coupled basis has bulging segments."""
    model, batch, _ = problem("coupled", objective="predictive", replicates=DRAWS)
    model.likelihood.noise.set_(0.05)
    generator = torch.Generator().manual_seed(4)
    values = along(model, batch, random_end(model, generator), random_end(model, generator))
    assert curvature(values).min() < -0.1


def test_convexity_is_strict_only_where_no_mean_point_is_an_inducing_point() -> None:
    """γ₀ = β₀: C_γγ has a zero row, the orthogonal basis no use for a_γ₀; the hybrid one bends along it."""
    for name, bends in (("orthogonal-a", False), ("hybrid", True)):
        model, batch, _ = problem(name)
        with torch.no_grad():
            model.basis.mean_inducing[..., 0, :] = model.basis.inducing[..., 0, :]
        start = {n: p.detach().clone() for n, p in of_q(model)}
        moved = start["a"].clone()
        moved[..., 0] += 5.0
        values = along(model, batch, start, start | {"a": moved})
        assert (curvature(values).min() > 1e-3) == bends
        assert (values.std(0).max() < 1e-8) != bends


# -- natural steps do not depend on the coordinates (appendix C.3) ----------------------------------------


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


class Unwhitened(NamedTuple):
    """A model as a function of q(u) = N(m, S), u = f(Z):  f = B u + offset + residual."""

    root: Tensor  # R of the library's coordinates, u = R v
    B: Tensor
    offset: Tensor
    residual: Tensor
    prior: Tensor  # K_Z
    centre: Tensor  # of the penalty ½(m − centre)ᵀK⁻¹(m − centre): not zero in hybrid coordinates
    mismatch: Tensor  # T of Ω, zero without one


def unwhitened(model: Model, x: Tensor) -> Unwhitened:
    """Dense formulas of the coupled, conditional, orthogonal and hybrid bases (MATH §1.1, §2.1, §3)."""
    basis, kernel, z, x = model.basis, model.basis.kernel, model.basis.inducing, x.unsqueeze(-3)
    K, K_xz = k(kernel, z, z), k(kernel, x, z)
    B, root = K_xz @ inv(K), torch.linalg.cholesky(K)
    residual = k(kernel, x, x) - B @ K_xz.mT
    offset, centre, T = torch.zeros_like(residual[..., 0]), torch.zeros_like(K[..., 0]), torch.zeros_like(K)
    if isinstance(basis, Conditional):
        Q = k(basis.mean_kernel, z, z)
        A, B = B, k(basis.mean_kernel, x, z) @ inv(Q)
        T = dense.mismatch(B - A, residual)
        root = torch.linalg.cholesky(Q) if basis.whitening == "Q" else root
    elif isinstance(basis, TwoBlock):
        prior = dense.two_block_prior(model, x)
        a = t(basis.q.mean[..., basis.q.size :], inv(torch.linalg.cholesky(prior.v)).mT)
        offset = t(a, prior.k_v)
    elif isinstance(basis, Hybrid):
        gamma, a = basis.mean_inducing, basis.a
        offset, lift = t(a, k(kernel, x, gamma)), t(a, k(kernel, z, gamma))
        if basis.orthogonal:
            offset = offset - t(lift, B)
        else:
            centre = -lift
    residual = residual.diagonal(dim1=-2, dim2=-1)
    return Unwhitened(*(part.detach() for part in (root, B, offset, residual, K, centre, T)))


def moments_of_u(model: Model, root: Tensor) -> tuple[Tensor, Tensor]:
    """m and S of u = R v."""
    q = model.basis.q
    return t(q.mean.detach()[..., : q.size], root), root @ q.covariance().detach() @ root.mT


def step_in_coordinates(
    model: Model, batch: Batch, parts: Unwhitened, A: Tensor, rho: float
) -> tuple[Tensor, Tensor]:
    """u = A w: one natural step on q(w), by the formulas of MATH §1.3 and autograd; its m and S of u."""
    m, S = moments_of_u(model, parts.root)
    w, W = t(m, inv(A)).requires_grad_(), (inv(A) @ S @ inv(A).mT).requires_grad_()
    mean, covariance = t(w, A), A @ W @ A.mT
    f = Marginals(
        t(mean, parts.B) + parts.offset + dense.prior_mean(model, batch.x),
        parts.residual,
        (parts.B @ covariance * parts.B).sum(-1),
    )
    apart, K_inv = mean - parts.centre, inv(parts.prior)
    divergence = 0.5 * ((K_inv * covariance).sum((-2, -1)) + dense.quadratic(apart, K_inv) - W.logdet())
    omega = 0.5 * ((parts.mismatch * covariance).sum((-2, -1)) + dense.quadratic(mean, parts.mismatch))
    value = model.objective(model.likelihood.bind(), f, batch.y).sum()
    value = value - (model.beta1 * divergence.sum(-1) + model.beta2 * omega.sum(-1)).sum()
    g_w, g_W = torch.autograd.grad(value, [w, W])
    g_W = 0.5 * (g_W + g_W.mT)
    w, P = w.detach(), inv(W.detach())
    P_new = P - 2 * rho * g_W  # −2 (t₂ + ρ ∂/∂e₂)
    new = t(t(w, P) + rho * (g_w - 2 * t(w, g_W)), inv(P_new))  # t₁ + ρ (∂/∂m − 2 (∂/∂S) m)
    return t(new, A), A @ inv(P_new) @ A.mT


def symmetric_root(K: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(K)
    return vectors * values.sqrt().unsqueeze(-2) @ vectors.mT


@pytest.mark.parametrize("rho", [0.3, 1.0])
@pytest.mark.parametrize(
    ("goal", "likelihood"), [("elbo", "gaussian"), ("vfitc", "gaussian"), ("elbo", "probit")]
)
@pytest.mark.parametrize(
    "name", ["coupled", "conditional-Q", "conditional-K", "orthogonal", "orthogonal-a", "hybrid"]
)
def test_a_natural_step_is_the_same_in_any_affine_coordinates(
    name: str, goal: str, likelihood: str, rho: float
) -> None:
    """The library's whitened step on q(u) is the one on u itself, on a_β = K⁻¹u, and on K^−½u."""
    model, batch, _ = problem(name, likelihood, objective=goal, beta1=0.7, beta2=0.3, latents=2)
    parts = unwhitened(model, batch.x)
    eye = torch.eye(parts.prior.shape[-1], dtype=torch.float64).expand_as(parts.prior)
    coordinates = {"u": eye, "a": parts.prior, "symmetric": symmetric_root(parts.prior)}
    expected = {n: step_in_coordinates(model, batch, parts, A, rho) for n, A in coordinates.items()}
    before = moments_of_u(model, parts.root)
    natural = natural_step(model, batch, rho)
    assert natural.shrink.item() == 1
    found = moments_of_u(model, parts.root)
    for theirs in expected.values():
        for ours, other in zip(found, theirs, strict=True):
            assert_close(ours, other, rtol=1e-8, atol=1e-8)
    assert (found[0] - before[0]).abs().max() > 1e-2


RULES = {"elbo": {}, "vfitc": {}, "predictive": {"always_positive": True}}


@pytest.mark.parametrize("rho", [0.3, 1.0])
@pytest.mark.parametrize("goal", RULES)
def test_hybrid_and_orthogonal_coordinates_take_the_same_step(goal: str, rho: float) -> None:
    """m_orthogonal = m_hybrid + φ_γ a before and after, a fixed; also by the always-positive rule."""
    one, batch, x = problem("hybrid", objective=goal)
    two = problem("orthogonal-a", objective=goal).model
    two.load_state_dict(one.state_dict())
    lift = one.factors().lift.detach()
    with torch.no_grad():
        two.basis.q.mean += lift
    for model in (one, two):
        natural_step(model, batch, rho, **RULES[goal])
    assert_close(two.basis.q.mean, one.basis.q.mean + lift, rtol=1e-8, atol=1e-8)
    assert_close(two.basis.q.covariance(), one.basis.q.covariance(), rtol=1e-8, atol=1e-8)
    for a, b in zip(one.marginals(x), two.marginals(x), strict=True):
        assert_close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("rho", [0.3, 1.0])
@pytest.mark.parametrize("goal", RULES)
def test_whitening_by_either_kernel_takes_the_same_step_for_every_objective(goal: str, rho: float) -> None:
    """R v_Q = L_K v_K before and after (test_natural.py has the ELBO at 0.3)."""
    one, batch, x = problem("conditional-Q", objective=goal)
    two = problem("conditional-K", objective=goal).model
    two.load_state_dict(one.state_dict())
    with torch.no_grad():
        factors = one.factors()
        V = factors.covariance.L_inv @ factors.mean.L
        S = V @ one.basis.q.covariance() @ V.mT
        two.basis.q.set_(t(one.basis.q.mean, V), torch.linalg.cholesky(S))
    for model in (one, two):
        natural_step(model, batch, rho, **RULES[goal])
    assert_close(two.basis.q.mean, t(one.basis.q.mean, V), rtol=1e-8, atol=1e-8)
    for a, b in zip(one.marginals(x), two.marginals(x), strict=True):
        assert_close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("rho", [0.3, 1.0])
@pytest.mark.parametrize("goal", RULES)
@pytest.mark.parametrize("name", ["coupled", "orthogonal"])
def test_the_order_of_inducing_points_does_not_matter_to_a_natural_step(
    name: str, goal: str, rho: float
) -> None:
    """Permuted Z, q rotated by U = L_p⁻¹ΠL (§11 A5): after a step one posterior, q rotated by U again."""
    one, batch, x = problem(name, objective=goal)
    two = problem(name, objective=goal).model
    order = torch.tensor([2, 0, 3, 1])
    q, size = one.basis.q, one.basis.q.size
    with torch.no_grad():
        two.basis.inducing.copy_(one.basis.inducing[..., order, :])
        of_u = [m.factors() if name == "coupled" else m.factors().u for m in (one, two)]
        U = of_u[1].L_inv @ of_u[0].L[..., order, :]
        mean = torch.cat([t(q.mean[..., :size], U), q.mean[..., size:]], -1)
        two.basis.q.set_(mean, torch.linalg.cholesky(U @ q.covariance() @ U.mT))
    for model in (one, two):
        natural_step(model, batch, rho, **RULES[goal])
    assert_close(two.basis.q.mean[..., :size], t(q.mean[..., :size], U), rtol=1e-8, atol=1e-8)
    for a, b in zip(one.marginals(x), two.marginals(x), strict=True):
        assert_close(a, b, rtol=1e-8, atol=1e-8)


def coefficients(model: Model) -> Tensor:
    """a_γ of ORTH, in either parametrisation."""
    if isinstance(model.basis, Hybrid):
        return model.basis.a.detach().clone()
    m_v = model.basis.q.mean.detach()[..., model.basis.q.size :]
    return t(m_v, model.factors().v.L_inv.mT.detach())


def test_the_step_of_gamma_is_the_same_whitened_or_not() -> None:
    """§3.2: a_γ ← a_γ − τ C_γγ⁻¹∇, whether by metric C on a or by metric I on m_v = Cᵀa; u moves alike.

    The rule for plain coefficients adds 1e-6 of the prior variance to C, which is all they differ by.
    """
    one, batch, x = problem("orthogonal-a")
    two = problem("orthogonal").model
    two.basis.kernel.load_state_dict(one.basis.kernel.state_dict())
    two.mean.load_state_dict(one.mean.state_dict())
    two.likelihood.load_state_dict(one.likelihood.state_dict())
    with torch.no_grad():
        two.basis.inducing.copy_(one.basis.inducing)
        two.basis.orthogonal_inducing.copy_(one.basis.mean_inducing)
        m_v = t(one.basis.a, two.factors().v.L.mT)
        two.basis.q.set_(torch.cat([one.basis.q.mean, m_v], -1), one.basis.q.root())
    tau = 0.02  # below the stability limit of both, which would cut it
    prior = dense.two_block_prior(two, batch.x.unsqueeze(1))
    (slope,) = torch.autograd.grad(one.loss(batch).sum() * one.num_data.item(), one.basis.a)
    expected = one.basis.a.detach() - tau * t(slope, inv(prior.v))
    for model in (one, two):
        natural_step(model, batch, tau, mean_rule="exact")
    assert_close(coefficients(two), expected.detach(), rtol=1e-8, atol=1e-8)
    assert_close(coefficients(one), expected.detach(), rtol=1e-3, atol=1e-3)
    for a, b in zip(one.marginals(x), two.marginals(x), strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_holding_m_while_the_coefficients_of_the_hybrid_basis_move_is_another_step() -> None:
    """C.2: natural coordinates of the hybrid basis tie a_γ to m. Its rule moves a with m held, metric K_γ:
    a block of the metric, not all of it, so this step does depend on the coordinates."""
    one, batch, x = problem("hybrid")
    two = problem("orthogonal-a").model
    two.load_state_dict(one.state_dict())
    with torch.no_grad():
        two.basis.q.mean += one.factors().lift
    for a, b in zip(one.marginals(x), two.marginals(x), strict=True):
        close(a, b)
    for model in (one, two):
        natural_step(model, batch, 0.02, mean_rule="exact")
    assert_close(one.marginals(x).variance, two.marginals(x).variance, rtol=1e-8, atol=1e-8)
    assert (one.marginals(x).mean - two.marginals(x).mean).abs().max() > 1e-3


# -- natural steps for other likelihoods (§11 A4, B10) ----------------------------------------------------

#: q(u) of every basis with the rule for the rest of its mean; "adam" leaves that where it is
NATURAL = {
    "coupled": ("coupled", "adam"),
    "orthogonal-u": ("orthogonal", "adam"),
    "orthogonal-joint": ("orthogonal", "joint"),
    "orthogonal-a-u": ("orthogonal-a", "adam"),
    "solve-blocks": ("solve", "adam"),
    "solve-joint": ("solve", "joint"),
}


def climb(model: Model, batch: Batch, natural: NaturalGradient, steps: int) -> Tensor:
    """Objectives before each of so many steps, one column for each replicate; all of them taken."""
    values = torch.stack([descend(model, batch, natural) for _ in range(steps)])
    assert (natural.shrink == 1).all()
    return values


def gradient_left(model: Model, batch: Batch, natural: NaturalGradient) -> Tensor:
    """The largest derivative of Σ data − KL by what natural gradients move: [R]."""
    model.zero_grad()
    (model.loss(batch) * model.num_data).sum().backward()
    largest = []
    for name, p in of_q(model):
        if name == "a":  # waits for Adam
            continue
        grad = p.grad.tril() if name.endswith("raw_root") else p.grad
        if name == "q.mean" and natural.mean_rule is None:
            grad = grad[..., : model.basis.q.size]  # so does the mean of v
        largest.append(grad.abs().flatten(1).max(1).values)
    return torch.stack(largest).max(0).values


SEEDS = 15

LOG_CONCAVE = [("elbo", "probit"), ("vfitc", "probit"), ("elbo", "logit")]


@pytest.mark.parametrize(("goal", "likelihood"), LOG_CONCAVE)
@pytest.mark.parametrize("case", NATURAL)
def test_full_natural_steps_climb_to_the_top(case: str, goal: str, likelihood: str) -> None:
    """ρ = 1, full batch: no step fails or lowers the objective, and they end where its gradient is zero."""
    name, rule = NATURAL[case]
    model, batch, _ = problem(name, likelihood, objective=goal, replicates=SEEDS)
    natural = NaturalGradient(model.basis, model.num_data, 1.0, mean_rule=rule, beta1=model.beta1)
    values = climb(model, batch, natural, 25)
    assert values.diff(dim=0).min() > -1e-9
    assert (values[-1] > values[0] + 1e-2).all()
    assert gradient_left(model, batch, natural).max() < 1e-5


@pytest.mark.parametrize("case", ["coupled", "orthogonal-joint"])
def test_counts_may_have_to_go_down_before_they_climb(case: str) -> None:
    """Log-concave is not enough for ρ = 1: e^f has no largest curvature. Steps stay valid, and arrive."""
    name, rule = NATURAL[case]
    model, batch, _ = problem(name, "poisson", replicates=60)
    natural = NaturalGradient(model.basis, model.num_data, 1.0, mean_rule=rule, beta1=model.beta1)
    values = climb(model, batch, natural, 35)
    assert values.diff(dim=0).min() < -1
    assert gradient_left(model, batch, natural).max() < 1e-7


@pytest.mark.parametrize("likelihood", ["gaussian", "probit"])
@pytest.mark.parametrize("name", ["coupled", "orthogonal", "solve"])
def test_predictive_converges_by_the_always_positive_rule(name: str, likelihood: str) -> None:
    """§11 A4, at ρ = 0.2: to a point without gradient, S positive all the way."""
    model, batch, _ = problem(name, likelihood, objective="predictive", replicates=SEEDS)
    natural = NaturalGradient(model.basis, model.num_data, 0.2, always_positive=True)
    values = climb(model, batch, natural, 80)
    assert (values[-1] > values[0]).all()
    assert gradient_left(model, batch, natural).max() < 1e-4


def test_half_a_step_of_the_always_positive_rule_may_go_to_and_fro() -> None:
    """ρ = ½ converges nearly always (§11 A4: 15 of 15), not always: one problem of these forty ends in a
    cycle of two around the optimum, which repels steps of that size; smaller ones find it."""
    model, batch, _ = problem("coupled", objective="predictive", replicates=40)
    model, batch = take_replicate(model, 32), Batch(batch.x[32:33], batch.y[32:33])
    natural = NaturalGradient(model.basis, model.num_data, 0.5, always_positive=True)
    values = climb(model, batch, natural, 150)[:, 0]
    assert_close(values[-1], values[-3], rtol=0, atol=1e-4)
    assert abs(values[-1] - values[-2]) > 1e-2
    natural.set_rate(0.2)
    assert climb(model, batch, natural, 80)[-1, 0] > values[-2:].max() + 1e-2
    assert gradient_left(model, batch, natural) < 1e-6


def test_natural_steps_on_s_where_the_mean_has_fewer_points() -> None:
    """S of the separate basis is exact in one step of size 1, also with |Z_μ| < |Z_σ|."""
    model, batch, _ = bound_problem(separate(-2))
    best = put_optimum(bound_problem(separate(-2)).model, batch)
    natural_step(model, batch, 1.0)
    assert_close(model.basis.q.covariance(), best.root @ best.root.mT, rtol=1e-8, atol=1e-8)


# -- 8: ORTH, hybrid and decoupled are one family ---------------------------------------------------------


@pytest.mark.parametrize("goal", ["elbo", "vfitc", "predictive"])
@pytest.mark.parametrize("name", ["orthogonal", "orthogonal-a", "hybrid"])
def test_identity_08_they_are_the_decoupled_basis_on_all_points(name: str, goal: str) -> None:
    """α = (γ, β), coefficients (a_γ, a_β − K_β⁻¹K_βγ a_γ), S on β: marginals, split, ‖μ‖², KL and loss."""
    model, batch, x = problem(name, objective=goal, latents=2)
    basis, beta = model.basis, model.basis.inducing
    gamma = basis.mean_inducing if isinstance(basis, Hybrid) else basis.orthogonal_inducing
    alpha = torch.cat([gamma, beta], -2).detach()
    with torch.no_grad():
        K_inv, K_bg = inv(k(basis.kernel, beta, beta)), k(basis.kernel, beta, gamma)
        a_gamma = coefficients(model)
        m = t(basis.q.mean[..., : basis.q.size], torch.linalg.cholesky(k(basis.kernel, beta, beta)))
        a_beta = t(m, K_inv) if name == "hybrid" else t(m, K_inv) - t(a_gamma, K_inv @ K_bg)
        a = torch.cat([a_gamma, a_beta], -1)
        other = twin(model, Separate(basis.kernel, alpha, beta.detach().clone(), full_q(4, basis.q, 9)))
        other.basis.q.set_(t(a, other.factors().mean.L.mT), basis.q.root())
    for ours, theirs in zip(model.marginals(x), other.marginals(x), strict=True):
        close(ours, theirs)
    close(dense.quadratic(a, k(basis.kernel, alpha, alpha)), other.basis.q.mean.square().sum(-1))
    close(kl(model), kl(other))
    close(model.loss(batch), other.loss(batch))


# -- 9: the chain on more data ----------------------------------------------------------------------------


def rows_of(name: str, n: int, count: int) -> tuple[Batch, Tensor]:
    """Standardised rows, and other rows as inducing points."""
    try:
        table = data.load(f"regression/{name}")
    except FileNotFoundError as error:
        pytest.skip(f"no benchmark data: {error}")
    order = np.random.default_rng(0).permutation(len(table.X))[: n + count]
    X, y = table.X[order].astype(np.float64), table.y[order].astype(np.float64)
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    x, target = torch.as_tensor(X)[None], torch.as_tensor(y).reshape(1, 1, -1)
    return Batch(x[:, :n], target[..., :n]), x[:, None, n:]


@pytest.mark.parametrize(("lengthscale", "noise"), [(3.0, 0.05), (1.0, 0.3)])
@pytest.mark.parametrize("name", ["concrete", "energy"])
def test_identity_09_the_chain_of_bounds_on_real_data(name: str, lengthscale: float, noise: float) -> None:
    """SVGP(β) < ORTH < SOLVE < SVGP(β ∪ γ) < log p(y) at the optimum; 600 rows, 40 + 60 points."""
    batch, points = rows_of(name, 600, 100)
    small, _, _ = bound_problem(solve(+1), jitter=1e-6)
    dims = batch.x.shape[-1]
    kernel = batched(Scale(RBF(dims)), (1, 1)).double()
    kernel.kernel.lengthscale.set_(lengthscale)
    small.mean = batched(LinearMean(dims), (1, 1)).double()
    small.likelihood.noise.set_(noise)
    small.num_data.fill_(600)
    q = BlockQ(full_q(40, small.basis.q), full_q(60, small.basis.q))
    model = twin(small, TwoBlock(kernel, points[..., :40, :].clone(), points[..., 40:, :].clone(), q))
    values = chain(model, batch)
    assert all(a + 0.1 < b for a, b in pairwise(values)), values


# -- 23: minibatches --------------------------------------------------------------------------------------


def gradients(model: Model, batch: Batch) -> dict[str, Tensor]:
    named = dict(learned(model))
    found = torch.autograd.grad(model.loss(batch).sum(), list(named.values()))
    return dict(zip(named, found, strict=True))


def minibatch_gradients(model: Model, batch: Batch, size: int) -> dict[str, Tensor]:
    """Averaged over every minibatch there is."""
    subsets = [list(rows) for rows in itertools.combinations(range(batch.x.shape[1]), size)]
    each = [gradients(model, Batch(batch.x[:, rows], batch.y[..., rows])) for rows in subsets]
    return {name: torch.stack([g[name] for g in each]).mean(0) for name in each[0]}


@pytest.mark.parametrize("goal", ["elbo", "vfitc", "predictive"])
@every_basis
def test_identity_23_minibatch_gradients_average_to_the_full_one(name: str, goal: str) -> None:
    """Data terms and KL, for every parameter there is; Ω is off."""
    model, batch, _ = problem(name, objective=goal, n=5, beta1=0.7, beta2=0.0)
    expected = gradients(model, batch)
    for parameter, found in minibatch_gradients(model, batch, 2).items():
        close(found, expected[parameter], msg=parameter)
        assert found.abs().max() > 0


def test_identity_23_those_of_omega_over_rows_do_too() -> None:
    """Blocks of one row are a partition whatever the batches are (§11 B6)."""
    model, batch, _ = random_problem(conditional("Q", "rows"), n=6, beta1=0.7, beta2=1.0)
    expected, found = gradients(model, batch), minibatch_gradients(model, batch, 2)
    for name, gradient in found.items():
        close(gradient, expected[name], msg=name)


@pytest.mark.parametrize("omega", ["batch", "blocks"])
def test_identity_23_those_of_omega_do_not(omega: str) -> None:
    """Unscaled, a batch sees too little of Ω (§2.3); scaled, the blocks of a partition are those of another
    prior (§11 B6). Neither averages to the Ω of all rows, in value or gradient."""
    model, batch, _ = random_problem(conditional("Q", omega, nugget=0.0), n=6, beta1=0.7, beta2=1.0)
    model.basis.mean_kernel.kernel.lengthscale.set_(2.0)
    whole = penalties_of(model, batch.x)[1].item()
    pairs = [list(rows) for rows in itertools.combinations(range(6), 2)]
    part = float(np.mean([penalties_of(model, batch.x[:, rows])[1].item() for rows in pairs]))
    assert part < 0.6 * whole and 3 * part > 1.3 * whole  # 0.135, 0.404 and 0.292
    expected, found = gradients(model, batch), minibatch_gradients(model, batch, 2)
    for name in ("basis.q.mean", "basis.q.raw_root", "basis.mean_kernel.kernel.lengthscale.raw"):
        assert (found[name] - expected[name]).abs().max() > 1e-3, name


# -- 24: divergences, and what no bound exceeds -----------------------------------------------------------


#: sizes of means and of factors of S, relative to a typical q: one replicate for each pair
MEANS = [0.0, 0.1, 1.0, 30.0]
ROOTS = [1e-3, 0.3, 1.0, 1.4, 30.0]


@torch.no_grad()
def rescale_q(model: Model, means: list[float], roots: list[float]) -> None:
    """Every mean of every size beside every S of every size."""
    sizes = torch.tensor(list(itertools.product(means, roots)), dtype=torch.float64)
    for name, p in of_q(model):
        size = sizes[:, int(name.endswith(("raw_root", "std")))]
        p.mul_(size.view(-1, *[1] * (p.dim() - 1)))


@every_basis
@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), jitter=st.sampled_from([0.0, 1e-8, 1e-2]))
def test_identity_24_divergences_are_not_negative(name: str, seed: int, jitter: float) -> None:
    """KL ≥ 0 and Ω ≥ 0 whatever q is. (Equation 10 of DSGPC: test_conformance_two_block.py.)"""
    model, batch, _ = problem(name, seed=seed, jitter=jitter, replicates=len(MEANS) * len(ROOTS), n=4)
    rescale_q(model, MEANS, ROOTS)
    factors, basis = model.factors(), model.basis
    value = basis.kl(factors, basis.q_of(factors))
    assert value.isfinite().all() and (value > -1e-12).all()
    if basis.has_omega:
        _, penalties = basis.evaluate(batch.x.unsqueeze(1), factors, model.numerics, with_omega=True)
        assert penalties.omega is not None and (penalties.omega >= 0).all()


def methods_with_bounds() -> dict[str, tuple[Method, dict[str, Any]]]:
    """Every basis and q of the registry that claims a bound, and some that could: each with its settings."""
    first: dict[tuple[str, str], Method] = {}
    for method in METHODS.values():
        if method.is_bound:
            first.setdefault((method.basis, method.q), method)
    cases: dict[str, tuple[Method, dict[str, Any]]] = {m.name: (m, {}) for m in first.values()}
    svgp = METHODS["svgp"]
    for basis in ("coupled", "orthogonal", "solve", "separate", "orthogonal-a", "hybrid"):
        cases[f"{basis}-diagonal"] = replace(svgp, basis=basis, q="diagonal"), {}
    for ridge in ("printed", "kernel", "contracting"):
        cases[f"coupled-ridge-{ridge}"] = replace(svgp, q="ridge"), {"ridge": ridge}
    cases["orthogonal-ridge"] = replace(svgp, basis="orthogonal", q="ridge"), {"ridge": "contracting"}
    for preconditioner in ("none", "nystrom"):
        cases[f"decoupled-{preconditioner}"] = METHODS["decoupled"], {"preconditioner": preconditioner}
    for whitening in ("Q", "K"):  # with all of Ω
        cases[f"dcsvgp-{whitening}"] = METHODS["dcsvgp"], {"whitening": whitening}
    return cases


CLAIMS = methods_with_bounds()


N, M = 9, 4
SIZES = [0.0, 0.3, 3.0], [0.1, 1.0, 10.0]


def random_models(case: str, seed: int, given: dict[str, Any], on_rows: bool) -> tuple[Model, Batch]:
    """A method as `fit` would build it, β₁ = β₂ = 1: nine replicates, q of all sizes, data of their own.

    ``on_rows``: every row is an inducing point, so that the best q comes as near to log p(y) as it can.
    """
    method, own = CLAIMS[case]
    replicates = len(SIZES[0]) * len(SIZES[1])
    generator = torch.Generator().manual_seed(seed)
    x, away, extra = torch.randn(3, replicates, N, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(replicates, 1, N, generator=generator, dtype=torch.float64)
    batch = Batch(x, y + x[:, None, :, 0])
    z = x if on_rows else away[:, :M]
    extra = x if on_rows and not method.has_second_block else extra
    one = torch.ones(replicates, dtype=torch.float64)
    model = build_model(
        method,
        Settings.of({"mean": "linear"} | given | own),
        inducing=z.unsqueeze(1).clone(),
        extra=extra.unsqueeze(1).clone() if method.has_extra_points else None,
        outputs=1,
        num_data=N,
        beta1=one,
        beta2=one,
        omega="full",
        fixed_noise=False,
        spread=torch.ones(replicates, 1, 2, dtype=torch.float64),
        generators=[torch.Generator().manual_seed(seed + r) for r in range(replicates)],
        rows=batch,
    )
    with torch.no_grad():
        for _, p in of_q(model):
            p.copy_(normal(p, generator))
        if isinstance(model.basis, Conditional):  # the two kernels start as one
            for p in model.basis.mean_kernel.parameters():
                p.add_(0.3 * normal(p, generator))
    rescale_q(model, *SIZES)
    return model, batch


def value_and_evidence(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
    """The method's objective, summed over data, and log p(y) of its prior: [R] each."""
    basis, x = model.basis, batch.x.unsqueeze(-3)
    target = batch.y - model.mean(x)
    noise = model.likelihood.noise()[..., None].expand_as(target)
    if isinstance(basis, Conditional):  # the nugget of Ω is part of its prior (§11 B6)
        noise = noise + model.numerics.jitter[:, None, None] * basis.kernel.diag(x)
    evidence = log_evidence(target, basis.kernel(x, x) + torch.diag_embed(noise)).sum(-1).detach()
    if isinstance(basis, Exact):
        return basis.log_evidence(target, model.factors()).detach(), evidence
    return objective(model, batch), evidence


def put_best(model: Model, batch: Batch) -> None:
    """The best q there is a formula for; plain coefficients of a hybrid mean are put to zero."""
    basis = model.basis
    if isinstance(basis, Subspace):
        factors, x, alpha = model.factors(), batch.x.unsqueeze(-3), basis.mean_points
        eye = torch.eye(alpha.shape[-2], dtype=torch.float64)
        K_alpha = basis.kernel(alpha, alpha) + 1e-8 * basis.kernel.diag(alpha).mean() * eye
        phi = factors.beta.whiten(basis.kernel(basis.inducing, x))
        y, noise = batch.y - model.mean(x), model.likelihood.noise()[..., None]
        a, root = optimal_decoupled(K_alpha, basis.kernel(alpha, x), phi, y, noise)
        basis.set_(factors, a.detach(), root.detach())
    else:
        if isinstance(basis, Hybrid):
            basis.a.data.zero_()
        put_optimum(model, batch)


@pytest.mark.parametrize("case", CLAIMS)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    kernel=st.sampled_from(["rbf", "matern12", "matern32", "matern52", "rq", "rbf + matern32"]),
    lengthscale=st.floats(0.1, 5.0),
    variance=st.floats(0.05, 20.0),
    noise=st.floats(1e-3, 3.0),
    jitter=st.sampled_from([1e-8, 1e-6, 1e-2]),
    rho=st.sampled_from([0.1, 0.5, 1.0]),
    on_rows=st.booleans(),
)
def test_no_claimed_bound_exceeds_the_evidence(
    case: str,
    seed: int,
    kernel: str,
    lengthscale: float,
    variance: float,
    noise: float,
    jitter: float,
    rho: float,
    on_rows: bool,
) -> None:
    """For random kernels, noises and q, after a natural step, which does not lower it, and for the best q."""
    hyperparameters = {"initial_lengthscale": lengthscale, "initial_scale": variance, "initial_noise": noise}
    model, batch = random_models(case, seed, {"kernel": kernel, "jitter": jitter} | hyperparameters, on_rows)
    value, evidence = value_and_evidence(model, batch)
    slack = 1e-6 * (1 + evidence.abs())  # rounding: K_Z of all rows is nearly singular, the noise small
    assert not model.numerics.failed.any()
    assert (value <= evidence + slack).all(), (value, evidence)
    if isinstance(model.basis, Exact):
        assert_close(value, evidence, rtol=1e-8, atol=1e-8)
        return
    if any(isinstance(block, CholeskyQ) for block, _ in model.basis.q.parts()):
        natural = natural_step(model, batch, rho)
        after, _ = value_and_evidence(model, batch)
        assert (natural.shrink == 1).all()
        assert (after <= evidence + slack).all(), (after, evidence)
        assert (after >= value - 1e-8 * (1 + value.abs())).all(), (value, after)
    if "ridge" in case:  # its S is what its points make it
        return
    put_best(model, batch)
    best, _ = value_and_evidence(model, batch)
    assert (best <= evidence + slack).all(), (best, evidence)
    assert (best >= value - slack).all() or isinstance(model.basis, Hybrid), (best, value)


def test_the_registry_was_asked_about_every_bound() -> None:
    asked = {(method.basis, method.q) for method, _ in CLAIMS.values()}
    claimed = {(method.basis, method.q) for method in METHODS.values() if method.is_bound}
    assert claimed <= asked
    assert {"coupled", "orthogonal", "orthogonal-a", "hybrid", "solve", "separate", "subspace"} <= {
        basis for basis, _ in claimed
    }


def log_probit_evidence(model: Model, batch: Batch) -> Tensor:
    """log p(y) of three rows under a centred probit GP: [R].

    f + ε ~ N(0, K + I), and y says on which side of zero it is: an orthant has the probability
    ⅛ + Σ arcsin ρ_ij / 4π, ρ the correlations of s ∘ (f + ε), s = ±1.
    """
    x, sign = batch.x.unsqueeze(-3), (2 * batch.y - 1).unsqueeze(-1)
    C = sign * (k(model.basis.kernel, x, x) + torch.eye(3)) * sign.mT
    scale = C.diagonal(dim1=-2, dim2=-1).rsqrt()
    angles = (scale.unsqueeze(-1) * C * scale.unsqueeze(-2)).triu(1).asin().sum((-2, -1))
    return (0.125 + angles / (4 * torch.pi)).log()[:, 0].detach()


@pytest.mark.parametrize(
    "name", ["coupled", "orthogonal", "orthogonal-a", "hybrid", "solve", "components-eps", "separate"]
)
def test_bounds_hold_for_two_classes(name: str) -> None:
    """The ELBO of a probit likelihood against the probability of an orthant; near it once q has climbed."""
    model, batch, _ = problem(name, "probit", n=3, replicates=SEEDS)
    with torch.no_grad():
        for p in model.mean.parameters():
            p.zero_()
    evidence = log_probit_evidence(model, batch)
    assert (objective(model, batch) < evidence).all()
    natural = NaturalGradient(model.basis, model.num_data, 1.0)
    best = climb(model, batch, natural, 15)[-1]
    assert (best < evidence - 1e-3).all()
    if name == "coupled":  # with its points on the rows, only q's being Gaussian is left
        with torch.no_grad():
            model.basis.inducing[..., :3, :] = batch.x.unsqueeze(1)
        best = climb(model, batch, natural, 15)[-1]
        assert (best < evidence - 1e-6).all() and (evidence - best).max() < 0.05
