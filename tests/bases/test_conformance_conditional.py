"""Decoupled conditionals: identities 3 to 6 of MATH §8, large β₂, and blocks of Ω (§11 B1, B6)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from duogp.bases import Conditional
from duogp.inference.closed_form import CollapsedObjective
from duogp.models.model import Batch, Model
from helpers import dense
from helpers.conformance import close, conditional, every_objective, every_q
from helpers.dense import inv, k, log_evidence, t, white
from helpers.devices import eye, placed
from helpers.identities import (
    bound_problem,
    collapsed_value,
    coupled,
    diagonal,
    objective_value,
    penalties_of,
    pieces,
    put_optimum,
)
from helpers.random_models import Problem, random_problem

pytestmark = pytest.mark.usefixtures("device")

WHITENINGS = ["Q", "K"]
BETAS = [(1.0, 1.0), (0.5, 0.1), (1.0, 0.0), (2.0, 3.0)]

every_whitening = pytest.mark.parametrize("whitening", WHITENINGS)


@torch.no_grad()
def equalise_kernels(basis: Conditional) -> None:
    basis.mean_kernel.load_state_dict(basis.kernel.state_dict())


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
        expected = expected - 0.5 * torch.logdet(eye(4) + beta2 * K @ T)
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
        model.basis.inducing.zero_()[..., 0] = placed(torch.tensor([-1.23, 0.11, 1.37]))
        model.basis.q.set_(placed(torch.zeros(1, 1, 3)), eye(3).expand(1, 1, 3, 3))
        x = placed(torch.zeros(1, points, 2, dtype=torch.float64))
        x[0, :, 0] = placed(torch.linspace(-2, 2, points))
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
    batch = batch._replace(weight=batch.x.new_zeros(1, batch.x.shape[1]))
    _, _, K, K_xz, residual = pieces(model, batch)
    z = model.basis.inducing
    B = k(model.basis.mean_kernel, batch.x.unsqueeze(1), z) @ inv(k(model.basis.mean_kernel, z, z))
    T = dense.mismatch(B - K_xz @ inv(K), residual)
    cost = 0.5 * torch.logdet(eye(4) + K @ T).sum(-1)
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


def curvature(value: Callable[[Tensor], Tensor], n: int) -> Tensor:
    """The matrix of a quadratic function of n numbers, from its values."""
    at = {(i, j): value(eye(n)[i] + eye(n)[j]) for i in range(n) for j in range(i + 1)}
    single, zero = [value(row) for row in eye(n)], value(0 * eye(n)[0])
    out = torch.stack(
        [at[max(i, j), min(i, j)] - single[i] - single[j] + zero for i in range(n) for j in range(n)]
    )
    return out.reshape(n, n)


def test_b6_rows_bound_the_evidence_of_fitc_and_not_that_of_the_prior() -> None:
    """β₁ = β₂ = 1 with Ω over rows, the default: below FITC's evidence, and for some y far above log p(y).

    FITC's residuals are independent; rows close to each other may then have targets that the prior forbids.
    """
    model, batch, _ = bound_problem(conditional("Q", "rows"), n=12, seed=2)
    with torch.no_grad():
        batch.x.mul_(0.3)
        model.basis.inducing.mul_(0.3)
        model.basis.mean_kernel.kernel.lengthscale.raw.sub_(1.0)
        model.likelihood.noise.raw.sub_(2.0)

    def collapsed(y: Tensor) -> Tensor:
        batch.y.copy_(y)
        return collapsed_value(model, batch).sum().detach()

    def exact(y: Tensor) -> Tensor:
        batch.y.copy_(y)
        return dense.exact_log_evidence(model, batch).sum().detach()

    gains, directions = torch.linalg.eigh(curvature(collapsed, 12) - curvature(exact, 12))
    assert gains[-1] > 0.1
    y = 20 * directions[:, -1]
    assert collapsed(y) > exact(y) + 10
    _, noise, K, K_xz, residual = pieces(model, batch)
    fitc = K_xz @ inv(K) @ K_xz.mT + block_diagonal(residual, [slice(i, i + 1) for i in range(12)])
    assert collapsed(y) < log_evidence(batch.y, fitc + noise).sum()
