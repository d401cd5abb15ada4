"""Cholesky factors with jitter, whitening and projection: the linear algebra of all bases.

Jitter is added, and the success of a Cholesky recorded, in `Numerics` only. It never synchronises with the
host: failures set a flag on the device that the training loop reads every few dozen steps and answers with a
rollback and more jitter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from duogp.numerics.evidence import log_normal
from duogp.numerics.triangles import inverse_of_lower

#: Jitter relative to the mean prior variance, by working precision (MATH §11 C5): the smallest that is safe.
JITTER = {torch.float64: 1e-6, torch.float32: 1e-4}
#: The largest relative jitter that failures raise it to.
MAX_JITTER = 1e-1


def norm2(phi: Tensor) -> Tensor:
    """‖φ(x)‖² of each column: [..., M, n] → [..., n]."""
    return phi.square().sum(-2)


def project(phi: Tensor, m: Tensor) -> Tensor:
    """φ(x)ᵀ m: [..., M, n], [..., M] → [..., n]."""
    return (m.unsqueeze(-2) @ phi).squeeze(-2)


def symmetrise(a: Tensor) -> Tensor:
    """(A + Aᵀ)/2, [..., M, M]."""
    return 0.5 * (a + a.mT)


def lower_root_of_inverse(P: Tensor) -> tuple[Tensor, Tensor]:
    """R lower triangular with R Rᵀ = P⁻¹, and the flags (0: success) of the Cholesky; P⁻¹ is never formed.

    P = U Uᵀ with U upper triangular, so P⁻¹ = U⁻ᵀU⁻¹ and U⁻ᵀ is the lower root.
    P and R [..., M, M], flags [...].
    """
    L, info = torch.linalg.cholesky_ex(P.flip((-2, -1)))
    U = L.flip((-2, -1))
    return inverse_of_lower(U.mT), info


def jittered_root(
    K: Tensor, scale: Tensor, *, first: float = 1e-10, last: float = 1e-2, failure: str
) -> Tensor:
    """L with L Lᵀ = K + ε s I, outside training: a covariance K [..., n, n] with entries of size s [...].

    ε is ``first``, then 1e-10 or ten times the value before, until there is a factor; beyond ``last`` it is a
    ValueError with the message ``failure``.
    """
    jitter = first
    while True:
        raised = K.clone()
        raised.diagonal(dim1=-2, dim2=-1).add_(jitter * scale.unsqueeze(-1))
        L, info = torch.linalg.cholesky_ex(raised)
        if not bool((info != 0).any()):
            return L
        if jitter > last:
            raise ValueError(failure)
        jitter = max(10 * jitter, 1e-10)


class Factor(NamedTuple):
    """L Lᵀ = K + jitter I, and L⁻¹, so that whitening and its backward are matrix products (MATH §10)."""

    L: Tensor
    L_inv: Tensor
    jitter: Tensor  # the absolute jitter, [...]

    def whiten(self, k: Tensor) -> Tensor:
        """L⁻¹ k of columns k [..., M, n], of their shape."""
        return self.L_inv @ k

    def half_log_det(self) -> Tensor:
        """½ log|K + jitter I| = Σ log diag L, [...]."""
        return self.L.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def detach(self) -> Factor:
        return Factor(self.L.detach(), self.L_inv.detach(), self.jitter.detach())


class _CholeskyWithInverse(torch.autograd.Function):
    """K ↦ (L, L⁻¹), backward by matrix products only (MATH §10, §11 B11).

    With P = Φ(LᵀgL − gL⁻¹ L⁻ᵀ), Φ = lower triangle with halved diagonal:  gK = sym(L⁻ᵀ P L⁻¹).
    Factorised in float64; results and backward in the working precision.
    """

    @staticmethod
    def forward(ctx: Any, K: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        L, info = torch.linalg.cholesky_ex(K)
        L, L_inv = L.to(dtype), inverse_of_lower(L).to(dtype)
        ctx.save_for_backward(L, L_inv)
        ctx.input_dtype = K.dtype
        ctx.mark_non_differentiable(info)
        ctx.set_materialize_grads(False)
        return L, L_inv, info

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, gL: Tensor | None, gL_inv: Tensor | None, _info: Tensor
    ) -> tuple[Tensor | None, None]:
        L, L_inv = ctx.saved_tensors
        parts = [] if gL is None else [L.mT @ gL]
        parts += [] if gL_inv is None else [-gL_inv @ L_inv.mT]
        if not parts:
            return None, None
        P = torch.tril(sum(parts[1:], parts[0]))
        P.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        return symmetrise(L_inv.mT @ (P @ L_inv)).to(ctx.input_dtype), None


class _InverseQuadratic(torch.autograd.Function):
    """(K, G) ↦ ½ tr GᵀK⁻¹G. With α = K⁻¹G the backward needs no factor: gG = α, gK = −½ααᵀ."""

    @staticmethod
    def forward(ctx: Any, K: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
        L, info = torch.linalg.cholesky_ex(K)
        Y = torch.linalg.solve_triangular(L, G, upper=False)
        ctx.save_for_backward(L, Y)
        ctx.mark_non_differentiable(info)
        return 0.5 * Y.square().sum((-2, -1)), info

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor, _info: Tensor) -> tuple[Tensor, Tensor]:
        L, Y = ctx.saved_tensors
        alpha = torch.linalg.solve_triangular(L.mT, Y, upper=True)
        g = g[..., None, None]
        gK = -0.5 * g * (alpha @ alpha.mT)
        return gK.sum_to_size(L.shape), g * alpha  # one K may serve many G


class Numerics(nn.Module):
    """The jitter of a model, and whether a factorisation has failed, for each replicate.

    `jitter` is relative to the mean prior variance. It is a buffer, so that a captured step reads a raised
    value without being captured again.
    """

    jitter: Tensor
    failed: Tensor
    replicate_buffers = ("jitter", "failed")

    def __init__(
        self, replicates: int = 1, jitter: float | None = None, dtype: torch.dtype = torch.float64
    ) -> None:
        super().__init__()
        value = JITTER[dtype] if jitter is None else jitter
        self.dtype = dtype
        self.initial_jitter = float(value)
        self.register_buffer("jitter", torch.full((replicates, 1), float(value), dtype=torch.float64))
        self.register_buffer("failed", torch.zeros(replicates, dtype=torch.bool))

    @property
    def least_jitter(self) -> float:
        """The rounding error of the working precision; a smaller jitter has no effect."""
        return torch.finfo(self.dtype).eps

    @contextmanager
    def in_precision(self, dtype: torch.dtype) -> Iterator[None]:
        """Another working precision for a while."""
        previous, self.dtype = self.dtype, dtype
        try:
            yield
        finally:
            self.dtype = previous

    def relative(self, jitter: float | None = None) -> Tensor:
        """The jitter [R, 1]: the given one of a method until the model's own is raised above it."""
        if jitter is None:
            return self.jitter
        own = torch.full_like(self.jitter, jitter)
        return torch.where(self.jitter > self.initial_jitter, torch.maximum(self.jitter, own), own)

    def absolute(self, prior_diagonal: Tensor, jitter: float | None = None) -> Tensor:
        """ε [R, ...] for a covariance with such a prior diagonal [R, ..., M]."""
        return self.relative(jitter) * prior_diagonal.double().mean(-1)

    def jittered(
        self, K: Tensor, prior_diagonal: Tensor | None = None, jitter: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """K + εI in float64, and ε, relative to the mean of K's diagonal or of the given prior diagonal.

        A Schur complement is a difference of prior covariances and rounds relative to those: it needs their
        diagonal (MATH §11 A2). ``jitter``: that of a method, see `relative`.
        K [..., M, M], diagonal [..., M], ε [...].
        """
        K = K.double()
        epsilon = self.absolute(
            K.diagonal(dim1=-2, dim2=-1) if prior_diagonal is None else prior_diagonal, jitter
        )
        eye = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
        return K + epsilon[..., None, None] * eye, epsilon

    def factor(self, K: Tensor, prior_diagonal: Tensor | None = None, jitter: float | None = None) -> Factor:
        """Factorise a covariance [R, latent, M, M] with jitter."""
        K, epsilon = self.jittered(K, prior_diagonal, jitter)
        L, L_inv, info = _CholeskyWithInverse.apply(K, self.dtype)
        self.note(info)
        return Factor(L, L_inv, epsilon)

    def log_normal(self, K: Tensor, diagonal: Tensor, y: Tensor) -> Tensor:
        """log N(y | 0, K + diag(diagonal)), [R, latent]; the diagonal has its jitter."""
        value, info = log_normal(K, diagonal, y)
        self.note(info)
        return value

    def inverse_quadratic(self, K: Tensor, G: Tensor) -> Tensor:
        """½ tr GᵀK⁻¹G, [...], for a K [..., n, n] that has its jitter and G [..., n, k]."""
        value, info = _InverseQuadratic.apply(K, G)
        self.note(info)
        return value

    @torch.no_grad()
    def raise_jitter(self, which: Tensor, limit: float = MAX_JITTER) -> None:
        """Ten times the jitter, up to ``limit``, for the replicates ``which`` [R]; no jitter is lowered."""
        raised = torch.maximum(self.jitter, (self.jitter * 10).clamp(self.least_jitter, limit))
        self.jitter.copy_(torch.where(which.unsqueeze(-1), raised, self.jitter))

    def note(self, info: Tensor) -> None:
        """Record a failed factorisation (info [R, ...] ≠ 0) in `failed`, without a synchronisation."""
        self.failed.logical_or_((info != 0).flatten(1).any(1) if info.dim() > 1 else info != 0)

    def extra_repr(self) -> str:
        return f"dtype={self.dtype}"
