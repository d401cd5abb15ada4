"""Mean and variance of a whitened coupled basis as one autograd node: factorise, whiten, project.

Forward, with K = L Lᵀ and a root R of S (lower triangular):

    φ = L⁻¹ k    μ = φᵀm    n = ‖φ‖²    W = Rᵀφ    e = ‖W‖²        (columns: one for each row of data)

Backward, for incoming gradients gμ, gn, ge (MATH §10):

    H = 2 W ∘ ge     gR = tril(φ Hᵀ)     G = m gμᵀ + R H + 2 φ ∘ gn     gm = φ gμ
    gk = L⁻ᵀ G       gK = −L⁻ᵀ Φ(G φᵀ) L⁻¹,    Φ = lower triangle with halved diagonal

gK follows from gL = −tril(L⁻ᵀGφᵀ): Lᵀ is upper triangular, so the lower triangle of LᵀgL is that of −Gφᵀ,
and no product with L⁻ᵀ is needed before Φ. It is not symmetrised: the gradient of k(z, z) adds both halves
anyhow. Of the six products of M²n, four need only one triangle.

Where only the variance of a row is read, its change t = e − n = φᵀ(S − I)φ with gradient gt takes four
products, and less work if M is well below n:

    T = (S − I) φ    t = Σ φ ∘ T        A = φ diag(gt) φᵀ    gR = 2 tril(A R)
    G = m gμᵀ + 2 T ∘ gt                G φᵀ = m gmᵀ + 2 (S − I) A

And where only the sum of t over rows is read, with gradient gt, three:

    A = φφᵀ    Σ t = tr (S − I) A       gR = 2 gt tril(A R)
    gk = (L⁻ᵀm) gμᵀ + 2 gt (L⁻ᵀ(S − I)) φ                    G φᵀ = m gmᵀ + 2 gt (S − I) A
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from duogp.bases.marginals import Reads
from duogp.numerics.products import (
    gradient_of_gram,
    lower_outer,
    lower_product,
    solve_transposed,
    upper_product,
    weighed_rows,
    whiten,
)
from duogp.numerics.tensor_core_products import among, sharing

#: Rows for each inducing point from which four large products and three small ones are the better choice.
MANY_ROWS = 2.5


class Projection(ABC):
    """A forward pass and its backward pass. Stateless, so that a compiler can trace it."""

    @abstractmethod
    def forward(
        self, K: Tensor, k: Tensor, mean: Tensor, root: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """The values, the flags of the factorisation last; and the tensors that `backward` needs."""

    @abstractmethod
    def backward(self, kept: Sequence[Tensor], *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of K (in the working precision), k, m and R."""

    def __call__(self, K: Tensor, k: Tensor, mean: Tensor, root: Tensor) -> tuple[Tensor, ...]:
        """The values of `forward`, differentiable by `backward`.

        K [..., M, M] is factorised as it is; k [..., M, n], mean [..., M], root [..., M, M] may be of lower
        precision. Leading dimensions of K and k are equal; those of q may be larger where latents share φ.
        """
        return _Node.apply(self, K, k, mean, root)


def projection_for(reads: Reads, M: int, n: int) -> Projection:
    """The projection with the least work among those that give what is read."""
    if reads == "parts":
        return Parts()
    if n < MANY_ROWS * M:
        return VarianceFromParts()
    return VarianceTotal() if reads == "sum" else Variance()


class Parts(Projection):
    """φᵀm, ‖φ‖² and φᵀSφ of every row."""

    def forward(
        self, K: Tensor, k: Tensor, mean: Tensor, root: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        _, T, phi, info = whiten(K, k)
        W = self.by_root(root, phi)
        mu = weighed_rows(mean, phi)
        return (mu, phi.square().sum(-2), W.square().sum(-2), info), [T, phi, W, mean, root]

    def backward(self, kept: Sequence[Tensor], *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        T, phi, W, mean, root = kept
        g_mean, g_norm, g_explained, *others = gradients
        H = W * (2.0 * g_explained).unsqueeze(-2)
        G = (
            self.through_root(root, H)
            .addcmul_(mean.unsqueeze(-1), g_mean.unsqueeze(-2))
            .sum_to_size(phi.shape)
        )
        G.addcmul_(phi, (2.0 * g_norm).unsqueeze(-2))
        self.add_to_gradient_of_features(G, phi, *others)
        g_K = gradient_of_gram(T, lower_outer(G, phi))
        return g_K, solve_transposed(T, G), (phi @ g_mean.unsqueeze(-1)).squeeze(-1), self.of_root(phi, H)

    def by_root(self, root: Tensor, phi: Tensor) -> Tensor:
        """Rᵀφ."""
        return upper_product(root, phi)

    def through_root(self, root: Tensor, H: Tensor) -> Tensor:
        """R H, new memory."""
        return lower_product(root, H)

    def of_root(self, phi: Tensor, H: Tensor) -> Tensor:
        """tril(φ Hᵀ), where R is not zero by definition."""
        return lower_outer(phi, H)

    def add_to_gradient_of_features(self, G: Tensor, phi: Tensor, *gradients: Tensor) -> None:
        """Add to G = gφ what comes through the further values of a subclass."""


class PartsAndLastColumn(Parts):
    """`Parts`, and φᵀφ₁ with the last column φ₁ of φ."""

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


class VarianceFromParts(Parts):
    """φᵀm and t = φᵀSφ − ‖φ‖² of every row, by `Parts`: less work than `Variance` for few rows."""

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


class Variance(Projection):
    """φᵀm and t = φᵀ(S − I)φ of every row, by four large products."""

    def forward(
        self, K: Tensor, k: Tensor, mean: Tensor, root: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        _, T, phi, info = whiten(K, k)
        C = _less_prior(root)
        U = C @ phi
        mu = weighed_rows(mean, phi)
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


class VarianceTotal(Projection):
    """φᵀm of every row and Σ t over all rows [...], by three large products."""

    def forward(
        self, K: Tensor, k: Tensor, mean: Tensor, root: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        _, T, phi, info = whiten(K, k)
        C = _less_prior(root)
        A = phi @ phi.mT
        mu = weighed_rows(mean, phi)
        return (mu, (C * A).sum((-2, -1)), info), [T, phi, A, C, mean, root]

    def backward(self, kept: Sequence[Tensor], *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        T, phi, A, C, mean, root = kept
        g_mean, g_total = gradients
        twice = (2.0 * g_total)[..., None, None]
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


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projection: Projection, K: Tensor, k: Tensor, mean: Tensor, root: Tensor
    ) -> tuple[Tensor, ...]:
        with sharing(k) as known:
            values, kept = projection.forward(K, k, mean, root)
        ctx.known = among(known, kept)
        ctx.projection, ctx.dtype = projection, K.dtype
        ctx.save_for_backward(*kept)
        ctx.mark_non_differentiable(values[-1])
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        known, ctx.known = ctx.known, None  # autograd does not release it
        with sharing(gradients[0], known):
            g_K, *others = ctx.projection.backward(ctx.saved_tensors, *gradients[:-1])
        return None, g_K.to(ctx.dtype), *others
