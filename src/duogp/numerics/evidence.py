"""The log density of a Gaussian vector, log N(y | 0, C): its backward needs C⁻¹ and no derivative of a root.

With α = C⁻¹y the gradients are ½(ααᵀ − C⁻¹) of C and −α of y. C is K plus a diagonal. A Cholesky factor costs
n³/3, the inverse from it 2n³/3; the derivatives of L and L⁻¹ (`factorisation.Factor`) cost eight times more.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from duogp.numerics.triangles import inverse_of_lower

LOG_2PI = math.log(2 * math.pi)


def log_normal(K: Tensor, diagonal: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """log N(y | 0, K + diag(diagonal)) [*b], and the flags (0: success) of the factorisation.

    K [*b, n, n], diagonal and y [*b, n] in float64; leading dimensions broadcast. NaN where it failed.
    """
    return _LogNormal.apply(K, diagonal, y)


class _LogNormal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, K: Tensor, diagonal: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        shape = torch.broadcast_shapes(K.shape[:-2], diagonal.shape[:-1])
        C = K.expand(*shape, *K.shape[-2:]).clone(memory_format=torch.contiguous_format)
        C.diagonal(dim1=-2, dim2=-1).add_(diagonal)
        L, info = torch.linalg.cholesky_ex(C)
        white = torch.linalg.solve_triangular(L, y.unsqueeze(-1), upper=False).squeeze(-1)
        half_log_det = L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        value = -0.5 * white.square().sum(-1) - half_log_det - 0.5 * y.shape[-1] * LOG_2PI
        ctx.save_for_backward(L, white, info)
        ctx.shapes = K.shape, diagonal.shape, y.shape
        ctx.mark_non_differentiable(info)
        return torch.where(info == 0, value, torch.nan), info

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor, _info: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        L, white, info = ctx.saved_tensors
        of_K, of_diagonal, of_y = ctx.shapes
        inverse, alpha = _inverse(L, white, info)
        # One C may serve several y.
        batch = (*inverse.shape[:-2], 1)
        own = g.expand(white.shape[:-1]).unsqueeze(-1)
        gC = inverse.mul_(-0.5 * own.sum_to_size(batch).unsqueeze(-1))
        scaled = 0.5 * own * alpha
        if alpha.shape[:-1] == inverse.shape[:-2]:
            n = alpha.shape[-1]
            gC.view(-1, n, n).baddbmm_(scaled.reshape(-1, n, 1), alpha.reshape(-1, 1, n))
        else:
            gC = gC + (scaled.unsqueeze(-1) * alpha.unsqueeze(-2)).sum_to_size(gC.shape)
        of_C = gC.diagonal(dim1=-2, dim2=-1).sum_to_size(of_diagonal)
        return gC.sum_to_size(of_K), of_C, (-own * alpha).sum_to_size(of_y)


def _inverse(L: Tensor, white: Tensor, info: Tensor) -> tuple[Tensor, Tensor]:
    """C⁻¹ and C⁻¹y from L and L⁻¹y."""
    if L.is_cuda:  # LAPACK's routine asks the host there
        L_inv = inverse_of_lower(L)
        return L_inv.mT @ L_inv, (white.unsqueeze(-2) @ L_inv).squeeze(-2)
    if bool((info != 0).any()):  # the gradient means nothing; a root with zeros would be an error
        L = torch.where((info == 0)[..., None, None], L, torch.eye(L.shape[-1], dtype=L.dtype))
    return torch.cholesky_inverse(L), torch.linalg.solve_triangular(
        L.mT, white.unsqueeze(-1), upper=True
    ).squeeze(-1)
