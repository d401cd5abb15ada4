"""Factorise, whiten, project: the three steps of a coupled basis as one, the backward pass written by hand.

Forward, with K = L Lᵀ and a root R of S (lower triangular):

    φ = L⁻¹ k    μ = φᵀm    n = ‖φ‖²    W = Rᵀφ    e = ‖W‖²        (columns: one for each row of data)

Backward, for incoming gradients gμ, gn, ge (MATH §10):

    H = 2 W ∘ ge     gR = tril(φ Hᵀ)     G = m gμᵀ + R H + 2 φ ∘ gn     gm = φ gμ
    gk = L⁻ᵀ G       gK = −L⁻ᵀ Φ(G φᵀ) L⁻¹,    Φ = lower triangle with halved diagonal

gK follows from gL = −tril(L⁻ᵀGφᵀ): Lᵀ is upper triangular, so the lower triangle of LᵀgL is that of −Gφᵀ,
and no product with L⁻ᵀ is needed before Φ. It is not symmetrised: who differentiates a kernel k(z, z) adds
both halves anyhow. Of the six products of M²n, four need only one triangle.

Where only the whole variance counts, t = e − n = φᵀ(S − I)φ with gradient gt, four are enough, and less
work if M is well below n:

    T = (S − I) φ    t = Σ φ ∘ T        A = φ diag(gt) φᵀ    gR = 2 tril(A R)
    G = m gμᵀ + 2 T ∘ gt                G φᵀ = m gmᵀ + 2 (S − I) A

And where only the sum over rows counts, so that all have the same gt, three:

    A = φφᵀ    Σ t = tr (S − I) A       gR = 2 gt tril(A R)
    gk = (L⁻ᵀm) gμᵀ + 2 gt (L⁻ᵀ(S − I)) φ                    G φᵀ = m gmᵀ + 2 gt (S − I) A
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.linalg import solve_triangular
from torch.nn.functional import pad

from duogp.numerics.triangles import inverse_of_lower

if TYPE_CHECKING:
    from duogp.bases.marginals import Reading

#: Rows of a triangular matrix that are multiplied at once: fewer save more products, and each is slower.
BLOCK_ROWS = 200
#: From how many rows for each inducing point four large products and three small ones are the better choice.
MANY_ROWS = 2.5


def carry_out(projection: Projection, K: Tensor, k: Tensor, mean: Tensor, root: Tensor) -> tuple[Tensor, ...]:
    """What a projection returns, differentiable by its own backward pass.

    K [..., M, M] is factorised as it is; k [..., M, n], mean [..., M] and root [..., M, M] may be coarser.
    Leading dimensions of K and k are equal; those of q may be larger where latents share φ.
    """
    return _Apply.apply(projection, K, k, mean, root)


def projection_for(reading: Reading, M: int, n: int) -> Projection:
    """The way to what will be read that is least work."""
    if reading == "parts":
        return InParts()
    if n < MANY_ROWS * M:
        return WholeOfParts()
    return Total() if reading == "total" else Whole()


class Projection(ABC):
    """A forward pass, and the backward pass that wants what it kept. Holds nothing: a compiler traces it."""

    @abstractmethod
    def forward(
        self, K: Tensor, k: Tensor, mean: Tensor, root: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """What is returned, the last of it the flags of the factorisation; and what is kept."""

    @abstractmethod
    def backward(self, kept: Sequence[Tensor], *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of K (in the precision of the work), k, m and R."""


class InParts(Projection):
    """The mean φᵀm, ‖φ‖² and φᵀSφ."""

    def forward(
        self, K: Tensor, k: Tensor, mean: Tensor, root: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        _, T, phi, info = whiten(K, k)
        W = upper_product(root, phi)
        mu = (mean.unsqueeze(-2) @ phi).squeeze(-2)
        return (mu, phi.square().sum(-2), W.square().sum(-2), info), [T, phi, W, mean, root]

    def backward(self, kept: Sequence[Tensor], *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        T, phi, W, mean, root = kept
        g_mean, g_norm, g_explained, *others = gradients
        H = W * (2.0 * g_explained).unsqueeze(-2)
        G = lower_product(root, H).addcmul_(mean.unsqueeze(-1), g_mean.unsqueeze(-2)).sum_to_size(phi.shape)
        G.addcmul_(phi, (2.0 * g_norm).unsqueeze(-2))
        self.add_to_gradient_of_features(G, phi, *others)
        g_K = gradient_of_gram(T, lower_outer(G, phi))
        return g_K, solve_transposed(T, G), (phi @ g_mean.unsqueeze(-1)).squeeze(-1), lower_outer(phi, H)

    def add_to_gradient_of_features(self, G: Tensor, phi: Tensor, *gradients: Tensor) -> None:
        """What further results of a subclass have to say about φ."""


class BesideTheLast(InParts):
    """And φᵀφ₁ with the last column φ₁: the part of a mean that lies along it."""

    def forward(
        self, K: Tensor, k: Tensor, mean: Tensor, root: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        (mu, norm, explained, info), kept = super().forward(K, k, mean, root)
        phi = kept[1]
        along = (phi[..., -1:].mT @ phi).squeeze(-2)
        return (mu, norm, explained, along, info), kept

    def add_to_gradient_of_features(self, G: Tensor, phi: Tensor, *gradients: Tensor) -> None:
        (g_along,) = gradients
        G.addcmul_(phi[..., -1:], g_along.unsqueeze(-2))
        G[..., -1] += (phi @ g_along.unsqueeze(-1)).squeeze(-1)


class WholeOfParts(InParts):
    """The mean and φᵀ(S − I)φ, the change from the prior to the posterior variance, by way of its parts."""

    def forward(
        self, K: Tensor, k: Tensor, mean: Tensor, root: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        (mu, norm, explained, info), kept = super().forward(K, k, mean, root)
        return (mu, explained - norm, info), kept

    def backward(self, kept: Sequence[Tensor], *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        g_mean, g_change = gradients
        phi = kept[1]
        g_norm = -g_change.sum_to_size(phi.shape[:-2] + phi.shape[-1:])
        return super().backward(kept, g_mean, g_norm, g_change)


class Whole(Projection):
    """The same by four products."""

    def forward(
        self, K: Tensor, k: Tensor, mean: Tensor, root: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        _, T, phi, info = whiten(K, k)
        C = _less_prior(root)
        U = C @ phi
        mu = (mean.unsqueeze(-2) @ phi).squeeze(-2)
        return (mu, (phi * U).sum(-2), info), [T, phi, U, C, mean, root]

    def backward(self, kept: Sequence[Tensor], *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        T, phi, U, C, mean, root = kept
        g_mean, g_change = gradients
        twice = (2.0 * g_change).unsqueeze(-2)
        g_m = (phi @ g_mean.unsqueeze(-1)).squeeze(-1)
        A = (phi * twice) @ phi.mT
        P = (C @ A).addcmul_(mean.unsqueeze(-1), g_m.unsqueeze(-2)).sum_to_size(T.shape).tril()
        G = (U * twice).addcmul_(mean.unsqueeze(-1), g_mean.unsqueeze(-2)).sum_to_size(phi.shape)
        return gradient_of_gram(T, P), solve_transposed(T, G), g_m, (A @ root).tril_()


class Total(Projection):
    """The same with every row's change of the variance replaced by that of all rows on average."""

    def forward(
        self, K: Tensor, k: Tensor, mean: Tensor, root: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        _, T, phi, info = whiten(K, k)
        C = _less_prior(root)
        A = phi @ phi.mT
        change = (C * A).sum((-2, -1)) / k.shape[-1]
        mu = (mean.unsqueeze(-2) @ phi).squeeze(-2)
        return (mu, change.unsqueeze(-1).expand_as(mu), info), [T, phi, A, C, mean, root]

    def backward(self, kept: Sequence[Tensor], *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        T, phi, A, C, mean, root = kept
        g_mean, g_change = gradients
        twice = (2.0 * g_change.mean(-1))[..., None, None]
        twice_C = C * twice
        g_m = (phi @ g_mean.unsqueeze(-1)).squeeze(-1)
        P = (twice_C @ A).addcmul_(mean.unsqueeze(-1), g_m.unsqueeze(-2)).sum_to_size(T.shape).tril()
        g_k = solve_transposed(T, twice_C.sum_to_size(T.shape)) @ phi
        a = solve_transposed(T, mean.unsqueeze(-1))
        if g_mean.shape[:-1] == phi.shape[:-2]:
            g_k.addcmul_(a, g_mean.unsqueeze(-2))
        else:  # latent functions that share φ
            g_k += (a * g_mean.unsqueeze(-2)).sum_to_size(phi.shape)
        return gradient_of_gram(T, P), g_k, g_m, (A @ root).mul(twice).tril_()


def _less_prior(root: Tensor) -> Tensor:
    """S − I."""
    C = root @ root.mT
    C.diagonal(dim1=-2, dim2=-1).sub_(1.0)
    return C


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projection: Projection, K: Tensor, k: Tensor, mean: Tensor, root: Tensor
    ) -> tuple[Tensor, ...]:
        values, kept = projection.forward(K, k, mean, root)
        ctx.projection, ctx.dtype = projection, K.dtype
        ctx.save_for_backward(*kept)
        ctx.mark_non_differentiable(values[-1])
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        g_K, *others = ctx.projection.backward(ctx.saved_tensors, *gradients[:-1])
        return None, g_K.to(ctx.dtype), *others


# -- triangular systems --------------------------------------------------------------------------------------
#
# T is what solving with L takes, in the working precision: L itself on a CPU, where substitution does half
# the work of a product; L⁻¹ on a GPU, which does not notice that. Solvers want columns that are contiguous,
# and ours are rows: the transposed system has them without a copy, and is solved twice as fast.


def whiten(K: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """L with L Lᵀ = K in the precision of K, T, φ = L⁻¹k, and the flags of the factorisation."""
    L, T, info = factorised(K, k.dtype)
    return L, T, solve(T, k), info


def factorised(K: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """L with L Lᵀ = K in the precision of K, T in that of the work, and the flags of the factorisation."""
    L, info = torch.linalg.cholesky_ex(K)
    return L, (L if substitutes(K) else inverse_of_lower(L)).to(dtype), info


def solve(T: Tensor, k: Tensor) -> Tensor:
    """L⁻¹k = (kᵀL⁻ᵀ)ᵀ."""
    return solve_triangular(T.mT, k.mT, upper=True, left=False).mT if substitutes(T) else T @ k


def solve_lower(T: Tensor, B: Tensor) -> Tensor:
    """L⁻¹B for a lower triangular B, and lower triangular itself."""
    return solve_triangular(T, B, upper=False) if substitutes(T) else T @ B


def solve_transposed(T: Tensor, G: Tensor) -> Tensor:
    """L⁻ᵀG = (GᵀL⁻¹)ᵀ."""
    return solve_triangular(T, G.mT, upper=False, left=False).mT if substitutes(T) else T.mT @ G


def gradient_of_gram(T: Tensor, P: Tensor) -> Tensor:
    """−L⁻ᵀ Φ(P) L⁻¹ = −((L⁻ᵀΦ(P)ᵀ) L⁻¹)ᵀ for a lower triangular P, which is overwritten."""
    P.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    if substitutes(T):
        right = solve_triangular(T.mT, P.mT, upper=True)
        return solve_triangular(T, right, upper=False, left=False).mT.neg_()
    return (T.mT @ (P @ T)).neg_()


def substitutes(a: Tensor) -> bool:
    return not a.is_cuda


# -- products with triangles -------------------------------------------------------------------------------


def lower_product(L: Tensor, H: Tensor) -> Tensor:
    """L H for a lower triangular L: blocks of rows, on a CPU, without the zeros to the right of them."""
    cuts = _cuts(L)
    if not cuts:
        return L @ H
    return torch.cat([L[..., begin:end, :end] @ H[..., :end, :] for begin, end in cuts], -2)


def upper_product(L: Tensor, H: Tensor) -> Tensor:
    """LᵀH for a lower triangular L."""
    cuts = _cuts(L)
    if not cuts:
        return L.mT @ H
    return torch.cat([L[..., begin:, begin:end].mT @ H[..., begin:, :] for begin, end in cuts], -2)


def lower_outer(A: Tensor, B: Tensor) -> Tensor:
    """tril(A Bᵀ); what lies above the diagonal is, on a CPU, for the most part not computed."""
    cuts = _cuts(A)
    if not cuts:
        return (A @ B.mT).tril_()
    M = A.shape[-2]
    rows = [pad(A[..., begin:end, :] @ B[..., :end, :].mT, (0, M - end)) for begin, end in cuts]
    return torch.cat(rows, -2).tril_()


def gram_of(A: Tensor) -> Tensor:
    """A Aᵀ; on a CPU one triangle of it, in blocks of rows, and its mirror image."""
    cuts = _cuts(A)
    if not cuts:
        return A @ A.mT
    out = A.new_empty(*A.shape[:-1], A.shape[-2])
    for begin, end in cuts:
        _product_into(out[..., begin:end, :end], A[..., begin:end, :], A[..., :end, :].mT)
        out[..., :begin, begin:end] = out[..., begin:end, :begin].mT
    return out


def outer_below(A: Tensor, B: Tensor) -> Tensor:
    """A Bᵀ where nobody will look above the diagonal."""
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
    """W − LᵀH for a lower triangular L."""
    if substitutes(W) or not _same_batch(W, L, H):
        return W - upper_product(L, H)
    flat = (X.flatten(0, -3) for X in (W, L.mT, H))
    return torch.baddbmm(*flat, alpha=-1.0).reshape(W.shape)


def less_lower_product(G: Tensor, L: Tensor, H: Tensor) -> Tensor:
    """G − L H for a lower triangular L, summed to the shape of G, which may be overwritten."""
    if substitutes(G) or not _same_batch(G, L, H):
        return G - lower_product(L, H).sum_to_size(G.shape)
    add_product(G, L, H, -1.0)
    return G


def less_outer_below(G: Tensor, A: Tensor, B: Tensor) -> Tensor:
    """G − A Bᵀ where nobody will look above the diagonal; G may be overwritten."""
    if substitutes(G) or not _same_batch(G, A, B):
        return G - outer_below(A, B)
    add_product(G, A, B.mT, -1.0)
    return G


def add_product(to: Tensor, left: Tensor, right: Tensor, sign: float = 1.0) -> None:
    """to ± left right, in place and in one pass over the result."""
    to.flatten(0, -3).baddbmm_(left.flatten(0, -3), right.flatten(0, -3), alpha=sign)


def _same_batch(*matrices: Tensor) -> bool:
    return len({X.shape[:-2] for X in matrices}) == 1


def _product_into(out: Tensor, left: Tensor, right: Tensor) -> None:
    # What stands in `out` is not read; a compiler takes this where it does not take an ``out=``.
    out.flatten(0, -3).baddbmm_(left.flatten(0, -3), right.flatten(0, -3), beta=0.0)


def _cuts(A: Tensor) -> list[tuple[int, int]]:
    """Blocks of rows to make one after the other; none where one product is quicker than its parts.

    On a GPU it is, and anywhere where it is small.
    """
    M = A.shape[-2]
    count = 0 if A.is_cuda or A.dim() < 3 else M // BLOCK_ROWS
    return even_cuts(M, count) if count > 1 else []


def even_cuts(M: int, count: int) -> list[tuple[int, int]]:
    """Where so many blocks of M rows, as equal as may be, begin and end."""
    return list(pairwise(M * i // count for i in range(count + 1)))
