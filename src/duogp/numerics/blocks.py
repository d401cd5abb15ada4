"""Triangular work on one matrix by blocks of rows, into given memory: for steps on a CPU.

A triangular solve runs at half the rate of a matrix product there. With the inverses of the diagonal blocks
it is products alone, and a product with a triangle skips what is zero. All matrices are [rows, columns],
without leading dimensions. ``cuts``: where blocks begin and end, from `cuts_of`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from duogp.numerics.products import even_cuts

#: Rows of a block: fewer save more work, and their products are slower.
ROWS = 100

Cuts = list[tuple[int, int]]


def cuts_of(M: int, rows: int = ROWS) -> Cuts:
    """Blocks of about so many rows, at least one."""
    return even_cuts(M, max(1, round(M / rows)))


class LowerTriangle:
    """A lower triangular L [M, M] in the working precision, with the inverses of its diagonal blocks."""

    def __init__(self, L: Tensor, dtype: torch.dtype, cuts: Cuts) -> None:
        self.L, self.cuts = L.to(dtype), cuts
        self.half_log_det = L.diagonal().log().sum()  # in the precision of L
        eye = torch.eye(max(end - begin for begin, end in cuts), dtype=L.dtype)
        self.inverses = [
            solve_triangular(L[i:j, i:j], eye[: j - i, : j - i], upper=False).to(dtype) for i, j in cuts
        ]

    def leading(self, count: int) -> LowerTriangle:
        """The triangle of the first so many blocks; nothing is copied, its determinant is not known."""
        out = object.__new__(LowerTriangle)
        M = self.cuts[count - 1][1]
        out.L, out.cuts, out.inverses = self.L[:M, :M], self.cuts[:count], self.inverses[:count]
        return out

    def solve(self, B: Tensor, out: Tensor) -> Tensor:
        """L⁻¹B; B is overwritten, and ``out`` other memory."""
        for (i, j), inverse in zip(self.cuts, self.inverses, strict=True):
            if i:
                B[i:j].addmm_(self.L[i:j, :i], out[:i], alpha=-1.0)
            torch.mm(inverse, B[i:j], out=out[i:j])
        return out

    def solve_transposed(self, G: Tensor, out: Tensor) -> Tensor:
        """L⁻ᵀG; G is overwritten, and ``out`` other memory."""
        M = self.cuts[-1][1]
        for (i, j), inverse in zip(self.cuts[::-1], self.inverses[::-1], strict=True):
            if j < M:
                G[i:j].addmm_(self.L[j:, i:j].mT, out[j:], alpha=-1.0)
            torch.mm(inverse.mT, G[i:j], out=out[i:j])
        return out

    def gradient_of_gram(self, P: Tensor, out: Tensor) -> Tensor:
        """L⁻ᵀ P L⁻¹ for a lower triangular P, which is overwritten; ``out`` is other memory."""
        out.zero_()
        done: list[tuple[int, int]] = []
        for (i, j), inverse in zip(self.cuts[::-1], self.inverses[::-1], strict=True):
            for k, end in done:  # rows below this block of columns
                P[k:end, i:j].addmm_(out[k:end, j:end], self.L[j:end, i:j], alpha=-1.0)
            torch.mm(P[i:, i:j], inverse, out=out[i:, i:j])
            done.append((i, j))
        return self.solve_transposed(out, P)


def lower_product(L: Tensor, H: Tensor, out: Tensor, cuts: Cuts) -> Tensor:
    """L H for a lower triangular L."""
    for i, j in cuts:
        torch.mm(L[i:j, :j], H[:j], out=out[i:j])
    return out


def upper_product(L: Tensor, H: Tensor, out: Tensor, cuts: Cuts) -> Tensor:
    """LᵀH for a lower triangular L."""
    for i, j in cuts:
        torch.mm(L[i:, i:j].mT, H[i:], out=out[i:j])
    return out


def product_with_lower(A: Tensor, L: Tensor, out: Tensor, cuts: Cuts) -> Tensor:
    """A L for a lower triangular L."""
    for i, j in cuts:
        torch.mm(A[:, i:], L[i:, i:j], out=out[:, i:j])
    return out


def lower_outer(A: Tensor, B: Tensor, out: Tensor, cuts: Cuts) -> Tensor:
    """A Bᵀ on and below the blocks of the diagonal; what stands above them in ``out`` stays."""
    for i, j in cuts:
        torch.mm(A[i:j], B[:j].mT, out=out[i:j, :j])
    return out


def add_lower_product(to: Tensor, L: Tensor, H: Tensor, cuts: Cuts, scale: float = 1.0) -> None:
    """to + scale · L H on and below the blocks of the diagonal, in place, for a lower triangular L."""
    for i, j in cuts:
        to[i:j, :j].addmm_(L[i:j, :j], H[:j, :j], alpha=scale)


def gram(A: Tensor, out: Tensor, cuts: Cuts) -> Tensor:
    """A Aᵀ: one triangle by products, its mirror image copied."""
    lower_outer(A, A, out, cuts)
    return mirror(out, cuts)


def gram_of_lower(L: Tensor, out: Tensor, cuts: Cuts) -> Tensor:
    """L Lᵀ for a lower triangular L."""
    for i, j in cuts:
        torch.mm(L[i:j, :j], L[:j, :j].mT, out=out[i:j, :j])
    return mirror(out, cuts)


def mirror(A: Tensor, cuts: Cuts) -> Tensor:
    """A with the blocks below the diagonal copied above it, in place."""
    for i, j in cuts:
        if i:
            A[:i, i:j] = A[i:j, :i].mT
    return A
