"""Two blocks, q(u) q(v): SOLVE-GP and the orthogonal basis (MATH §3, §8, §11 B4, B10).

The generic suite compares them with dense algebra; here are the identities between them, what they are at
their optimum, and where they stand below log p(y), or not.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from duogp import data
from duogp.bases import TwoBlock
from duogp.kernels import RBF, Scale
from duogp.means import LinearMean
from duogp.models.model import Batch, Model
from duogp.numerics.parameters import batched
from duogp.variational import BlockQ, Q
from helpers import dense
from helpers.conformance import every_objective
from helpers.dense import Gaussian, inv, k, quadratic, t
from helpers.devices import eye, placed
from helpers.identities import bound_problem, collapsed_value, diagonal, objective_value, put_optimum
from helpers.random_models import random_problem
from helpers.two_block import (
    BUILDERS,
    SEEDS,
    Matrices,
    blocks_of,
    chain,
    close,
    coupled_on,
    full_q,
    kl,
    matrices,
    same_process,
    titsias_covariance,
    trace_term,
    twin,
    two_block_on,
    unwhitened,
)

pytestmark = pytest.mark.usefixtures("device")

BOUNDS = ["solve", "orthogonal", "components-eps"]


every_bound = pytest.mark.parametrize("name", BOUNDS)


def log_det_term(m: Matrices, Q_x: Tensor) -> Tensor:
    return 0.5 * torch.logdet(Q_x + m.noise)


# -- 9: SOLVE -------------------------------------------------------------------------------------------


def test_identity_09_blocks_add_up_to_the_nystrom_of_all_points() -> None:
    """Q_{Z ∪ O} = Q_Z + C_xO C⁻¹ C_Ox, and v is independent of u."""
    model, batch, _ = random_problem(BUILDERS["solve"], replicates=2, latents=2)
    m = matrices(model, batch)
    close(m.Q_u + m.prior.k_v @ inv(m.prior.v) @ m.prior.k_v.mT, m.Q_both)
    features = model.basis.features(batch.x.unsqueeze(1), model.factors())
    close(features.mean.mT @ features.mean, m.Q_both)


@pytest.mark.parametrize("jitter", [0.0, 0.03])
def test_identity_09_solve_kl_is_the_dense_kl(jitter: float) -> None:
    """KL(m_u, S_u ‖ K_Z) + KL(m_v, S_v ‖ C), also as one KL on (u, f(O)); each part is non-negative (24)."""
    for seed in SEEDS:
        model, batch, _ = random_problem(BUILDERS["solve"], seed=seed, latents=2, jitter=jitter)
        prior = dense.two_block_prior(model, batch.x.unsqueeze(1))
        u, v = dense.two_block_q(model, prior)
        parts = [
            dense.gaussian_kl(q, Gaussian(torch.zeros_like(q.mean), P))
            for q, P in ((u, prior.u), (v, prior.v))
        ]
        assert all((part > 0).all() for part in parts)
        close(kl(model), parts[0] + parts[1])
        joint = dense.stacked(u, v, prior.gain)
        close(kl(model), dense.gaussian_kl(joint, Gaussian(torch.zeros_like(joint.mean), prior.joint)))


@every_objective
def test_identity_09_solve_is_a_structured_svgp_on_all_points(objective: str) -> None:
    """Mean (m_u, m_v + G m_u), covariance [[S_u, S_uGᵀ], [G S_u, S_v + G S_u Gᵀ]], G = K_OZ K_Z⁻¹."""
    model, batch, x = random_problem(BUILDERS["solve"], objective=objective, jitter=0.01)
    prior = dense.two_block_prior(model, batch.x.unsqueeze(1))
    joint = dense.stacked(*dense.two_block_q(model, prior), prior.gain)
    basis = model.basis
    other = coupled_on(model, torch.cat([basis.inducing, basis.orthogonal_inducing], -2))
    with torch.no_grad():
        R = inv(torch.linalg.cholesky(prior.joint))
        other.basis.q.set_(t(joint.mean, R), torch.linalg.cholesky(R @ joint.covariance @ R.mT))
    same_process(model, other, x)
    for a, b in zip(model.marginals(x), other.marginals(x), strict=True):
        close(a, b)  # the split too
    close(model.loss(batch), other.loss(batch))


@torch.no_grad()
def give_prior_covariance(block: Q) -> None:
    block.set_(block.mean, eye(block.size).expand(*block.mean.shape, -1))


def test_identity_09_solve_with_a_prior_v_is_svgp() -> None:
    """S_v = I, m_v = 0: mean, variance, KL and ELBO of SVGP(Z)."""
    model, batch, x = random_problem(BUILDERS["solve"], latents=2)
    u, v = blocks_of(model)
    give_prior_covariance(v)
    with torch.no_grad():
        v.mean.zero_()
    other = coupled_on(model, model.basis.inducing)
    other.basis.q.load_state_dict(u.state_dict())
    same_process(model, other, x)
    close(model.loss(batch), other.loss(batch))


def orth_of(model: Model) -> Model:
    """ORTH with the u block and the v mean of a SOLVE model."""
    u, v = blocks_of(model)
    q = full_q(u.size, u, mean_size=u.size + v.size)
    with torch.no_grad():
        q.set_(torch.cat([u.mean, v.mean], -1), u.root())
    return two_block_on(model, model.basis.orthogonal_inducing, q, mean_only=True)


@pytest.mark.parametrize("objective", ["elbo", "predictive", "gamma-robust"])
def test_identity_09_solve_with_a_prior_covariance_is_orth(objective: str) -> None:
    """S_v = I: ORTH with γ = O and the same means; whatever depends on the total variance agrees."""
    model, batch, x = random_problem(BUILDERS["solve"], objective=objective, latents=2)
    give_prior_covariance(blocks_of(model)[1])
    other = orth_of(model)
    same_process(model, other, x)
    close(model.loss(batch), other.loss(batch))


def test_identity_09_collapsed_solve() -> None:
    """With Q = Q_{Z ∪ O}, up to −n/2 log 2π, and with S_u*, S_v*, m*:

    −½ yᵀ(Q + s²I)⁻¹y − ½ log|Q_Z + s²I| − ½ log|I + (Q − Q_Z)/s²| − tr(K − Q)/2s².
    """
    for seed in SEEDS:
        model, batch, x = bound_problem(BUILDERS["solve"], seed=seed)
        m = matrices(model, batch)
        n = m.y.shape[-1]
        expected = (
            -0.5 * (n * dense.LOG_2PI + quadratic(m.y, inv(m.Q_both + m.noise)))
            - log_det_term(m, m.Q_u)
            - 0.5 * torch.logdet(eye(n) + (m.Q_both - m.Q_u) @ inv(m.noise))
            - trace_term(m, m.Q_both)
        ).sum(-1)
        best = put_optimum(model, batch)
        close(objective_value(model, batch), expected)
        close(collapsed_value(model, batch), expected)

        # S_u*, S_v*: two Titsias covariances, blind to each other (§11 B10)
        size = model.basis.inducing.shape[-2]
        S = best.root @ best.root.mT
        assert S[..., :size, size:].abs().max() == 0
        u = unwhitened(Gaussian(best.mean[..., :size], S[..., :size, :size]), m.prior.u)
        v = unwhitened(Gaussian(best.mean[..., size:], S[..., size:, size:]), m.prior.v)
        close(u.covariance, titsias_covariance(m.prior.u, m.prior.k_u, m.noise))
        close(v.covariance, titsias_covariance(m.prior.v, m.prior.k_v, m.noise))

        # the means are those of SVGP on all points
        basis = model.basis
        other = coupled_on(model, torch.cat([basis.inducing, basis.orthogonal_inducing], -2))
        put_optimum(other, batch)
        close(model.marginals(x).mean, other.marginals(x).mean)
        joint = titsias_covariance(m.prior.joint, m.prior.k_joint, m.noise)
        joint_mean = t(m.y, joint @ inv(m.prior.joint) @ m.prior.k_joint.mT @ inv(m.noise))
        close(u.mean, joint_mean[..., :size])
        close(v.mean, joint_mean[..., size:] - t(u.mean, m.prior.gain))


# -- 8, 14: ORTH ----------------------------------------------------------------------------------------


@every_objective
def test_identity_14_orth_without_a_second_mean_is_svgp(objective: str) -> None:
    """m_v = 0: SVGP with the same (m, S), for any O; every objective, since v counts as residual."""
    model, batch, x = random_problem(BUILDERS["orthogonal"], objective=objective, latents=2, jitter=0.01)
    q, other = model.basis.q, coupled_on(model, model.basis.inducing)
    with torch.no_grad():
        q.mean[..., q.size :] = 0
        other.basis.q.set_(q.mean[..., : q.size], q.root())
    same_process(model, other, x)
    for a, b in zip(model.marginals(x), other.marginals(x), strict=True):
        close(a, b)
    close(model.loss(batch), other.loss(batch))


def test_identity_08_orth_is_a_mean_in_two_orthogonal_spaces() -> None:
    """Mean C_xγ a_γ + K_xβ a_β with a_γ = C⁻ᵀm_v, a_β = L⁻ᵀm_u; KL = ½ a_γᵀC_γγ a_γ + KL(m_b, S ‖ K_β)."""
    for seed in SEEDS:
        model, _, x = random_problem(BUILDERS["orthogonal"], seed=seed, latents=2)
        prior = dense.two_block_prior(model, x.unsqueeze(1))
        q = model.basis.q
        a_beta = t(q.mean[..., : q.size], inv(torch.linalg.cholesky(prior.u)).mT)
        a_gamma = t(q.mean[..., q.size :], inv(torch.linalg.cholesky(prior.v)).mT)
        close(
            model.marginals(x).mean - dense.prior_mean(model, x),
            t(a_gamma, prior.k_v) + t(a_beta, prior.k_u),
        )
        u, _ = dense.two_block_q(model, prior)
        close(u.mean, t(a_beta, prior.u))
        of_u = dense.gaussian_kl(u, Gaussian(torch.zeros_like(u.mean), prior.u))
        close(kl(model), 0.5 * quadratic(a_gamma, prior.v) + of_u)

        # the same function on α = (γ, β): coefficients (a_γ, a_β − K_β⁻¹K_βγ a_γ), norm aᵀK_α a
        a = torch.cat([a_beta - t(a_gamma, prior.gain.mT), a_gamma], -1)
        close(model.marginals(x).mean - dense.prior_mean(model, x), t(a, prior.k_joint))
        close(quadratic(a, prior.joint), q.mean.square().sum(-1))


def test_identity_08_collapsed_orth() -> None:
    """−n/2 log 2π − ½ log|Q_β + s²I| − ½ yᵀ(Q_{β∪γ} + s²I)⁻¹y − tr(K − Q_β)/2s²; S* coupled, a* on β ∪ γ."""
    for seed in SEEDS:
        model, batch, x = bound_problem(BUILDERS["orthogonal"], seed=seed)
        m = matrices(model, batch)
        n = m.y.shape[-1]
        expected = (
            -0.5 * (n * dense.LOG_2PI + quadratic(m.y, inv(m.Q_both + m.noise)))
            - log_det_term(m, m.Q_u)
            - trace_term(m, m.Q_u)
        ).sum(-1)
        best = put_optimum(model, batch)
        close(objective_value(model, batch), expected)
        close(collapsed_value(model, batch), expected)
        u = unwhitened(Gaussian(best.mean[..., :4], best.root @ best.root.mT), m.prior.u)
        close(u.covariance, titsias_covariance(m.prior.u, m.prior.k_u, m.noise))
        k_a = m.prior.k_joint
        a = t(m.y, inv(k_a.mT @ inv(m.noise) @ k_a + m.prior.joint) @ k_a.mT @ inv(m.noise))
        new = dense.two_block_prior(model, x.unsqueeze(1)).k_joint
        close(model.marginals(x).mean - dense.prior_mean(model, x), t(a, new))


def test_b4_the_covariance_of_an_unlearned_v_is_residual() -> None:
    """ORTH: residual k − ‖φ‖². As SOLVE with S_v = I that variance is explained, and VFITC lower."""
    model, batch, x = random_problem(BUILDERS["solve"], objective="vfitc")
    give_prior_covariance(blocks_of(model)[1])
    orth = orth_of(model)
    prior = dense.two_block_prior(model, x.unsqueeze(1))
    total = model.basis.kernel.variance()[..., None] - diagonal(prior.k_u @ inv(prior.u) @ prior.k_u.mT)
    of_v = diagonal(prior.k_v @ inv(prior.v) @ prior.k_v.mT)
    f, split = orth.marginals(x), model.marginals(x)
    close(f.residual, total)
    close(split.residual, total - of_v)
    close(split.explained, f.explained + of_v)
    assert (of_v > 1e-3).all()
    assert (model.loss(batch) > orth.loss(batch) + 1e-3).all()
    close(f.residual, coupled_on(model, model.basis.inducing).marginals(x).residual)


# -- the chain ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jitter", [0.0, 1e-6, 0.03])
def test_identity_09_the_chain_of_bounds(jitter: float) -> None:
    """SVGP(β) < ORTH < SOLVE < SVGP(β ∪ γ) < log p(y) at the optimum; jitter keeps it (§11 C1)."""
    for seed in range(20):
        model, batch, _ = bound_problem(BUILDERS["solve"], seed=seed, jitter=jitter)
        values = chain(model, batch)
        assert all(a < b for a, b in pairwise(values)), values


def rows_of_airfoil(n: int, count: int) -> tuple[Batch, Tensor]:
    """Standardised rows, and other rows as inducing points."""
    try:
        table = data.load("regression/airfoil")
    except FileNotFoundError as error:
        pytest.skip(f"no benchmark data: {error}")
    order = np.random.default_rng(0).permutation(len(table.X))[: n + count]
    X, y = table.X[order].astype(np.float64), table.y[order].astype(np.float64)
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    x, target = placed(torch.as_tensor(X)[None]), placed(torch.as_tensor(y).reshape(1, 1, -1))
    return Batch(x[:, :n], target[..., :n]), x[:, None, n:]


@pytest.mark.parametrize(("lengthscale", "noise"), [(2.0, 0.1), (0.7, 0.01)])
def test_identity_09_the_chain_of_bounds_on_airfoil(lengthscale: float, noise: float) -> None:
    """400 rows, 40 + 60 inducing points, at reasonable and at poor hyperparameters, the usual jitter."""
    batch, points = rows_of_airfoil(400, 100)
    small, _, _ = bound_problem(BUILDERS["solve"], jitter=1e-6)
    kernel = placed(batched(Scale(RBF(batch.x.shape[-1])), (1, 1)).double())
    kernel.kernel.lengthscale.set_(lengthscale)
    small.mean = placed(batched(LinearMean(batch.x.shape[-1]), (1, 1)).double())
    small.likelihood.noise.set_(noise)
    small.num_data.fill_(batch.x.shape[1])
    q = BlockQ(full_q(40, small.basis.q), full_q(60, small.basis.q))
    model = twin(small, TwoBlock(kernel, points[..., :40, :].clone(), points[..., 40:, :].clone(), q))
    values = chain(model, batch)
    assert all(a + 0.1 < b for a, b in pairwise(values)), values


# -- 16, 24 and bounds for any q ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["solve", "orthogonal"])
def test_identity_16_the_whitened_prior_is_the_prior(name: str) -> None:
    model, _, x = random_problem(BUILDERS[name], latents=2, jitter=0.01)
    q = model.basis.q
    with torch.no_grad():
        q.set_(torch.zeros_like(q.mean), eye(q.size).expand(1, 2, -1, -1))
    close(kl(model), placed(torch.zeros(1, 2).double()))
    mean, residual, explained = model.frozen().joint(x.unsqueeze(1))
    close(mean, torch.zeros_like(mean))
    close(residual + explained, k(model.basis.kernel, x.unsqueeze(1), x.unsqueeze(1)))


@every_bound
@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    lengthscale=st.floats(0.2, 3.0),
    noise=st.floats(1e-3, 3.0),
    jitter=st.sampled_from([1e-8, 1e-6, 1e-2]),
    scale=st.sampled_from([0.0, 1.0, 10.0]),
    on_rows=st.booleans(),
)
def test_no_q_exceeds_the_evidence(
    name: str, seed: int, lengthscale: float, noise: float, jitter: float, scale: float, on_rows: bool
) -> None:
    """Random hyperparameters, targets and q; O anywhere or on rows: q ≤ best q ≤ log p(y), and KL ≥ 0."""
    model, batch, _ = bound_problem(BUILDERS[name], seed=seed, jitter=jitter)
    model.basis.kernel.kernel.lengthscale.set_(lengthscale)
    model.likelihood.noise.set_(noise)
    batch = batch._replace(y=scale * batch.y)
    if on_rows:
        model.basis.orthogonal_inducing = nn.Parameter(batch.x[:, None, :5].clone())
    exact = dense.exact_log_evidence(model, batch)
    best = collapsed_value(model, batch)
    slack = 1e-8 * (1 + exact.abs())
    assert (best <= exact + slack).all()
    assert (objective_value(model, batch) <= best + slack).all()
    assert (kl(model) >= 0).all()
