"""The direct step of decoupled conditionals (see `direct`): the formulas of `conditional`, for one model."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from duogp.bases.conditional import Conditional
from duogp.bases.marginals import Marginals, Moments, Penalties, Reads
from duogp.fused.direct import (
    DirectKernel,
    DirectStep,
    add_gradient,
    lower_mask,
    memory_for,
    minus_half_mask,
    norms,
    squared_norm,
    times_columns,
    times_rows,
)
from duogp.fused.direct_products import (
    Plan,
    Triangle,
    cuts_of,
    lower_outer,
    lower_product,
    upper_product,
)
from duogp.kernels.base import Kernel
from duogp.kernels.stationary import profile_of, stationary_part
from duogp.numerics.factorisation import Numerics
from duogp.variational import CholeskyQ


def find(basis: Conditional, x: Tensor, reads: Reads, with_omega: bool) -> DirectStep | None:
    """The step for one latent function, Q-whitening, a free S, kernels with a profile, row-wise Ω or none."""
    q = basis.q
    if type(q) is not CholeskyQ or basis.whitening != "Q" or (with_omega and basis.omega != "rows"):
        return None
    if not basis.inducing.shape[:-2] == q.mean.shape[:-1] == (1, 1) or q.mean.shape[-1] != q.size:
        return None
    kernels = [_direct(kernel, basis.inducing, x) for kernel in (basis.kernel, basis.mean_kernel)]
    if kernels[0] is None or kernels[1] is None:
        return None
    return DirectConditional(basis, kernels[0], kernels[1], x, with_omega)


def _direct(kernel: Kernel, points: Tensor, x: Tensor) -> DirectKernel | None:
    base = stationary_part(kernel, points, x)
    profile = None if base is None else profile_of(base)
    return None if base is None or profile is None else DirectKernel(kernel, base, profile, points, x)


class DirectConditional(DirectStep):
    """Keeps the memory of a step: some twenty matrices [M, n] and [M, M]."""

    def __init__(
        self, basis: Conditional, kernel: DirectKernel, mean_kernel: DirectKernel, x: Tensor, with_omega: bool
    ) -> None:
        q = basis.q
        assert isinstance(q, CholeskyQ)
        self.basis, self.q, self.with_omega = basis, q, with_omega
        self.kernel, self.mean_kernel = kernel, mean_kernel
        M = kernel.M
        self.z, self.m, self.raw_root = (p.detach()[0, 0] for p in (basis.inducing, q.mean, q.raw_root))
        cuts = cuts_of(M)
        self.T, self.U = Triangle(M, x.dtype, cuts), Triangle(M, x.dtype, cuts)  # of k(Z, Z) and q(Z, Z)
        self.lower, self.minus_half, self.g_root = lower_mask(M, x), minus_half_mask(M, x), x.new_zeros(M, M)
        phi, psi, W, E, G, memory = (kernel.wide(M) for _ in range(6))
        self.phi, self.psi, self.W, self.E, self.G, self.memory = phi, psi, W, E, G, memory
        F, V, A, g_A, g_F, Y, P, square = (x.new_zeros(M, M) for _ in range(8))
        self.F, self.V, self.A, self.g_A, self.g_F, self.Y, self.P, self.square = (
            F,
            V,
            A,
            g_A,
            g_F,
            Y,
            P,
            square,
        )
        self.F_diagonal, self.P_diagonal = F.diagonal(), P.diagonal()
        T, U = self.T, self.U
        self.features = (
            T.solve(kernel.k, phi) + U.solve(mean_kernel.k, psi) + T.solve(U.L, V)
            + upper_product(F, psi, W, cuts) + lower_product(V, F, A, cuts)
        )  # fmt: skip
        self.shared = upper_product(A, phi, memory, cuts)
        self.through_omega = lower_product(A, E, G, cuts) + lower_outer(phi, E, square, cuts)
        self.of_k = lower_outer(G, phi, P, cuts) + lower_outer(g_A, A, square, cuts)
        self.of_root = upper_product(V, g_A, Y, cuts) + lower_outer(psi, W, g_F, cuts)
        self.of_q = lower_product(F, W, G, cuts)
        self.outer_q = lower_outer(G, psi, P, cuts) + lower_outer(Y, F, square, cuts)
        # L⁻ᵀ of P L⁻¹ and of gφ, for k and for q.
        self.last = [
            t.from_both_sides(P, own.g_K) + t.solve_transposed(G, own.g_k)
            for t, own in ((T, kernel), (U, mean_kernel))
        ]

    @torch.no_grad()
    def forward(self, x: Tensor, numerics: Numerics) -> tuple[Moments, Penalties]:
        m, n, basis, F, phi, psi = self.m, self.kernel.n, self.basis, self.F, self.phi, self.psi
        self.T.factorise(self.kernel.forward(self.z, x.reshape(n, -1), numerics.jitter.view(1)), numerics)
        mean_jitter = numerics.relative(basis.mean_jitter).view(1)
        self.U.factorise(self.mean_kernel.forward(self.z, x.reshape(n, -1), mean_jitter), numerics)
        torch.mul(self.raw_root, self.lower, out=F)
        self.features()
        s, s_mean = self.s, self.s_mean = self.kernel.read_variance(), self.mean_kernel.read_variance()
        rho = s_mean / s
        self.c, self.mu = torch.mv(self.V, m), times_rows(psi, m)
        self.e, self.u = norms(self.W, self.memory), 1.0 - norms(phi, self.memory)
        self.spread = squared_norm(self.A) + squared_norm(self.c)
        log_det = float(self.F_diagonal.square().log_().sum())
        kl = 0.5 * (rho * self.spread - log_det) + self.T.half_log_det() - self.U.half_log_det()
        kl -= 0.5 * len(m) * (1.0 + math.log(rho))
        omega = None
        if self.with_omega:
            self.u = self.u + numerics.relative(basis.nugget)[0, 0].to(m.dtype)
            self.shared()
            torch.sub(self.W, self.memory, out=self.E)
            self.t = self.mu - times_rows(phi, self.c)
            self.disagreement = norms(self.E, self.memory).addcmul_(self.t, self.t)
            self.omega = 0.5 * rho * float((self.disagreement / self.u).sum())
            omega = x.new_full((1,), self.omega)
        parts = (s_mean**0.5 * self.mu, s * self.u, s_mean * self.e)
        return Marginals(*(part.view(1, 1, n) for part in parts)), Penalties(x.new_full((1,), kl), omega)

    @torch.no_grad()
    def backward(self, f: Moments, penalties: Penalties) -> None:
        assert isinstance(f, Marginals)
        m, phi, psi, V, A, c = self.m, self.phi, self.psi, self.V, self.A, self.c
        s, s_mean, g_A, P = self.s, self.s_mean, self.g_A, self.P
        rho = s_mean / s
        g_f, g_residual, g_explained = (part.reshape(-1) for part in f)
        g_kl = float(penalties.kl)
        g_norm, g_mu = -s * g_residual, s_mean**0.5 * g_f
        torch.mul(A, rho * g_kl, out=g_A)
        g_c = (rho * g_kl) * c
        across = self.kernel.across
        g_W = self.W.mul_(across(2.0 * s_mean * g_explained))
        g_rho = 0.5 * g_kl * (self.spread - len(m) / rho)
        if penalties.omega is not None:
            g_omega = float(penalties.omega)
            half = 0.5 * rho * g_omega / self.u  # gδ
            g_norm = g_norm + half * self.disagreement / self.u
            g_E, g_t = self.E.mul_(across(2.0 * half)), 2.0 * half * self.t
            self.through_omega()
            self.G.addcmul_(c.unsqueeze(-1), across(g_t)).neg_().addcmul_(phi, across(2.0 * g_norm))
            g_A.sub_(self.square)
            g_c = g_c - times_columns(phi, g_t)
            g_W.add_(g_E)
            g_mu = g_mu + g_t
            g_rho = g_rho + g_omega * self.omega / rho
        else:
            torch.mul(phi, across(2.0 * g_norm), out=self.G)
        # What belongs to k.
        g_A.mul_(self.lower)
        self.of_k()
        P.add_(self.square).addr_(g_c, c)
        self.P_diagonal.sub_(g_kl)
        from_k = self._kernel_gradients(self.kernel, self.last[0])
        # What belongs to q.
        self.of_root()
        y = torch.mv(V.mT, g_c)
        Y = self.Y.mul_(self.lower)
        g_root = torch.mul(self.g_F, self.lower, out=memory_for(self.q.raw_root, self.g_root)).add_(Y)
        g_root.diagonal().sub_(self.F_diagonal.reciprocal().mul_(g_kl))
        g_m = times_columns(psi, g_mu).add_(y)
        self.of_q()
        self.G.addcmul_(m.unsqueeze(-1), across(g_mu))
        self.outer_q()
        P.sub_(self.square).addr_(y, m, alpha=-1.0)
        self.P_diagonal.add_(g_kl)
        from_q = self._kernel_gradients(self.mean_kernel, self.last[1])
        g_s = float(torch.dot(g_residual, self.u)) - g_rho * rho / s
        g_s_mean = float(torch.dot(g_f, self.mu)) / (2.0 * s_mean**0.5)
        g_s_mean += float(torch.dot(g_explained, self.e)) + g_rho / s
        add_gradient(self.q.raw_root, g_root)
        add_gradient(self.q.mean, g_m)
        add_gradient(self.basis.inducing, from_k[0] + from_q[0])
        self.kernel.add_gradients(from_k[1], g_s)
        self.mean_kernel.add_gradients(from_q[1], g_s_mean)

    def _kernel_gradients(self, kernel: DirectKernel, last: Plan) -> tuple[Tensor, list[float]]:
        """Gradients of Z and the lengthscale from P, and from gφ in `G`."""
        self.P.mul_(self.minus_half)
        last()
        return kernel.backward()
