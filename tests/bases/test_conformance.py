"""Every basis × q × objective is the model of its formulas: dense Gaussian algebra in float64, jitter 0."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from duogp.bases import Conditional
from duogp.numerics.factorisation import Numerics, _CholeskyWithInverse
from helpers import dense
from helpers.conformance import (
    Row,
    assert_gradient_is_that_of_differences,
    close,
    conditional,
    every_basis,
    every_basis_and_gaussian_q,
    every_basis_and_q,
    every_jitter,
    every_objective,
    every_q,
    every_shape,
    four_objectives,
    separate_kernels,
)
from helpers.devices import eye, placed
from helpers.random_models import OBJECTIVES, random_problem

pytestmark = pytest.mark.usefixtures("device")

# -- marginals and penalties ----------------------------------------------------------------------------


@every_shape
@every_jitter
@every_basis_and_q
def test_marginals_are_those_of_the_dense_process(row: Row, q: str, jitter: float, shape: dict) -> None:
    """Mean, residual and explained variance; with jitter, of the process with u = f(Z) + √ε ξ (§11 C1)."""
    model, _, x = random_problem(row.build, q, jitter=jitter, **shape)
    f, expected = model.marginals(x), row.dense(model, x)
    close(f.mean, expected.mean + dense.prior_mean(model, x))
    close(f.residual, expected.residual.diagonal(dim1=-2, dim2=-1))
    close(f.explained, expected.explained.diagonal(dim1=-2, dim2=-1))


@every_shape
@every_jitter
@every_basis_and_q
def test_joint_covariance_is_that_of_the_dense_process(row: Row, q: str, jitter: float, shape: dict) -> None:
    model, _, x = random_problem(row.build, q, jitter=jitter, **shape)
    mean, residual, explained = model.frozen().joint(x.unsqueeze(-3))
    expected = row.dense(model, x)
    close(mean, expected.mean)
    close(residual, expected.residual)
    close(explained, expected.explained)


@every_shape
@every_jitter
@every_basis_and_gaussian_q
def test_dense_process_is_prior_times_q_over_p(row: Row, q: str, jitter: float, shape: dict) -> None:
    """The formulas agree with the joint q(f, u): for one kernel p(w) q(u)/p(u) in information form."""
    model, batch, _ = random_problem(row.build, q, jitter=jitter, **shape)
    f, n = row.dense(model, batch.x), batch.x.shape[-2]
    close(f.q.mean[..., :n], f.mean)
    close(f.q.covariance[..., :n, :n], f.residual + f.explained + dense.white(f.nugget, n))


@every_shape
@every_jitter
@every_basis_and_q
def test_penalties_are_the_dense_divergences(row: Row, q: str, jitter: float, shape: dict) -> None:
    """KL against K_Z (or −log p of a point), and Ω = ½ tr Aᵀ K̃⁻¹ A (S + mmᵀ), both unwhitened."""
    model, batch, _ = random_problem(row.build, q, jitter=jitter, **shape)
    _, found = model.basis.evaluate(
        batch.x.unsqueeze(-3), model.factors(), model.numerics, with_omega=model.uses_omega
    )
    expected = row.dense(model, batch.x)
    close(found.kl, expected.penalty.sum(-1))
    assert (found.omega is None) == (expected.omega is None)
    if found.omega is not None:
        close(found.omega, expected.omega.sum(-1))


@every_shape
@every_jitter
@every_basis_and_gaussian_q
def test_penalty_is_the_divergence_of_the_joint(row: Row, q: str, jitter: float, shape: dict) -> None:
    """KL + Ω = KL(q(f, u) ‖ p(f, u)) on a superset of the points (identity 4, §11 A1, B1)."""
    model, batch, _ = random_problem(row.build, q, jitter=jitter, **shape)
    _, found = model.basis.evaluate(
        batch.x.unsqueeze(-3), model.factors(), model.numerics, with_omega=model.uses_omega
    )
    total = found.kl if found.omega is None else found.kl + found.omega
    f = row.dense(model, batch.x)
    divergence = dense.gaussian_kl(f.q, f.p).sum(-1)
    assert (divergence > 0).all()
    assert_close(total, divergence, rtol=1e-8, atol=1e-8)


# -- the loss and its gradient --------------------------------------------------------------------------


@every_shape
@every_objective
@every_basis_and_q
def test_loss_is_the_dense_objective(row: Row, q: str, objective: str, shape: dict) -> None:
    """−(1/B) Σ data + (1/N)(β₁ KL + β₂ Ω); with fixed row noise and row weights in the larger shape."""
    extras = {"row_noise": True, "weights": True} if shape["replicates"] > 1 else {}
    model, batch, _ = random_problem(row.build, q, objective, num_data=29, **shape, **extras)
    close(model.loss(batch), dense.loss(model, batch, row.dense(model, batch.x)))


@pytest.mark.parametrize("nugget", [None, 0.05])
@pytest.mark.parametrize("omega", ["rows", "batch", "blocks", "full"])
@pytest.mark.parametrize("whitening", ["Q", "K"])
@pytest.mark.parametrize("q", ["full", "diagonal", "point"])
def test_omega_of_each_kind_is_dense(q: str, whitening: str, omega: str, nugget: float | None) -> None:
    """batch: unscaled, nugget in Ω only; rows, blocks: times N/B; but for batch, nugget in the residual."""
    build = conditional(whitening, omega, nugget=nugget)
    for objective in list(OBJECTIVES)[:4]:
        model, batch, _ = random_problem(build, q, objective, num_data=40, replicates=2, latents=2)
        close(model.loss(batch), dense.loss(model, batch, dense.conditional(model, batch.x)))


@four_objectives
@every_q
def test_separate_basis_may_have_a_mean_kernel_of_its_own(q: str, objective: str) -> None:
    """No longer a bound, but still its formulas: marginals, frozen posterior, loss and gradient."""
    model, batch, x = random_problem(separate_kernels, q, objective, latents=2, jitter=0.03)
    f, expected = model.marginals(x), dense.separate(model, x)
    close(f.mean, expected.mean + dense.prior_mean(model, x))
    for found, part in zip(model.frozen().joint(x.unsqueeze(-3)), expected, strict=False):
        close(found, part)
    close(model.loss(batch), dense.loss(model, batch, dense.separate(model, batch.x)))
    assert_gradient_is_that_of_differences(model, batch)


@pytest.mark.parametrize("whitening", ["Q", "K"])
def test_the_mean_kernel_may_have_a_jitter_of_its_own(whitening: str) -> None:
    """Q_Z + ε_q I beside K_Z + ε_k I (the reference code's two jitters)."""
    model, batch, x = random_problem(conditional(whitening, mean_jitter=0.05), jitter=0.01, latents=2)
    expected = dense.conditional(model, x)
    for found, part in zip(model.frozen().joint(x.unsqueeze(-3)), expected, strict=False):
        close(found, part)
    close(model.loss(batch), dense.loss(model, batch, dense.conditional(model, batch.x)))
    assert_gradient_is_that_of_differences(model, batch)


def test_omega_costs_nothing_where_beta2_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch, _ = random_problem(conditional("Q"), beta2=0.0)
    monkeypatch.setattr(Conditional, "mismatch", lambda *_: pytest.fail("Ω was computed"))
    f = dense.conditional(model, batch.x)._replace(omega=None)
    close(model.loss(batch), dense.loss(model, batch, f))


@four_objectives
@every_basis_and_q
def test_gradient_is_that_of_differences(row: Row, q: str, objective: str) -> None:
    """Identity 25: Z, both kernels, q, noise, prior mean, at jitter 0."""
    model, batch, _ = random_problem(row.build, q, objective, n=5, inducing=3)
    assert_gradient_is_that_of_differences(model, batch)


@pytest.mark.parametrize("omega", ["rows", "batch", "blocks"])
@every_basis
def test_gradient_through_jitter_noise_and_weights(row: Row, omega: str) -> None:
    """The jitter is relative to the prior variance, and so is its gradient."""
    build = conditional(row.name[-1], omega) if "conditional" in row.name else row.build
    model, batch, _ = random_problem(
        build, n=4, inducing=3, replicates=2, latents=2, jitter=0.01, row_noise=True, weights=True
    )
    assert_gradient_is_that_of_differences(model, batch)


# -- the Cholesky factor with its inverse ---------------------------------------------------------------


def test_cholesky_gradient_is_that_of_autograd(generator: torch.Generator) -> None:
    """Through L, through L⁻¹ and through both, for any incoming gradient (MATH §10, §11 B11)."""
    A = placed(torch.randn(3, 2, 5, 5, generator=generator, dtype=torch.float64))
    K = (A @ A.mT + eye(5)).requires_grad_()
    g_L, g_inv = placed(torch.randn(2, *K.shape, generator=generator, dtype=torch.float64))
    for a, b in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):
        L, L_inv, _ = _CholeskyWithInverse.apply(K, torch.float64)
        (found,) = torch.autograd.grad((a * L * g_L + b * L_inv * g_inv).sum(), K)
        L = torch.linalg.cholesky(K)
        (expected,) = torch.autograd.grad((a * L * g_L + b * torch.linalg.inv(L) * g_inv).sum(), K)
        assert_close(found, (expected + expected.mT) / 2, rtol=1e-11, atol=1e-11)


def test_factor_whitens_and_counts(generator: torch.Generator) -> None:
    """L Lᵀ = K + εI with ε = jitter · mean diagonal, L⁻¹L = I, and Σ log diag L = ½ log|K + εI|."""
    A = placed(torch.randn(2, 3, 4, 4, generator=generator, dtype=torch.float64))
    K = A @ A.mT + eye(4)
    numerics = placed(Numerics(2, 0.1))
    factor = numerics.factor(K)
    jittered = K + 0.1 * K.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None] * eye(4)
    close(factor.L @ factor.L.mT, jittered)
    close(factor.L_inv @ factor.L, eye(4).expand_as(K))
    close(factor.half_log_det(), 0.5 * torch.logdet(jittered))
    assert not numerics.failed.any()
    numerics.factor(torch.stack([K[0], -K[1]]))
    assert numerics.failed.tolist() == [False, True]
