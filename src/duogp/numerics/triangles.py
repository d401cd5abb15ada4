"""The inverse of a lower triangular matrix; on a GPU by matrix products.

Substitution is sequential in rows and leaves a GPU idle: it took a quarter of a training step with 1,000
points. From the diagonal outwards,

    [A 0]⁻¹   [   A⁻¹     0 ]
    [B C]   = [−C⁻¹BA⁻¹  C⁻¹]

for all blocks of one size at once, ten products take a third of the time (H200, float64).
"""

from __future__ import annotations

from collections.abc import Sequence
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
    return _doubled(L)[0]


class _Doubling(torch.autograd.Function):
    """L ↦ X = L⁻¹, whose blocks are written in place: its backward is a formula, gL = −tril(Xᵀ gX Xᵀ)."""

    @staticmethod
    def forward(ctx: Any, L: Tensor) -> Tensor:
        (inverse,) = _doubled(L)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return -torch.tril(inverse.mT @ g @ inverse.mT)


def inverses_of_lower(*blocks: Tensor) -> list[Tensor]:
    """L⁻¹ for each of some lower triangular matrices [..., M, M] of the same batch, whose M may differ.

    On a GPU all are made at once. Without gradients.
    """
    if blocks[0].is_cuda and max(L.shape[-1] for L in blocks) > 2 * LARGEST_LEAF:
        return _doubled(*blocks)
    return [by_substitution(L) for L in blocks]


def _doubled(*blocks: Tensor) -> list[Tensor]:
    """The inverses by doubling; every block is padded with I to the same multiple of the leaves."""
    size, count = max(L.shape[-1] for L in blocks), 1
    while size > LARGEST_LEAF:
        size, count = -(-size // 2), 2 * count
    padded = size * count
    L = _padded(blocks, padded)
    inverse = torch.zeros_like(L, memory_format=torch.contiguous_format)
    _diagonal_blocks(inverse, size).copy_(by_substitution(_diagonal_blocks(L, size).contiguous()))
    while size < padded:
        of_L, done = _diagonal_blocks(L, 2 * size), _diagonal_blocks(inverse, 2 * size)
        B, A_inv, C_inv = of_L[..., size:, :size], done[..., :size, :size], done[..., size:, size:]
        done[..., size:, :size] = minus_product(C_inv, B @ A_inv)
        size *= 2
    return [inverse[i, ..., : L.shape[-1], : L.shape[-1]] for i, L in enumerate(blocks)]


def _padded(blocks: Sequence[Tensor], size: int) -> Tensor:
    """Blocks [..., M, M] and, below each on the diagonal, I: [blocks, ..., size, size].

    In memory ordered as that of the blocks, or theirs. What stands above the diagonal in a column of I is
    undefined.
    """
    first = blocks[0]
    if len(blocks) == 1 and first.shape[-1] == size:
        return first.unsqueeze(0)
    padded = first.new_empty(len(blocks), *first.shape[:-2], size, size)
    padded = padded.mT if first.stride(-2) == 1 else padded
    for whole, L in zip(padded, blocks, strict=True):
        M = L.shape[-1]
        whole[..., :M, :M] = L
        if size > M:
            whole[..., M:, :] = 0.0
            whole.diagonal(dim1=-2, dim2=-1)[..., M:] = 1.0
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
