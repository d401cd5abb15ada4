"""The identities of MATH §8, by number, and the statements of §11 that concern these methods.

(3 to 6 and the blocks of Ω are in test_conformance_conditional.py; 7, 12 pointwise, 20, 21 in
test_conformance_objectives.py; 23 in test_conformance_orthogonal.py; 25 in test_conformance.py.)
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from duogp.bases import Basis, Separate, TwoBlock
from duogp.variational import CholeskyQ
from helpers import dense
from helpers.conformance import (
    BASES,
    Row,
    close,
    every_basis,
    every_basis_and_q,
    every_objective,
    every_q,
    separate,
)
from helpers.dense import inv, k, log_evidence, quadratic, t
from helpers.devices import eye, placed
from helpers.identities import (
    bound_problem,
    collapsed_value,
    coupled,
    diagonal,
    objective_value,
    pieces,
    put_optimum,
)
from helpers.random_models import QS, Parts, random_problem

pytestmark = pytest.mark.usefixtures("device")

# -- 1, 2: SVGP -----------------------------------------------------------------------------------------


def test_identity_01_inducing_points_at_the_data_give_the_exact_gp() -> None:
    """Z = X: the best ELBO is the log marginal likelihood and the posterior is the exact one, jointly."""
    model, batch, x = bound_problem(coupled)
    model.basis.inducing = nn.Parameter(batch.x.unsqueeze(1).clone())
    model.basis.q = placed(CholeskyQ(batch.x.shape[1], (1, 1)).double())
    put_optimum(model, batch)
    close(objective_value(model, batch), dense.exact_log_evidence(model, batch))

    kernel, rows, new = model.basis.kernel, batch.x.unsqueeze(1), x.unsqueeze(1)
    gain = k(kernel, new, rows) @ inv(
        k(kernel, rows, rows) + torch.diag_embed(dense.noise_variance(model, batch))
    )
    mean, residual, explained = model.frozen().joint(new)
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
        model.basis.q.raw_root.copy_(eye(4))
    close(model.basis.kl(model.factors(), model.basis.q), placed(torch.zeros(1, 2).double()))
    mean, residual, explained = model.frozen().joint(x.unsqueeze(1))
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
            q.set_(q.mean, scale**0.5 * eye(q.size).expand(1, 1, -1, -1))
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
        close(U @ U.mT, eye(4)[None, None])
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
    shift = placed(torch.tensor(c, dtype=torch.float64).log())
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
    signs = placed(torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 0.0]))
    batch = batch._replace(y=signs.double() + dense.prior_mean(model, batch.x).detach())
    assert collapsed_value(model, batch) > dense.exact_log_evidence(model, batch) + 10


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
