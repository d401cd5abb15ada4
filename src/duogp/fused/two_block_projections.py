"""Projections on the points of two blocks, Z ∪ O, from one factorisation of both (see `projections`).

Where q(v) has a covariance of its own, S is block diagonal: three of the six products of `Parts` need half
the work (`BlockVariance`). Where it keeps that of the prior (ORTH), v adds nothing to the change of the
variance, and its features are not needed (`MeanVariance`). With T = L⁻¹ of the union, u the first M points:

    a = Tᵀm    μ = aᵀk    φ = T_u k_u    W = Rᵀφ    t = ‖W‖² − ‖φ‖²
    H = 2 W ∘ gt    Ĝ = R H − 2 φ ∘ gt    gR = tril(φHᵀ)    gm = T (k gμ)
    gk = a gμᵀ + [T_uᵀĜ; 0]    gK = −Tᵀ Φ(P) T,    P = tril(m gmᵀ) + [tril(Ĝφᵀ), 0; 0, 0]

so the products with the rows are those of M coupled points. Φ(m gmᵀ) T can be had by cumulative sums: row i
of it is mᵢ (Σⱼ<ᵢ gmⱼ Tⱼ + ½ gmᵢ Tᵢ). On a GPU that is quicker, unless products are made on tensor cores.

Where only the sum of t over rows is read, gt is one number, and Ĝ and what follows of it, but for gt, need
φ alone. On a GPU `MeanTotal` makes it, and the inverse of the second block, beside what comes between the two
passes: a likelihood's many small operations, which leave the device idle.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from duogp.fused.projections import Projection, VarianceFromParts
from duogp.numerics import products
from duogp.numerics import tensor_core_products as tensor_cores
from duogp.numerics.products import (
    cholesky,
    factorised,
    gradient_of_gram,
    lower_outer,
    lower_product,
    multiply,
    solve,
    solve_transposed,
    upper_product,
    weighed_rows,
)
from duogp.numerics.streams import Beside
from duogp.numerics.triangles import inverses_of_lower

#: Streams of a GPU for what `MeanTotal` makes beside the rest of the step.
OF_VARIANCE, OF_SECOND = 2, 3


class BlockVariance(VarianceFromParts):
    """φᵀm and t of every row for S = diag(S_u, S_v), the first block of ``size`` points."""

    def __init__(self, size: int) -> None:
        self.size = size

    def by_root(self, root: Tensor, phi: Tensor) -> Tensor:
        M = self.size
        first, second = root[..., :M, :M], root[..., M:, M:]
        return torch.cat([upper_product(first, phi[..., :M, :]), upper_product(second, phi[..., M:, :])], -2)

    def through_root(self, root: Tensor, H: Tensor) -> Tensor:
        M = self.size
        first, second = root[..., :M, :M], root[..., M:, M:]
        return torch.cat([lower_product(first, H[..., :M, :]), lower_product(second, H[..., M:, :])], -2)

    def of_root(self, phi: Tensor, H: Tensor) -> Tensor:
        M = self.size
        out = phi.new_zeros(*H.shape[:-1], H.shape[-2])
        out[..., :M, :M] = lower_outer(phi[..., :M, :], H[..., :M, :])
        out[..., M:, M:] = lower_outer(phi[..., M:, :], H[..., M:, :])
        return out


class MeanVariance(Projection):
    """φᵀm over all points and t of every row for S = diag(S_u, I); ``root`` is that of S_u."""

    def forward(
        self, K: Tensor, k: Tensor, mean: Tensor, root: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        M = root.shape[-1]
        _, T, info = factorised(K, k.dtype)
        phi = solve(T[..., :M, :M], k[..., :M, :])
        W = upper_product(root, phi)
        a = solve_transposed(T, mean.unsqueeze(-1))
        change = W.square().sum(-2) - phi.square().sum(-2)
        return (weighed_rows(a.squeeze(-1), k), change, info), [T, k, phi, W, a, mean, root]

    def backward(self, kept: Sequence[Tensor], *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        T, k, phi, W, a, mean, root = kept
        g_mean, g_change = gradients
        M = root.shape[-1]
        T_u = T[..., :M, :M]
        twice = (2.0 * g_change).unsqueeze(-2)
        H = W * twice
        G = lower_product(root, H).sum_to_size(phi.shape)
        G.addcmul_(phi, twice.sum_to_size(*phi.shape[:-2], 1, phi.shape[-1]), value=-1.0)
        g_m = solve(T, k @ g_mean.unsqueeze(-1)).squeeze(-1)
        g_k = (a * g_mean.unsqueeze(-2)).sum_to_size(k.shape)
        g_k[..., :M, :] += solve_transposed(T_u, G)
        P = lower_outer(G, phi)
        by_triangle = products.substitutes(T) or tensor_cores.suits(T, T)
        g_K = (_by_triangle if by_triangle else _by_sums)(T, P, mean, g_m)
        return g_K, g_k, g_m, lower_outer(phi, H)


class MeanTotal(Projection):
    """φᵀm over all points and Σ t over all rows [...] for S = diag(S_u, I), on a GPU; batches of q are K's.

    With L = [L_u ·; B L_v]: a_v = L_v⁻ᵀm_v, a_u = L_u⁻ᵀ(m_u − Bᵀa_v). Of the gradients, all that follows of Ĝ
    is made in the forward pass, but for 2 gt. K is overwritten. The backward pass joins the streams; until
    then what they read is kept. Without one their results are lost, and a graph cannot be captured.
    """

    def forward(
        self, K: Tensor, k: Tensor, mean: Tensor, root: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        M, dtype = root.shape[-1], k.dtype
        L, info = cholesky(K, in_place=True)
        m, B = mean.to(K.dtype).unsqueeze(-1), L[..., M:, :M]
        T_u, T_v = inverses_of_lower(L[..., :M, :M], L[..., M:, M:])
        with Beside(K.device, OF_SECOND) as second:
            a_v = T_v.mT @ m[..., M:, :]
            a = torch.cat([T_u.mT @ (m[..., :M, :] - B.mT @ a_v), a_v], -2).to(dtype)
            mu = weighed_rows(a.squeeze(-1), k)
        T_first = T_u.to(dtype)
        phi = solve(T_first, k[..., :M, :])
        with Beside(K.device, OF_VARIANCE) as variance:
            norm = phi.square().sum((-2, -1))
        W = upper_product(root, phi)
        explained = W.square().sum((-2, -1))
        variance.join()
        total = explained - norm
        with variance:
            G = lower_product(root, W).sub_(phi)
            of_variance = [solve_transposed(T_first, G), lower_outer(G, phi), lower_outer(phi, W)]
        second.join()
        with second:
            T_second = T_v.to(dtype)
            T = K.new_zeros(K.shape, dtype=dtype)
            T[..., :M, :M], T[..., M:, M:] = T_first, T_second
            T[..., M:, :M] = multiply(T_second, _by_halves(B, T_u).to(dtype), left="lower", sign=-1.0)
            rows_of_mean = mean  # of all columns, where that is of use
            if tensor_cores.suits(T, T):
                rows_of_mean = mean.unsqueeze(-1).expand(T.shape).tril()
        kept = [T, k, a, mean, rows_of_mean, *of_variance]
        read = [phi, W, T_first, T_u, T_v, root, K]
        return (mu, total, info), [*kept, *read]

    def backward(self, kept: Sequence[Tensor], *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        T, k, a, mean, rows_of_mean, of_k, P, of_root, *_ = kept
        g_mean, g_total = gradients
        twice, M = (2.0 * g_total)[..., None, None], P.shape[-1]
        for number in (OF_VARIANCE, OF_SECOND):
            Beside(T.device, number).join()
        with Beside(T.device, OF_VARIANCE) as variance:
            g_k = a * g_mean.unsqueeze(-2)
            g_k[..., :M, :].addcmul_(of_k, twice)
            g_root = of_root * twice
        g_m = solve(T, k @ g_mean.unsqueeze(-1)).squeeze(-1)
        if rows_of_mean.shape == T.shape:
            both = rows_of_mean * g_m.unsqueeze(-2)
            both[..., :M, :M].addcmul_(P, twice)
            g_K = gradient_of_gram(T, both)
        else:
            g_K = _by_sums(T, P * twice, mean, g_m)
        variance.join()
        return g_K, g_k, g_m, g_root


def _by_halves(B: Tensor, T: Tensor) -> Tensor:
    """B T [..., m, M] for a lower triangular T, on a GPU: two products leave room for what is beside them."""
    half = T.shape[-1] // 2
    return torch.cat([B @ T[..., :half], B[..., half:] @ T[..., half:, half:]], -1)


def _by_triangle(T: Tensor, P: Tensor, mean: Tensor, g_m: Tensor) -> Tensor:
    M = P.shape[-1]
    both = (mean.unsqueeze(-1) * g_m.unsqueeze(-2)).sum_to_size(T.shape).tril()
    both[..., :M, :M] += P
    return gradient_of_gram(T, both)


def _by_sums(T: Tensor, P: Tensor, mean: Tensor, g_m: Tensor) -> Tensor:
    """Sums in place of a product with all points; products with the second block and among the first."""
    M = P.shape[-1]
    P.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    weighed = g_m.unsqueeze(-2) * T.mT  # columns: gmⱼ Tⱼ, so that sums run along contiguous memory
    summed = weighed.cumsum(-1).sub_(weighed, alpha=0.5).mul_(mean.unsqueeze(-2))
    X = summed.sum_to_size(T.shape).mT
    T_u = T[..., :M, :M]
    g_K = T[..., M:, :].mT @ X[..., M:, :]
    among = X[..., :M, :M] + P @ T_u
    g_K[..., :M, :M] += T_u.mT @ among
    return g_K.neg_()
