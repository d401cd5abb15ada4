"""What a basis says about f: its marginals, the features behind them, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from duogp.numerics.factorisation import Numerics
    from duogp.variational import Q


#: What of the variances will be read: both parts, their sum, or that sum over all rows, one like the other.
#: What will not be read may be anything that leaves the rest as it is.
Reading = Literal["parts", "whole", "total"]


class Marginals(NamedTuple):
    """q(f(x)) at n points, its variance kept in two parts."""

    mean: Tensor  # [..., latent, n]
    residual: Tensor  # [..., latent, n]  k − ‖φ‖²   prior variance that u leaves unexplained
    explained: Tensor  # [..., latent, n]  φᵀSφ       what q(u) contributes

    @property
    def variance(self) -> Tensor:
        return self.residual + self.explained


class Features(NamedTuple):
    """Whitened features of x: the mean is linear in one set, the explained variance quadratic in another."""

    mean: Tensor  # [..., M_μ, n]   f̄ = featuresᵀ m
    explained: Tensor  # [..., M, n]     featuresᵀ S features
    residual: Tensor  # [..., n]
    residual_features: Tensor | None = None  # φ with residual k − ‖φ‖², where Ω needs it
    offset: Tensor | None = None  # a part of the mean that q does not weigh, [..., n]


class Recorded(NamedTuple):
    """What a step saw, for optimisers that need curvature: after backward, `explained` has its gradient."""

    x: Tensor
    factors: Any
    features: Features
    explained: Tensor


class Mismatch(NamedTuple):
    """Where the conditional means of two kernels differ on some rows: Ω = ½ tr Dᵀ K̃⁻¹ D (S + mmᵀ)."""

    residual: Tensor  # K̃ with its nugget, float64 [..., n, n]
    D: Tensor  # [..., n, M]

    def omega(self, q: Q, numerics: Numerics) -> Tensor:
        """Ω of each latent function."""
        return numerics.inverse_quadratic(self.residual, q.spread(self.D.double()))

    def gram(self, numerics: Numerics) -> Tensor:
        """T = DᵀK̃⁻¹D (MATH §2.1), for the optimal q."""
        L, info = torch.linalg.cholesky_ex(self.residual)
        numerics.note(info)
        W = torch.linalg.solve_triangular(L, self.D.double(), upper=False)
        return W.mT @ W


class RowMismatch(NamedTuple):
    """The same with the rows taken one by one: Ω = ½ Σ dᵢᵀ(S + mmᵀ)dᵢ / rᵢ (MATH §11 B6)."""

    residual: Tensor  # r with its nugget [..., n]
    D: Tensor  # [..., n, M]

    def omega(self, q: Q, numerics: Numerics) -> Tensor:
        return 0.5 * (q.spread(self.D).square().sum(-1) / self.residual).sum(-1)

    def gram(self, numerics: Numerics) -> Tensor:
        D = self.D.double()
        return D.mT @ (D / self.residual.double().unsqueeze(-1))


class Penalties(NamedTuple):
    """What the posterior pays for leaving the prior, per replicate."""

    kl: Tensor  # weighed by β₁
    omega: Tensor | None = None  # weighed by β₂; None where the basis has none or β₂ = 0


def clamp_variance(variance: Tensor, prior: Tensor) -> Tensor:
    """A variance that is about to be rooted or reported: floored at rounding level, gradients untouched.

    Straight-through, floor 8u·k(x, x) (MATH §11 C5). Never used inside a Gaussian objective.
    """
    floor = 8 * torch.finfo(variance.dtype).eps / 2 * prior
    return variance + (torch.maximum(variance, floor) - variance).detach()
