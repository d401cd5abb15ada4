"""Triangular systems and products with triangles, in the way that is quickest on each device.

T stands for what solving with a Cholesky factor L takes, in the working precision: L itself on a CPU, where
substitution does half the work of a product; L⁻¹ on a GPU, where a triangle saves nothing. Solvers want
contiguous columns and these matrices have contiguous rows: the transposed system has them without a copy, and
is solved twice as fast.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.linalg import solve_triangular
from torch.nn.functional import pad

from duogp.numerics.triangles import inverse_of_lower

#: Rows of a triangular matrix that are multiplied at once: fewer save more products, and each is slower.
BLOCK_ROWS = 200
#: Blocks of a product with itself, and rows from which it is cut: 0.6 of the time of the whole product
#: with 500 rows, where two blocks take 0.75.
GRAM_BLOCKS, GRAM_ROWS = 5, 200


def whiten(K: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """L with L Lᵀ = K in the precision of K, T, φ = L⁻¹k, and the flags of the factorisation.

    K, L and T [..., M, M], k and φ [..., M, n], flags [...].
    """
    L, T, info = factorised(K, k.dtype)
    return L, T, solve(T, k), info


def factorised(K: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """L with L Lᵀ = K in the precision of K, T in that of the work, and the flags of the factorisation.

    Each [..., M, M], flags [...].
    """
    L, info = torch.linalg.cholesky_ex(K)
    return L, (L if substitutes(K) else inverse_of_lower(L)).to(dtype), info


def solve(T: Tensor, k: Tensor) -> Tensor:
    """L⁻¹k = (kᵀL⁻ᵀ)ᵀ, [..., M, n], of T [..., M, M] as `factorised` gives it."""
    return solve_triangular(T.mT, k.mT, upper=True, left=False).mT if substitutes(T) else T @ k


def solve_lower(T: Tensor, B: Tensor) -> Tensor:
    """L⁻¹B for a lower triangular B, and lower triangular itself; each [..., M, M]."""
    return solve_triangular(T, B, upper=False) if substitutes(T) else T @ B


def solve_transposed(T: Tensor, G: Tensor) -> Tensor:
    """L⁻ᵀG = (GᵀL⁻¹)ᵀ, [..., M, n] as G, of T [..., M, M]."""
    return solve_triangular(T, G.mT, upper=False, left=False).mT if substitutes(T) else T.mT @ G


def gradient_of_gram(T: Tensor, P: Tensor) -> Tensor:
    """−L⁻ᵀ Φ(P) L⁻¹ = −((L⁻ᵀΦ(P)ᵀ) L⁻¹)ᵀ for a lower triangular P [..., M, M], which is overwritten."""
    P.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    if substitutes(T):
        right = solve_triangular(T.mT, P.mT, upper=True)
        return solve_triangular(T, right, upper=False, left=False).mT.neg_()
    return (T.mT @ (P @ T)).neg_()


def substitutes(a: Tensor) -> bool:
    """Whether triangular systems of a [..., M, M] are solved by substitution: on a CPU."""
    return not a.is_cuda


def lower_product(L: Tensor, H: Tensor) -> Tensor:
    """L H [..., M, n] for a lower triangular L [..., M, M]: blocks of rows, on a CPU, without the zeros."""
    cuts = _cuts(L)
    if not cuts:
        return L @ H
    return torch.cat([L[..., begin:end, :end] @ H[..., :end, :] for begin, end in cuts], -2)


def upper_product(L: Tensor, H: Tensor) -> Tensor:
    """LᵀH [..., M, n] for a lower triangular L [..., M, M]."""
    cuts = _cuts(L)
    if not cuts:
        return L.mT @ H
    return torch.cat([L[..., begin:, begin:end].mT @ H[..., begin:, :] for begin, end in cuts], -2)


def lower_outer(A: Tensor, B: Tensor) -> Tensor:
    """tril(A Bᵀ) [..., M, M] of [..., M, n]; above the diagonal it is, on a CPU, mostly not computed."""
    cuts = _cuts(A)
    if not cuts:
        return (A @ B.mT).tril_()
    M = A.shape[-2]
    rows = [pad(A[..., begin:end, :] @ B[..., :end, :].mT, (0, M - end)) for begin, end in cuts]
    return torch.cat(rows, -2).tril_()


def gram_of(A: Tensor) -> Tensor:
    """A Aᵀ [..., M, M] of A [..., M, n]; on a CPU one triangle, in blocks of rows, and its mirror image."""
    cuts = _cuts(A, GRAM_BLOCKS if A.shape[-2] >= GRAM_ROWS else 0)
    if not cuts:
        return A @ A.mT
    out = A.new_empty(*A.shape[:-1], A.shape[-2])
    for begin, end in cuts:
        _product_into(out[..., begin:end, :end], A[..., begin:end, :], A[..., :end, :].mT)
        out[..., :begin, begin:end] = out[..., begin:end, :begin].mT
    return out


def outer_below(A: Tensor, B: Tensor) -> Tensor:
    """The lower triangle of A Bᵀ, [..., M, M] of [..., M, n]; entries above the diagonal are undefined."""
    return lower_outer(A, B) if substitutes(A) else A @ B.mT


def lower_outers(like: Tensor, *terms: tuple[Tensor, Tensor, float]) -> Tensor:
    """tril(Σ ± A Bᵀ) of terms (A, B, ±1), summed to the shape of ``like``; on a GPU in one place."""
    in_place = not substitutes(like) and all(X.shape[:-2] == like.shape[:-2] for t in terms for X in t[:2])
    (A, B, sign), *others = terms
    out = outer_below(A, B) if in_place else lower_outer(A, B).sum_to_size(like.shape)
    out = out if sign > 0 else out.neg_()
    for A, B, sign in others:
        if A.shape[-1] == 1 and in_place:
            out.addcmul_(A, B.mT, value=sign)
        elif in_place:
            add_product(out, A, B.mT, sign)
        else:
            out = out.add(lower_outer(A, B).sum_to_size(like.shape), alpha=sign)
    return out.tril_() if in_place else out


def less_upper_product(W: Tensor, L: Tensor, H: Tensor) -> Tensor:
    """W − LᵀH for a lower triangular L [..., M, M]; W and H [..., M, n]."""
    if substitutes(W) or not _same_batch(W, L, H):
        return W - upper_product(L, H)
    flat = (X.flatten(0, -3) for X in (W, L.mT, H))
    return torch.baddbmm(*flat, alpha=-1.0).reshape(W.shape)


def less_lower_product(G: Tensor, L: Tensor, H: Tensor) -> Tensor:
    """G − L H for a lower triangular L, summed to the shape of G, which may be overwritten.

    L [..., M, M], G and H [..., M, n].
    """
    if substitutes(G) or not _same_batch(G, L, H):
        return G - lower_product(L, H).sum_to_size(G.shape)
    add_product(G, L, H, -1.0)
    return G


def less_outer_below(G: Tensor, A: Tensor, B: Tensor) -> Tensor:
    """The lower triangle of G − A Bᵀ; entries above the diagonal are undefined, and G may be overwritten.

    G [..., M, M], A and B [..., M, n].
    """
    if substitutes(G) or not _same_batch(G, A, B):
        return G - outer_below(A, B)
    add_product(G, A, B.mT, -1.0)
    return G


def add_product(to: Tensor, left: Tensor, right: Tensor, sign: float = 1.0) -> None:
    """to ± left right, in place and in one pass over the result: [..., m, n] ± [..., m, k] [..., k, n]."""
    to.flatten(0, -3).baddbmm_(left.flatten(0, -3), right.flatten(0, -3), alpha=sign)


def _same_batch(*matrices: Tensor) -> bool:
    return len({X.shape[:-2] for X in matrices}) == 1


def _product_into(out: Tensor, left: Tensor, right: Tensor) -> None:
    # What stands in `out` is not read; a compiler takes this where it does not take an ``out=``.
    out.flatten(0, -3).baddbmm_(left.flatten(0, -3), right.flatten(0, -3), beta=0.0)


def _cuts(A: Tensor, count: int | None = None) -> list[tuple[int, int]]:
    """Blocks of rows to make one after the other; none where one product is quicker than its parts.

    On a GPU it is, and anywhere where it is small. ``count``: how many, unless they have `BLOCK_ROWS`.
    """
    M = A.shape[-2]
    count = M // BLOCK_ROWS if count is None else count
    count = 0 if A.is_cuda or A.dim() < 3 else count
    return even_cuts(M, count) if count > 1 else []


def even_cuts(M: int, count: int) -> list[tuple[int, int]]:
    """Where so many blocks of M rows, as equal as may be, begin and end."""
    return list(pairwise(M * i // count for i in range(count + 1)))
