"""Triangular systems and products with triangles, in the way that is quickest on each device.

T stands for what solving with a Cholesky factor L takes, in the working precision: L itself on a CPU, where
substitution does half the work of a product; L⁻¹ on a GPU, where substitution is slow and products are quick,
large ones in float32 on its tensor cores (`tensor_core_products`). Solvers want contiguous columns and these
matrices have contiguous rows: the transposed system has them without a copy, and is solved twice as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import solve_triangular
from torch.nn.functional import pad

from duogp.numerics import tensor_core_products as tensor_cores
from duogp.numerics.streams import Beside
from duogp.numerics.tensor_core_products import Shape
from duogp.numerics.triangles import inverse_of_lower, minus_product

#: Rows of a triangular matrix that are multiplied at once: fewer save more products, and each is slower.
BLOCK_ROWS = 200
#: Blocks of a product with itself, and rows from which it is cut: 0.6 of the time of the whole product
#: with 500 rows, where two blocks take 0.75.
GRAM_BLOCKS, GRAM_ROWS = 5, 200
#: Rows from which a weighed sum of rows is made of pieces on a GPU, and rows of a piece, at most.
PIECED, PIECE = 1400, 128
#: Points from which two matrices that are factorised side by side are factorised in halves.
HALVED = 1400


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
    L, info = cholesky(K)
    return L, (L if substitutes(K) else inverse_of_lower(L)).to(dtype), info


def cholesky(K: Tensor, *, in_place: bool = False) -> tuple[Tensor, Tensor]:
    """L with L Lᵀ = K [..., M, M], and the flags of the factorisation [...].

    On a GPU it wants contiguous columns: those of the transpose, the same matrix, it takes as they are;
    ``in_place``: K is overwritten there.
    """
    if substitutes(K):
        return torch.linalg.cholesky_ex(K)
    L = K.mT
    if not in_place:
        return torch.linalg.cholesky_ex(L)
    info = torch.empty(K.shape[:-2], dtype=torch.int32, device=K.device)
    return torch.linalg.cholesky_ex(L, out=(L, info))


class Halves(NamedTuple):
    """A Cholesky factor L [..., N, N] as steps read it."""

    diagonal: Tensor  # of L, in the precision of the factorisation
    L: Tensor | None  # in the working precision, where it was asked for
    T: Tensor  # as `factorised` gives it
    info: Tensor


class InHalves:
    """What `factorised` gives of K [..., N, N], in two parts: quicker on a GPU where two are large.

    The factorisation of 1,000 points leaves most of an H200 free: two take 0.49 ms, one 0.44. That of 2,000
    does not: two take 1.49 ms, one 0.94. With K = [A ·; B C], A = L₁L₁ᵀ: L₂₁ = B L₁⁻ᵀ, L₂L₂ᵀ = C − L₂₁L₂₁ᵀ,
    and the inverse has −L₂⁻¹L₂₁L₁⁻¹ below L₁⁻¹. The constructor ends where L₂ is next.

    K may be overwritten, after a call of ``before_overwriting``.
    """

    def __init__(
        self, K: Tensor, dtype: torch.dtype, before_overwriting: Callable[[], None] = lambda: None
    ) -> None:
        self._K, self._dtype, N = K, dtype, K.shape[-1]
        #: Whether there is a second part, L₂.
        self.halved = N >= HALVED and not substitutes(K)
        self._half = N // 2 if self.halved else N
        M = self._half
        self._first, self._T_first, self._info = factorised(K[..., :M, :M], K.dtype if self.halved else dtype)
        if self.halved:
            before_overwriting()
            self._below = self._below_first()
            add_product(K[..., M:, M:], self._below, self._below.mT, -1.0)

    def _below_first(self) -> Tensor:
        """L₂₁, by L₁⁻¹, which has the condition of L₁ times the error of substitution.

        It is refined once where the working precision is that of K; in a lower one that error is far below
        its own.
        """
        K, M, L, T = self._K, self._half, self._first, self._T_first
        below = K[..., M:, :M] @ T.mT
        if self._dtype == K.dtype:
            missing = K[..., M:, :M].clone()
            add_product(missing, below, L.mT, -1.0)
            add_product(below, missing, T.mT, 1.0)
        return below

    def finish(self, *, with_L: bool = True, number: int = 2) -> Halves:
        """All of it; ``number``: of a stream for what is made beside the factorisation of the second part."""
        first, dtype = self._first, self._dtype
        if not self.halved:
            diagonal = first.diagonal(dim1=-2, dim2=-1)
            return Halves(diagonal, first.to(dtype) if with_L else None, self._T_first, self._info)
        K, M, below, T_first = self._K, self._half, self._below, self._T_first
        with Beside(K.device, number) as side:
            T = K.new_zeros(K.shape, dtype=dtype)
            T[..., :M, :M] = T_first
            between = below @ T_first
        second, T_second, info = factorised(K[..., M:, M:], K.dtype)
        side.join()
        T[..., M:, M:] = T_second
        T[..., M:, :M] = minus_product(T_second, between)
        diagonal = torch.cat([X.diagonal(dim1=-2, dim2=-1) for X in (first, second)], -1)
        L = None
        if with_L:
            L = K.new_zeros(K.shape, dtype=dtype)
            L[..., :M, :M], L[..., M:, :M], L[..., M:, M:] = first, below, second
        return Halves(diagonal, L, T, self._info | info)


def multiply(
    A: Tensor,
    B: Tensor,
    *,
    left: Shape = "full",
    right: Shape = "full",
    lower: bool = False,
    sign: float = 1.0,
) -> Tensor:
    """± A B [..., m, n], on tensor cores where that is quicker; ``lower``: only its lower triangle.

    The other half of a factor that is said to be a triangle holds zeros.
    """
    if tensor_cores.suits(A, B):
        return tensor_cores.product(A, B, left=left, right=right, lower=lower, sign=sign)
    found = (A @ B).tril_() if lower else A @ B
    return found if sign > 0 else found.neg_()


def solve(T: Tensor, k: Tensor) -> Tensor:
    """L⁻¹k = (kᵀL⁻ᵀ)ᵀ, [..., M, n], of T [..., M, M] as `factorised` gives it."""
    if not substitutes(T):
        return multiply(T, k, left="lower")
    return solve_triangular(T.mT, k.mT, upper=True, left=False).mT


def solve_lower(T: Tensor, B: Tensor) -> Tensor:
    """L⁻¹B for a lower triangular B, and lower triangular itself; each [..., M, M]."""
    if not substitutes(T):
        return multiply(T, B, left="lower", right="lower")
    return solve_triangular(T, B, upper=False)


def solve_transposed(T: Tensor, G: Tensor) -> Tensor:
    """L⁻ᵀG = (GᵀL⁻¹)ᵀ, [..., M, n] as G, of T [..., M, M]."""
    if not substitutes(T):
        return multiply(T.mT, G, left="upper")
    return solve_triangular(T, G.mT, upper=False, left=False).mT


def gradient_of_gram(T: Tensor, P: Tensor) -> Tensor:
    """−L⁻ᵀ Φ(P) L⁻¹ = −((L⁻ᵀΦ(P)ᵀ) L⁻¹)ᵀ for a lower triangular P [..., M, M], which is overwritten."""
    P.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    if substitutes(T):
        right = solve_triangular(T.mT, P.mT, upper=True)
        return solve_triangular(T, right, upper=False, left=False).mT.neg_()
    right = multiply(P, T, left="lower", right="lower")
    return multiply(T.mT, right, left="upper", right="lower", sign=-1.0)


def substitutes(a: Tensor) -> bool:
    """Whether triangular systems of a [..., M, M] are solved by substitution: on a CPU."""
    return not a.is_cuda


def lower_of_transposed(V: Tensor, G: Tensor) -> Tensor:
    """The lower triangle of VᵀG for lower triangular V and G; entries above the diagonal are undefined.

    Each [..., M, M]. What stands above the diagonal of G meets zeros of V only: it need not be zero.
    """
    if tensor_cores.suits(V.mT, G):
        return tensor_cores.product(V.mT, G, left="upper", lower=True)
    return V.mT @ G


def lower_product(L: Tensor, H: Tensor) -> Tensor:
    """L H [..., M, n] for a lower triangular L [..., M, M]; on a CPU in blocks of rows without the zeros."""
    cuts = _cuts(L)
    if not cuts:
        return multiply(L, H, left="lower")
    return torch.cat([L[..., begin:end, :end] @ H[..., :end, :] for begin, end in cuts], -2)


def upper_product(L: Tensor, H: Tensor) -> Tensor:
    """LᵀH [..., M, n] for a lower triangular L [..., M, M]."""
    cuts = _cuts(L)
    if not cuts:
        return multiply(L.mT, H, left="upper")
    return torch.cat([L[..., begin:, begin:end].mT @ H[..., begin:, :] for begin, end in cuts], -2)


def lower_outer(A: Tensor, B: Tensor) -> Tensor:
    """tril(A Bᵀ) [..., M, M] of [..., M, n]; most of the rest is not computed on a CPU or tensor cores."""
    cuts = _cuts(A)
    if not cuts:
        return multiply(A, B.mT, lower=True)
    M = A.shape[-2]
    rows = [pad(A[..., begin:end, :] @ B[..., :end, :].mT, (0, M - end)) for begin, end in cuts]
    return torch.cat(rows, -2).tril_()


def weighed_rows(a: Tensor, B: Tensor) -> Tensor:
    """aᵀB [..., n] of weights a [..., m] and B [..., m, n].

    On a GPU one such product leaves most of it idle: with many rows it is made of pieces.
    """
    m = a.shape[-1]
    size = next((size for size in range(PIECE, PIECE // 4, -1) if m % size == 0), m)
    if substitutes(B) or m < PIECED or size == m or a.shape[:-1] != B.shape[:-2]:
        return (a.unsqueeze(-2) @ B).squeeze(-2)
    return (a.unflatten(-1, (-1, 1, size)) @ B.unflatten(-2, (-1, size))).sum((-3, -2))


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
    return lower_outer(A, B) if substitutes(A) or tensor_cores.suits(A, B.mT) else A @ B.mT


class Outer(NamedTuple):
    """A term ± A Bᵀ of a sum of lower triangles.

    ``triangles``: B is lower triangular, so that entries of A above the diagonal do not matter.
    """

    A: Tensor
    B: Tensor
    sign: float = 1.0
    triangles: bool = False


def lower_outers(like: Tensor, *terms: Outer) -> Tensor:
    """tril(Σ ± A Bᵀ), summed to the shape of ``like`` [..., M, M]."""
    if substitutes(like) or any(X.shape[:-2] != like.shape[:-2] for term in terms for X in term[:2]):
        each = ((lower_outer(A, B).sum_to_size(like.shape), sign) for A, B, sign, _ in terms)
        return reduce(torch.add, (found if sign > 0 else found.neg() for found, sign in each))
    matrices = [term for term in terms if term.A.shape[-1] > 1]
    vectors = [term for term in terms if term.A.shape[-1] == 1]
    if all(tensor_cores.suits(term.A, term.B.mT) for term in matrices):
        out = like.new_zeros(()).expand_as(like)
        for A, B, sign, _ in vectors:
            out = torch.addcmul(out, A, B.mT, value=sign)
        for A, B, sign, triangles in matrices:  # the last of them leaves zeros above the diagonal
            shapes: dict[str, Shape] = {"left": "lower", "right": "upper"} if triangles else {}
            out = tensor_cores.product(A, B.mT, **shapes, lower=True, add=out, sign=sign)
        return out
    (A, B, sign, _), *others = matrices
    out = A @ B.mT if sign > 0 else (A @ B.mT).neg_()
    for A, B, sign, _ in others:
        add_product(out, A, B.mT, sign)
    for A, B, sign, _ in vectors:
        out.addcmul_(A, B.mT, value=sign)
    return out.tril_()


def less_upper_product(W: Tensor, L: Tensor, H: Tensor) -> Tensor:
    """W − LᵀH for a lower triangular L [..., M, M]; W and H [..., M, n]."""
    if substitutes(W) or not _same_batch(W, L, H):
        return W - upper_product(L, H)
    if tensor_cores.suits(L.mT, H):
        return tensor_cores.product(L.mT, H, left="upper", add=W, sign=-1.0)
    flat = (X.flatten(0, -3) for X in (W, L.mT, H))
    return torch.baddbmm(*flat, alpha=-1.0).reshape(W.shape)


def less_lower_product(G: Tensor, L: Tensor, H: Tensor) -> Tensor:
    """G − L H for a lower triangular L, summed to the shape of G, which may be overwritten.

    L [..., M, M], G and H [..., M, n].
    """
    if substitutes(G) or not _same_batch(G, L, H):
        return G - lower_product(L, H).sum_to_size(G.shape)
    if tensor_cores.suits(L, H):
        return tensor_cores.product(L, H, left="lower", add=G, sign=-1.0)
    add_product(G, L, H, -1.0)
    return G


def less_outer_below(G: Tensor, A: Tensor, B: Tensor) -> Tensor:
    """The lower triangle of G − A Bᵀ; entries above the diagonal are undefined, and G may be overwritten.

    G [..., M, M], A and B [..., M, n].
    """
    if substitutes(G) or not _same_batch(G, A, B):
        return G - outer_below(A, B)
    if tensor_cores.suits(A, B.mT):
        return tensor_cores.product(A, B.mT, lower=True, add=G, sign=-1.0)
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
