"""The subspace basis of Cheng and Boots (MATH §6, §11 B3): its process, optima, coordinates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.linalg import inv
from torch.testing import assert_close

from duogp.bases import Basis, Coupled, Hybrid, Separate, Subspace, optimal_decoupled
from duogp.bases.subspace import NYSTROM_NUGGET, nystrom_product, nystrom_solve
from duogp.models.model import Model
from helpers import dense
from helpers.random_models import Parts, random_problem
from helpers.subspace import (
    PRECONDITIONERS,
    assert_gradient_is_that_of_differences,
    close,
    either_mean,
    every_jitter,
    every_preconditioner,
    kl,
    normal,
    problem,
    random_state,
)

SHAPES = [{"replicates": 1, "latents": 1}, {"replicates": 2, "latents": 2}]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=["single", "replicates-latents"])


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
    for found, part in zip(model.frozen().joint(x.unsqueeze(-3)), parts, strict=True):
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
    for found, expected in zip(model.frozen().marginals(x), live, strict=True):
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
    """B = 0, a = 0: no KL but the rounding of log det I, the variance the prior's (identity 15)."""
    model, _, x = problem(preconditioner, jitter=1e-4)
    model.basis.q.a0.data.zero_()
    model.basis.q.raw_root.data.zero_()
    assert_close(kl(model), torch.zeros(1, 1, dtype=torch.float64), rtol=0, atol=1e-14)
    f = model.basis.marginals(x.unsqueeze(-3), model.factors())
    assert_close(f.mean, torch.zeros_like(f.mean), rtol=0, atol=1e-14)
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
