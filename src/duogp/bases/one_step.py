"""What a training step asks of a coupled basis, as one function of the points and q(u).

A variance that multiplies the kernel is left to the end: L and k(Z, x) grow with its root and itself, so
φ grows with its root, the mean with its root and the change of the variance with itself. With a profile
(RBF, Matérn) the kernel matrices are differentiated here too, and automatic differentiation sees one node
between the scaled points and the marginals.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from duogp.bases.marginals import Marginals
from duogp.kernels import Kernel, Scale
from duogp.kernels.distance import centred
from duogp.kernels.profiles import Profile, weighted_sums
from duogp.kernels.stationary import Stationary
from duogp.linalg import Numerics
from duogp.whitening import InParts, Projection, carry_out, whole


def marginals_in_one(
    kernel: Kernel,
    inducing: Tensor,
    x: Tensor,
    mean: Tensor,
    root: Tensor,
    numerics: Numerics,
    *,
    in_parts: bool,
) -> Marginals:
    """f(x) under q = N(mean, root rootᵀ), x [R, 1, n, d].

    Not ``in_parts``: the parts of the variance are any that have the right sum.
    """
    base, variance = kernel, None
    if isinstance(kernel, Scale):
        base, variance = kernel.kernel, kernel.variance().to(x.dtype).unsqueeze(-1)
    projection = InParts() if in_parts else whole(inducing.shape[-2], x.shape[-2])
    profile = base.profile if isinstance(base, Stationary) else None
    alike = inducing.shape[-1] == x.shape[-1] == getattr(base, "dims", None)
    if isinstance(base, Stationary) and profile is not None and alike:
        lengthscale = base.lengthscale().unsqueeze(-2)
        mu, *parts, info = _StationaryStep.apply(
            projection, profile, numerics.jitter, inducing, x, lengthscale, mean, root
        )
        prior = x.new_ones(()).expand_as(parts[0])
    else:  # also points of another kind than rows (the generalised RBF), and whatever the kernel refuses
        z = inducing.double()
        K, _ = numerics.jittered(base(z, z))
        mu, *parts, info = carry_out(projection, K, base(inducing, x), mean, root)
        prior = base.diag(x)
    numerics.note(info)
    if in_parts:
        norm, explained = parts
        f = Marginals(mu, prior - norm, explained)
    else:
        f = Marginals(mu, prior, *parts)
    if variance is None:
        return f
    return Marginals(variance.sqrt() * f.mean, variance * f.residual, variance * f.explained)


class _StationaryStep(torch.autograd.Function):
    """Points and lengthscales, and q ↦ what a projection returns, for a kernel k(r²) of unit variance.

    With W = g ∘ k′ for an incoming gradient g of k(Z, x), a and b the scaled points, r and c the sums of the
    rows and columns of W:

        Σⱼ Wᵢⱼ (aᵢ − bⱼ) = rᵢ aᵢ − (W b)ᵢ                       from which the gradient of Z
        Σᵢⱼ Wᵢⱼ (aᵢ − bⱼ)² = Σᵢ rᵢ aᵢ² − 2 Σᵢ aᵢ (W b)ᵢ + Σⱼ cⱼ bⱼ²    from which that of a lengthscale

    so that one product with W does, unless x has a gradient too. That of k(Z, Z) is made symmetric first.
    """

    @staticmethod
    def forward(
        ctx: Any,
        projection: Projection,
        profile: Profile,
        jitter: Tensor,
        z: Tensor,
        x: Tensor,
        lengthscale: Tensor,
        mean: Tensor,
        root: Tensor,
    ) -> tuple[Tensor, ...]:
        a, b = centred(z, x)
        inverse = lengthscale.double().reciprocal()
        a, b = a * inverse, b * inverse
        if a.shape[:-2] != b.shape[:-2]:
            batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            a, b = (points.expand(*batch, *points.shape[-2:]) for points in (a, b))
        K, K_slope = profile.at(a, a, torch.float64)
        # The slope may be the same tensor; on the diagonal it multiplies a difference that is zero.
        K.diagonal(dim1=-2, dim2=-1).add_(jitter.unsqueeze(-1))
        k, k_slope = profile.at(a, b, x.dtype)
        values, kept = projection.forward(K, k, mean, root)
        ctx.projection, ctx.profile, ctx.shapes = projection, profile, (z.shape, x.shape, lengthscale.shape)
        ctx.dtypes = z.dtype, lengthscale.dtype
        ctx.save_for_backward(a, b, inverse, K_slope, k_slope, *kept)
        ctx.mark_non_differentiable(values[-1])
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        a, b, inverse, K_slope, k_slope, *kept = ctx.saved_tensors
        z_shape, x_shape, lengthscale_shape = ctx.shapes
        z_dtype, lengthscale_dtype = ctx.dtypes
        g_K, g_k, g_mean, g_root = ctx.projection.backward(kept, *gradients[:-1])
        W = g_k.mul_(k_slope)
        sums, weights = weighted_sums(W, b)
        towards = weights * a - sums
        squares = ((towards - sums) * a).sum(-2) + (W.sum(-2).double().unsqueeze(-2) @ b.square()).squeeze(-2)
        W_zz = K_slope * g_K
        W_zz = W_zz + W_zz.mT
        sums, weights = weighted_sums(W_zz, a)
        among = weights * a - sums
        squares = squares + (among * a).sum(-2)
        scale = 2.0 * ctx.profile.slope_scale * inverse
        g_z = (scale * (towards + among)).sum_to_size(z_shape).to(z_dtype)
        g_lengthscale = -(scale * squares.unsqueeze(-2)).sum_to_size(lengthscale_shape).to(lengthscale_dtype)
        g_x = None
        if ctx.needs_input_grad[4]:
            sums, weights = weighted_sums(W.mT, a)
            g_x = (scale * (weights * b - sums)).sum_to_size(x_shape).to(W.dtype)
        return None, None, None, g_z, g_x, g_lengthscale, g_mean, g_root
