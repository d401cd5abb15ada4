"""The training step of decoupled conditionals: marginals, KL and Ω by one function of points, kernels, q(u).

Forward, with K = L Lᵀ of the covariance kernel k, Q = R Rᵀ of the mean kernel q, both of unit variance,
φ = L⁻¹ k(Z, x), ψ = R⁻¹ q(Z, x), S = F Fᵀ and V = L⁻¹R (Q-whitening; columns: one for each row of data):

    μ = ψᵀm    n = ‖φ‖²    W = Fᵀψ    e = ‖W‖²    A = V F    c = V m    κ = ‖A‖² + ‖c‖²    h = ½ log|K|/|Q|
    E = W − Aᵀφ    t = μ − cᵀφ    δ = ‖E‖² + t²           the disagreement of a row (MATH §11 B6)

so Ω over single rows costs one product, since dᵀF = Eᵀ for d = ψ − Vᵀφ. The variances s of k and s′ of q
come in at the end (V, and so A and c, grow with √ρ, ρ = s′/s); ν is the relative nugget, M the points:

    mean √s′ μ    explained s′e    residual s u, u = 1 + ν − n    Ω = ½ρ Σ δ/u
    KL = ½ (ρκ − log|S| − M) + h − (M/2) log ρ

Backward, for gradients gf, ge′, gr, gΩ, gKL of these:

    gμ = √s′ gf    ge = s′ge′    gδ = ½ρ gΩ/u    gn = −s gr + gδ δ/u    gκ = ½ρ gKL    gh = gKL
    gρ = ½ gKL (κ − M/ρ) + gΩ Ω/ρ    gs = Σ gr u − ρ gρ/s    gs′ = Σ gf μ / 2√s′ + Σ ge′ e + gρ/s
    gE = 2 E ∘ gδ    gt = 2 t ∘ gδ    gW = 2 W ∘ ge + gE    gμ += gt
    gψ = F gW + m gμᵀ    gφ = 2 φ ∘ gn − A gE − c gtᵀ
    gA = 2 gκ A − φ gEᵀ    gc = 2 gκ c − φ gt    gm = ψ gμ + y
    Y = Vᵀ gA    y = Vᵀ gc    gF = tril(ψ gWᵀ + Y) − gKL diag(F)⁻¹
    gK = −L⁻ᵀ Φ(gφ φᵀ + gA Aᵀ + gc cᵀ − gh I) L⁻¹        gk = L⁻ᵀ gφ
    gQ = −R⁻ᵀ Φ(gψ ψᵀ − Y Fᵀ − y mᵀ + gh I) R⁻¹          gq = R⁻ᵀ gψ        Φ: lower triangle, halved diagonal

(as in `projections`: the lower triangle of Lᵀ tril(L⁻ᵀ X) is that of X; gV = gA Fᵀ + gc mᵀ is not needed,
since gV Vᵀ = gA Aᵀ + gc cᵀ and Vᵀ gV = Y Fᵀ + y mᵀ). V, A and F being lower triangular, the entries of gA and
Y above the diagonal are never read.

What belongs to k and what belongs to q meet only in V: on a GPU they run side by side, and so does what is
small beside what is large. A GPU takes as long for ten numbers as for a thousand; by automatic
differentiation the variances, KL and Ω were two hundred such steps, a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from duogp.bases.conditional import Conditional
from duogp.bases.marginals import Marginals, Moments, Penalties, Reads
from duogp.fused.step import Step
from duogp.kernels import Kernel
from duogp.kernels.grams import StationaryGrams, kept_slope
from duogp.kernels.profiles import Profile
from duogp.kernels.stationary import split_variance, stationary_part
from duogp.numerics.factorisation import Numerics
from duogp.numerics.products import (
    Halves,
    InHalves,
    Outer,
    gradient_of_gram,
    less_lower_product,
    less_outer_below,
    less_upper_product,
    lower_of_transposed,
    lower_outers,
    lower_product,
    multiply,
    outer_below,
    solve,
    solve_lower,
    solve_transposed,
    upper_product,
    weighed_rows,
)
from duogp.numerics.streams import Beside
from duogp.numerics.tensor_core_products import among, sharing
from duogp.variational import CholeskyQ


def find(basis: Conditional, x: Tensor, reads: Reads, with_omega: bool) -> Step | None:
    """The step for Q-whitening, a free S, kernels with a profile, and Ω over rows or none."""
    q = basis.q
    kernel = stationary_part(basis.kernel, basis.inducing, x)
    mean_kernel = stationary_part(basis.mean_kernel, basis.inducing, x)
    if (
        type(q) is not CholeskyQ
        or basis.whitening != "Q"
        or (with_omega and basis.omega != "rows")
        or kernel is None
        or mean_kernel is None
    ):
        return None

    def step(x: Tensor, numerics: Numerics) -> tuple[Moments, Penalties]:
        nugget = numerics.relative(basis.nugget) if with_omega else None  # relative to the variance, [R, 1]
        f_mean, residual, explained, kl, omega, info = _DecoupledStep.apply(
            (kernel.profile, mean_kernel.profile),
            (numerics.jitter, numerics.relative(basis.mean_jitter)),
            nugget,
            basis.inducing,
            x,
            kernel.lengthscale().unsqueeze(-2),
            mean_kernel.lengthscale().unsqueeze(-2),
            _variance(basis.kernel, x.dtype),
            _variance(basis.mean_kernel, x.dtype),
            q.mean,
            q.root(),
        )
        numerics.note(info)
        penalties = Penalties(kl.sum(-1), omega.sum(-1) if with_omega else None)
        return Marginals(f_mean, residual, explained), penalties

    return step


def _variance(kernel: Kernel, dtype: torch.dtype) -> Tensor | None:
    _, variance = split_variance(kernel)
    return None if variance is None else variance.to(dtype)


class _Kept(NamedTuple):
    """Tensors that the backward pass needs, beside those of the kernels."""

    T: Tensor
    phi: Tensor
    U: Tensor
    psi: Tensor
    W: Tensor
    V: Tensor
    A: Tensor
    c: Tensor
    E: Tensor
    t: Tensor
    mean: Tensor
    root: Tensor
    mu: Tensor
    explained: Tensor
    u: Tensor
    disagreement: Tensor
    spread: Tensor
    omega: Tensor
    s: Tensor
    s_mean: Tensor


class _DecoupledStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        _, _, _, _, x, *_ = inputs
        with sharing(x) as known:
            values, kept = _DecoupledStep._forward(ctx, *inputs)
        ctx.known = among(known, kept)
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        known, ctx.known = ctx.known, None  # autograd does not release it
        with sharing(gradients[0], known):
            return _DecoupledStep._backward(ctx, *gradients)

    @staticmethod
    def _forward(
        ctx: Any,
        profiles: tuple[Profile, Profile],
        jitters: tuple[Tensor, Tensor],
        nugget: Tensor | None,
        z: Tensor,
        x: Tensor,
        lengthscale: Tensor,
        mean_lengthscale: Tensor,
        variance: Tensor | None,
        mean_variance: Tensor | None,
        mean: Tensor,
        root: Tensor,
    ) -> tuple[tuple[Tensor, ...], _Kept]:
        grams = StationaryGrams(profiles[0], z, x, lengthscale)
        mean_grams = StationaryGrams(profiles[1], z, x, mean_lengthscale)
        s, s_mean = (x.new_ones(1, 1) if v is None else v for v in (variance, mean_variance))
        with Beside(x.device) as side:
            of_k = _Whitening(grams, z, x, lengthscale, jitters[0], with_L=False, number=3)
        of_q = _Whitening(mean_grams, z, x, mean_lengthscale, jitters[1], with_L=True, number=4)
        if of_k.halved:  # second parts that begin at the same time
            side.join()
            with side:
                of_k.finish()
            of_q.finish()
        (diagonal, _, T, info), phi = of_k.factors, of_k.features
        (mean_diagonal, R, U, mean_info), psi = of_q.factors, of_q.features
        assert R is not None
        W = upper_product(root, psi)
        side.join()
        with side:  # all that is small
            u = 1.0 - phi.square().sum(-2)
            if nugget is not None:
                u = u + nugget.unsqueeze(-1).to(u)
            mu, explained = weighed_rows(mean, psi), W.square().sum(-2)
            f_mean, f_explained = s_mean.sqrt().unsqueeze(-1) * mu, s_mean.unsqueeze(-1) * explained
            residual = s.unsqueeze(-1) * u
            rho = s_mean / s
            half_log_K, half_log_Q = diagonal.log().sum(-1), mean_diagonal.log().sum(-1)
            log_det = root.diagonal(dim1=-2, dim2=-1).square().log().sum(-1)
            of_dets = (half_log_K - half_log_Q).to(mu.dtype) - 0.5 * log_det
            of_dets = of_dets - 0.5 * mean.shape[-1] * (1.0 + rho.log())
            info = info | mean_info
        V = solve_lower(T, R)
        c = (V @ mean.unsqueeze(-1)).squeeze(-1)
        A = multiply(V, root, left="lower", right="lower")
        E, c_phi = W, mu.new_zeros(())  # not looked at without Ω
        if nugget is not None:
            E, c_phi = less_upper_product(W, A, phi), weighed_rows(c, phi)
        with side:
            spread = A.square().sum((-2, -1)) + c.square().sum(-1)
            kl = 0.5 * rho * spread + of_dets
            t = mu if nugget is None else mu - c_phi
        disagreement, omega = mu.new_zeros(()), kl.new_zeros(())
        if nugget is not None:
            explained_E = E.square().sum(-2)
        side.join()
        if nugget is not None:
            disagreement = explained_E + t.square()
            omega = 0.5 * rho * (disagreement / u).sum(-1)
        ctx.grams, ctx.with_omega = (grams, mean_grams), nugget is not None
        kept = _Kept(
            T, phi, U, psi, W, V, A, c, E, t, mean, root,
            mu, explained, u, disagreement, spread, omega, s, s_mean,
        )  # fmt: skip
        ctx.save_for_backward(*of_k.kept, *of_q.kept, *kept)
        ctx.mark_non_differentiable(info)
        return (f_mean, residual, f_explained, kl, omega, info), kept

    @staticmethod
    def _backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved: Sequence[Tensor] = ctx.saved_tensors
        kept_k, kept_q, kept = saved[:5], saved[5:10], _Kept(*saved[10:])
        T, phi, U, psi, W, V, A, c, E, t, mean, root, *_ = kept
        g_mean, g_residual, g_explained, g_kl, g_omega, _ = gradients
        with_x = ctx.needs_input_grad[4]
        grams, mean_grams = ctx.grams
        s, s_mean = kept.s.unsqueeze(-1), kept.s_mean.unsqueeze(-1)
        rho = kept.s_mean / kept.s
        g_E, g_t = None, None
        g_norm = (-s * g_residual).sum_to_size(kept.u.shape)
        if ctx.with_omega:
            half = (0.5 * rho * g_omega).unsqueeze(-1) / kept.u  # gδ
            g_norm = g_norm + (half * kept.disagreement / kept.u).sum_to_size(g_norm.shape)
            twice = 2.0 * half
            g_E, g_t = E * twice.unsqueeze(-2), t * twice
        with Beside(phi.device) as side:
            g_phi = phi * (2.0 * g_norm).unsqueeze(-2)
            if g_E is not None and g_t is not None:
                g_phi = less_lower_product(g_phi, A, g_E)
                along = c.unsqueeze(-1), g_t.unsqueeze(-2)
                if g_t.shape[:-1] == phi.shape[:-2]:
                    g_phi.addcmul_(*along, value=-1.0)
                else:
                    g_phi = g_phi - (along[0] * along[1]).sum_to_size(phi.shape)
            g_k = solve_transposed(T, g_phi)
        g_mu = s_mean.sqrt() * g_mean
        twice_spread = rho * g_kl  # 2 gκ
        g_A = twice_spread[..., None, None] * A
        g_c = twice_spread.unsqueeze(-1) * c
        g_W = W * (2.0 * s_mean * g_explained).unsqueeze(-2)
        if g_E is not None and g_t is not None:
            g_A = less_outer_below(g_A, phi, g_E)
            g_c = g_c - (phi @ g_t.unsqueeze(-1)).squeeze(-1)
            g_W, g_mu = g_W + g_E, g_mu + g_t
        with side:
            of_c = Outer(g_c.unsqueeze(-1), c.unsqueeze(-1))
            P = lower_outers(T, Outer(g_phi, phi), Outer(g_A, A, triangles=True), of_c)
            P.diagonal(dim1=-2, dim2=-1).sub_(g_kl.sum_to_size(T.shape[:-2]).unsqueeze(-1))
            from_k = grams.backward(kept_k, gradient_of_gram(T, P), g_k, with_x=with_x)
        Y = lower_of_transposed(V, g_A)
        y = V.mT @ g_c.unsqueeze(-1)
        with side:
            g_root = outer_below(psi, g_W).add_(Y).tril_()
            g_root.diagonal(dim1=-2, dim2=-1).sub_(g_kl.unsqueeze(-1) / root.diagonal(dim1=-2, dim2=-1))
            g_m = (psi @ g_mu.unsqueeze(-1) + y).squeeze(-1)
            g_s, g_s_mean = _gradients_of_variances(kept, rho, *gradients[:-1])
        g_psi = (
            lower_product(root, g_W).addcmul_(mean.unsqueeze(-1), g_mu.unsqueeze(-2)).sum_to_size(psi.shape)
        )
        of_m = Outer(y, mean.unsqueeze(-1), -1.0)
        P_mean = lower_outers(U, Outer(g_psi, psi), Outer(Y, root, -1.0, triangles=True), of_m)
        P_mean.diagonal(dim1=-2, dim2=-1).add_(g_kl.sum_to_size(U.shape[:-2]).unsqueeze(-1))
        g_Q, g_q = gradient_of_gram(U, P_mean), solve_transposed(U, g_psi)
        from_q = mean_grams.backward(kept_q, g_Q, g_q, with_x=with_x)
        side.join()
        g_z = from_k[0] + from_q[0]
        g_x = from_k[1] + from_q[1] if with_x else None
        wanted = ctx.needs_input_grad
        of_variances = g_s if wanted[7] else None, g_s_mean if wanted[8] else None
        return None, None, None, g_z, g_x, from_k[2], from_q[2], *of_variances, g_m, g_root


class _Whitening:
    """The factor of k(Z, Z) and L⁻¹k(Z, x) of one kernel, at once or up to the second part (`InHalves`).

    What the factorisation does not need is made meanwhile. To begin the second parts of both kernels at the
    same time is worth a wait: products want the whole device, and take up to three times as long beside a
    factorisation. ``kept``: what the kernel keeps.
    """

    factors: Halves
    features: Tensor

    def __init__(
        self,
        grams: StationaryGrams,
        z: Tensor,
        x: Tensor,
        lengthscale: Tensor,
        jitter: Tensor,
        *,
        with_L: bool,
        number: int,
    ) -> None:
        self._with_L, self._number = with_L, number
        scaled = grams.scaled(z, x, lengthscale)
        K, K_slope = grams.among_points(scaled, jitter)
        with Beside(x.device, number) as self._rows:
            K_slope = kept_slope(K, K_slope, x.dtype)
            self._k, k_slope = grams.with_rows(scaled)
        self._factorisation = InHalves(K, x.dtype, before_overwriting=self._rows.join)
        self.kept = [*scaled, K_slope, k_slope]
        self.halved = self._factorisation.halved
        if not self.halved:
            self.finish()

    def finish(self) -> None:
        self.factors = self._factorisation.finish(with_L=self._with_L, number=self._number + 2)
        self._rows.join()
        self.features = solve(self.factors.T, self._k)
        del self._factorisation, self._k  # large, and not looked at again


def _gradients_of_variances(
    kept: _Kept,
    rho: Tensor,
    g_mean: Tensor,
    g_residual: Tensor,
    g_explained: Tensor,
    g_kl: Tensor,
    g_omega: Tensor,
) -> tuple[Tensor, Tensor]:
    s, s_mean = kept.s, kept.s_mean
    g_rho = 0.5 * g_kl * (kept.spread - kept.mean.shape[-1] / rho) + g_omega * kept.omega / rho
    of_means = (g_mean * kept.mu).sum(-1) / (2.0 * s_mean.sqrt()) + (g_explained * kept.explained).sum(-1)
    g_s = (g_residual * kept.u).sum(-1).sum_to_size(s.shape) - (g_rho * rho / s).sum_to_size(s.shape)
    # Latent functions that share a kernel share its variance.
    return g_s, of_means.sum_to_size(s_mean.shape) + (g_rho / s).sum_to_size(s_mean.shape)
