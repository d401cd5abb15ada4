"""Divergences of the subspace basis from any subspace prior (MATH §6, §11 B3)."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.linalg import inv
from torch.testing import assert_close

from duogp.bases import Basis, Coupled, Subspace, SubspaceState, optimal_decoupled, subspace_kl
from duogp.kernels import Scale
from duogp.models.model import Batch, take_replicate
from helpers import dense
from helpers.random_models import Parts, random_problem, separated_points
from helpers.subspace import (
    assert_gradient_is_that_of_differences,
    close,
    every_jitter,
    every_preconditioner,
    kl,
    problem,
    random_state,
)


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
