"""The identities of MATH §8, by number, and the statements of §11 that concern these methods.

(7, 12 pointwise, 20, 21 are in test_conformance_objectives.py; 23 in test_conformance_invariances.py; 25 in
test_conformance.py.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from test_conformance import (
    BASES,
    Row,
    close,
    conditional,
    every_basis,
    every_basis_and_q,
    every_objective,
    every_q,
    separate,
)
from torch import Tensor, nn
from torch.testing import assert_close

import dense
from dense import inv, k, log_evidence, quadratic, t, white
from duogp.bases import Basis, Conditional, Coupled, Separate, TwoBlock
from duogp.inference.closed_form import CollapsedObjective, Optimum
from duogp.models.model import Batch, Model
from duogp.variational import CholeskyQ
from random_models import QS, Parts, Problem, random_problem

WHITENINGS = ["Q", "K"]
BETAS = [(1.0, 1.0), (0.5, 0.1), (1.0, 0.0), (2.0, 3.0)]

every_whitening = pytest.mark.parametrize("whitening", WHITENINGS)


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


@torch.no_grad()
def equalise_kernels(basis: Conditional) -> None:
    basis.mean_kernel.load_state_dict(basis.kernel.state_dict())


# -- 1, 2: SVGP -----------------------------------------------------------------------------------------


def test_identity_01_inducing_points_at_the_data_give_the_exact_gp() -> None:
    """Z = X: the best ELBO is the log marginal likelihood and the posterior is the exact one, jointly."""
    model, batch, x = bound_problem(coupled)
    model.basis.inducing = nn.Parameter(batch.x.unsqueeze(1).clone())
    model.basis.q = CholeskyQ(batch.x.shape[1], (1, 1)).double()
    put_optimum(model, batch)
    close(objective_value(model, batch), dense.exact_log_evidence(model, batch))

    kernel, rows, new = model.basis.kernel, batch.x.unsqueeze(1), x.unsqueeze(1)
    gain = k(kernel, new, rows) @ inv(
        k(kernel, rows, rows) + torch.diag_embed(dense.noise_variance(model, batch))
    )
    mean, residual, explained = model.linear_form().joint(new)
    close(mean, t(batch.y - dense.prior_mean(model, batch.x), gain))
    close(residual + explained, k(kernel, new, new) - gain @ k(kernel, rows, new))


def test_identity_02_the_best_elbo_is_the_titsias_bound() -> None:
    """log N(y | 0, Q_Z + s²I) − tr(K − Q_Z)/(2s²), at S* = K(K + K_ZX K_XZ/s²)⁻¹K, m* = S*K⁻¹K_ZX y/s²."""
    model, batch, _ = bound_problem(coupled)
    y, noise, K, K_xz, residual = pieces(model, batch)
    best = put_optimum(model, batch)
    titsias = log_evidence(y, K_xz @ inv(K) @ K_xz.mT + noise) - 0.5 * diagonal(residual @ inv(noise)).sum(-1)
    close(objective_value(model, batch), titsias.sum(-1))
    close(collapsed_value(model, batch), titsias.sum(-1))

    L = torch.linalg.cholesky(K)
    S = K @ inv(K + K_xz.mT @ inv(noise) @ K_xz) @ K
    close(L @ best.root @ best.root.mT @ L.mT, S)
    close(t(best.mean, L), t(y, S @ inv(K) @ K_xz.mT @ inv(noise)))


def test_svgp_is_below_the_evidence_for_any_q() -> None:
    for seed in range(30):
        model, batch, _ = bound_problem(coupled, seed=seed)
        exact = dense.exact_log_evidence(model, batch)
        assert objective_value(model, batch) < collapsed_value(model, batch) < exact


# -- 3, 4, 5, 6: decoupled conditionals -----------------------------------------------------------------


@every_objective
@every_q
@every_whitening
def test_identity_03_equal_kernels_make_the_conditional_basis_coupled(
    whitening: str, q: str, objective: str
) -> None:
    """q = k: same marginals, same penalty, Ω = 0, in both coordinates."""
    model, batch, x = random_problem(conditional(whitening), q, objective)
    equalise_kernels(model.basis)
    other, _, _ = random_problem(coupled, q, objective)
    for part in ("kernel", "q"):
        getattr(other.basis, part).load_state_dict(getattr(model.basis, part).state_dict())
    other.mean.load_state_dict(model.mean.state_dict())
    other.likelihood.load_state_dict(model.likelihood.state_dict())
    for a, b in zip(model.marginals(x), other.marginals(x), strict=True):
        close(a, b)
    assert penalties_of(model, batch.x)[1].abs().max() < 1e-16
    close(model.loss(batch), other.loss(batch))


@every_objective
def test_identity_04_both_whitenings_are_one_model(objective: str) -> None:
    """u = R v_Q = L_K v_K: mapping q between coordinates changes neither marginals nor KL nor Ω."""
    model, batch, x = random_problem(conditional("Q"), objective=objective)
    other, _, _ = random_problem(conditional("K"), objective=objective)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        factors = model.factors()
        V = factors.covariance.L_inv @ factors.mean.L
        S = V @ model.basis.q.covariance() @ V.mT
        other.basis.q.set_(t(model.basis.q.mean, V), torch.linalg.cholesky(S))
    for a, b in zip(model.marginals(x), other.marginals(x), strict=True):
        close(a, b)
    for a, b in zip(penalties_of(model, batch.x), penalties_of(other, batch.x), strict=True):
        close(a, b)
    close(model.loss(batch), other.loss(batch))


@every_whitening
def test_identity_05_the_full_penalty_makes_a_bound(whitening: str) -> None:
    """β₁ = β₂ = 1: below log p(y) under the K prior, for random q and for the best one."""
    for seed in range(20):
        model, batch, _ = bound_problem(conditional(whitening), seed=seed)
        exact = dense.exact_log_evidence(model, batch)
        assert objective_value(model, batch) < collapsed_value(model, batch) < exact


@every_whitening
def test_identity_05_without_omega_there_is_no_bound(whitening: str) -> None:
    """β₂ = 0 can exceed log p(y): for targets that B K_Z Bᵀ finds more probable than K does; β₂ = 1 never."""
    model, batch, _ = bound_problem(conditional(whitening), beta2=0.0)
    model.basis.mean_kernel.kernel.lengthscale.set_(2.0)
    _, noise, K, _, _ = pieces(model, batch)
    z, x = model.basis.inducing, batch.x.unsqueeze(1)
    B = k(model.basis.mean_kernel, x, z) @ inv(k(model.basis.mean_kernel, z, z))
    prior = k(model.basis.kernel, x, x) + noise
    # the direction of y that q's implied prior B K Bᵀ finds more probable than K does
    values, vectors = torch.linalg.eigh(inv(prior) - inv(B @ K @ B.mT + noise))
    assert values[..., -1] > 0.01
    batch = batch._replace(y=(dense.prior_mean(model, batch.x) + 20 * vectors[..., -1]).detach())
    exact = dense.exact_log_evidence(model, batch)
    assert collapsed_value(model, batch) > exact + 0.5
    bound, _, _ = bound_problem(conditional(whitening))
    bound.basis.load_state_dict(model.basis.state_dict())
    assert collapsed_value(bound, batch) < exact


@pytest.mark.parametrize(("beta1", "beta2"), BETAS)
@every_whitening
def test_identity_05_closed_form_optimum(whitening: str, beta1: float, beta2: float) -> None:
    """S⁻¹ = K⁻¹ + BBᵀ/(β₁s²) + (β₂/β₁)T, m = S B y/(β₁s²), for u, in either coordinates."""
    model, batch, _ = random_problem(conditional(whitening), beta1=beta1, beta2=beta2)
    y, noise, K, K_xz, residual = pieces(model, batch)
    Q_z = k(model.basis.mean_kernel, model.basis.inducing, model.basis.inducing)
    B = k(model.basis.mean_kernel, batch.x.unsqueeze(1), model.basis.inducing) @ inv(Q_z)
    T = dense.mismatch(B - K_xz @ inv(K), residual)
    S = inv(inv(K) + B.mT @ inv(noise) @ B / beta1 + beta2 / beta1 * T)
    best = put_optimum(model, batch)
    R = torch.linalg.cholesky(Q_z if whitening == "Q" else K)
    close(R @ best.root @ best.root.mT @ R.mT, S)
    close(t(best.mean, R), t(y, S @ B.mT @ inv(noise)) / beta1)
    close(objective_value(model, batch), collapsed_value(model, batch))
    for p in model.basis.q.parameters():
        (slope,) = torch.autograd.grad(model.loss(batch).sum(), p)
        assert slope.abs().max() < 1e-10

    if beta1 == 1:  # the collapsed values of MATH §2.1
        P = inv(inv(K) + beta2 * T)
        expected = log_evidence(y, B @ P @ B.mT + noise) - 0.5 * diagonal(residual @ inv(noise)).sum(-1)
        expected = expected - 0.5 * torch.logdet(torch.eye(4) + beta2 * K @ T)
        close(objective_value(model, batch), expected.sum(-1))


@every_whitening
def test_identity_06_omega_grows_with_its_inputs(whitening: str) -> None:
    """Nested rows: Ω is non-decreasing (data processing), and so a batch under-estimates it."""
    for seed in range(5):
        model, batch, _ = random_problem(conditional(whitening), seed=seed, n=10)
        values = [penalties_of(model, batch.x[:, :n])[1].item() for n in range(1, 11)]
        assert all(0 < a < b for a, b in pairwise(values))


def omega_on_a_grid(mean_lengthscale: float, points: int) -> float:
    model, _, _ = random_problem(conditional("K"), inducing=3)
    with torch.no_grad():
        for kernel, lengthscale in ((model.basis.kernel, 1.0), (model.basis.mean_kernel, mean_lengthscale)):
            kernel.kernel.lengthscale.set_(lengthscale)
            kernel.variance.set_(1.0)
        model.basis.inducing.zero_()[..., 0] = torch.tensor([-1.23, 0.11, 1.37])
        model.basis.q.set_(torch.zeros(1, 1, 3), torch.eye(3).expand(1, 1, 3, 3))
        x = torch.zeros(1, points, 2, dtype=torch.float64)
        x[0, :, 0] = torch.linspace(-2, 2, points)
        return penalties_of(model, x)[1].item()


def test_identity_06_omega_blows_up_outside_the_prior_rkhs() -> None:
    """RBF: as inputs fill in, Ω stays bounded for l_mean > l_covar/√2 and grows without limit below it."""
    inside = [omega_on_a_grid(0.9, n) for n in (4, 6, 8, 10)]
    outside = [omega_on_a_grid(0.3, n) for n in (4, 6, 8, 10)]
    assert inside[-1] < 1.5 * inside[0] < 1.0
    assert all(b > 5 * a for a, b in pairwise(outside))
    assert outside[-1] > 1e5


@every_whitening
def test_b1_no_q_is_the_prior_of_a_conditional_basis(whitening: str) -> None:
    """min over q of KL + Ω = ½ log|I + K_Z T| > 0: minus the collapsed value of no data (§11 B1)."""
    model, batch, _ = bound_problem(conditional(whitening))
    batch = batch._replace(weight=torch.zeros(1, batch.x.shape[1], dtype=torch.float64))
    _, _, K, K_xz, residual = pieces(model, batch)
    z = model.basis.inducing
    B = k(model.basis.mean_kernel, batch.x.unsqueeze(1), z) @ inv(k(model.basis.mean_kernel, z, z))
    T = dense.mismatch(B - K_xz @ inv(K), residual)
    cost = 0.5 * torch.logdet(torch.eye(4) + K @ T).sum(-1)
    assert cost > 0
    close(-collapsed_value(model, batch), cost)
    put_optimum(model, batch)
    close(sum(penalties_of(model, batch.x)), cost)


# -- β₂ → ∞ ---------------------------------------------------------------------------------------------


def svgp_like(model: Model, batch: Batch) -> Problem:
    """SVGP with the conditional model's prior, Z, noise and mean."""
    other, _, x = bound_problem(coupled, n=batch.x.shape[1])
    other.basis.kernel.load_state_dict(model.basis.kernel.state_dict())
    with torch.no_grad():
        other.basis.inducing.copy_(model.basis.inducing)
    other.mean.load_state_dict(model.mean.state_dict())
    other.likelihood.load_state_dict(model.likelihood.state_dict())
    return Problem(other, batch, x)


def test_large_beta2_with_fixed_kernels_switches_q_off() -> None:
    """Where the two conditional means differ (T ≻ 0), β₂ → ∞ forces u → 0: the prior mean remains.

    The value falls without limit, so this is not SVGP: only a mean kernel that is free to move leads there.
    """
    values = []
    for beta2 in (1.0, 1e3, 1e6, 1e9):
        model, batch, x = bound_problem(conditional("K"), beta2=beta2)
        put_optimum(model, batch)
        values.append(collapsed_value(model, batch).item())
    assert all(a > b for a, b in pairwise(values))
    # −½ log|I + β₂ K T| has slope −M/2 in log β₂
    assert_close(values[2] - values[3], 0.5 * 4 * torch.log(torch.tensor(1e3)).item(), rtol=1e-3, atol=0)
    f = model.marginals(x)
    assert_close(f.mean, dense.prior_mean(model, x), rtol=0, atol=1e-5)
    assert f.explained.max() < 1e-5


@pytest.mark.parametrize("whitening", WHITENINGS)
def test_large_beta2_with_a_free_mean_kernel_tends_to_svgp(whitening: str) -> None:
    """With l_mean free, the optimum's mean kernel tends to k at rate 1/β₂, value and predictions to SVGP's.

    q = k is always allowed and has no Ω, so the maximum is at least SVGP's bound; leaving it costs β₂Ω,
    quadratic in the distance, for a gain that is linear in it.
    """
    distances, gaps, errors = [], [], []
    for beta2 in (1e3, 1e4, 1e5):
        model, batch, x = bound_problem(conditional(whitening), beta2=beta2)
        equalise_kernels(model.basis)
        other, _, _ = svgp_like(model, batch)
        lengthscale = model.basis.mean_kernel.kernel.lengthscale
        with torch.no_grad():
            lengthscale.raw.add_(1e-3)
        optimiser = torch.optim.LBFGS(
            [lengthscale.raw],
            max_iter=100,
            tolerance_grad=1e-13,
            tolerance_change=0,
            line_search_fn="strong_wolfe",
        )

        def closure(model: Model = model, batch: Batch = batch) -> Tensor:
            model.zero_grad()
            return CollapsedObjective(model, [lambda: batch]).backward().sum()

        optimiser.step(closure)
        put_optimum(model, batch)
        put_optimum(other, batch)
        distances.append((lengthscale() - model.basis.kernel.kernel.lengthscale()).abs().max().item())
        gaps.append((collapsed_value(model, batch) - collapsed_value(other, batch)).item())
        errors.append(
            max(
                (a - b).abs().max().item()
                for a, b in zip(model.marginals(x), other.marginals(x), strict=True)
            )
        )
    assert all(gap > 0 for gap in gaps)
    for series in (distances, gaps, errors):
        for a, b in pairwise(series):
            assert 5 < a / b < 20
    assert max(distances[-1], gaps[-1], errors[-1]) < 1e-3


# -- 12, VFITC; 16, 18, 19, 22 --------------------------------------------------------------------------


def test_identity_12_the_best_vfitc_is_the_fitc_evidence() -> None:
    """max over q of Σ VFITC − KL = log N(y | 0, Q_Z + diag K̃ + s²I), at Λ = 1/(s² + K̃_ii)."""
    model, batch, _ = bound_problem(coupled, objective="vfitc", replicates=2, latents=2)
    y, noise, K, K_xz, residual = pieces(model, batch)
    total = noise + torch.diag_embed(diagonal(residual))
    best = put_optimum(model, batch)
    fitc = log_evidence(y, K_xz @ inv(K) @ K_xz.mT + total).sum(-1)
    close(objective_value(model, batch), fitc)
    close(collapsed_value(model, batch), fitc)
    W = K_xz @ inv(K)
    S = inv(inv(K) + W.mT @ inv(total) @ W)
    L = torch.linalg.cholesky(K)
    close(L @ best.root @ best.root.mT @ L.mT, S)
    close(t(best.mean, L), t(y, S @ W.mT @ inv(total)))


@pytest.mark.parametrize("build", [coupled, separate(0), separate(1)], ids=["coupled", "equal", "different"])
def test_identity_16_the_whitened_prior_is_the_prior(build: Callable[[Parts], Basis]) -> None:
    """m = 0, S = I: no KL, and the posterior process is the prior."""
    model, _, x = random_problem(build, latents=2)
    with torch.no_grad():
        model.basis.q.mean.zero_()
        model.basis.q.raw_root.copy_(torch.eye(4))
    close(model.basis.kl(model.factors(), model.basis.q), torch.zeros(1, 2).double())
    mean, residual, explained = model.linear_form().joint(x.unsqueeze(1))
    close(mean, torch.zeros_like(mean))
    close(residual + explained, k(model.basis.kernel, x.unsqueeze(1), x.unsqueeze(1)))


@every_objective
@every_basis
def test_identity_18_mean_field_is_a_full_q_with_that_diagonal(row: Row, objective: str) -> None:
    model, batch, x = random_problem(row.build, "diagonal", objective)
    other, _, _ = random_problem(row.build, "full", objective)
    with torch.no_grad():
        other.basis.q.set_(model.basis.q.mean, model.basis.q.root())
    for name, p in other.named_parameters():
        if not name.startswith("basis.q."):
            p.data.copy_(dict(model.named_parameters())[name])
    for a, b in zip(model.marginals(x), other.marginals(x), strict=True):
        close(a, b)
    close(model.loss(batch), other.loss(batch))


@every_basis
def test_identity_18_a_point_is_the_limit_in_predictions_but_not_in_penalty(row: Row) -> None:
    """S = tI, t → 0: marginals tend to the point's, the KL diverges like −(M/2) log t (§11 A7)."""
    model, _, x = random_problem(row.build, "point")
    other, _, _ = random_problem(row.build, "full")
    for name, p in model.named_parameters():
        dict(other.named_parameters())[name].data.copy_(p)
    kls, q = [], other.basis.q
    size = sum(block.size for block, _ in q.parts() if block.num_parameters())
    for scale in (1e-2, 1e-4, 1e-6):
        with torch.no_grad():
            q.set_(q.mean, scale**0.5 * torch.eye(q.size).expand(1, 1, -1, -1))
        for a, b in zip(other.marginals(x), model.marginals(x), strict=True):
            assert_close(a, b, rtol=0, atol=10 * scale)
        kls.append(other.basis.kl(other.factors(), other.basis.q).item())
    for a, b in pairwise(kls):
        assert_close(b - a, size / 2 * torch.log(torch.tensor(100.0)).item(), rtol=0.1, atol=0)


@pytest.mark.parametrize("row", BASES[:3], ids=lambda row: row.name)
def test_a7_penalties_of_a_point(row: Row) -> None:
    """−log N(v; 0, I) without its constant, or −log N(u; 0, K_Z) in full: they differ by ½ log|2πK_Z|."""
    values = []
    for q in ("point", "point-unwhitened"):
        model, _, _ = random_problem(row.build, q)
        values.append(model.basis.kl(model.factors(), model.basis.q))
    z = model.basis.inducing
    close(values[1] - values[0], 0.5 * torch.logdet(2 * torch.pi * k(model.basis.kernel, z, z)))


@every_objective
@every_q
def test_identity_19_one_set_of_points_makes_separate_coupled(q: str, objective: str) -> None:
    """Z_μ = Z_σ: same marginals, same regulariser without any extra constant."""
    model, batch, x = random_problem(lambda p: Separate(p.kernel(), p.z.clone(), p.z, p.q()), q, objective)
    other, _, _ = random_problem(coupled, q, objective)
    for a, b in zip(model.marginals(x), other.marginals(x), strict=True):
        close(a, b)
    close(model.loss(batch), other.loss(batch))


def test_identity_22_permuted_inducing_points_rotate_the_whitened_q() -> None:
    """U = L_p⁻¹ Π L is orthogonal; m → U m, S → U S Uᵀ keeps the process (§11 A5); permuting m does not."""
    model, batch, x = random_problem(coupled)
    other, _, _ = random_problem(coupled)
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        other.basis.inducing.copy_(model.basis.inducing[..., order, :])
        U = other.factors().L_inv @ model.factors().L[..., order, :]
        close(U @ U.mT, torch.eye(4).double()[None, None])
        S = U @ model.basis.q.covariance() @ U.mT
        other.basis.q.set_(t(model.basis.q.mean, U), torch.linalg.cholesky(S))
    for a, b in zip(model.marginals(x), other.marginals(x), strict=True):
        close(a, b)
    close(model.loss(batch), other.loss(batch))
    with torch.no_grad():
        other.basis.q.mean.copy_(model.basis.q.mean[..., order])
    assert (other.marginals(x).mean - model.marginals(x).mean).abs().max() > 1e-2

    # mean field is not closed under this: its family depends on the order of Z
    field, _, _ = random_problem(coupled, "diagonal")
    S = U @ field.basis.q.covariance() @ U.mT
    assert (S - torch.diag_embed(diagonal(S))).abs().max() > 1e-2


@pytest.mark.parametrize("objective", ["elbo", "vfitc", "predictive"])
@every_basis_and_q
def test_identity_22_rescaling_shifts_by_log_c(row: Row, q: str, objective: str) -> None:
    """(y, s², variances) → (cy, c²s², c²·): log-likelihoods fall by n log c, whitened q and penalty stay."""
    c = 2.7
    model, batch, _ = random_problem(row.build, q, objective, jitter=1e-3, replicates=2, latents=2)
    before = model.loss(batch).detach()
    penalty = model.basis.kl(model.factors(), model.basis.q).sum(-1).detach()
    with torch.no_grad():
        kernels = {model.basis.kernel, getattr(model.basis, "mean_kernel", model.basis.kernel)}
        for positive in (*(kernel.variance for kernel in kernels), model.likelihood.noise):
            positive.set_(c**2 * positive())
        for p in model.mean.parameters():
            p.mul_(c)
    after = model.loss(batch._replace(y=c * batch.y))
    shift = torch.tensor(c, dtype=torch.float64).log()
    expected = before + 2 * shift  # two outputs
    if q == "point-unwhitened":  # ½ log|K_Z| moves as well: M log c for each output
        moved = model.basis.kl(model.factors(), model.basis.q).sum(-1) - penalty
        close(moved, (2 * model.basis.q.mean.shape[-1] * shift).expand(2))
        expected = expected + model.beta1 * moved / model.num_data
    close(after, expected, rtol=1e-8, atol=1e-8)  # the noise floor of 1e-6 is inverted in float64


# -- §11 A1: separate -----------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [-2, 0, 1])
def test_a1_the_separate_basis_collapses_to_a_bound(extra: int) -> None:
    """−n/2 log 2π − ½ log|Q_σ + s²I| − ½ yᵀ(Q_μ + s²I)⁻¹y − tr(K − Q_σ)/(2s²) ≤ log p(y)."""
    for seed in range(10):
        model, batch, _ = bound_problem(separate(extra), seed=seed)
        y, noise, K, K_xz, residual = pieces(model, batch)
        kernel, z_mean, x = model.basis.kernel, model.basis.mean_inducing, batch.x.unsqueeze(1)
        K_xm = k(kernel, x, z_mean)
        Q_mean = K_xm @ inv(k(kernel, z_mean, z_mean)) @ K_xm.mT + noise
        Q_covariance = K_xz @ inv(K) @ K_xz.mT + noise
        expected = -0.5 * (
            y.shape[-1] * dense.LOG_2PI
            + torch.logdet(Q_covariance)
            + quadratic(y, inv(Q_mean))
            + diagonal(residual @ inv(noise)).sum(-1)
        )
        put_optimum(model, batch)
        close(objective_value(model, batch), expected.sum(-1))
        close(collapsed_value(model, batch), expected.sum(-1))
        assert expected.sum(-1) < dense.exact_log_evidence(model, batch)


def test_a1_a_mean_kernel_of_its_own_breaks_the_bound() -> None:
    model, batch, _ = bound_problem(
        lambda p: Separate(p.kernel(), p.extra, p.z, p.q(mean_size=5), mean_kernel=p.kernel()), n=6
    )
    with torch.no_grad():
        model.basis.inducing.copy_(batch.x[:, None, :4])
        model.basis.mean_inducing.copy_(batch.x[:, None, :5])
        model.basis.kernel.kernel.lengthscale.set_(4.0)
        model.basis.mean_kernel.kernel.lengthscale.set_(0.3)
        model.likelihood.noise.set_(0.01)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 0.0])
    batch = batch._replace(y=signs.double() + dense.prior_mean(model, batch.x).detach())
    assert collapsed_value(model, batch) > dense.exact_log_evidence(model, batch) + 10


# -- §11 B6: blocks of Ω --------------------------------------------------------------------------------

PARTITIONS = {
    "blocks": [slice(0, 3), slice(3, 6), slice(6, 9)],
    "uneven": [slice(0, 5), slice(5, 9)],
    "fitc": [slice(i, i + 1) for i in range(9)],
}


def block_diagonal(A: Tensor, partition: list[slice]) -> Tensor:
    out = torch.zeros_like(A)
    for b in partition:
        out[..., b, b] = A[..., b, b]
    return out


@pytest.mark.parametrize("nugget", [None, 0.05])
@pytest.mark.parametrize("partition", PARTITIONS)
@every_whitening
def test_b6_block_omegas_sum_to_the_divergence_from_pitc(
    whitening: str, partition: str, nugget: float | None
) -> None:
    """KL_u + Σ_b Ω_b = KL(q(f, u) ‖ p_PITC(f, u)), both with residual covariance blockdiag(K̃_bb + nugget)."""
    model, batch, _ = bound_problem(conditional(whitening, "blocks", nugget=nugget), n=9)
    parts = PARTITIONS[partition]
    kl, _ = penalties_of(model, batch.x)
    omega = sum(penalties_of(model, batch.x[:, b])[1] for b in parts)

    f = dense.conditional(model, batch.x)
    _, _, K, K_xz, residual = pieces(model, batch)
    blocks = block_diagonal(residual, parts) + white(f.nugget, 9)
    explained_prior = K_xz @ inv(K) @ K_xz.mT
    u = dense.Gaussian(f.q.mean[..., 9:], f.q.covariance[..., 9:, 9:])
    q = dense.Gaussian(
        f.q.mean, dense.blocks(blocks + f.explained, f.q.covariance[..., :9, 9:], u.covariance)
    )
    p = dense.Gaussian(torch.zeros_like(f.q.mean), dense.blocks(explained_prior + blocks, K_xz, K))
    close(kl + omega, dense.gaussian_kl(q, p).sum(-1))


@pytest.mark.parametrize("nugget", [None, 0.05])
@pytest.mark.parametrize("partition", PARTITIONS)
def test_b6_the_collapsed_value_is_below_the_pitc_evidence(partition: str, nugget: float | None) -> None:
    """Σ ELBO − KL − Σ_b Ω_b ≤ log N(y | 0, Q_Z + blockdiag(K̃) + s²I); a nugget belongs to that prior."""
    parts = PARTITIONS[partition]
    for seed in range(5):
        model, batch, _ = bound_problem(conditional("Q", "blocks", nugget=nugget), n=9, seed=seed)
        y, noise, K, K_xz, residual = pieces(model, batch)
        white_noise = white(dense.jitter_of(model, model.basis.kernel, nugget), 9)
        prior = K_xz @ inv(K) @ K_xz.mT + block_diagonal(residual, parts) + white_noise
        chunks = [partial(lambda b, batch: Batch(batch.x[:, b], batch.y[..., b]), b, batch) for b in parts]
        value = -CollapsedObjective(model, chunks).backward() * 9
        assert value < log_evidence(y, prior + noise).sum(-1)


@pytest.mark.parametrize("nugget", [None, 0.05])
@every_whitening
def test_b6_omega_of_rows_is_that_of_blocks_of_one_row(whitening: str, nugget: float | None) -> None:
    """Ω_FITC = Σ_i Ω_{i}, in a step (N/B times the sum over its rows) and in what it costs the marginals."""
    found = []
    for omega, parts in (("rows", [slice(0, 9)]), ("blocks", PARTITIONS["fitc"])):
        model, batch, _ = bound_problem(conditional(whitening, omega, nugget=nugget), n=9)
        found.append(sum(penalties_of(model, batch.x[:, b])[1] for b in parts))
    close(*found)


@every_whitening
def test_b6_a_nugget_makes_a_bound_for_the_noisier_prior(whitening: str) -> None:
    """omega="full" with nugget ε: below the evidence of k + εδ, because ε is in the residual too."""
    for seed in range(10):
        model, batch, _ = bound_problem(conditional(whitening, nugget=0.3), n=9, seed=seed)
        epsilon = dense.jitter_of(model, model.basis.kernel, 0.3)
        assert collapsed_value(model, batch) < dense.exact_log_evidence(model, batch, epsilon)
        f, _ = model.basis.evaluate(batch.x.unsqueeze(1), model.factors(), model.numerics, with_omega=True)
        close(f.residual, model.marginals(batch.x).residual + epsilon[..., None])


# -- §11 C: jitter --------------------------------------------------------------------------------------


def residual_points(basis: Basis) -> Tensor:
    """The points that explain variance: Z, or Z ∪ O where v has a covariance of its own."""
    if isinstance(basis, TwoBlock) and not basis.mean_only:
        return torch.cat([basis.inducing, basis.orthogonal_inducing], -2)
    return basis.inducing


@every_basis
def test_c1_residual_at_an_inducing_point(row: Row) -> None:
    """r(z_j) = ε − ε² [(K_Z + ε)⁻¹]_jj ≤ ε: never zero, never above the jitter."""
    model, _, _ = random_problem(row.build, jitter=0.01)
    kernel, z = model.basis.kernel, residual_points(model.basis)
    epsilon = dense.jitter_of(model, kernel)[..., None]
    K = dense.inducing_prior(model, kernel, z)
    found = model.marginals(z[:, 0]).residual
    close(found, epsilon - epsilon**2 * diagonal(inv(K)))
    assert (found > 0).all() and (found < epsilon).all()


@every_basis
def test_c2_the_residual_is_never_below_its_floor(row: Row) -> None:
    """r(x) = ‖k_x − Σ w_j k_zj‖² + ε|w|² with w = (K_Z + ε)⁻¹k(Z, x): at least ε|w|²."""
    model, batch, _ = random_problem(row.build, jitter=0.01)
    kernel, z, x = model.basis.kernel, residual_points(model.basis), batch.x.unsqueeze(1)
    w = inv(dense.inducing_prior(model, kernel, z)) @ k(kernel, z, x)
    floor = dense.jitter_of(model, kernel)[..., None] * w.square().sum(-2)
    distance = kernel.variance()[..., None] - 2 * (w * k(kernel, z, x)).sum(-2)
    distance = distance + diagonal(w.mT @ k(kernel, z, z) @ w)
    residual = model.marginals(batch.x).residual
    close(residual, distance + floor)
    assert (residual >= floor).all()


def test_a_bound_survives_any_jitter() -> None:
    """§11 C1: jitter blurs u, it does not change the prior: still below log p(y), the lower the larger."""
    values = []
    for jitter in (0.0, 1e-3, 1e-1):
        model, batch, _ = bound_problem(coupled, jitter=jitter)
        values.append(collapsed_value(model, batch).item())
    assert values[2] < values[1] < values[0] < dense.exact_log_evidence(model, batch).item()


def test_every_q_counts_its_parameters() -> None:
    for name, expected in {"full": 5 + 10, "diagonal": 5 + 4, "point": 5}.items():
        assert QS[name](4, mean_size=5).num_parameters() == expected
