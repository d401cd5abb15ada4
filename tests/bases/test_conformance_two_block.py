"""Two blocks, q(u) q(v): SOLVE-GP, the orthogonal basis (ORTH) and DSGPC (MATH §3, §5, §8, §11 B4, B10).

The generic suite compares them with dense algebra; here are the identities between them, what they are at
their optimum, and where they stand below log p(y), or not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_conformance import close as nearly
from test_conformance import components, every_objective, orthogonal, solve
from test_conformance_identities import (
    bound_problem,
    collapsed_value,
    diagonal,
    objective_value,
    put_optimum,
)
from torch import Tensor, nn

import dense
import duogp
from dense import Gaussian, inv, k, log_evidence, quadratic, t
from duogp import data
from duogp.bases import Basis, Coupled, Hybrid, TwoBlock
from duogp.kernels import RBF, Scale
from duogp.means import LinearMean
from duogp.methods import METHODS
from duogp.models.model import Batch, Model
from duogp.numerics.parameters import batched
from duogp.variational import BlockQ, CholeskyQ, Q, ShrunkQ
from random_models import Parts, Problem, random_problem

SEEDS = range(10)
BUILDERS: dict[str, Callable[[Parts], Basis]] = {
    "solve": solve(+1),
    "orthogonal": orthogonal(+1),
    "components-eps": components(+1, 0.2),
    "components": components(+1, 0.0),
}
BOUNDS = ["solve", "orthogonal", "components-eps"]

every_builder = pytest.mark.parametrize("name", BUILDERS)
every_bound = pytest.mark.parametrize("name", BOUNDS)


def close(found: Tensor, expected: Tensor) -> None:
    nearly(found, expected.expand_as(found), rtol=1e-9, atol=1e-9)


def kl(model: Model) -> Tensor:
    return model.basis.kl(model.factors(), model.basis.q)


def full_q(size: int, like: Q, mean_size: int | None = None) -> CholeskyQ:
    return CholeskyQ(size, like.mean.shape[:-1], mean_size=mean_size).double()


def twin(model: Model, basis: Basis) -> Model:
    """The same prior mean, likelihood, objective, jitter and weights around another basis."""
    other = Model(
        model.mean,
        basis,
        model.likelihood,
        model.objective,
        model.numerics,
        int(model.num_data[0]),
        model.beta1,
        model.beta2,
    )
    return other.double()


def coupled_on(model: Model, points: Tensor) -> Model:
    """SVGP with inducing points somewhere else."""
    q = full_q(points.shape[-2], model.basis.q)
    return twin(model, Coupled(model.basis.kernel, points.detach().clone(), q))


def two_block_on(model: Model, orthogonal: Tensor, q: Q, *, mean_only: bool = False) -> Model:
    z = model.basis.inducing.detach().clone()
    return twin(model, TwoBlock(model.basis.kernel, z, orthogonal.detach().clone(), q, mean_only=mean_only))


def blocks_of(model: Model) -> tuple[Q, Q]:
    u, v = model.basis.q
    return u, v


def same_process(a: Model, b: Model, x: Tensor) -> None:
    """Joint mean, joint covariance and penalty."""
    x = x.unsqueeze(-3)
    mean_a, residual_a, explained_a = a.linear_form().joint(x)
    mean_b, residual_b, explained_b = b.linear_form().joint(x)
    close(mean_a, mean_b)
    close(residual_a + explained_a, residual_b + explained_b)
    close(kl(a), kl(b))


class Matrices(NamedTuple):
    y: Tensor  # without the prior mean
    noise: Tensor  # s² I
    K: Tensor
    Q_u: Tensor  # Q_Z
    Q_both: Tensor  # Q_{Z ∪ O}
    prior: dense.Blocks


def matrices(model: Model, batch: Batch) -> Matrices:
    x = batch.x.unsqueeze(1)
    prior = dense.two_block_prior(model, x)
    return Matrices(
        y=batch.y - dense.prior_mean(model, batch.x),
        noise=torch.diag_embed(dense.noise_variance(model, batch)),
        K=k(model.basis.kernel, x, x),
        Q_u=prior.k_u @ inv(prior.u) @ prior.k_u.mT,
        Q_both=prior.k_joint @ inv(prior.joint) @ prior.k_joint.mT,
        prior=prior,
    )


def unwhitened(q: Gaussian, K: Tensor) -> Gaussian:
    L = torch.linalg.cholesky(K)
    return Gaussian(t(q.mean, L), L @ q.covariance @ L.mT)


def titsias_covariance(K: Tensor, K_x: Tensor, noise: Tensor) -> Tensor:
    """K (K + K_zx K_xz/s²)⁻¹ K."""
    return K @ inv(K + K_x.mT @ inv(noise) @ K_x) @ K


def trace_term(m: Matrices, Q_x: Tensor) -> Tensor:
    """tr(K − Q)/(2s²)."""
    return 0.5 * diagonal((m.K - Q_x) @ inv(m.noise)).sum(-1)


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
    block.set_(block.mean, torch.eye(block.size, dtype=torch.float64).expand(*block.mean.shape, -1))


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
            - 0.5 * torch.logdet(torch.eye(n) + (m.Q_both - m.Q_u) @ inv(m.noise))
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


def chain(model: Model, batch: Batch) -> list[float]:
    """Best values of SVGP(β), ORTH, SOLVE, SVGP(β ∪ γ), and log p(y); the model is any two-block one."""
    basis, like = model.basis, model.basis.q
    z, o = basis.inducing, basis.orthogonal_inducing
    M, M_o = z.shape[-2], o.shape[-2]
    models = [
        coupled_on(model, z),
        two_block_on(model, o, full_q(M, like, mean_size=M + M_o), mean_only=True),
        two_block_on(model, o, BlockQ(full_q(M, like), full_q(M_o, like))),
        coupled_on(model, torch.cat([z, o], -2)),
    ]
    values = [collapsed_value(m, batch).item() for m in models]
    assert not model.numerics.failed.any()
    return [*values, dense.exact_log_evidence(model, batch).item()]


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
    x, target = torch.as_tensor(X)[None], torch.as_tensor(y).reshape(1, 1, -1)
    return Batch(x[:, :n], target[..., :n]), x[:, None, n:]


@pytest.mark.parametrize(("lengthscale", "noise"), [(2.0, 0.1), (0.7, 0.01)])
def test_identity_09_the_chain_of_bounds_on_airfoil(lengthscale: float, noise: float) -> None:
    """400 rows, 40 + 60 inducing points, at reasonable and at poor hyperparameters, the usual jitter."""
    batch, points = rows_of_airfoil(400, 100)
    small, _, _ = bound_problem(BUILDERS["solve"], jitter=1e-6)
    kernel = batched(Scale(RBF(batch.x.shape[-1])), (1, 1)).double()
    kernel.kernel.lengthscale.set_(lengthscale)
    small.mean = batched(LinearMean(batch.x.shape[-1]), (1, 1)).double()
    small.likelihood.noise.set_(noise)
    small.num_data.fill_(batch.x.shape[1])
    q = BlockQ(full_q(40, small.basis.q), full_q(60, small.basis.q))
    model = twin(small, TwoBlock(kernel, points[..., :40, :].clone(), points[..., 40:, :].clone(), q))
    values = chain(model, batch)
    assert all(a + 0.1 < b for a, b in pairwise(values)), values


# -- 11, 17: DSGPC --------------------------------------------------------------------------------------


def test_identity_11_equation_10_is_the_kl_on_alpha_and_a_constant() -> None:
    """½[tr S K_α⁻¹ + mᵀK_α⁻¹m − log|K_α − K_αZ K_Z⁻¹K_Zα + S|/|K_α|] − M_α/2, Z = α ∪ β; β does not enter."""
    for seed in SEEDS:
        model, _, _ = random_problem(BUILDERS["components"], seed=seed, latents=2)
        basis = model.basis
        prior = dense.two_block_prior(model, basis.inducing)
        u, _ = dense.two_block_q(model, prior)
        conditional = prior.u - prior.k_joint @ inv(prior.joint) @ prior.k_joint.mT
        assert conditional.abs().max() < 1e-9  # α is in Z
        equation_10 = 0.5 * (
            diagonal(inv(prior.u) @ u.covariance).sum(-1)
            + quadratic(u.mean, inv(prior.u))
            - torch.logdet(conditional + u.covariance)
            + torch.logdet(prior.u)
        )
        close(kl(model), equation_10 - basis.inducing.shape[-2] / 2)
        assert (kl(model) > 0).all()  # identity 24
        close(kl(model), dense.gaussian_kl(u, Gaussian(torch.zeros_like(u.mean), prior.u)))


def test_identity_11_the_posterior_of_the_surrogate_is_rank_deficient() -> None:
    """On Z its covariance has rank M_α: f(β) is a function of f(α), and no KL to the prior exists."""
    model, _, _ = random_problem(BUILDERS["components"])
    z = torch.cat([model.basis.inducing, model.basis.orthogonal_inducing], -2)
    _, residual, explained = model.linear_form().joint(z)
    assert torch.linalg.matrix_rank(residual + explained, atol=1e-9).item() == 4


@pytest.mark.parametrize("epsilon", [1.0, 0.5, 1e-3, 1e-8])
def test_identity_11_the_kl_of_a_shrunk_block(epsilon: float) -> None:
    """KL(m, S ‖ K_α) + (M_β/2)(ε − 1 − log ε), the dense KL; residual + ε (Q_Z − Q_α)."""
    model, _, x = random_problem(components(+1, epsilon), latents=2)
    prior = dense.two_block_prior(model, x.unsqueeze(1))
    u, v = dense.two_block_q(model, prior)
    of_u = dense.gaussian_kl(u, Gaussian(torch.zeros_like(u.mean), prior.u))
    e = torch.tensor(epsilon, dtype=torch.float64)
    close(kl(model), of_u + 5 / 2 * (e - 1 - e.log()))
    close(v.covariance, epsilon * prior.v)
    if epsilon >= 1e-3:  # the dense KL inverts S
        joint = dense.stacked(u, v, prior.gain)
        close(kl(model), dense.gaussian_kl(joint, Gaussian(torch.zeros_like(joint.mean), prior.joint)))
    of_v = diagonal(prior.k_v @ inv(prior.v) @ prior.k_v.mT)
    B = prior.k_u @ inv(prior.u)
    close(model.marginals(x).explained, diagonal(B @ u.covariance @ B.mT) + epsilon * of_v)


def test_identity_17_a_shrunk_block_at_one_is_svgp() -> None:
    """ε = 1: SVGP(α), process, KL and ELBO."""
    model, batch, x = random_problem(components(+1, 1.0), latents=2, jitter=0.01)
    other = coupled_on(model, model.basis.inducing)
    other.basis.q.load_state_dict(blocks_of(model)[0].state_dict())
    same_process(model, other, x)
    close(model.loss(batch), other.loss(batch))
    close(collapsed_value(model, batch), collapsed_value(other, batch))


def empty(build: Callable[[Parts], Basis]) -> Callable[[Parts], Basis]:
    """O without points."""
    return lambda p: build(p._replace(extra=p.extra[..., :0, :]))


@every_objective
@every_builder
def test_identities_14_and_17_an_empty_second_block_is_svgp(name: str, objective: str) -> None:
    """M_o = 0: marginals, split, loss and gradient of SVGP(Z); and the collapsed bound."""
    build = {
        "solve": solve(0),
        "orthogonal": orthogonal(0),
        "components-eps": components(0, 0.2),
        "components": components(0, 0.0),
    }[name]
    model, batch, x = random_problem(empty(build), objective=objective, latents=2, jitter=0.01)
    assert model.basis.orthogonal_inducing.shape[-2] == 0
    other = coupled_on(model, model.basis.inducing)
    u = model.basis.q if name == "orthogonal" else blocks_of(model)[0]
    other.basis.q.load_state_dict(u.state_dict())
    same_process(model, other, x)
    for a, b in zip(model.marginals(x), other.marginals(x), strict=True):
        close(a, b)
    loss, expected = model.loss(batch), other.loss(batch)
    close(loss, expected)
    gradients = [torch.autograd.grad(m.sum(), model.basis.kernel.variance.raw) for m in (loss, expected)]
    close(gradients[0][0], gradients[1][0])
    if objective in ("elbo", "vfitc"):
        close(collapsed_value(model, batch), collapsed_value(other, batch))


def test_identity_17_more_points_leave_less_residual() -> None:
    """Nested O: the residual variance never grows, the surrogate's bound never falls, its KL stays."""
    for seed in SEEDS:
        model, batch, x = bound_problem(BUILDERS["components"], seed=seed)
        o, u = model.basis.orthogonal_inducing, blocks_of(model)[0]
        models = [
            two_block_on(model, o[..., :size, :], BlockQ(u, ShrunkQ(size, (1, 1)).double()))
            for size in range(6)
        ]
        for a, b in pairwise(models):
            assert (b.marginals(x).residual < a.marginals(x).residual + 1e-12).all()
            assert (collapsed_value(b, batch) > collapsed_value(a, batch)).all()
            close(kl(a), kl(b))


def test_identity_11_collapsed_surrogate() -> None:
    """log N(y | 0, Q_α + s²I) − tr(K − Q_Z)/2s², with m*, S* the Titsias formulas on α."""
    for seed in SEEDS:
        model, batch, _ = bound_problem(BUILDERS["components"], seed=seed)
        m = matrices(model, batch)
        expected = (log_evidence(m.y, m.Q_u + m.noise) - trace_term(m, m.Q_both)).sum(-1)
        best = put_optimum(model, batch)
        close(objective_value(model, batch), expected)
        close(collapsed_value(model, batch), expected)
        S = best.root @ best.root.mT
        u = unwhitened(Gaussian(best.mean[..., :4], S[..., :4, :4]), m.prior.u)
        expected_S = titsias_covariance(m.prior.u, m.prior.k_u, m.noise)
        close(u.covariance, expected_S)
        close(u.mean, t(m.y, expected_S @ inv(m.prior.u) @ m.prior.k_u.mT @ inv(m.noise)))
        assert best.mean[..., 4:].abs().max() == 0 and S[..., 4:, :].abs().max() == 0


def test_collapsed_shrunk_block() -> None:
    """log N(y | 0, Q_α + s²I) − tr(K − (1−ε)Q_Z − εQ_α)/2s² − (M_β/2)(ε − 1 − log ε)."""
    for seed in SEEDS:
        model, batch, _ = bound_problem(BUILDERS["components-eps"], seed=seed)
        m = matrices(model, batch)
        expected = log_evidence(m.y, m.Q_u + m.noise) - trace_term(m, 0.8 * m.Q_both + 0.2 * m.Q_u)
        expected = expected - 5 / 2 * (0.2 - 1 - torch.tensor(0.2, dtype=torch.float64).log())
        close(collapsed_value(model, batch), expected.sum(-1))


def test_identity_11_the_surrogate_is_a_bound_for_a_smaller_prior() -> None:
    """L ≤ log N(y | 0, K − Q_Z + Q_α + s²I): span(β) without α is deleted from the prior."""
    for seed in range(30):
        model, batch, _ = bound_problem(BUILDERS["components"], seed=seed)
        m = matrices(model, batch)
        evidence = log_evidence(m.y, m.K - m.Q_both + m.Q_u + m.noise).sum(-1)
        assert objective_value(model, batch) < collapsed_value(model, batch) < evidence


def covering_problem() -> Problem:
    """O on every row, and targets that the prior without v finds more probable: zero."""
    model, batch, x = bound_problem(BUILDERS["components"], n=9)
    o = batch.x.unsqueeze(1)
    q = BlockQ(blocks_of(model)[0], ShrunkQ(o.shape[-2], (1, 1)).double())
    model = two_block_on(model, o, q)
    model.likelihood.noise.set_(0.02)
    return Problem(model, batch._replace(y=dense.prior_mean(model, batch.x).detach()), x)


def test_identity_11_the_surrogate_exceeds_the_evidence() -> None:
    """β covers X: the objective is DTC's, log N(y | 0, Q_α + s²I), here many nats above log p(y)."""
    model, batch, _ = covering_problem()
    m = matrices(model, batch)
    value = collapsed_value(model, batch)
    close(value, log_evidence(m.y, m.Q_u + m.noise).sum(-1))
    exact = dense.exact_log_evidence(model, batch)
    assert value > exact + 5
    assert not METHODS["dsgpc-free"].is_bound
    for epsilon in (1e-12, 1e-3, 0.1, 0.5, 1.0):  # paying for v repairs it
        q = BlockQ(blocks_of(model)[0], ShrunkQ(9, (1, 1), epsilon=epsilon).double())
        other = two_block_on(model, model.basis.orthogonal_inducing, q)
        assert collapsed_value(other, batch) < exact


# -- 16, 24 and bounds for any q ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["solve", "orthogonal"])
def test_identity_16_the_whitened_prior_is_the_prior(name: str) -> None:
    model, _, x = random_problem(BUILDERS[name], latents=2, jitter=0.01)
    q = model.basis.q
    with torch.no_grad():
        q.set_(torch.zeros_like(q.mean), torch.eye(q.size).double().expand(1, 2, -1, -1))
    close(kl(model), torch.zeros(1, 2).double())
    mean, residual, explained = model.linear_form().joint(x.unsqueeze(1))
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


# -- the methods of the registry ------------------------------------------------------------------------

TWO_BLOCK = [name for name in METHODS if METHODS[name].has_second_block]


def table(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)


def test_the_registry_has_these_two_block_methods() -> None:
    assert {"odsvgp", "odppgpr", "solvegp", "dsgpc-eps", "dsgpc-free"} <= set(TWO_BLOCK)


@pytest.mark.parametrize("name", TWO_BLOCK)
def test_the_blocks_of_a_fit_have_points_of_their_own(name: str) -> None:
    """Z and O are chosen together: no point twice, sizes as asked, as many as Z by default, never above n."""
    X, y = table()
    settings = {"epochs": 1, "learn_inducing": False, "inducing_init": "random"}
    for num_extra, (m, m_o) in {9: (6, 9), None: (6, 6), 40: (6, 34)}.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", duogp.DataWarning)  # 46 points of 40 rows
            model = duogp.fit(
                X, y, name, num_inducing=6, num_extra=num_extra, validation_fraction=0.0, **settings
            ).model
        basis = model.hidden[0].basis if METHODS[name].is_deep else model.basis
        z = basis.inducing[0, 0]
        o = (basis.mean_inducing if isinstance(basis, Hybrid) else basis.orthogonal_inducing)[0, 0]
        assert (len(z), len(o)) == (m, m_o)
        assert torch.cdist(z, o).min() > 1e-6


def test_the_fitted_collapsed_values_keep_the_order() -> None:
    """odsvgp, dsgpc-eps ≤ solvegp at the hyperparameters of the start, through the public door."""
    X, y = table(60)
    settings = {"epochs": 1, "learning_rate": 1e-12, "num_extra": 8, "learn_inducing": False}
    values = {}
    for name in ("dsgpc-eps", "odsvgp", "solvegp"):
        gp = duogp.fit(X, y, name, num_inducing=8, solver="closed-form", **settings)
        values[name] = gp.history.series("loss")[0]
    assert values["solvegp"] < values["odsvgp"]
    assert values["solvegp"] < values["dsgpc-eps"]


@pytest.mark.parametrize(
    ("name", "given", "kinds", "mean_only"),
    [
        ("solvegp", {}, [CholeskyQ, CholeskyQ], False),
        ("odsvgp", {}, [CholeskyQ], True),
        ("odppgpr", {}, [CholeskyQ], True),
        ("dsgpc-eps", {}, [CholeskyQ, 0.1], False),
        ("dsgpc-eps", {"epsilon": 0.7}, [CholeskyQ, 0.7], False),
        ("dsgpc-free", {}, [CholeskyQ, 0.0], False),
    ],
)
def test_what_stands_behind_a_name(name: str, given: dict, kinds: list, mean_only: bool) -> None:
    """Each method has the q(v) of its paper; a number here is the ε of a shrunk block."""
    gp = duogp.fit(*table(), name, num_inducing=5, num_extra=7, epochs=1, **given)
    basis = gp.model.basis
    found = [b.epsilon if isinstance(b, ShrunkQ) else type(b) for b, _ in basis.q.parts()]
    assert isinstance(basis, TwoBlock)
    assert (found, basis.mean_only) == (kinds, mean_only)
    assert basis.q.mean.shape[-1] == 12


@pytest.mark.parametrize("epsilon", [0.0, -0.1, 1.5, float("nan"), "small"])
def test_epsilon_is_a_fraction(epsilon: object) -> None:
    with pytest.raises(ValueError, match="epsilon must be in"):
        duogp.fit(*table(), "dsgpc-eps", epsilon=epsilon)


def test_a_shrunk_block_is_between_nothing_and_the_prior() -> None:
    for epsilon in (-0.1, 1.1):
        with pytest.raises(ValueError, match="epsilon"):
            ShrunkQ(3, epsilon=epsilon)
    q = ShrunkQ(3, (1, 1), epsilon=0.25).double()
    q.perturb_mean(1.0, [torch.Generator()])
    q.set_(torch.ones(1, 1, 3), torch.eye(3))
    assert q.mean.abs().max() == 0 and q.num_parameters() == 0
    close(q.covariance(), 0.25 * torch.eye(3).double())
    close(ShrunkQ(3, epsilon=0.0).double().penalty(), torch.tensor(0.0).double())


def test_block_q_is_its_blocks() -> None:
    """Stacked features: root, covariance, penalty and features' variance are those of the blocks."""
    model, _, _ = random_problem(BUILDERS["solve"], latents=2)
    q, (u, v) = model.basis.q, blocks_of(model)
    phi = torch.randn(1, 2, 9, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    close(
        q.covariance(),
        torch.stack([torch.block_diag(*(b.covariance()[0, l] for b in q)) for l in (0, 1)])[None],
    )
    close(q.variance_of(phi), diagonal(phi.mT @ q.covariance() @ phi))
    close(q.root_of(phi).square().sum(-2), q.variance_of(phi))
    close(q.log_det(), torch.logdet(q.covariance()))
    close(q.trace(), diagonal(q.covariance()).sum(-1))
    close(q.penalty(), u.penalty() + v.penalty())
    assert q.num_parameters() == u.num_parameters() + v.num_parameters()
