"""Exact: every training row is an inducing point, and the observations are all that is known of u.

With L Lᵀ = k(X, X) + Σ, Σ the noise of the rows, and φ = L⁻¹ k(X, x):

    mean φᵀ L⁻¹(y − μ₀)    residual k − ‖φ‖²    explained 0    log p(y) = log N(y | μ₀, L Lᵀ)

There is no q(u) to learn: the posterior is the prior conditioned on the data. Bayesian kernel ridge
regression is the same model read differently (Popescu et al., eqs. 14–15 with MATH §5.3's corrections): with
weights N(0, σ²/λ) its kernel is (σ²/λ)k, its noise σ², so λ = noise / output scale.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from duogp.bases.base import Basis
from duogp.bases.frozen import FrozenPosterior, Probe
from duogp.bases.marginals import Features
from duogp.kernels.base import Kernel, Scale
from duogp.likelihoods import GaussianLikelihood
from duogp.numerics.factorisation import Factor, Numerics, norm2
from duogp.variational import PointQ, Q

LOG_2PI = math.log(2 * math.pi)


class Exact(Basis):
    """The prior conditioned on all training rows X. ``likelihood``: the model's own, whose noise is Σ."""

    has_closed_form = True
    has_natural_gradient = False
    points_are_rows = True
    row_noise: Tensor | None
    weight: Tensor | None
    replicate_buffers = ("row_noise", "weight")

    def __init__(
        self,
        kernel: Kernel,
        x: Tensor,
        batch_shape: tuple[int, int],
        likelihood: GaussianLikelihood,
        row_noise: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.inducing = nn.Parameter(x, requires_grad=False)  # X [R, 1, n, d]
        self.likelihood = likelihood  # the model's own: Σ is its noise
        self.q = PointQ(x.shape[-2], batch_shape)  # L⁻¹(y − μ₀), written by `condition`
        self.q.mean.requires_grad_(False)
        self.register_buffer("row_noise", row_noise)  # [R, outputs, n]
        self.register_buffer("weight", weight)  # [R, n]

    def noise(self) -> Tensor:
        """Σ [R, outputs, n]: a row of weight w has w times the precision."""
        variance = self.likelihood.variance(self.row_noise)
        variance = variance.expand(*variance.shape[:-1], self.inducing.shape[-2])
        return variance if self.weight is None else variance / self.weight.unsqueeze(-2)

    def factors(self, numerics: Numerics) -> Factor:
        x = self.inducing.double()
        K = self.kernel(x, x) + torch.diag_embed(self.noise().double())
        return numerics.factor(K, jitter=0.0)  # Σ is all the jitter that is needed, or else more is added

    def features(self, x: Tensor, factors: Factor) -> Features:
        phi = factors.whiten(self.kernel(self.inducing, x))
        return Features(mean=phi, explained=phi, residual=self.kernel.diag(x) - norm2(phi))

    def kl(self, factors: Factor, q: Q) -> Tensor:
        return torch.zeros_like(factors.jitter)

    def log_evidence(self, target: Tensor, factors: Factor) -> Tensor:
        """Σ over outputs of log N(y − μ₀ | 0, L Lᵀ), [R]; weighed likelihoods are not normalised."""
        white = factors.L_inv @ target.to(factors.L).unsqueeze(-1)
        n = target.shape[-1]
        value = -0.5 * white.square().sum((-2, -1)) - factors.half_log_det() - 0.5 * n * LOG_2PI
        return self._weighed(value, target)

    def quick_log_evidence(self, target: Tensor, numerics: Numerics) -> Tensor:
        """`log_evidence` without factors, in float64: its gradient takes a ninth of the operations.

        [R], of targets y − μ₀ [R, outputs, n].
        """
        x, noise = self.inducing.double(), self.noise().double()
        jitter = numerics.absolute(self.kernel.diag(x) + noise, jitter=0.0)
        value = numerics.log_normal(self.kernel(x, x), noise + jitter.unsqueeze(-1), target.double())
        return self._weighed(value, target)

    def _weighed(self, value: Tensor, target: Tensor) -> Tensor:
        """Log densities [R, outputs] of rows as they count, and their sum over outputs."""
        if self.weight is not None:  # w log N(y|f, s²) = log N(y|f, s²/w) + ½ log(2πs²/w) − ½ w log 2πs²
            w = self.weight.unsqueeze(-2)
            spread = (2 * math.pi * self.likelihood.variance(self.row_noise)).log()
            value = value + 0.5 * (spread - w.log() - w * spread).expand_as(target).sum(-1)
        return value.sum(-1)

    @torch.no_grad()
    def condition(self, target: Tensor, factors: Factor) -> None:
        """Let the posterior know the observations y − μ₀ [R, outputs, n]."""
        white = factors.L_inv @ target.to(factors.L).unsqueeze(-1)
        self.q.mean.copy_(white.squeeze(-1))

    def frozen(self, factors: Factor) -> FrozenPosterior:
        probe = Probe(self.kernel, self.inducing.detach())
        nothing = factors.L.new_zeros(*factors.L.shape[:-2], 1, factors.L.shape[-1])
        return FrozenPosterior(
            prior=self.kernel,
            mean_probe=probe,
            mean_weights=(factors.L_inv.mT @ self.q.mean.to(factors.L).unsqueeze(-1)).squeeze(-1),
            residual_probe=probe,
            residual_root=factors.L_inv,
            residual_jitter=self.noise().to(factors.L) + factors.jitter.to(factors.L).unsqueeze(-1),
            explained_probe=probe,
            explained_root=nothing,
        )

    def start_from(self, source: Basis) -> None:
        """Nothing: its points are the rows, and q(u) is what they say."""

    def hyperparameters(self) -> dict[str, Tensor]:
        """λ = noise / scale of Bayesian kernel ridge regression, [R, outputs]; none without a scale."""
        if not isinstance(self.kernel, Scale):
            return {}
        return {"ridge_penalty": self.likelihood.noise().double() / self.kernel.variance().double()}

    def num_variational_parameters(self) -> int:
        return 0


def replicate_variance(K_x: Tensor, K: Tensor, noise: Tensor, penalty: Tensor) -> Tensor:
    """Variance of the ridge mean over replicated targets (Popescu et al., eq. 16, kernelised), [..., m].

    σ² k_xᵀ(K + λI)⁻¹ [K(K + λI)⁻¹ + I] (K + λI)⁻¹ k_x for columns k_x [..., n, m] of the kernel without its
    scale: a posterior-predictive replicate's, the within-data part of the decomposition in their Figure 4.
    """
    eye = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    L = torch.linalg.cholesky(K + penalty[..., None, None] * eye)
    w = torch.cholesky_solve(K_x, L)  # (K + λI)⁻¹ k_x
    inner = torch.cholesky_solve(K @ w, L) + w
    return noise.unsqueeze(-1) * (w * inner).sum(-2)
