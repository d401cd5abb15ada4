"""The types that a basis returns: marginals of f, the features behind them, penalties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from duogp.numerics.factorisation import Numerics
    from duogp.variational import Q


#: What an objective reads of the variances: both parts of every row (`Marginals`), the variance of every row
#: (`TotalMarginals` is enough), or only its sum over all rows (`VarianceSum` is enough).
Reads = Literal["parts", "variance", "sum"]


class Marginals(NamedTuple):
    """q(f(x)) at n points, its variance kept in two parts."""

    mean: Tensor  # [..., latent, n]
    residual: Tensor  # [..., latent, n]  k − ‖φ‖²   prior variance that u leaves unexplained
    explained: Tensor  # [..., latent, n]  φᵀSφ       what q(u) contributes

    @property
    def variance(self) -> Tensor:
        """Variance of f, the sum of both parts, [..., n]."""
        return self.residual + self.explained


class TotalMarginals(NamedTuple):
    """q(f(x)) at n points, its variance as one number per row."""

    mean: Tensor  # [..., latent, n]
    variance: Tensor  # [..., latent, n]


class VarianceSum(NamedTuple):
    """The means of q(f(x)) at n points and the sum of their variances; single variances are not available."""

    mean: Tensor  # [..., latent, n]
    total: Tensor  # [..., latent]  Σ over rows


#: What a step may return, depending on what the objective reads.
Moments = Marginals | TotalMarginals | VarianceSum


class Features(NamedTuple):
    """Whitened features of x: the mean is linear in one set, the explained variance quadratic in another."""

    mean: Tensor  # [..., M_μ, n]   f̄ = featuresᵀ m
    explained: Tensor  # [..., M, n]     featuresᵀ S features
    residual: Tensor  # [..., n]
    residual_features: Tensor | None = None  # φ with residual k − ‖φ‖², where Ω needs it
    offset: Tensor | None = None  # a part of the mean that q does not weigh, [..., n]


class Recorded(NamedTuple):
    """Inputs, factors, features and explained variance of one step, for optimisers that need curvature.

    After the backward pass `explained` has its gradient.
    """

    x: Tensor
    factors: Any
    features: Features
    explained: Tensor


class Mismatch(NamedTuple):
    """The difference D of the conditional means of two kernels on n rows: Ω = ½ tr Dᵀ K̃⁻¹ D (S + mmᵀ)."""

    residual: Tensor  # K̃ with its nugget, float64 [..., n, n]
    D: Tensor  # [..., n, M]

    def omega(self, q: Q, numerics: Numerics) -> Tensor:
        """Ω of each latent function, [R, latent]."""
        return numerics.inverse_quadratic(self.residual, q.spread(self.D.double()))

    def gram(self, numerics: Numerics) -> Tensor:
        """T = DᵀK̃⁻¹D (MATH §2.1), [..., M, M] in float64, for the optimal q."""
        L, info = torch.linalg.cholesky_ex(self.residual)
        numerics.note(info)
        W = torch.linalg.solve_triangular(L, self.D.double(), upper=False)
        return W.mT @ W


class RowMismatch(NamedTuple):
    """`Mismatch` with K̃ replaced by its diagonal: Ω = ½ Σ dᵢᵀ(S + mmᵀ)dᵢ / rᵢ (MATH §11 B6)."""

    residual: Tensor  # r with its nugget [..., n]
    D: Tensor  # [..., n, M]

    def omega(self, q: Q, numerics: Numerics) -> Tensor:
        return 0.5 * (q.spread(self.D).square().sum(-1) / self.residual).sum(-1)

    def gram(self, numerics: Numerics) -> Tensor:
        D = self.D.double()
        return D.mT @ (D / self.residual.double().unsqueeze(-1))


class Penalties(NamedTuple):
    """KL and Ω, summed over latent functions, per replicate [R]."""

    kl: Tensor  # weighed by β₁
    omega: Tensor | None = None  # weighed by β₂; None where the basis has none or β₂ = 0


def clamp_variance(variance: Tensor, prior: Tensor, *, precision: torch.dtype | None = None) -> Tensor:
    """The variance [..., n] floored at rounding level, for roots and reports; gradients pass unchanged.

    Straight-through, floor 8u·k(x, x), ``prior`` [..., n] (MATH §11 C5), u that of ``precision``, by default
    that of the variance. Never used inside a Gaussian objective.
    """
    floor = 8 * torch.finfo(variance.dtype if precision is None else precision).eps / 2 * prior
    return variance + (torch.maximum(variance, floor) - variance).detach()
