"""Brute force: the same models by joint Gaussian algebra, unwhitened, with explicit inverses, no cleverness.

Nothing here uses the library's features, factors or penalties; only its parameters are read. Leading
dimensions are [replicate, latent]. Jitter ε is the variance of a noise on u = f(Z) + √ε ξ (MATH §11 C1).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import inv

from duogp.bases import Conditional, Separate, TwoBlock
from duogp.kernels import Scale
from duogp.models.model import Batch, Model
from duogp.objectives import GammaRobust, elbo, predictive, vfitc
from duogp.variational import BlockQ, CholeskyQ, DiagonalQ, PointQ, Q, ShrunkQ
from helpers.devices import current, eye

LOG_2PI = math.log(2 * math.pi)


class Gaussian(NamedTuple):
    mean: Tensor
    covariance: Tensor


class Dense(NamedTuple):
    """A posterior at rows x, without the prior mean."""

    mean: Tensor  # [R, latent, n]
    residual: Tensor  # [R, latent, n, n]
    explained: Tensor  # [R, latent, n, n]
    penalty: Tensor  # [R, latent]
    q: Gaussian  # joint of (f(x), inducing variables)
    p: Gaussian  # the prior of the same variables
    omega: Tensor | None = None  # [R, latent]
    nugget: Tensor | float = 0.0  # [R, latent], white variance of f where Ω has one


# -- pieces ---------------------------------------------------------------------------------------------


def k(kernel: Scale, a: Tensor, b: Tensor) -> Tensor:
    """variance · exp(−½ Σ_d (a_d − b_d)²/l_d²)."""
    l = kernel.kernel.lengthscale()[..., None, None, :]
    difference = (a[..., :, None, :] - b[..., None, :, :]) / l
    return kernel.variance()[..., None, None] * torch.exp(-0.5 * difference.square().sum(-1))


def t(v: Tensor, A: Tensor) -> Tensor:
    """A v."""
    return (A @ v.unsqueeze(-1)).squeeze(-1)


def white(value: Tensor | float, n: int) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device=current())[..., None, None] * eye(n)


def jitter_of(model: Model, kernel: Scale, own: float | None = None) -> Tensor:
    """ε [R, latent], relative to the prior variance; a method may have its own."""
    relative = model.numerics.jitter if own is None else torch.full_like(model.numerics.jitter, own)
    return relative * kernel.variance()


def inducing_prior(model: Model, kernel: Scale, z: Tensor, own: float | None = None) -> Tensor:
    """Cov u = K_Z + ε I."""
    return k(kernel, z, z) + white(jitter_of(model, kernel, own), z.shape[-2])


def moments(q: Q) -> Gaussian:
    """Mean and covariance of the whitened variable, read from the parameters."""
    if isinstance(q, CholeskyQ):
        root = torch.tril(q.raw_root)
        return Gaussian(q.mean, root @ root.mT)
    if isinstance(q, DiagonalQ):
        return Gaussian(q.mean, torch.diag_embed(q.std**2))
    if isinstance(q, ShrunkQ):
        zero = q.mean.new_zeros(*q.mean.shape[:-1], q.size)
        return Gaussian(zero, q.epsilon * eye(q.size))
    assert isinstance(q, PointQ)
    return Gaussian(q.mean, q.mean.new_zeros(*q.mean.shape[:-1], q.size, q.size))


def gaussian_kl(q: Gaussian, p: Gaussian) -> Tensor:
    P = inv(p.covariance)
    d = q.mean - p.mean
    trace = (P @ q.covariance).diagonal(dim1=-2, dim2=-1).sum(-1)
    log_dets = torch.logdet(p.covariance) - torch.logdet(q.covariance)
    return 0.5 * (trace + (d * t(d, P)).sum(-1) + log_dets - d.shape[-1])


def quadratic(v: Tensor, A: Tensor) -> Tensor:
    return (v * t(v, A)).sum(-1)


def point_penalty(q: PointQ, m: Tensor, K: Tensor) -> Tensor:
    """½ mᵀK⁻¹m, or −log N(m | 0, K)."""
    value = 0.5 * quadratic(m, inv(K))
    return value + 0.5 * torch.logdet(K) + 0.5 * m.shape[-1] * LOG_2PI if q.unwhitened else value


def penalty(q: Q, u: Gaussian, K: Tensor) -> Tensor:
    if isinstance(q, PointQ):
        return point_penalty(q, u.mean, K)
    return gaussian_kl(u, Gaussian(torch.zeros_like(u.mean), K))


def blocks(A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """[[A, B], [Bᵀ, C]]."""
    return torch.cat([torch.cat([A, B], -1), torch.cat([B.mT, C], -1)], -2)


def conditioned_on(prior: Tensor, u: Gaussian, size: int) -> Gaussian:
    """q(w) ∝ p(w) q(u)/p(u), u the last `size` entries of w: the information form."""
    K_u = prior[..., -size:, -size:]
    precision = inv(prior)
    precision = (
        torch.nn.functional.pad(
            inv(u.covariance) - inv(K_u), (prior.shape[-1] - size, 0, prior.shape[-1] - size, 0)
        )
        + precision
    )
    shift = torch.nn.functional.pad(t(u.mean, inv(u.covariance)), (prior.shape[-1] - size, 0))
    covariance = inv(precision)
    return Gaussian(t(shift, covariance), covariance)


def no_joint() -> tuple[Gaussian, Gaussian]:
    nothing = Gaussian(torch.empty(0), torch.empty(0))
    return nothing, nothing


# -- the bases ------------------------------------------------------------------------------------------


def coupled(model: Model, x: Tensor) -> Dense:
    """MATH §1.1."""
    basis, x = model.basis, x.unsqueeze(-3)
    z, q = basis.inducing, moments(basis.q)
    K = inducing_prior(model, basis.kernel, z)
    L = torch.linalg.cholesky(K)
    u = Gaussian(t(q.mean, L), L @ q.covariance @ L.mT)
    K_x, K_xz = k(basis.kernel, x, x), k(basis.kernel, x, z)
    B = K_xz @ inv(K)
    prior = blocks(K_x, K_xz, K)
    joint = no_joint()
    if not isinstance(basis.q, PointQ):
        joint = conditioned_on(prior, u, z.shape[-2]), Gaussian(prior.new_zeros(prior.shape[:-1]), prior)
    return Dense(t(u.mean, B), K_x - B @ K_xz.mT, B @ u.covariance @ B.mT, penalty(basis.q, u, K), *joint)


def separate(model: Model, x: Tensor) -> Dense:
    """MATH §4, §11 A1: the mean is a function of the RKHS, the covariance that of a coupled basis."""
    basis, x = model.basis, x.unsqueeze(-3)
    assert isinstance(basis, Separate)
    kernel, z, z_mean, q = basis.kernel, basis.inducing, basis.mean_inducing, moments(basis.q)
    K, K_mean = inducing_prior(model, kernel, z), inducing_prior(model, basis.mean_kernel, z_mean)
    a = t(q.mean, inv(torch.linalg.cholesky(K_mean)).mT)
    L = torch.linalg.cholesky(K)
    S = L @ q.covariance @ L.mT
    K_x, K_xz, K_xm = k(kernel, x, x), k(kernel, x, z), k(basis.mean_kernel, x, z_mean)
    B = K_xz @ inv(K)
    mean, residual, explained = t(a, K_xm), K_x - B @ K_xz.mT, B @ S @ B.mT
    if isinstance(basis.q, PointQ):
        value = point_penalty(basis.q, t(a, K_mean), K_mean)
        return Dense(mean, residual, explained, value, *no_joint())
    zero = torch.zeros_like(K[..., 0])
    value = 0.5 * quadratic(a, K_mean) + gaussian_kl(Gaussian(zero, S), Gaussian(zero, K))
    if basis.mean_kernel is not kernel:  # no process with this mean and this prior
        return Dense(mean, residual, explained, value, *no_joint())
    # all variables: f(x), u_μ, u_σ
    prior = blocks(blocks(K_x, K_xm, K_mean), torch.cat([K_xz, k(kernel, z_mean, z)], -2), K)
    centred = conditioned_on(prior, Gaussian(zero, S), z.shape[-2])
    joint_mean = t(a, torch.cat([K_xm, K_mean, k(kernel, z, z_mean)], -2))
    joint = Gaussian(joint_mean, centred.covariance), Gaussian(torch.zeros_like(joint_mean), prior)
    return Dense(mean, residual, explained, value, *joint)


def conditional(model: Model, x: Tensor) -> Dense:
    """MATH §2.1, with the coordinates of §2.2."""
    basis, x = model.basis, x.unsqueeze(-3)
    assert isinstance(basis, Conditional)
    z, q = basis.inducing, moments(basis.q)
    K = inducing_prior(model, basis.kernel, z)
    Q_z = inducing_prior(model, basis.mean_kernel, z, basis.mean_jitter)
    R = torch.linalg.cholesky(Q_z if basis.whitening == "Q" else K)
    u = Gaussian(t(q.mean, R), R @ q.covariance @ R.mT)
    K_x, K_xz = k(basis.kernel, x, x), k(basis.kernel, x, z)
    B = k(basis.mean_kernel, x, z) @ inv(Q_z)
    residual = K_x - K_xz @ inv(K) @ K_xz.mT
    explained = B @ u.covariance @ B.mT
    nugget = jitter_of(model, basis.kernel, basis.nugget)
    block = residual + white(nugget, x.shape[-2])
    if basis.omega == "rows":
        block = torch.diag_embed(block.diagonal(dim1=-2, dim2=-1))
    T = mismatch(B - K_xz @ inv(K), block)
    omega = 0.5 * ((T @ u.covariance).diagonal(dim1=-2, dim2=-1).sum(-1) + quadratic(u.mean, T))
    own_nugget = nugget if basis.omega != "batch" else torch.zeros_like(nugget)
    joint = no_joint()
    if not isinstance(basis.q, PointQ):
        noise = white(own_nugget, x.shape[-2])
        prior = blocks(K_x + noise, K_xz, K)
        joint_mean = torch.cat([t(u.mean, B), u.mean], -1)
        covariance = blocks(residual + noise + explained, B @ u.covariance, u.covariance)
        joint = Gaussian(joint_mean, covariance), Gaussian(torch.zeros_like(joint_mean), prior)
    value = penalty(basis.q, u, K)
    return Dense(t(u.mean, B), residual, explained, value, *joint, omega, own_nugget)


def mismatch(A: Tensor, residual: Tensor) -> Tensor:
    """T = Aᵀ K̃⁻¹ A."""
    return A.mT @ inv(residual) @ A


class Blocks(NamedTuple):
    """Z and O of a two-block basis: u = f(Z) + √ε ξ, g = f(O) + √ε η, and v = g − K_OZ K⁻¹u, its news."""

    u: Tensor  # Cov u = K
    v: Tensor  # Cov v = C, independent of u
    gain: Tensor  # K_OZ K⁻¹
    joint: Tensor  # Cov (u, g)
    k_u: Tensor  # Cov (f(x), u)
    k_v: Tensor  # Cov (f(x), v)
    k_joint: Tensor  # Cov (f(x), (u, g))


def two_block_prior(model: Model, x: Tensor) -> Blocks:
    """x [R, 1, n, d]."""
    basis = model.basis
    assert isinstance(basis, TwoBlock)
    kernel, z, o = basis.kernel, basis.inducing, basis.orthogonal_inducing
    K, K_o, K_zo = inducing_prior(model, kernel, z), inducing_prior(model, kernel, o), k(kernel, z, o)
    K_xz, K_xo = k(kernel, x, z), k(kernel, x, o)
    gain = K_zo.mT @ inv(K)
    return Blocks(
        u=K,
        v=K_o - gain @ K_zo,
        gain=gain,
        joint=blocks(K, K_zo, K_o),
        k_u=K_xz,
        k_v=K_xo - K_xz @ gain.mT,
        k_joint=torch.cat([K_xz, K_xo], -1),
    )


def two_block_q(model: Model, prior: Blocks) -> tuple[Gaussian, Gaussian]:
    """q(u) and q(v), unwhitened; a v that learns its mean only keeps its prior covariance."""
    basis = model.basis
    L, C = torch.linalg.cholesky(prior.u), torch.linalg.cholesky(prior.v)
    if basis.mean_only:
        size = prior.u.shape[-1]
        q = moments(basis.q)
        own = Gaussian(q.mean[..., :size], q.covariance), Gaussian(q.mean[..., size:], eye(prior.v.shape[-1]))
    else:
        assert isinstance(basis.q, BlockQ)
        own = tuple(moments(block) for block in basis.q)
    return tuple(Gaussian(t(q.mean, R), R @ q.covariance @ R.mT) for q, R in zip(own, (L, C), strict=True))


def stacked(u: Gaussian, v: Gaussian, gain: Tensor) -> Gaussian:
    """q(u, g) with g = v + gain u, u and v independent (MATH §5.1)."""
    mean = torch.cat([u.mean, v.mean + t(u.mean, gain)], -1)
    cross = u.covariance @ gain.mT
    return Gaussian(mean, blocks(u.covariance, cross, v.covariance + gain @ cross))


def two_block(model: Model, x: Tensor) -> Dense:
    """MATH §5 as an SVGP on (u, g) at Z ∪ O with a structured q.

    The surrogate (v = 0, without its KL) is a posterior under the prior from which v was deleted (§5.2, 7).
    """
    basis, x = model.basis, x.unsqueeze(-3)
    prior = two_block_prior(model, x)
    u, v = two_block_q(model, prior)
    q_joint = stacked(u, v, prior.gain)
    K_x, n = k(basis.kernel, x, x), x.shape[-2]
    B = prior.k_joint @ inv(prior.joint)
    B_u, B_v = prior.k_u @ inv(prior.u), prior.k_v @ inv(prior.v)
    mean = t(q_joint.mean, B)
    if basis.mean_only:  # v is not learned in covariance: it counts as residual (§11 B4)
        residual, explained = K_x - B_u @ prior.k_u.mT, B_u @ u.covariance @ B_u.mT
    else:
        residual, explained = K_x - B @ prior.k_joint.mT, B @ q_joint.covariance @ B.mT

    q_u = basis.q if basis.mean_only else next(iter(basis.q))
    q_v = basis.q if basis.mean_only else list(basis.q)[1]
    surrogate = isinstance(q_v, ShrunkQ) and q_v.epsilon == 0
    if isinstance(q_u, PointQ):
        value = 0.5 * quadratic(q_joint.mean, inv(prior.joint))
        if isinstance(q_v, ShrunkQ) and not surrogate:
            value = value + gaussian_kl(v, Gaussian(torch.zeros_like(v.mean), prior.v))
        return Dense(mean, residual, explained, value, *no_joint())
    if surrogate:
        covariance = blocks(K_x - B_v @ prior.k_v.mT, prior.k_u, prior.u)
        joint_prior = Gaussian(torch.zeros_like(covariance[..., 0]), covariance)
        value = gaussian_kl(u, Gaussian(torch.zeros_like(u.mean), prior.u))
        joint_q = conditioned_on(covariance, u, prior.u.shape[-1])
        return Dense(mean, residual, explained, value, joint_q, joint_prior)
    covariance = blocks(K_x, prior.k_joint, prior.joint)
    joint_prior = Gaussian(torch.zeros_like(covariance[..., 0]), covariance)
    joint_q = conditioned_on(covariance, q_joint, prior.joint.shape[-1])
    value = gaussian_kl(q_joint, Gaussian(torch.zeros_like(q_joint.mean), prior.joint))
    assert joint_q.mean.shape[-1] == n + q_joint.mean.shape[-1]
    return Dense(mean, residual, explained, value, joint_q, joint_prior)


# -- objectives -----------------------------------------------------------------------------------------


def prior_mean(model: Model, x: Tensor) -> Tensor:
    """wᵀx + b at rows x [R, n, d]: [R, latent, n]."""
    w, b = model.mean.weights, model.mean.bias
    return (x[:, None] * w[:, :, None, :]).sum(-1) + b[..., None]


def noise_variance(model: Model, batch: Batch) -> Tensor:
    """[R, latent, n]."""
    s2 = model.likelihood.noise()[..., None].expand(*batch.y.shape)
    return s2 if batch.noise is None else s2 + batch.noise


def log_normal(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * torch.log(2 * math.pi * variance) - (y - mean) ** 2 / (2 * variance)


def data_term(objective: object, y: Tensor, mu: Tensor, r: Tensor, e: Tensor, s2: Tensor) -> Tensor:
    """The formulas of MATH §4, one value per datum, outputs independent: [R, latent, n] → [R, n]."""
    if objective is elbo:
        return (log_normal(y, mu, s2) - (r + e) / (2 * s2)).sum(-2)
    if objective is vfitc:
        return (log_normal(y, mu, s2 + r) - e / (2 * (s2 + r))).sum(-2)
    if objective is predictive:
        return log_normal(y, mu, s2 + r + e).sum(-2)
    assert isinstance(objective, GammaRobust)
    gamma, v = objective.gamma, r + e
    h = gamma - 1
    power = (2 * math.pi * s2) ** (-h / 2) * (1 + h * v / s2) ** -0.5
    power = (power * torch.exp(-h * (y - mu) ** 2 / (2 * (s2 + h * v)))).prod(-2)
    mass = ((2 * math.pi * s2) ** (-h / 2) * gamma**-0.5).prod(-2)
    sign = 1 if objective.gpytorch_sign else -1
    return gamma / h * power * mass ** (sign * h / gamma) - gamma / h


def data_terms(model: Model, batch: Batch, f: Dense) -> Tensor:
    residual = f.residual.diagonal(dim1=-2, dim2=-1)
    if model.uses_omega:
        residual = residual + torch.as_tensor(f.nugget, device=current())[..., None]
    explained = f.explained.diagonal(dim1=-2, dim2=-1)
    mu = f.mean + prior_mean(model, batch.x)
    data = data_term(model.objective, batch.y, mu, residual, explained, noise_variance(model, batch))
    return data if batch.weight is None else data * batch.weight


def loss(model: Model, batch: Batch, f: Dense) -> Tensor:
    """−(1/B) Σ data + (1/N)(β₁ KL + β₂ Ω), Ω scaled to the number of blocks: [R]."""
    regulariser = model.beta1 * f.penalty.sum(-1)
    if f.omega is not None:
        scale = model.num_data / batch.x.shape[-2] if model.basis.omega in ("rows", "blocks") else 1.0
        regulariser = regulariser + model.beta2 * scale * f.omega.sum(-1)
    return -data_terms(model, batch, f).mean(-1) + regulariser / model.num_data


# -- evidences ------------------------------------------------------------------------------------------


def log_evidence(y: Tensor, covariance: Tensor) -> Tensor:
    """log N(y | 0, covariance)."""
    return -0.5 * (y.shape[-1] * LOG_2PI + torch.logdet(covariance) + quadratic(y, inv(covariance)))


def exact_log_evidence(model: Model, batch: Batch, white_noise: Tensor | float = 0.0) -> Tensor:
    """log p(y) of the exact GP with the model's prior, summed over outputs: [R]."""
    x = batch.x.unsqueeze(-3)
    noise = torch.diag_embed(noise_variance(model, batch)) + white(white_noise, x.shape[-2])
    return log_evidence(batch.y - prior_mean(model, batch.x), k(model.basis.kernel, x, x) + noise).sum(-1)


# -- the collapsed bound --------------------------------------------------------------------------------


def collapsed(model: Model, batch: Batch, partition: list[slice] | None = None) -> Tensor:
    """max over q of Σ w·data − β₁ KL − β₂ Ω, [R] (MATH §1.3, §1.4, §2.1, §11 A1, B6).

    With Λ = w/s² and any prior u ~ N(0, P): dividing by β₁ makes the noise β₁Λ⁻¹ and the penalty's weight 1.
    Mean field and point q lose exactly what their covariance costs against the full one.
    """
    if isinstance(model.basis, TwoBlock):
        return collapsed_two_block(model, batch)
    basis, x = model.basis, batch.x.unsqueeze(-3)
    n = x.shape[-2]
    y = batch.y - prior_mean(model, batch.x)
    s2 = noise_variance(model, batch)
    beta1, beta2 = model.beta1[:, None], model.beta2[:, None]
    weight = torch.ones_like(y) if batch.weight is None else batch.weight[:, None].expand_as(y)
    kernel, z = basis.kernel, basis.inducing
    K, K_xz = inducing_prior(model, kernel, z), k(kernel, x, z)
    r = kernel.variance()[..., None] - (K_xz @ inv(K) * K_xz).sum(-1)
    P = K
    if isinstance(basis, Conditional):
        Q_z = inducing_prior(model, basis.mean_kernel, z, basis.mean_jitter)
        B = k(basis.mean_kernel, x, z) @ inv(Q_z)
        if model.uses_omega:
            parts = [slice(0, n)] if partition is None else partition
            A, K_x = B - K_xz @ inv(K), k(kernel, x, x)
            residual = K_x - K_xz @ inv(K) @ K_xz.mT
            nugget = jitter_of(model, kernel, basis.nugget)
            T = sum(
                mismatch(A[..., b, :], residual[..., b, b] + white(nugget, len(range(n)[b]))) for b in parts
            )
            if basis.omega == "batch":
                T = T / len(parts)
            else:
                r = r + nugget[..., None]
            P = inv(inv(K) + (beta2 / beta1)[..., None, None] * T)
    else:
        B = K_xz @ inv(K)
    B_mean, P_mean = B, P
    if isinstance(basis, Separate):
        P_mean = inducing_prior(model, basis.mean_kernel, basis.mean_inducing)
        B_mean = k(basis.mean_kernel, x, basis.mean_inducing) @ inv(P_mean)
    if model.objective is vfitc:
        s2, r = s2 + r, torch.zeros_like(r)
    precision = weight / s2  # Λ
    noise = torch.diag_embed(beta1[..., None] / precision)
    quadratic_part = -0.5 * quadratic(y, inv(B_mean @ P_mean @ B_mean.mT + noise))
    log_det_part = -0.5 * (
        torch.logdet(B @ P @ B.mT + noise) - torch.logdet(noise) + torch.logdet(K) - torch.logdet(P)
    )
    rest = -0.5 * (precision * r).sum(-1) - 0.5 * (weight * torch.log(2 * math.pi * s2)).sum(-1)

    if not isinstance(basis.q, CholeskyQ):
        # precision of u, in the coordinates of the parametrisation
        J = inv(P) + B.mT @ torch.diag_embed(precision / beta1[..., None]) @ B
        R = Q_z if isinstance(basis, Conditional) and basis.whitening == "Q" else K
        R = torch.linalg.cholesky(R)
        J = R.mT @ J @ R
        if isinstance(basis.q, DiagonalQ):
            log_det_part = log_det_part + 0.5 * (torch.logdet(J) - J.diagonal(dim1=-2, dim2=-1).log().sum(-1))
        else:
            log_det_part = torch.zeros_like(log_det_part)
            if basis.q.unwhitened:
                K_mean = P_mean if isinstance(basis, Separate) else K
                log_det_part = -0.5 * torch.logdet(K_mean) - 0.5 * K_mean.shape[-1] * LOG_2PI
    return (beta1 * (quadratic_part + log_det_part) + rest).sum(-1)


def collapsed_two_block(model: Model, batch: Batch) -> Tensor:
    """MATH §3.1, §5.1, §5.2 (8), with any Λ and β₁: the mean on Z ∪ O jointly, each S on its own block."""
    basis, x = model.basis, batch.x.unsqueeze(-3)
    y = batch.y - prior_mean(model, batch.x)
    s2 = noise_variance(model, batch)
    beta1 = model.beta1[:, None]
    weight = torch.ones_like(y) if batch.weight is None else batch.weight[:, None].expand_as(y)
    prior = two_block_prior(model, x)
    variance = basis.kernel.variance()[..., None]
    Q_u, Q_v = prior.k_u @ inv(prior.u) @ prior.k_u.mT, prior.k_v @ inv(prior.v) @ prior.k_v.mT
    Q_both = prior.k_joint @ inv(prior.joint) @ prior.k_joint.mT
    r = variance - (Q_u if basis.mean_only else Q_both).diagonal(dim1=-2, dim2=-1)
    if model.objective is vfitc:
        s2, r = s2 + r, torch.zeros_like(r)
    precision = weight / s2
    noise = torch.diag_embed(beta1[..., None] / precision)
    rest = -0.5 * (precision * r).sum(-1) - 0.5 * (weight * torch.log(2 * math.pi * s2)).sum(-1)

    q_u, q_v = (basis.q, None) if basis.mean_only else basis.q
    Q_mean = Q_u if isinstance(q_v, ShrunkQ) else Q_both
    value = -0.5 * quadratic(y, inv(Q_mean + noise))
    for q, K, K_x, Q_x in ((q_u, prior.u, prior.k_u, Q_u), (q_v, prior.v, prior.k_v, Q_v)):
        if q is None or isinstance(q, PointQ):
            continue
        if isinstance(q, ShrunkQ):
            rest = rest - 0.5 * q.epsilon * (precision * Q_x.diagonal(dim1=-2, dim2=-1)).sum(-1)
            if q.epsilon:
                value = value - 0.5 * q.size * (q.epsilon - 1 - math.log(q.epsilon))
            continue
        value = value - 0.5 * (torch.logdet(Q_x + noise) - torch.logdet(noise))
        if isinstance(q, DiagonalQ):
            B, R = K_x @ inv(K), torch.linalg.cholesky(K)
            J = R.mT @ (inv(K) + B.mT @ torch.diag_embed(precision / beta1[..., None]) @ B) @ R
            value = value + 0.5 * (torch.logdet(J) - J.diagonal(dim1=-2, dim2=-1).log().sum(-1))
    return (beta1 * value + rest).sum(-1)
