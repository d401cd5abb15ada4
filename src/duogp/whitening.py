"""Factorise, whiten, project: the three steps of a coupled basis as one, the backward pass written by hand.

Forward, with K = L Lᵀ and a root R of S (lower triangular):

    φ = L⁻¹ k    μ = φᵀm    n = ‖φ‖²    W = Rᵀφ    e = ‖W‖²        (columns: one for each row of data)

Backward, for incoming gradients gμ, gn, ge (MATH §10):

    H = 2 W ∘ ge     gR = tril(φ Hᵀ)     G = m gμᵀ + R H + 2 φ ∘ gn     gm = φ gμ
    gk = L⁻ᵀ G       gK = −L⁻ᵀ Φ(G φᵀ) L⁻¹,    Φ = lower triangle with halved diagonal

gK follows from gL = −tril(L⁻ᵀGφᵀ): Lᵀ is upper triangular, so the lower triangle of LᵀgL is that of −Gφᵀ,
and no product with L⁻ᵀ is needed before Φ. It is not symmetrised: who differentiates a kernel k(z, z) adds
both halves anyhow. Of the six products of M²n, four need only one triangle.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

#: Below this size a triangular product is as quick as a full one.
SMALLEST_BLOCK = 128


class Projected(NamedTuple):
    mean: Tensor  # φᵀm, [..., n]
    norm: Tensor  # ‖φ‖²
    explained: Tensor  # φᵀSφ
    info: Tensor  # of the factorisation; zero where it succeeded


def project_whitened(K: Tensor, k: Tensor, mean: Tensor, root: Tensor) -> Projected:
    """K [..., M, M] is factorised as it is; k [..., M, n], mean [..., M], root [..., M, M] may be coarser.

    Leading dimensions of K and k are equal; those of q may be larger where latents share φ.
    """
    return Projected(*_Project.apply(K, k, mean, root))


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, K: Tensor, k: Tensor, mean: Tensor, root: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        L64, info = torch.linalg.cholesky_ex(K)
        solver = Solver(L64, k.dtype)
        phi = solver.forward(k)
        W = upper_product(root, phi)
        ctx.solver, ctx.input_dtype = solver, K.dtype
        ctx.save_for_backward(phi, W, mean, root, *solver.kept)
        ctx.mark_non_differentiable(info)
        mu = (mean.unsqueeze(-2) @ phi).squeeze(-2)
        return mu, phi.square().sum(-2), W.square().sum(-2), info

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, g_mean: Tensor, g_norm: Tensor, g_explained: Tensor, _info: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        phi, W, mean, root, *kept = ctx.saved_tensors
        solver = ctx.solver.with_tensors(kept)
        H = W * (2.0 * g_explained).unsqueeze(-2)
        g_root = lower_outer(phi, H)
        G = lower_product(root, H)
        G.addcmul_(mean.unsqueeze(-1), g_mean.unsqueeze(-2))
        G = G.sum_to_size(phi.shape)
        G.addcmul_(phi, (2.0 * g_norm).unsqueeze(-2))
        P = lower_outer(G, phi)
        P.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        g_K = solver.sandwich(P).neg_().to(ctx.input_dtype)
        return g_K, solver.backward(G), (phi @ g_mean.unsqueeze(-1)).squeeze(-1), g_root


class Solver:
    """L⁻¹ and L⁻ᵀ in the working precision: by substitution on a CPU, by products with L⁻¹ on a GPU.

    Substitution does half the work of a product, which a GPU does not notice.
    """

    def __init__(self, L64: Tensor, dtype: torch.dtype) -> None:
        self.substitutes = not L64.is_cuda
        if self.substitutes:
            self.kept = [L64.to(dtype)]
        else:
            eye = torch.eye(L64.shape[-1], dtype=L64.dtype, device=L64.device)
            self.kept = [torch.linalg.solve_triangular(L64, eye.expand_as(L64), upper=False).to(dtype)]

    def with_tensors(self, kept: list[Tensor]) -> Solver:
        out = object.__new__(Solver)
        out.substitutes, out.kept = self.substitutes, kept
        return out

    def forward(self, k: Tensor) -> Tensor:
        """L⁻¹ k."""
        (T,) = self.kept
        return torch.linalg.solve_triangular(T, k, upper=False) if self.substitutes else T @ k

    def backward(self, G: Tensor) -> Tensor:
        """L⁻ᵀ G."""
        (T,) = self.kept
        return torch.linalg.solve_triangular(T.mT, G, upper=True) if self.substitutes else T.mT @ G

    def sandwich(self, P: Tensor) -> Tensor:
        """L⁻ᵀ P L⁻¹."""
        (T,) = self.kept
        if self.substitutes:
            return torch.linalg.solve_triangular(T, self.backward(P), upper=False, left=False)
        return T.mT @ (P @ T)


# -- products with triangles -------------------------------------------------------------------------------


def lower_product(L: Tensor, H: Tensor) -> Tensor:
    """L H for a lower triangular L: the zero quarter, and the zeros of the halves, are left out on a CPU."""
    h = _half(L)
    if not h:
        return L @ H
    top = lower_product(L[..., :h, :h], H[..., :h, :])
    bottom = lower_product(L[..., h:, h:], H[..., h:, :])
    return torch.cat([top, bottom.add_(L[..., h:, :h] @ H[..., :h, :])], -2)


def upper_product(L: Tensor, H: Tensor) -> Tensor:
    """LᵀH for a lower triangular L."""
    h = _half(L)
    if not h:
        return L.mT @ H
    top = upper_product(L[..., :h, :h], H[..., :h, :])
    bottom = upper_product(L[..., h:, h:], H[..., h:, :])
    return torch.cat([top.add_(L[..., h:, :h].mT @ H[..., h:, :]), bottom], -2)


def lower_outer(A: Tensor, B: Tensor) -> Tensor:
    """tril(A Bᵀ); what lies above the diagonal is not computed on a CPU."""
    h = _half(A)
    if not h:
        return (A @ B.mT).tril_()
    top = lower_outer(A[..., :h, :], B[..., :h, :])
    bottom = lower_outer(A[..., h:, :], B[..., h:, :])
    out = top.new_zeros(*top.shape[:-2], A.shape[-2], A.shape[-2])
    out[..., :h, :h] = top
    out[..., h:, h:] = bottom
    out[..., h:, :h] = A[..., h:, :] @ B[..., :h, :].mT
    return out


def _half(A: Tensor) -> int:
    """Where to cut; 0: nowhere. A GPU does a full product faster than its parts, anything a small one."""
    M = A.shape[-2]
    return M // 2 if M >= 2 * SMALLEST_BLOCK and not A.is_cuda else 0
