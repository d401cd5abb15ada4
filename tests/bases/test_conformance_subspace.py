"""The subspace basis of Cheng and Boots (MATH §6, §11 B3): its process, divergences, optima, coordinates."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.linalg import inv
from torch.testing import assert_close

import dense
from duogp.bases import (
    Basis,
    Coupled,
    Hybrid,
    Separate,
    Subspace,
    SubspaceState,
    optimal_decoupled,
    subspace_kl,
)
from duogp.bases.subspace import NYSTROM_NUGGET, nystrom_product, nystrom_solve
from duogp.kernels import Scale
from duogp.models.model import Batch, Model, take_replicate
from duogp.numerics.factorisation import Numerics
from random_models import Parts, Problem, random_problem, separated_points

PRECONDITIONERS = ["none", "jacobi", "nystrom"]
SHAPES = [{"replicates": 1, "latents": 1}, {"replicates": 2, "latents": 2}]

every_preconditioner = pytest.mark.parametrize("preconditioner", PRECONDITIONERS)
either_mean = pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
every_jitter = pytest.mark.parametrize("jitter", [0.0, 0.03], ids=["exact", "jitter"])
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=["single", "replicates-latents"])

close = partial(assert_close, rtol=1e-9, atol=1e-9)


def normal(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def subspace(**settings: Any) -> Callable[[Parts], Basis]:
    def build(p: Parts) -> Basis:
        alpha = p.extra[..., :3, :] if settings.get("shared") else p.extra
        return Subspace(p.kernel(), alpha.clone(), p.z, p.batch_shape, **settings)

    return build


def problem(
    preconditioner: str = "none",
    shared: bool = False,
    *,
    columns: int | None = None,
    prior: SubspaceState | None = None,
    seed: int = 0,
    **options: Any,
) -> Problem:
    """A random model, L₀ a full square matrix."""
    build = subspace(preconditioner=preconditioner, shared=shared, columns=columns, prior=prior)
    found = random_problem(build, seed=seed, **options)
    root = found.model.basis.q.raw_root
    root.data = normal(*root.shape, seed=50 + seed, scale=0.6)
    return found


def refilled(model: Model, build: Callable[[Parts], Basis]) -> Model:
    """Another basis with the same kernel, covariance points, prior mean and noise."""
    shape = {"replicates": model.replicates, "latents": model.likelihood_outputs}
    other = random_problem(build, beta1=float(model.beta1[0]), **shape).model
    for name in ("mean", "likelihood", "numerics"):
        getattr(other, name).load_state_dict(getattr(model, name).state_dict())
    other.basis.kernel.load_state_dict(model.basis.kernel.state_dict())
    other.basis.inducing.data.copy_(model.basis.inducing)
    return other


def assert_same_process(one: Model, two: Model, x: Tensor) -> None:
    for ours, theirs in zip(one.marginals(x), two.marginals(x), strict=True):
        close(ours, theirs)
    close(kl(one), kl(two))


def kl(model: Model) -> Tensor:
    factors = model.factors()
    return model.basis.kl(factors, model.basis.q_of(factors))


# -- brute force ----------------------------------------------------------------------------------------


def natural_coefficients(model: Model) -> tuple[Tensor, Tensor]:
    """(a, L_B) from the raw parameters by explicit inverses."""
    basis = model.basis
    kernel, alpha, z = basis.kernel, mean_points(basis), basis.inducing
    a0, L0 = basis.q.a0, basis.q.raw_root
    if basis.preconditioner == "none":
        return a0, L0
    if basis.preconditioner == "jacobi":
        variance = kernel.variance()[..., None]
        return a0 / variance, L0 / variance[..., None]
    K, K_a, K_az = (
        dense.inducing_prior(model, kernel, z),
        dense.k(kernel, alpha, alpha),
        dense.k(kernel, alpha, z),
    )
    Q = K_az @ inv(K) @ K_az.mT
    nugget = torch.maximum(dense.jitter_of(model, kernel), NYSTROM_NUGGET * kernel.variance())
    P = Q + torch.diag_embed((K_a - Q).diagonal(dim1=-2, dim2=-1)) + dense.white(nugget, alpha.shape[-2])
    return dense.t(a0, inv(P)), inv(torch.linalg.cholesky(K)).mT @ L0


def mean_points(basis: Subspace) -> Tensor:
    return torch.cat([basis.inducing, basis.mean_inducing], -2) if basis.shared else basis.mean_inducing


def dense_subspace(model: Model, x: Tensor, *more: Tensor) -> dense.Dense:
    """Σ = (I + Ψ_β B Ψ_βᵀ)⁻¹ on finitely many variables w is (K_w⁻¹ + E B Eᵀ)⁻¹, u_β = Eᵀw.

    The variables: f(x), f at more points, f(α), and u_β = f(β) + √ε ξ, which is f(β) where ε = 0.
    """
    basis, x = model.basis, x.unsqueeze(-3)
    kernel, alpha, z = basis.kernel, mean_points(basis), basis.inducing
    a, L = natural_coefficients(model)
    noisy = bool((model.numerics.jitter > 0).all())
    w = torch.cat([x, *more, alpha if noisy else basis.mean_inducing, z], -2)
    M, n = z.shape[-2], x.shape[-2]
    K_w = dense.k(kernel, w, w)
    jitter = torch.cat([torch.zeros(w.shape[-2] - M), torch.ones(M)]).double()
    K_w = K_w + torch.diag_embed(dense.jitter_of(model, kernel)[..., None] * jitter)
    B = L @ L.mT
    padded = torch.nn.functional.pad(B, (w.shape[-2] - M, 0, w.shape[-2] - M, 0))
    q = dense.Gaussian(dense.t(a, dense.k(kernel, w, alpha)), inv(inv(K_w) + padded))
    K = K_w[..., -M:, -M:]
    S = inv(inv(K) + B)
    gain = K_w[..., :n, -M:] @ inv(K)
    zero = torch.zeros_like(K[..., 0])
    penalty = 0.5 * dense.quadratic(a, dense.k(kernel, alpha, alpha))
    penalty = penalty + dense.gaussian_kl(dense.Gaussian(zero, S), dense.Gaussian(zero, K))
    return dense.Dense(
        mean=q.mean[..., :n],
        residual=K_w[..., :n, :n] - gain @ K_w[..., -M:, :n],
        explained=gain @ S @ gain.mT,
        penalty=penalty,
        q=q,
        p=dense.Gaussian(torch.zeros_like(q.mean), K_w),
    )


# -- marginals, joint, divergence -----------------------------------------------------------------------


@every_shape
@every_jitter
@either_mean
@every_preconditioner
def test_it_is_the_dense_process(preconditioner: str, shared: bool, jitter: float, shape: dict) -> None:
    """Marginals, joint covariance, KL: live and frozen, split and joint."""
    model, batch, x = problem(preconditioner, shared, jitter=jitter, **shape)
    expected, f = dense_subspace(model, x), model.marginals(x)
    close(f.mean, expected.mean + dense.prior_mean(model, x))
    close(f.residual, expected.residual.diagonal(dim1=-2, dim2=-1))
    close(f.explained, expected.explained.diagonal(dim1=-2, dim2=-1))
    n = x.shape[-2]
    close(expected.q.covariance[..., :n, :n], expected.residual + expected.explained)
    parts = (expected.mean, expected.residual, expected.explained)
    for found, part in zip(model.linear_form().joint(x.unsqueeze(-3)), parts, strict=True):
        close(found, part)

    close(kl(model), expected.penalty)
    divergence = dense.gaussian_kl(expected.q, expected.p)
    assert_close(kl(model), divergence, rtol=1e-8, atol=1e-8)
    further = dense_subspace(model, x, batch.x.unsqueeze(-3)[..., :3, :])
    assert_close(dense.gaussian_kl(further.q, further.p), divergence, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("objective", ["elbo", "vfitc", "predictive", "gamma-robust"])
@every_shape
def test_loss_is_the_dense_objective(objective: str, shape: dict) -> None:
    model, batch, _ = problem(objective=objective, num_data=29, row_noise=True, weights=True, **shape)
    close(model.loss(batch), dense.loss(model, batch, dense_subspace(model, batch.x)))


@every_preconditioner
def test_frozen_is_live(preconditioner: str) -> None:
    model, _, x = problem(preconditioner, True, replicates=2, latents=2, jitter=1e-3)
    x = x.unsqueeze(-3)
    live = model.basis.marginals(x, model.factors())
    for found, expected in zip(model.linear_form().marginals(x), live, strict=True):
        close(found, expected)


def test_identities_of_the_inverse_form() -> None:
    """§6.1: (B⁻¹ + K)⁻¹ = L H⁻¹ Lᵀ, log|I + KB| = log|H|, S = (K⁻¹ + B)⁻¹ (identity 10)."""
    model, _, x = problem(latents=2)
    basis, factors = model.basis, model.factors()
    K, B = basis.kernel(basis.inducing, basis.inducing), factors.L @ factors.L.mT
    eye = torch.eye(K.shape[-1], dtype=torch.float64)
    H = eye + factors.L.mT @ K @ factors.L
    R = factors.L @ inv(H) @ factors.L.mT
    close(R, inv(inv(B) + K))
    close(torch.logdet(H), torch.logdet(eye + K @ B))
    S = factors.beta.L @ basis.q_of(factors).covariance() @ factors.beta.L.mT
    close(S, inv(inv(K) + B))
    assert torch.linalg.eigvalsh(K - S).min() > 0  # only ever below the prior
    x = x.unsqueeze(-3)
    K_xb = basis.kernel(x, basis.inducing)
    f = basis.marginals(x, factors)
    close(f.variance, basis.kernel.diag(x) - (K_xb @ R * K_xb).sum(-1))
    trace = (K @ R).diagonal(dim1=-2, dim2=-1).sum(-1)
    norm = dense.quadratic(factors.a, basis.kernel(basis.mean_inducing, basis.mean_inducing))
    close(kl(model), 0.5 * (norm + torch.logdet(H) - trace))
    q = basis.q_of(factors)
    close(q.log_det(), torch.logdet(q.covariance()))


@every_preconditioner
def test_at_zero_it_is_the_prior(preconditioner: str) -> None:
    """B = 0, a = 0: KL exactly zero, the variance the prior's (identity 15)."""
    model, _, x = problem(preconditioner, jitter=1e-4)
    model.basis.q.a0.data.zero_()
    model.basis.q.raw_root.data.zero_()
    assert torch.equal(kl(model), torch.zeros(1, 1, dtype=torch.float64))
    f = model.basis.marginals(x.unsqueeze(-3), model.factors())
    assert torch.equal(f.mean, torch.zeros_like(f.mean))
    close(f.variance, model.basis.kernel.diag(x.unsqueeze(-3)))


# -- the same process elsewhere -------------------------------------------------------------------------


def below_prior(M: int, batch_shape: tuple[int, int], seed: int = 3) -> Tensor:
    """The root of a random S < I."""
    A = normal(*batch_shape, M, M, seed=seed)
    return torch.linalg.cholesky(inv(torch.eye(M, dtype=torch.float64) + 0.5 * A @ A.mT))


@every_preconditioner
@every_jitter
def test_with_one_set_of_points_it_is_svgp(preconditioner: str, jitter: float) -> None:
    """α = β = Z, a = K⁻¹m, B = S⁻¹ − K⁻¹ (identity 15), also in the presence of jitter in a's favour."""
    shape = {"replicates": 2, "latents": 2}

    def build(p: Parts) -> Basis:
        return Subspace(p.kernel(), p.z.clone(), p.z, p.batch_shape, preconditioner=preconditioner)

    model, _, x = random_problem(build, jitter=jitter, **shape)
    other = refilled(model, lambda p: Coupled(p.kernel(), p.z, p.q()))
    root = below_prior(4, (2, 2))
    other.basis.q.set_(other.basis.q.mean.detach(), root)
    factors = model.factors()
    a = dense.t(other.basis.q.mean.detach(), factors.beta.L_inv.mT.detach())  # L⁻ᵀm̃ = K⁻¹m
    model.basis.set_(factors, a, root)
    if jitter == 0:
        assert_same_process(model, other, x)
        K = model.factors().beta.L @ model.factors().beta.L.mT
        L, S = model.factors().beta.L, root @ root.mT
        B = model.factors().L @ model.factors().L.mT
        close(B, inv(L @ S @ L.mT) - inv(K))
    else:  # plain coefficients have no jitter in their norm: aᵀKa = m̃ᵀm̃ − εaᵀa
        for ours, theirs in zip(model.marginals(x), other.marginals(x), strict=True):
            close(ours, theirs)
        close(kl(model), kl(other) - 0.5 * factors.beta.jitter * a.square().sum(-1))


@every_preconditioner
@either_mean
def test_it_is_the_separate_basis_below_the_prior(preconditioner: str, shared: bool) -> None:
    """§11 A1: a = L_α⁻ᵀm, S the same."""
    model, _, x = problem(preconditioner, shared, replicates=2, latents=2)
    alpha = mean_points(model.basis).detach().clone()

    def separate(p: Parts) -> Basis:
        return Separate(p.kernel(), alpha.clone(), p.z, p.q(mean_size=alpha.shape[-2]))

    other = refilled(model, separate)
    root = below_prior(4, (2, 2))
    other.basis.q.set_(other.basis.q.mean.detach(), root)
    L_alpha = torch.linalg.cholesky(model.basis.kernel(alpha, alpha)).detach()
    model.basis.set_(model.factors(), dense.t(other.basis.q.mean.detach(), inv(L_alpha).mT), root)
    assert_same_process(model, other, x)


def test_hybrid_is_a_shared_subspace() -> None:
    """§6.2: α = (β, γ), a = (K⁻¹m, a_γ) and B⁻¹ = −(K + K(S − K)⁻¹K)."""
    model, _, x = problem("none", True, replicates=2, latents=2)
    gamma = model.basis.mean_inducing.detach().clone()
    other = refilled(model, lambda p: Hybrid(p.kernel(), p.z, gamma.clone(), p.q()))
    other.basis.a.data = normal(*other.basis.a.shape, seed=9)
    root = below_prior(4, (2, 2))
    m = other.basis.q.mean.detach()
    other.basis.q.set_(m, root)
    factors = model.factors()
    a = torch.cat([dense.t(m, factors.beta.L_inv.mT.detach()), other.basis.a.detach()], -1)
    model.basis.set_(factors, a, root)
    assert_same_process(model, other, x)
    L = factors.beta.L
    K, S, B = L @ L.mT, L @ root @ root.mT @ L.mT, model.factors().L @ model.factors().L.mT
    close(inv(B), -(K + K @ inv(S - K) @ K))


@either_mean
@every_jitter
def test_preconditioners_are_coordinates_of_one_family(shared: bool, jitter: float) -> None:
    model, _, x = problem("none", shared, jitter=jitter, replicates=2, latents=2)
    factors = model.factors()
    a, root = factors.a.detach(), model.basis.q_of(factors).root().detach()
    for name in PRECONDITIONERS:
        other = problem(name, shared, jitter=jitter, replicates=2, latents=2).model
        other.basis.set_(other.factors(), a, root)
        assert_same_process(model, other, x)


def test_nystrom_is_exact_algebra_even_where_mean_points_are_covariance_points() -> None:
    phi, v = normal(2, 3, 7, seed=0), normal(2, 7, seed=1)
    for D in (normal(2, 7, seed=2).square(), torch.full((2, 7), 1e-6, dtype=torch.float64)):
        P = phi.mT @ phi + torch.diag_embed(D)
        a, info = nystrom_solve(phi, D, v)
        assert not info.any()
        assert_close(a, dense.t(v, inv(P)), rtol=1e-8, atol=1e-8)
        assert_close(nystrom_product(phi, D, a), v, rtol=1e-8, atol=1e-8)
    model, _, x = problem("nystrom", True)  # residuals at the shared points are rounding
    assert all(torch.isfinite(part).all() for part in model.marginals(x))


# -- gradients ------------------------------------------------------------------------------------------


def test_gradients_have_the_closed_forms_of_the_paper() -> None:
    """§6.1: ∇_B KL and ∇_B e, pulled back to L by 2 ∇_B L, and ∇_a KL = K_α a."""
    model, batch, _ = problem()
    basis, x = model.basis, batch.x.unsqueeze(-3)
    raw = basis.q.raw_root
    K, K_bX = basis.kernel(basis.inducing, basis.inducing), basis.kernel(basis.inducing, x)
    B = (raw @ raw.mT).detach()
    eye = torch.eye(K.shape[-1], dtype=torch.float64)
    left = inv(eye + K @ B)  # (I + KB)⁻¹, and (I + BK)⁻¹ its transpose

    grad_a, grad_L = torch.autograd.grad(kl(model).sum(), [basis.q.a0, raw])
    close(grad_a, dense.t(basis.q.a0, basis.kernel(basis.mean_inducing, basis.mean_inducing)).detach())
    close(grad_L, (left @ K @ B @ K @ left.mT @ raw).detach())  # 2 · ½

    d = -0.5 / dense.noise_variance(model, batch)  # ∂ℓ/∂variance of each datum
    data, _ = model.terms(batch)
    (found,) = torch.autograd.grad(data.sum(), raw)
    close(found, (-2 * left @ K_bX @ torch.diag_embed(d) @ K_bX.mT @ left.mT @ raw).detach())


def assert_gradient_is_that_of_differences(model: Model, batch: Batch) -> None:
    model.zero_grad()
    model.loss(batch).sum().backward()
    generator = torch.Generator().manual_seed(0)
    for name, p in model.named_parameters():
        direction = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            value, ends = p.clone(), []
            for step in (1e-5, -1e-5):
                p.copy_(value + step * direction)
                ends.append(model.loss(batch).sum())
            p.copy_(value)
        found, expected = (p.grad * direction).sum(), (ends[0] - ends[1]) / 2e-5
        assert_close(found, expected, rtol=1e-6, atol=1e-8, msg=f"{name}: {found}, {expected}")


@every_jitter
@either_mean
@every_preconditioner
def test_gradient_is_that_of_differences(preconditioner: str, shared: bool, jitter: float) -> None:
    """Everything there is: α, β, kernel, a₀, L₀, noise, prior mean."""
    model, batch, _ = problem(preconditioner, shared, jitter=jitter, n=5, inducing=3)
    assert_gradient_is_that_of_differences(model, batch)


# -- column subsampling ---------------------------------------------------------------------------------


@either_mean
@pytest.mark.parametrize("with_prior", [False, True])
def test_some_columns_stand_for_all_without_bias(shared: bool, with_prior: bool) -> None:
    """Every subset of three columns, averaged: the value and the gradients of the full quadratic form."""
    prior = random_state(1, (1, 1)) if with_prior else None
    model, batch, _ = problem("jacobi", shared, columns=3, prior=prior)
    names = ["q.a0", "mean_inducing", "inducing"]
    values, gradients = [], []
    for subset in itertools.combinations(range(model.basis.q.a0.shape[-1]), 3):
        model.basis.columns_index.copy_(torch.tensor(subset))
        loss = model.loss(batch).sum()
        gradients.append(torch.autograd.grad(loss, [model.basis.get_parameter(n) for n in names]))
        values.append(loss.detach())
    whole = problem("jacobi", shared, prior=prior).model
    loss = whole.loss(batch).sum()
    expected = torch.autograd.grad(loss, [whole.basis.get_parameter(n) for n in names])
    close(torch.stack(values).mean(), loss.detach())
    for found, gradient in zip(zip(*gradients, strict=True), expected, strict=True):
        close(torch.stack(found).mean(0), gradient)


def test_columns_are_drawn_without_replacement_for_each_replicate() -> None:
    basis = problem(columns=3, replicates=2).model.basis
    basis.draw([torch.Generator().manual_seed(i) for i in (1, 2)])
    assert basis.columns_index.shape == (2, 3)
    assert all(len(set(row.tolist())) == 3 and max(row) < 5 for row in basis.columns_index)
    before = basis.columns_index.clone()
    basis.draw([torch.Generator().manual_seed(i) for i in (3, 4)])
    assert not torch.equal(before, basis.columns_index)
    assert problem(columns=5).model.basis.columns_index is None  # all of them: nothing to draw


# -- bounds and optima ----------------------------------------------------------------------------------


@pytest.mark.parametrize("jitter", [0.0, 0.03])
@either_mean
@every_preconditioner
def test_the_optimum_has_the_collapsed_value(preconditioner: str, shared: bool, jitter: float) -> None:
    """§11 A1 with (a*, S*) of §3.1 written into the raw parameters; there, no gradient is left."""
    model, batch, _ = problem(preconditioner, shared, jitter=jitter, beta1=1.0, replicates=2, latents=2)
    basis, x = model.basis, batch.x.unsqueeze(-3)
    alpha, factors = mean_points(basis), model.factors()
    y = (batch.y - dense.prior_mean(model, batch.x)).detach()
    K_a, K_aX = basis.kernel(alpha, alpha).detach(), basis.kernel(alpha, x).detach()
    phi = factors.beta.whiten(basis.kernel(basis.inducing, x)).detach()
    s2 = dense.noise_variance(model, batch).detach()
    a, root = optimal_decoupled(K_a, K_aX, phi, y, s2)
    basis.set_(factors, a, root)
    elbo = -model.loss(batch) * model.num_data

    n = x.shape[-2]
    noise = torch.diag_embed(s2)
    Q_mean, Q = K_aX.mT @ inv(K_a) @ K_aX, phi.mT @ phi
    residual = basis.kernel.diag(x) - Q.diagonal(dim1=-2, dim2=-1)
    value = -0.5 * (
        n * math.log(2 * math.pi)
        + torch.logdet(Q + noise)
        + dense.quadratic(y, inv(Q_mean + noise))
        + (residual / s2).sum(-1)
    )
    assert_close(elbo, value.sum(-1), rtol=1e-8, atol=1e-8)
    grads = torch.autograd.grad(elbo.sum(), list(basis.q.parameters()))
    assert max(float(g.abs().max()) for g in grads) < 1e-6

    a_printed, _ = optimal_decoupled(K_a, K_aX, phi, y * s2, s2)  # without the last 1/s²
    basis.set_(factors, a_printed, root)
    assert (-model.loss(batch) * model.num_data < elbo).all()


def test_the_optimum_takes_one_noise_for_all_rows() -> None:
    K = torch.eye(3, dtype=torch.float64) + 0.2
    K_aX, phi, y = normal(3, 6, seed=0), normal(2, 6, seed=1), normal(6, seed=2)
    one = optimal_decoupled(K, K_aX, phi, y, torch.full((1,), 0.3))
    each = optimal_decoupled(K, K_aX, phi, y, torch.full((6,), 0.3))
    for found, expected in zip(one, each, strict=True):
        close(found, expected)


@pytest.mark.parametrize("preconditioner", ["none", "nystrom"])
def test_elbo_never_exceeds_the_evidence(preconditioner: str) -> None:
    for seed in range(40):
        model, batch, _ = problem(
            preconditioner, seed % 2 == 0, seed=seed, beta1=1.0, jitter=(seed % 3) * 0.01
        )
        model.basis.q.raw_root.data *= 10 ** (seed % 4 - 1.5)
        assert -model.loss(batch) * model.num_data <= dense.exact_log_evidence(model, batch)
        assert (kl(model) >= 0).all()


# -- other priors ---------------------------------------------------------------------------------------


def random_state(
    seed: int, batch_shape: tuple[int, int], sizes: tuple[int, int] = (4, 3), jitter: float = 0.0
) -> SubspaceState:
    generator = torch.Generator().manual_seed(300 + seed)
    points = separated_points(sum(sizes) + 9, batch_shape[0], generator).unsqueeze(1)
    alpha, beta = points[..., : sizes[0], :], points[..., sizes[0] : sum(sizes), :]
    a = normal(*batch_shape, sizes[0], seed=seed)
    L = normal(*batch_shape, sizes[1], sizes[1], seed=seed + 1, scale=0.7)
    return SubspaceState(alpha, a, beta, L, torch.full(batch_shape, jitter, dtype=torch.float64))


def dense_kl(kernel: Scale, q: SubspaceState, p: SubspaceState | None) -> Tensor:
    """Both as Gaussians over f(α), f(α̂), u_β, û_β̂ and some further points."""
    k = partial(dense.k, kernel)
    far = separated_points(4, q.alpha.shape[0], torch.Generator().manual_seed(1)).unsqueeze(1) + 5.0
    states = [q] if p is None else [q, p]
    w = torch.cat([far, *(s.alpha for s in states), *(s.beta for s in states)], -2)
    total, K_w = w.shape[-2], k(w, w)
    where, start = [], total - sum(s.beta.shape[-2] for s in states)
    for s in states:
        where.append((start, start + s.beta.shape[-2]))
        start = where[-1][1]
        noise = torch.zeros(total).double()
        noise[slice(*where[-1])] = 1.0
        K_w = K_w + torch.diag_embed(s.jitter[..., None] * noise)

    def gaussian(s: SubspaceState, place: tuple[int, int]) -> dense.Gaussian:
        first, last = place
        B = torch.nn.functional.pad(s.L @ s.L.mT, (first, total - last, first, total - last))
        return dense.Gaussian(dense.t(s.a, k(w, s.alpha)), inv(inv(K_w) + B))

    of_p = dense.Gaussian(torch.zeros_like(K_w[..., 0]), K_w) if p is None else gaussian(p, where[1])
    return dense.gaussian_kl(gaussian(q, where[0]), of_p)


def a_kernel(batch_shape: tuple[int, int]) -> Scale:
    kernel = Parts(batch_shape, torch.empty(0), torch.empty(0), None).kernel().double()
    kernel.kernel.lengthscale.set_(0.7)
    kernel.variance.set_(1.3)
    return kernel


def two_states(
    seed: int, batch_shape: tuple[int, int], jitter: float = 0.0
) -> tuple[SubspaceState, SubspaceState]:
    """q and p on different points, well apart."""
    points = separated_points(16, batch_shape[0], torch.Generator().manual_seed(seed)).unsqueeze(1)
    alpha_q, beta_q, alpha_p, beta_p, _ = points.split([4, 3, 3, 4, 2], -2)
    q = random_state(seed, batch_shape, (4, 3), jitter)
    p = random_state(seed + 1, batch_shape, (3, 4), jitter)
    return q._replace(alpha=alpha_q, beta=beta_q), p._replace(alpha=alpha_p, beta=beta_p)


@every_jitter
@pytest.mark.parametrize("batch_shape", [(1, 1), (2, 3)])
def test_divergence_from_any_subspace_prior_is_dense(batch_shape: tuple[int, int], jitter: float) -> None:
    """Theorem 1, its signs included, with q and p on different points."""
    kernel = a_kernel(batch_shape)
    for seed in range(5):
        q, p = two_states(seed, batch_shape, jitter)
        found = subspace_kl(kernel, q, p)
        assert found.shape == batch_shape
        assert (found > 0).all()
        assert_close(found, dense_kl(kernel, q, p), rtol=1e-8, atol=1e-8)
        assert_close(subspace_kl(kernel, q), dense_kl(kernel, q, None), rtol=1e-8, atol=1e-8)


def test_divergence_at_its_edges() -> None:
    """p without coefficients is the kernel's prior; q = p costs nothing; B = 0 is no special case."""
    kernel = a_kernel((1, 2))
    q, p = two_states(0, (1, 2))
    nothing = p._replace(a=torch.zeros_like(p.a), L=torch.zeros_like(p.L))
    close(subspace_kl(kernel, q, nothing), subspace_kl(kernel, q))
    close(subspace_kl(kernel, p, p), torch.zeros(1, 2, dtype=torch.float64))
    at_zero = q._replace(L=torch.zeros_like(q.L).requires_grad_())
    value = subspace_kl(kernel, at_zero, p)
    assert_close(value, dense_kl(kernel, at_zero, p), rtol=1e-8, atol=1e-8)
    value.sum().backward()
    assert at_zero.L.grad.isfinite().all()
    thin = q._replace(L=q.L[..., :1])  # B of rank one
    assert_close(subspace_kl(kernel, thin, p), dense_kl(kernel, thin, p), rtol=1e-8, atol=1e-8)
    close(subspace_kl(kernel, q._replace(jitter=0.0), p._replace(jitter=0.0)), subspace_kl(kernel, q, p))


def test_divergence_is_differentiable_in_both() -> None:
    kernel = a_kernel((1, 1))
    q, p = (s._replace(jitter=s.jitter + 0.02) for s in two_states(0, (1, 1)))
    inputs = [t.clone().requires_grad_() for t in (*q, *p)]
    assert torch.autograd.gradcheck(
        lambda *t: subspace_kl(kernel, SubspaceState(*t[:5]), SubspaceState(*t[5:])), inputs
    )


@every_preconditioner
def test_the_basis_pays_against_the_prior_it_is_given(preconditioner: str) -> None:
    prior = random_state(2, (2, 2), jitter=0.01)
    model, batch, x = problem(preconditioner, prior=prior, jitter=0.02, replicates=2, latents=2)
    state = model.basis.state(model.factors())
    assert not any(t.requires_grad for t in state)
    close(kl(model), dense_kl(model.basis.kernel, state, prior))
    plain = problem(preconditioner, jitter=0.02, replicates=2, latents=2).model
    for ours, theirs in zip(model.marginals(x), plain.marginals(x), strict=True):
        close(ours, theirs)  # the prior is in the price alone
    assert_gradient_is_that_of_differences(model, batch)
    one = take_replicate(model, 1)
    close(kl(one), kl(model)[1:])
    close(kl(copy.deepcopy(model)), kl(model))


def test_yesterdays_posterior_is_todays_prior() -> None:
    """On the points of all the data: today's optimal ELBO is log p(y₂ | y₁) = log p(y) − log p(y₁)."""

    def build(p: Parts, prior: SubspaceState | None = None) -> Basis:
        everything = x_all.unsqueeze(1)
        return Subspace(p.kernel(), everything.clone(), everything.clone(), p.batch_shape, prior=prior)

    x_all = random_problem(lambda p: Coupled(p.kernel(), p.z, p.q())).batch.x
    model, batch, _ = random_problem(build, beta1=1.0, num_data=8)
    first, second = slice(0, 3), slice(3, 8)

    def optimum(rows: slice) -> tuple[Tensor, Tensor]:
        basis, factors = model.basis, model.factors()
        x = batch.x[:, rows].unsqueeze(-3)
        y = batch.y[..., rows] - dense.prior_mean(model, batch.x[:, rows])
        K, K_X = basis.kernel(basis.inducing, basis.inducing), basis.kernel(basis.inducing, x)
        s2 = dense.noise_variance(model, batch)[..., rows]
        found = optimal_decoupled(K, K_X, factors.beta.whiten(K_X), y, s2)
        return tuple(t.detach() for t in found)

    def part(rows: slice) -> Batch:
        return Batch(batch.x[:, rows], batch.y[..., rows])

    model.basis.set_(model.factors(), *optimum(first))
    yesterday = model.basis.state(model.factors())
    today = random_problem(partial(build, prior=yesterday), beta1=1.0, num_data=5).model  # the same seed
    today.basis.set_(today.factors(), *optimum(slice(0, 8)))
    elbo = -today.loss(part(second)) * 5
    expected = dense.exact_log_evidence(model, batch) - dense.exact_log_evidence(model, part(first))
    assert_close(elbo, expected, rtol=1e-7, atol=1e-7)
    grads = torch.autograd.grad(elbo.sum(), list(today.basis.q.parameters()))
    assert max(float(g.abs().max()) for g in grads) < 1e-5


# -- parameters -----------------------------------------------------------------------------------------


def test_it_starts_next_to_the_prior() -> None:
    def fresh(first_seed: int) -> Basis:
        basis = problem("nystrom", True, replicates=2, latents=2).model.basis
        basis.initialise([torch.Generator().manual_seed(first_seed + i) for i in range(2)])
        return basis

    one, two, moved = fresh(0), fresh(0), fresh(1)
    for name, width in (("a0", 7**0.5), ("raw_root", 4)):
        values = getattr(one.q, name)
        assert 0.3 < float(values.detach().std()) * width / 1e-6 < 3
        assert torch.equal(values, getattr(two.q, name))
        assert torch.equal(values[1], getattr(moved.q, name)[0])  # each replicate has its own generator
        assert not torch.equal(values[0], values[1])


def test_parameters_are_counted_and_raw_ones_do_not_pose_as_moments() -> None:
    for shared, mean_size in ((False, 5), (True, 7)):
        basis = problem(shared=shared, latents=2).model.basis
        assert basis.num_variational_parameters() == mean_size + 16
        assert basis.q.mean.shape == (1, 2, mean_size)
    assert {n for n, _ in basis.named_parameters() if n.startswith("q.")} == {"q.a0", "q.raw_root"}
    with pytest.raises(RuntimeError, match="q_of"):
        basis.q.root()
    with pytest.raises(RuntimeError, match=r"Subspace\.set_"):
        basis.q.set_(basis.q.mean, torch.eye(4))


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"preconditioner must be one of 'none', .*, got 'full'"):
        problem("full")
    model = problem().model
    with pytest.raises(ValueError, match="must not exceed I"):
        model.basis.set_(model.factors(), model.basis.q.a0.detach(), 1.1 * torch.eye(4)[None, None])


@every_preconditioner
@either_mean
def test_float32_is_float64_rounded(preconditioner: str, shared: bool) -> None:
    model, batch, x = problem(preconditioner, shared, jitter=1e-4)
    rough = copy.deepcopy(model)
    rough.numerics.dtype = torch.float32
    for p in rough.parameters():
        p.data = p.data.float()
    f, expected = rough.marginals(x.float()), model.marginals(x)
    for ours, theirs in zip(f, expected, strict=True):
        assert ours.dtype == torch.float32
        assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-3)
    loss = rough.loss(Batch(*(None if t is None else t.float() for t in batch)))
    assert_close(loss.double(), model.loss(batch), rtol=1e-3, atol=1e-3)
    loss.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in rough.parameters())


@every_preconditioner
def test_adam_finds_its_way_from_the_start(preconditioner: str) -> None:
    """From next to the prior, a subset of the columns at a time: off the saddle at L₀ = 0."""
    model, batch, _ = problem(preconditioner, True, columns=4, beta1=1.0, jitter=1e-4)
    generators = [torch.Generator().manual_seed(0)]
    model.basis.initialise(generators)
    optimiser = torch.optim.Adam(model.basis.q.parameters(), lr=0.03)
    start = float(model.loss(batch).detach())
    for _ in range(150):
        model.basis.draw(generators)
        optimiser.zero_grad()
        model.loss(batch).sum().backward()
        optimiser.step()
    assert float(model.loss(batch).detach()) < start - 0.05
    assert (
        float(model.basis.q_of(model.factors()).covariance().detach().diagonal(dim1=-2, dim2=-1).min()) < 0.7
    )


def test_kernels_with_their_own_numbers_for_each_latent() -> None:
    """Latents differ in their kernels, share their points: each is the model it would be alone."""
    model, _, x = problem("nystrom", True, latents=3, jitter=1e-3)
    together = model.marginals(x)
    single = problem("nystrom", True, latents=1, jitter=1e-3).model
    for i in range(3):
        kernel, q = single.basis.kernel, single.basis.q
        for ours, theirs in zip(
            (*kernel.parameters(), q.a0, q.raw_root),
            (*model.basis.kernel.parameters(), model.basis.q.a0, model.basis.q.raw_root),
            strict=True,
        ):
            ours.data = theirs.data[:, i : i + 1].clone()
        single.basis.inducing.data.copy_(model.basis.inducing)
        single.basis.mean_inducing.data.copy_(model.basis.mean_inducing)
        f = single.basis.marginals(x.unsqueeze(-3), single.basis.factors(Numerics(1, 1e-3)))
        close(f.explained[:, 0], together.explained[:, i])
        close(kl(single)[:, 0], kl(model)[:, i])
