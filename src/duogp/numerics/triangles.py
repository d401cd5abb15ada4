"""The inverse of a lower triangular matrix; on a GPU by matrix products.

Substitution is sequential in rows and leaves a GPU idle: it took a quarter of a training step with 1,000
points. From the diagonal outwards,

    [A 0]⁻¹   [   A⁻¹     0 ]
    [B C]   = [−C⁻¹BA⁻¹  C⁻¹]

for all blocks of one size at once, ten products take a third of the time (H200, float64).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: The largest size of the diagonal blocks that are inverted by substitution.
LARGEST_LEAF = 32


def inverse_of_lower(L: Tensor) -> Tensor:
    """L⁻¹ for a lower triangular L [..., M, M]."""
    if L.is_cuda and L.shape[-1] > 2 * LARGEST_LEAF:
        return by_doubling(L)
    return by_substitution(L)


def by_substitution(L: Tensor) -> Tensor:
    """L⁻¹ [..., M, M] by a triangular solve."""
    eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    return torch.linalg.solve_triangular(L, eye.expand_as(L), upper=False)


def by_doubling(L: Tensor) -> Tensor:
    """L⁻¹ [..., M, M] from inverses of diagonal blocks, doubled until one is left; differentiable once."""
    if torch.is_grad_enabled() and L.requires_grad:
        return _Doubling.apply(L)
    return _doubled(L)


class _Doubling(torch.autograd.Function):
    """L ↦ X = L⁻¹, whose blocks are written in place: its backward is a formula, gL = −tril(Xᵀ gX Xᵀ)."""

    @staticmethod
    def forward(ctx: Any, L: Tensor) -> Tensor:
        inverse = _doubled(L)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return -torch.tril(inverse.mT @ g @ inverse.mT)


def _doubled(L: Tensor) -> Tensor:
    """L⁻¹ by doubling; L is padded with I to a multiple of the leaves."""
    M = L.shape[-1]
    size, count = M, 1
    while size > LARGEST_LEAF:
        size, count = -(-size // 2), 2 * count
    padded = size * count
    if padded > M:
        L = _padded(L, padded)
    inverse = torch.zeros_like(L, memory_format=torch.contiguous_format)
    _diagonal_blocks(inverse, size).copy_(by_substitution(_diagonal_blocks(L, size).contiguous()))
    while size < padded:
        of_L, done = _diagonal_blocks(L, 2 * size), _diagonal_blocks(inverse, 2 * size)
        B, A_inv, C_inv = of_L[..., size:, :size], done[..., :size, :size], done[..., size:, size:]
        done[..., size:, :size] = minus_product(C_inv, B @ A_inv)
        size *= 2
    return inverse[..., :M, :M]


def _padded(L: Tensor, size: int) -> Tensor:
    """L [..., M, M] and, below it on the diagonal, I: [..., size, size], in memory ordered as that of L."""
    M, by_columns = L.shape[-1], L.stride(-2) == 1
    padded = L.new_zeros(*L.shape[:-2], size, size)
    padded = padded.mT if by_columns else padded
    padded[..., :M, :M] = L
    padded.diagonal(dim1=-2, dim2=-1)[..., M:] = 1.0
    return padded


def minus_product(A: Tensor, B: Tensor) -> Tensor:
    """−A B [..., m, n] in one pass over the result: [..., m, k] [..., k, n], of the same batch."""
    A, flat = A.reshape(-1, *A.shape[-2:]), B.reshape(-1, *B.shape[-2:])
    found = flat.new_empty(len(flat), A.shape[-2], B.shape[-1])
    return found.baddbmm_(A, flat, beta=0.0, alpha=-1.0).view(*B.shape[:-2], *found.shape[-2:])


def _diagonal_blocks(A: Tensor, size: int) -> Tensor:
    """A view [..., count, size, size] of the blocks on the diagonal of [..., M, M], M = count · size."""
    cells = A.unflatten(-1, (-1, size)).unflatten(-3, (-1, size))  # [..., count, size, count, size]
    return cells.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
