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

from duogp.bases.marginals import Marginals, Reading
from duogp.fused.whitening import Projection, carry_out, projection_for
from duogp.kernels import Kernel, Scale
from duogp.kernels.grams import StationaryGrams
from duogp.kernels.profiles import Profile
from duogp.kernels.stationary import Stationary, profile_of
from duogp.numerics.factorisation import Numerics


def suits(kernel: Kernel, inducing: Tensor, x: Tensor) -> bool:
    """Whether a kernel is a function of r², times a variance at most, of rows like the points."""
    base = kernel.kernel if isinstance(kernel, Scale) else kernel
    if profile_of(base) is None:
        return False
    assert isinstance(base, Stationary)
    return inducing.shape[-1] == x.shape[-1] == base.dims


def marginals_in_one(
    kernel: Kernel,
    inducing: Tensor,
    x: Tensor,
    mean: Tensor,
    root: Tensor,
    numerics: Numerics,
    *,
    reading: Reading,
) -> Marginals:
    """f(x) under q = N(mean, root rootᵀ), x [R, 1, n, d]; of the variance what will be read."""
    base, variance = kernel, None
    if isinstance(kernel, Scale):
        base, variance = kernel.kernel, kernel.variance().to(x.dtype).unsqueeze(-1)
    projection = projection_for(reading, inducing.shape[-2], x.shape[-2])
    if suits(base, inducing, x):
        assert isinstance(base, Stationary)
        profile = base.profile
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
    if reading == "parts":
        norm, explained = parts
        f = Marginals(mu, prior - norm, explained)
    else:
        f = Marginals(mu, prior, *parts)
    if variance is None:
        return f
    return Marginals(variance.sqrt() * f.mean, variance * f.residual, variance * f.explained)


class _StationaryStep(torch.autograd.Function):
    """Points and lengthscales, and q ↦ what a projection returns, for a kernel k(r²) of unit variance."""

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
        ctx.grams = StationaryGrams(profile, z, x, lengthscale)
        K, k, kernel_kept = ctx.grams.forward(z, x, lengthscale, jitter)
        values, kept = projection.forward(K, k, mean, root)
        ctx.projection, ctx.split = projection, len(kernel_kept)
        ctx.save_for_backward(*kernel_kept, *kept)
        ctx.mark_non_differentiable(values[-1])
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        kernel_kept, kept = ctx.saved_tensors[: ctx.split], ctx.saved_tensors[ctx.split :]
        g_K, g_k, g_mean, g_root = ctx.projection.backward(kept, *gradients[:-1])
        g_z, g_x, g_lengthscale = ctx.grams.backward(kernel_kept, g_K, g_k, with_x=ctx.needs_input_grad[4])
        return None, None, None, g_z, g_x, g_lengthscale, g_mean, g_root
