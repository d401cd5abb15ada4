"""What a training step asks of decoupled conditionals, as one function of the points, both kernels and q(u).

Forward, with K = L Lᵀ of the covariance kernel k, Q = R Rᵀ of the mean kernel q, φ = L⁻¹ k(Z, x),
ψ = R⁻¹ q(Z, x), S = F Fᵀ and V = L⁻¹R (Q-whitening; columns: one for each row of data):

    μ = ψᵀm    n = ‖φ‖²    W = Fᵀψ    e = ‖W‖²    A = V F    c = V m    κ = ‖A‖² + ‖c‖²    h = ½ log|K|/|Q|
    E = W − Aᵀφ    t = μ − cᵀφ    δ = ‖E‖² + t²           the disagreement of a row: Ω = ½ Σ δ/r (MATH §11 B6)

so Ω over single rows costs one product, since dᵀF = Eᵀ for d = ψ − Vᵀφ. Backward, for gradients of these:

    gE = 2 E ∘ gδ    gt = 2 t ∘ gδ    gW = 2 W ∘ ge + gE    gμ += gt
    gψ = F gW + m gμᵀ    gφ = 2 φ ∘ gn − A gE − c gtᵀ
    gA = 2 gκ A − φ gEᵀ    gc = 2 gκ c − φ gt    gF = tril(ψ gWᵀ + Vᵀ gA)    gm = ψ gμ + Vᵀ gc
    gV = gA Fᵀ + gc mᵀ
    gK = −L⁻ᵀ Φ(gφ φᵀ + gV Vᵀ − gh I) L⁻¹        gk = L⁻ᵀ gφ        Φ: lower triangle, halved diagonal
    gQ = −R⁻ᵀ Φ(gψ ψᵀ − Vᵀ gV + gh I) R⁻¹        gq = R⁻ᵀ gψ

(as in `duogp.whitening`: the lower triangle of Lᵀ tril(L⁻ᵀ X) is that of X). What belongs to k and what
belongs to q meet only in V: on a GPU they run side by side.

Variances of the kernels are left to the end: with k = s k₁ and q = s′ q₁, V and so A, c grow with √(s′/s).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from duogp.bases.marginals import Marginals
from duogp.kernels import Kernel, Scale
from duogp.kernels.grams import StationaryGrams
from duogp.kernels.profiles import Profile
from duogp.kernels.stationary import Stationary
from duogp.linalg import Numerics
from duogp.streams import Beside
from duogp.whitening import (
    gradient_of_gram,
    less_upper_product,
    lower_outer,
    lower_outers,
    lower_product,
    solve_lower,
    solve_transposed,
    upper_product,
    whiten,
)


class Decoupled(NamedTuple):
    """What a step has found."""

    marginals: Marginals
    #: ‖V F‖² + ‖V m‖² and ½ log|K|/|Q|, the parts of KL(m, S ‖ K̄) that both kernels have a say in
    spread: Tensor
    half_log_ratio: Tensor
    #: δ of each row; None where Ω was not asked for
    disagreement: Tensor | None


def decoupled_in_one(
    kernel: Kernel,
    mean_kernel: Kernel,
    inducing: Tensor,
    x: Tensor,
    mean: Tensor,
    root: Tensor,
    numerics: Numerics,
    *,
    mean_jitter: Tensor,
    with_disagreement: bool,
) -> Decoupled:
    """f(x), x [R, 1, n, d], under q = N(mean, root rootᵀ), and its cost; for kernels that `suits` accepts."""
    base, variance = _taken_apart(kernel, x.dtype)
    mean_base, mean_variance = _taken_apart(mean_kernel, x.dtype)
    assert base.profile is not None and mean_base.profile is not None
    mu, norm, explained, spread, half_log_ratio, disagreement, info = _DecoupledStep.apply(
        (base.profile, mean_base.profile),
        (numerics.jitter, mean_jitter),
        with_disagreement,
        inducing,
        x,
        base.lengthscale().unsqueeze(-2),
        mean_base.lengthscale().unsqueeze(-2),
        mean,
        root,
    )
    numerics.note(info)
    if variance is None and mean_variance is None:
        f = Marginals(mu, 1.0 - norm, explained)
        return Decoupled(f, spread, half_log_ratio, disagreement if with_disagreement else None)
    one = x.new_ones(1)
    s, s_mean = one if variance is None else variance, one if mean_variance is None else mean_variance
    size = 0.5 * mean.shape[-1]
    return Decoupled(
        Marginals(
            s_mean.sqrt().unsqueeze(-1) * mu, s.unsqueeze(-1) * (1.0 - norm), s_mean.unsqueeze(-1) * explained
        ),
        s_mean / s * spread,
        half_log_ratio + size * (s / s_mean).log(),
        s_mean.unsqueeze(-1) * disagreement if with_disagreement else None,
    )


def _taken_apart(kernel: Kernel, dtype: torch.dtype) -> tuple[Stationary, Tensor | None]:
    if isinstance(kernel, Scale):
        assert isinstance(kernel.kernel, Stationary)
        return kernel.kernel, kernel.variance().to(dtype)
    assert isinstance(kernel, Stationary)
    return kernel, None


class _DecoupledStep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        profiles: tuple[Profile, Profile],
        jitters: tuple[Tensor, Tensor],
        with_disagreement: bool,
        z: Tensor,
        x: Tensor,
        lengthscale: Tensor,
        mean_lengthscale: Tensor,
        mean: Tensor,
        root: Tensor,
    ) -> tuple[Tensor, ...]:
        grams = StationaryGrams(profiles[0], z, x, lengthscale)
        mean_grams = StationaryGrams(profiles[1], z, x, mean_lengthscale)
        with Beside(x.device) as side:
            K, k, kept_k = grams.forward(z, x, lengthscale, jitters[0])
            L, T, phi, info = whiten(K, k)
            norm = phi.square().sum(-2)
            half_log_K = L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        Q, q, kept_q = mean_grams.forward(z, x, mean_lengthscale, jitters[1])
        R, U, psi, mean_info = whiten(Q, q)
        W = upper_product(root, psi)
        mu = (mean.unsqueeze(-2) @ psi).squeeze(-2)
        explained = W.square().sum(-2)
        half_log_Q = R.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        R = R.to(psi.dtype)
        side.join()
        V = solve_lower(T, R)
        A, c = V @ root, (V @ mean.unsqueeze(-1)).squeeze(-1)
        spread = A.square().sum((-2, -1)) + c.square().sum(-1)
        E, t, disagreement = W, mu, mu.new_zeros(())  # not looked at without Ω
        if with_disagreement:
            E = less_upper_product(W, A, phi)
            t = mu - (c.unsqueeze(-2) @ phi).squeeze(-2)
            disagreement = E.square().sum(-2) + t.square()
        half_log_ratio = (half_log_K - half_log_Q).to(mu.dtype)
        ctx.grams, ctx.with_disagreement = (grams, mean_grams), with_disagreement
        ctx.save_for_backward(*kept_k, *kept_q, T, phi, U, psi, W, V, A, c, E, t, mean, root)
        info = info | mean_info
        ctx.mark_non_differentiable(info)
        return mu, norm, explained, spread, half_log_ratio, disagreement, info

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved: Sequence[Tensor] = ctx.saved_tensors
        kept_k, kept_q, (T, phi, U, psi, W, V, A, c, E, t, mean, root) = saved[:5], saved[5:10], saved[10:]
        g_mu, g_norm, g_explained, g_spread, g_ratio, g_disagreement, _ = gradients
        with_x = ctx.needs_input_grad[4]
        grams, mean_grams = ctx.grams
        g_E, g_t = None, None
        if ctx.with_disagreement:
            twice = 2.0 * g_disagreement
            g_E, g_t = E * twice.unsqueeze(-2), t * twice
        with Beside(phi.device) as side:
            g_phi = phi * (2.0 * g_norm).unsqueeze(-2)
            if g_E is not None and g_t is not None:
                from_rows = lower_product(A, g_E).addcmul_(c.unsqueeze(-1), g_t.unsqueeze(-2))
                g_phi = g_phi - from_rows.sum_to_size(phi.shape)
            g_k = solve_transposed(T, g_phi)
        g_A = (2.0 * g_spread)[..., None, None] * A
        g_c = (2.0 * g_spread).unsqueeze(-1) * c
        g_W = W * (2.0 * g_explained).unsqueeze(-2)
        if g_E is not None and g_t is not None:
            g_A = g_A - lower_outer(phi, g_E)
            g_c = g_c - (phi @ g_t.unsqueeze(-1)).squeeze(-1)
            g_W, g_mu = g_W + g_E, g_mu + g_t
        g_V = (g_A @ root.mT).addcmul_(g_c.unsqueeze(-1), mean.unsqueeze(-2)).sum_to_size(V.shape)
        g_ratio = g_ratio.to(phi.dtype).sum_to_size(V.shape[:-2]).unsqueeze(-1)
        with side:
            P = lower_outers(g_phi, phi, g_V, V)
            P.diagonal(dim1=-2, dim2=-1).sub_(g_ratio)
            from_k = grams.backward(kept_k, gradient_of_gram(T, P), g_k, with_x=with_x)
            g_root = lower_outers(psi, g_W, V.mT, g_A.mT)
            g_mean = (psi @ g_mu.unsqueeze(-1) + V.mT @ g_c.unsqueeze(-1)).squeeze(-1)
        g_psi = (
            lower_product(root, g_W).addcmul_(mean.unsqueeze(-1), g_mu.unsqueeze(-2)).sum_to_size(psi.shape)
        )
        P_mean = lower_outers(g_psi, psi, V.mT, g_V.mT, sign=-1.0)
        P_mean.diagonal(dim1=-2, dim2=-1).add_(g_ratio)
        g_Q, g_q = gradient_of_gram(U, P_mean), solve_transposed(U, g_psi)
        from_q = mean_grams.backward(kept_q, g_Q, g_q, with_x=with_x)
        side.join()
        g_z = from_k[0] + from_q[0]
        g_x = from_k[1] + from_q[1] if with_x else None
        return None, None, None, g_z, g_x, from_k[2], from_q[2], g_mean, g_root
