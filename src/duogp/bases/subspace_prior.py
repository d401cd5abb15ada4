"""The divergence of two subspace-parametrised Gaussian processes (Cheng and Boots 2017, Theorem 1).

    q: μ = Ψ_α a,  Σ = (I + Ψ_β B Ψ_βᵀ)⁻¹,  B = L Lᵀ;        p the same with hats, or the prior of the kernel

With H = I + LᵀK_βL, C = chol(H)⁻¹ LᵀK_ββ̂ L̂ and δ = μ − μ̂, all of it finite at B = 0:

    KL(q ‖ p) = ½ log|H| − ½ log|Ĥ| + ½ tr(Ĥ − I) − ½ tr(I − H⁻¹) − ½‖C‖²       covariances
              + ½‖δ‖²_H + ½‖L̂ᵀ δ(β̂)‖²                                            means

as tr Σ̂⁻¹Σ − tr I = tr K_β̂B̂ − tr (K_β + K_ββ̂B̂K_β̂β) L H⁻¹ Lᵀ (MATH §6.1; scans of the theorem lose some minus
signs). Without p this is ½ aᵀK_α a + ½ log|H| − ½ tr(I − H⁻¹).

Jitter is a noise of variance ε on the variables at β (MATH §11 C1): K_β + εI within one process, none between
two, whose noises are different variables. Both processes live in the RKHS of one kernel: where its
hyperparameters move, so does p.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from duogp.kernels.base import Kernel
from duogp.numerics.factorisation import project


class SubspaceState(NamedTuple):
    """A Gaussian process on two sets of basis functions; yesterday's posterior may be today's prior."""

    alpha: Tensor  # mean points [R, 1, M_α, d]
    a: Tensor  # their coefficients [R, latent, M_α]
    beta: Tensor  # covariance points [R, 1, M_β, d]
    L: Tensor  # B = L Lᵀ, [R, latent, M_β, r]
    jitter: Tensor | float = 0.0  # variance of the noise on the variables at β, [R, latent]


def subspace_kl(
    kernel: Kernel, q: SubspaceState, p: SubspaceState | None = None, *, norm: Tensor | None = None
) -> Tensor:
    """KL(q ‖ p) of each latent function, [R, latent], without jitter and without an inverse of K.

    ``norm``: aᵀ k(α, α) a of q where it is known, or an unbiased estimate of it.
    """
    if norm is None:
        norm = squared_norm(kernel, q.alpha, q.a)
    gain, C = _gain_and_factor(kernel, q)
    C_inv = torch.linalg.solve_triangular(C, _eye_like(C), upper=False)
    covariance = _half_log_det(C) - 0.5 * ((C_inv @ gain) * C_inv).sum((-2, -1))  # tr H⁻¹(H − I)
    if p is None:
        return covariance + 0.5 * norm
    gain_p, C_p = _gain_and_factor(kernel, p)
    trace = gain_p.diagonal(dim1=-2, dim2=-1).sum(-1)
    cross = C_inv @ (q.L.mT @ kernel(q.beta, p.beta) @ p.L)
    covariance = covariance - _half_log_det(C_p) + 0.5 * (trace - cross.square().sum((-2, -1)))
    # ‖δ‖² = ‖μ‖² − 2⟨μ, μ̂⟩ + ‖μ̂‖², and δ at β̂
    overlap = (project(kernel(p.alpha, q.alpha), p.a) * q.a).sum(-1)
    distance = norm - 2.0 * overlap + squared_norm(kernel, p.alpha, p.a)
    delta = project(kernel(q.alpha, p.beta), q.a) - project(kernel(p.alpha, p.beta), p.a)
    shift = project(p.L, delta)
    return covariance + 0.5 * distance + 0.5 * shift.square().sum(-1)


def squared_norm(kernel: Kernel, points: Tensor, a: Tensor, index: Tensor | None = None) -> Tensor:
    """aᵀ k(α, α) a, or an estimate from some of its columns: (M/|I|) aᵀ k(α, I) a_I, I = index [R, |I|].

    Over random subsets I unbiased, value and gradient; a single draw may be negative (MATH §3.3).
    """
    if index is None:
        return (project(kernel(points, points), a) * a).sum(-1)
    index = index.unsqueeze(1)  # [R, 1, |I|]
    chosen = points.gather(-2, index.unsqueeze(-1).expand(*index.shape, points.shape[-1]))
    a_chosen = a.gather(-1, index.expand(*a.shape[:-1], index.shape[-1]))
    scale = a.shape[-1] / index.shape[-1]
    return scale * (project(kernel(points, chosen), a) * a_chosen).sum(-1)


def _gain_and_factor(kernel: Kernel, state: SubspaceState) -> tuple[Tensor, Tensor]:
    """Lᵀ(K_β + εI)L = H − I and chol(H). H ≥ I needs no jitter; where it is not finite, neither is the KL."""
    L, jitter = state.L, state.jitter
    noise = jitter[..., None, None] if isinstance(jitter, Tensor) else jitter
    gain = L.mT @ kernel(state.beta, state.beta) @ L + noise * (L.mT @ L)
    return gain, torch.linalg.cholesky_ex(gain + _eye_like(gain))[0]


def _eye_like(A: Tensor) -> Tensor:
    return torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand_as(A)


def _half_log_det(C: Tensor) -> Tensor:
    return C.diagonal(dim1=-2, dim2=-1).log().sum(-1)
