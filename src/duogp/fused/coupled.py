"""The training step of a coupled basis: marginals and KL as one function of the points and q(u).

A variance that multiplies the kernel is applied at the end: L grows with its root and k(Z, x) with itself, so
φ and the mean grow with its root, variances with itself. With a profile (RBF, Matérn) the kernel matrices are
differentiated here too, and automatic differentiation sees one node between the scaled points and the
marginals.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from duogp.bases.coupled import Coupled
from duogp.bases.marginals import Marginals, Moments, Penalties, Reads, TotalMarginals, VarianceSum
from duogp.fused.projections import Projection, projection_for
from duogp.fused.step import Step
from duogp.kernels import Kernel
from duogp.kernels.grams import StationaryGrams
from duogp.kernels.profiles import Profile
from duogp.kernels.stationary import split_variance, stationary_part
from duogp.numerics.factorisation import Numerics
from duogp.numerics.tensor_core_products import among, sharing
from duogp.variational import CholeskyQ


def find(basis: Coupled, x: Tensor, reads: Reads, with_omega: bool) -> Step | None:
    """The step for a free S, whatever the kernel."""
    q = basis.q
    if type(q) is not CholeskyQ:
        return None

    def step(x: Tensor, numerics: Numerics) -> tuple[Moments, Penalties]:
        root = q.root()
        f = coupled_moments(basis.kernel, basis.inducing, x, q.mean, root, numerics, reads=reads)
        return f, Penalties(q.penalty(root).sum(-1))

    return step


def coupled_moments(
    kernel: Kernel,
    inducing: Tensor,
    x: Tensor,
    mean: Tensor,
    root: Tensor,
    numerics: Numerics,
    *,
    reads: Reads,
    projection: Projection | None = None,
) -> Moments:
    """f(x), x [R, 1, n, d], under q = N(mean, root rootᵀ) on the points Z [R, latent or 1, M, d].

    `Marginals`, `TotalMarginals` or `VarianceSum`, by ``reads``. ``projection``: another than that of least
    work for a dense S.
    """
    base, variance = split_variance(kernel)
    n = x.shape[-2]
    projection = projection_for(reads, inducing.shape[-2], n) if projection is None else projection
    stationary = stationary_part(base, inducing, x)
    if stationary is not None:
        lengthscale = stationary.lengthscale().unsqueeze(-2)
        mu, *values, info = _StationaryStep.apply(
            projection, stationary.profile, numerics.jitter, inducing, x, lengthscale, mean, root
        )
        prior = x.new_ones(()).expand_as(mu)
    else:  # also points of another kind than rows (the generalised RBF)
        z = inducing.double()
        K, _ = numerics.jittered(base(z, z))
        mu, *values, info = projection(K, base(inducing, x), mean, root)
        prior = base.diag(x)
    numerics.note(info)
    s = x.new_ones(1, 1) if variance is None else variance.to(x.dtype)
    s_row = s.unsqueeze(-1)
    mu = mu if variance is None else s_row.sqrt() * mu
    if reads == "parts":
        norm, explained = values
        return Marginals(mu, s_row * (prior - norm), s_row * explained)
    (change,) = values
    if reads == "variance":
        return TotalMarginals(mu, s_row * (prior + change))
    if change.dim() == mu.dim():  # of single rows, where that is less work
        change = change.sum(-1)
    return VarianceSum(mu, s * (prior.sum(-1) + change))


class _StationaryStep(torch.autograd.Function):
    """(Z, x, lengthscale, m, R) ↦ the values of a projection, for a kernel k(r²) of unit variance."""

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
        with sharing(k) as known:
            values, kept = projection.forward(K, k, mean, root)
        ctx.known = among(known, kept)
        ctx.projection, ctx.split = projection, len(kernel_kept)
        ctx.save_for_backward(*kernel_kept, *kept)
        ctx.mark_non_differentiable(values[-1])
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        kernel_kept, kept = ctx.saved_tensors[: ctx.split], ctx.saved_tensors[ctx.split :]
        known, ctx.known = ctx.known, None  # autograd does not release it
        with sharing(gradients[0], known):
            g_K, g_k, g_mean, g_root = ctx.projection.backward(kept, *gradients[:-1])
        g_z, g_x, g_lengthscale = ctx.grams.backward(kernel_kept, g_K, g_k, with_x=ctx.needs_input_grad[4])
        return None, None, None, g_z, g_x, g_lengthscale, g_mean, g_root
