"""The training step of ORTH on a GPU where only the sum of the variances is read, one block after the other.

Of the factorisation of Z ∪ O (see `two_block_projections`) the first block is all that the variance needs.
With T_u = L_u⁻¹ of it:

    φ = T_u k_u    W = Rᵀφ    Σt = ‖W‖² − ‖φ‖²    G = R W − φ
    gR = 2 gt tril(φWᵀ)    gk_u = 2 gt T_uᵀG + …    P_u = 2 gt tril(Gφᵀ)

where gt, the gradient of the sum, is one number: all but the product with it is made in the forward pass,
beside the factorisation of the second block, which leaves a GPU idle. So is what only the second block needs
beside that of the first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from duogp.fused.two_block_projections import gradient_of_blocks
from duogp.kernels.grams import StationaryGrams, kept_slope
from duogp.kernels.profiles import Profile
from duogp.numerics import products
from duogp.numerics.products import (
    factorised,
    lower_outer,
    lower_product,
    second_block,
    solve,
    solve_transposed,
    upper_product,
)
from duogp.numerics.streams import Beside
from duogp.numerics.tensor_core_products import among, sharing

#: Points of the first block from which the second is factorised by itself: with fewer a factorisation of
#: both takes less time than two.
LARGE = 700


def suits(x: Tensor, size: int) -> bool:
    """Whether a first block of so many points is factorised before the second."""
    return not products.substitutes(x) and size >= LARGE


class OrthogonalStep(torch.autograd.Function):
    """(Z ∪ O, x, lengthscale, m, R) ↦ φᵀm over all points [..., n], Σt [...], flags; unit variance.

    Z ∪ O [..., N, d], x [..., n, d], m [..., N], R [..., M, M]: q has the batch of the points.
    """

    @staticmethod
    def forward(
        ctx: Any,
        profile: Profile,
        jitter: Tensor,
        z: Tensor,
        x: Tensor,
        lengthscale: Tensor,
        mean: Tensor,
        root: Tensor,
    ) -> tuple[Tensor, ...]:
        M = root.shape[-1]
        ctx.grams = grams = StationaryGrams(profile, z, x, lengthscale)
        scaled = grams.scaled(z, x, lengthscale)
        K_u, _ = grams.among_points(scaled.first(M), jitter)
        with Beside(x.device, number=3) as others:
            K, slope = grams.among_points(scaled, jitter)
            slope = kept_slope(K, slope, x.dtype)
            k, k_slope = grams.with_rows(scaled)
        L_u, T_u, info = factorised(K_u, K_u.dtype)
        others.join()
        of_first: list[Tensor] = []
        with sharing(k) as known:
            second = second_block(
                K, L_u, T_u, k.dtype, number=4,
                meanwhile=lambda: of_first.extend(_by_first_block(T_u.to(k.dtype), k[..., :M, :], root)),
            )  # fmt: skip
            T = second.T
            total, of_k, P, of_root = of_first
            a = solve_transposed(T, mean.unsqueeze(-1))
            mu = (a.mT @ k).squeeze(-2)
        kept = [T, k, a, mean, of_k, P, of_root]
        ctx.known = among(known, kept)
        ctx.save_for_backward(*scaled, slope, k_slope, *kept)
        info = info | second.info
        ctx.mark_non_differentiable(info)
        return mu, total, info

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        kernel_kept, (T, k, a, mean, of_k, P, of_root) = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
        g_mean, g_total, _ = gradients
        grams, with_x = ctx.grams, ctx.needs_input_grad[3]
        known, ctx.known = ctx.known, None  # autograd does not release it
        twice = (2.0 * g_total)[..., None, None]
        with Beside(k.device, number=3) as side:
            g_k = a * g_mean.unsqueeze(-2)
            g_k[..., : P.shape[-1], :].addcmul_(of_k, twice)
            of_rows = grams.of_rows(kernel_kept, g_k)
            g_root = of_root * twice
        with sharing(k, known):
            g_m = solve(T, k @ g_mean.unsqueeze(-1)).squeeze(-1)
            g_K = gradient_of_blocks(T, P * twice, mean, g_m)
        of_points = grams.of_points(kernel_kept, g_K)
        side.join()
        g_z, g_x, g_lengthscale = grams.joined(kernel_kept, of_rows, of_points, with_x=with_x)
        return None, None, g_z, g_x, g_lengthscale, g_m, g_root


def _by_first_block(T: Tensor, k: Tensor, root: Tensor) -> list[Tensor]:
    """Σ t, T_uᵀG, tril(Gφᵀ) and tril(φWᵀ)."""
    phi = solve(T, k)
    W = upper_product(root, phi)
    total = W.square().sum((-2, -1)) - phi.square().sum((-2, -1))
    G = lower_product(root, W).sub_(phi)
    return [total, solve_transposed(T, G), lower_outer(G, phi), lower_outer(phi, W)]
