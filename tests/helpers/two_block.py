"""Two-block models, their twins on other bases, and the matrices of their optima."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from duogp.bases import Basis, Coupled, TwoBlock
from duogp.models.model import Batch, Model
from duogp.variational import BlockQ, CholeskyQ, Q
from helpers import dense
from helpers.conformance import close as nearly
from helpers.conformance import components, orthogonal, solve
from helpers.dense import Gaussian, inv, k, t
from helpers.devices import placed
from helpers.identities import collapsed_value, diagonal
from helpers.random_models import Parts

SEEDS = range(10)
BUILDERS: dict[str, Callable[[Parts], Basis]] = {
    "solve": solve(+1),
    "orthogonal": orthogonal(+1),
    "components-eps": components(+1, 0.2),
    "components": components(+1, 0.0),
}


def close(found: Tensor, expected: Tensor) -> None:
    nearly(found, expected.expand_as(found), rtol=1e-9, atol=1e-9)


def kl(model: Model) -> Tensor:
    return model.basis.kl(model.factors(), model.basis.q)


def full_q(size: int, like: Q, mean_size: int | None = None) -> CholeskyQ:
    return placed(CholeskyQ(size, like.mean.shape[:-1], mean_size=mean_size).double())


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
    return placed(other.double())


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
    mean_a, residual_a, explained_a = a.frozen().joint(x)
    mean_b, residual_b, explained_b = b.frozen().joint(x)
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


def table(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)
