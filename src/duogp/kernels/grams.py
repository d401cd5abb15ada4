"""k(Z, Z) and k(Z, x) of a unit-variance kernel of r², and their gradients, for the fused steps.

With W = g ∘ k′ for an incoming gradient g of k(Z, x), a and b the scaled points, r the sums of the rows of W:

    Σⱼ Wᵢⱼ (aᵢ − bⱼ) = rᵢ aᵢ − (W b)ᵢ                                    from which the gradient of Z
    Σᵢⱼ Wᵢⱼ (aᵢ − bⱼ)² = Σᵢ rᵢ aᵢ² − 2 aᵢ (W b)ᵢ + (W b²)ᵢ               from which that of a lengthscale

so that one product of W with [b, b², 1] suffices, unless x has a gradient too. That of k(Z, Z) stands for
W + Wᵀ: two thin products are quicker than this sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from duogp.kernels.distance import centred, within_reach
from duogp.kernels.profiles import Profile, weighted_sums
from duogp.numerics import products


def weighted_differences(W: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Σⱼ Wᵢⱼ (aᵢ − bⱼ) [..., M, d] and Σᵢⱼ Wᵢⱼ (aᵢ − bⱼ)² [..., 1, d], by one product with W."""
    d = b.shape[-1]
    found, weights = weighted_sums(W, torch.cat([b, b.square()], -1))
    sums, squares = found[..., :d], found[..., d:]
    towards = weights * a - sums
    return towards, ((towards - sums) * a + squares).sum(-2, keepdim=True)


def kept_slope(K: Tensor, slope: Tensor, dtype: torch.dtype) -> Tensor:
    """The slope of K for the backward pass, before which K, which it may be, is overwritten on a GPU.

    A gradient in the working precision ``dtype`` needs no more digits of it.
    """
    return slope.to(dtype, copy=slope is K and not products.substitutes(K))


class Scaled(NamedTuple):
    """Inducing points and rows over the lengthscale, float64."""

    points: Tensor
    rows: Tensor
    inverse: Tensor  # of the lengthscale


class StationaryGrams:
    """k(Z, Z) and k(Z, x), forward and backward. It holds shapes and precisions; callers keep tensors."""

    def __init__(self, profile: Profile, z: Tensor, x: Tensor, lengthscale: Tensor) -> None:
        self.profile = profile
        self.shapes = z.shape, x.shape, lengthscale.shape
        self.dtypes = z.dtype, x.dtype, lengthscale.dtype

    def forward(
        self, z: Tensor, x: Tensor, lengthscale: Tensor, jitter: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """k(Z, Z) + jitter I in float64, k(Z, x) in the precision of x, and the tensors for `backward`.

        Z [..., M, d], x [..., n, d], lengthscale [..., 1, d], jitter [...] → [..., M, M] and [..., M, n].
        On a GPU k(Z, Z) may be overwritten.
        """
        scaled = self.scaled(z, x, lengthscale)
        K, K_slope = self.among_points(scaled, jitter)
        K_slope = kept_slope(K, K_slope, x.dtype)
        k, k_slope = self.with_rows(scaled)
        return K, k, [*scaled, K_slope, k_slope]

    def scaled(self, z: Tensor, x: Tensor, lengthscale: Tensor) -> Scaled:
        a, b = centred(z, x)
        inverse = lengthscale.double().reciprocal()
        a, b = within_reach(a * inverse), within_reach(b * inverse)
        if a.shape[:-2] != b.shape[:-2]:
            batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            a, b = (points.expand(*batch, *points.shape[-2:]) for points in (a, b))
        return Scaled(a, b, inverse)

    def among_points(self, scaled: Scaled, jitter: Tensor) -> tuple[Tensor, Tensor]:
        """k(Z, Z) + jitter I in float64, and its slope, each [..., M, M]; jitter [...]."""
        K, slope = self.profile.at(scaled.points, scaled.points, torch.float64)
        # The slope may be the same tensor; on the diagonal it multiplies a difference that is zero.
        K.diagonal(dim1=-2, dim2=-1).add_(jitter.unsqueeze(-1))
        return K, slope

    def with_rows(self, scaled: Scaled) -> tuple[Tensor, Tensor]:
        """k(Z, x) in the precision of x, and its slope, each [..., M, n]."""
        return self.profile.at(scaled.points, scaled.rows, self.dtypes[1])

    def backward(
        self, kept: Sequence[Tensor], g_K: Tensor, g_k: Tensor, *, with_x: bool
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Gradients of Z, x (None without ``with_x``) and the lengthscale, each of the shape of its tensor.

        Of ``g_K`` [..., M, M] and ``g_k`` [..., M, n], which is overwritten; ``kept``: the list of `forward`.
        """
        a, b, inverse, K_slope, k_slope = kept
        z_shape, x_shape, lengthscale_shape = self.shapes
        z_dtype, x_dtype, lengthscale_dtype = self.dtypes
        W = g_k.mul_(k_slope)
        towards, squares = weighted_differences(W, a, b)
        W_zz = K_slope.to(g_K.dtype) * g_K  # no more digits than the gradient has
        from_rows, from_columns = weighted_sums(W_zz, a), weighted_sums(W_zz.mT, a)
        sums, weights = (one + other for one, other in zip(from_rows, from_columns, strict=True))
        among = weights * a - sums
        squares = squares + (among * a).sum(-2, keepdim=True)
        scale = 2.0 * self.profile.slope_scale * inverse
        g_z = (scale * (towards + among)).sum_to_size(z_shape).to(z_dtype)
        g_lengthscale = -(scale * squares).sum_to_size(lengthscale_shape).to(lengthscale_dtype)
        g_x = None
        if with_x:
            sums, weights = weighted_sums(W.mT, a)
            g_x = (scale * (weights * b - sums)).sum_to_size(x_shape).to(x_dtype)
        return g_z, g_x, g_lengthscale
