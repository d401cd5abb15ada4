"""The direct step of decoupled conditionals (see `direct`): the formulas of `conditional`, for one model."""

from __future__ import annotations

import torch
from torch import Tensor

from duogp.bases.conditional import Conditional
from duogp.bases.marginals import Marginals, Moments, Penalties, Reads
from duogp.fused.direct import DirectKernel, DirectStep, add_gradient, factorised, norms, squared_norm
from duogp.kernels.base import Kernel
from duogp.kernels.stationary import profile_of, stationary_part
from duogp.numerics import blocks
from duogp.numerics.blocks import LowerTriangle
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

    T: LowerTriangle  # of k(Z, Z)
    U: LowerTriangle  # of q(Z, Z)

    def __init__(
        self, basis: Conditional, kernel: DirectKernel, mean_kernel: DirectKernel, x: Tensor, with_omega: bool
    ) -> None:
        q = basis.q
        assert isinstance(q, CholeskyQ)
        self.basis, self.q, self.with_omega = basis, q, with_omega
        self.kernel, self.mean_kernel = kernel, mean_kernel
        M, n = kernel.M, kernel.n
        self.cuts = blocks.cuts_of(M)
        self.z, self.m, self.raw_root = (p.detach()[0, 0] for p in (basis.inducing, q.mean, q.raw_root))
        self.phi, self.psi, self.W, self.E, *self.rows = (x.new_empty(M, n) for _ in range(7))
        self.F, self.V, self.A, *self.squares = (x.new_empty(M, M) for _ in range(7))

    @torch.no_grad()
    def forward(self, x: Tensor, numerics: Numerics) -> tuple[Moments, Penalties]:
        cuts, m, n, basis = self.cuts, self.m, self.kernel.n, self.basis
        free, other, _ = self.rows
        K, k = self.kernel.forward(self.z, x[0, 0], numerics.jitter[0, 0])
        self.T = factorised(K, k.dtype, cuts, numerics)
        phi = self.T.solve(free.copy_(k), self.phi)
        mean_jitter = numerics.relative(basis.mean_jitter)[0, 0]
        Q, cross = self.mean_kernel.forward(self.z, x[0, 0], mean_jitter)
        self.U = factorised(Q, k.dtype, cuts, numerics)
        psi = self.U.solve(free.copy_(cross), self.psi)
        F = torch.tril(self.raw_root, out=self.F)
        W = blocks.upper_product(F, psi, self.W, cuts)
        V = self.T.solve(self.squares[0].copy_(self.U.L), self.V)
        A = blocks.lower_product(V, F, self.A, cuts)
        s, s_mean = self.s, self.s_mean = self.kernel.variance(), self.mean_kernel.variance()
        rho = s_mean / s
        self.c, self.mu, self.e = torch.mv(V, m), torch.mv(psi.mT, m), norms(W, free)
        self.u = 1.0 - norms(phi, free)
        self.spread = squared_norm(A) + squared_norm(self.c)
        log_det = F.diagonal().square().log_().sum()
        kl = 0.5 * (rho * self.spread - log_det) + (self.T.half_log_det - self.U.half_log_det).to(m.dtype)
        kl = kl - 0.5 * len(m) * (1.0 + torch.tensor(rho).log())
        omega = None
        if self.with_omega:
            self.u = self.u + numerics.relative(basis.nugget)[0, 0].to(m.dtype)
            self.E = torch.sub(W, blocks.upper_product(A, phi, free, cuts), out=self.E)
            self.t = self.mu - torch.mv(phi.mT, self.c)
            self.disagreement = norms(self.E, other).addcmul_(self.t, self.t)
            self.omega = 0.5 * rho * (self.disagreement / self.u).sum()
            omega = self.omega.reshape(1)
        parts = (s_mean**0.5 * self.mu, s * self.u, s_mean * self.e)
        return Marginals(*(part.view(1, 1, n) for part in parts)), Penalties(kl.reshape(1).to(m.dtype), omega)

    @torch.no_grad()
    def backward(self, f: Moments, penalties: Penalties) -> None:
        assert isinstance(f, Marginals)
        cuts, m, phi, psi, F, V, A, c = self.cuts, self.m, self.phi, self.psi, self.F, self.V, self.A, self.c
        s, s_mean = self.s, self.s_mean
        rho = s_mean / s
        g_f, g_residual, g_explained = (part.reshape(-1) for part in f)
        g_kl = penalties.kl[0]
        free, other, third = self.rows
        g_A, Y, P, memory = self.squares
        g_norm, g_mu = -s * g_residual, s_mean**0.5 * g_f
        torch.mul(A, rho * g_kl, out=g_A)
        g_c = (rho * g_kl) * c
        g_W = self.W.mul_(2.0 * s_mean * g_explained)
        g_rho = 0.5 * g_kl * (self.spread - len(m) / rho)
        if penalties.omega is not None:
            g_omega = penalties.omega[0]
            half = 0.5 * rho * g_omega / self.u  # gδ
            g_norm = g_norm + half * self.disagreement / self.u
            g_E, g_t = self.E.mul_(2.0 * half), 2.0 * half * self.t
            g_phi = blocks.lower_product(A, g_E, free, cuts).addr_(c, g_t).neg_()
            g_phi.addcmul_(phi, 2.0 * g_norm)
            g_A.sub_(torch.mm(phi, g_E.mT, out=memory))
            g_c = g_c - torch.mv(phi, g_t)
            g_W.add_(g_E)
            g_mu = g_mu + g_t
            g_rho = g_rho + g_omega * self.omega / rho
        else:
            g_phi = torch.mul(phi, 2.0 * g_norm, out=free)
        # What belongs to k.
        blocks.lower_outer(g_phi, phi, P, cuts)
        g_A.tril_()
        P.add_(blocks.lower_outer(g_A, A, memory, cuts).tril_()).addr_(g_c, c)
        P.diagonal().sub_(g_kl)
        g_k = self.T.solve_transposed(g_phi, other)
        from_k = self._kernel_gradients(self.kernel, self.T, P, g_k)
        # What belongs to q.
        blocks.upper_product(V, g_A, Y, cuts)
        y = torch.mv(V.mT, g_c)
        g_root = blocks.lower_outer(psi, g_W, torch.zeros_like(F), cuts).add_(Y).tril_()
        g_root.diagonal().sub_(g_kl / F.diagonal())
        g_m = torch.mv(psi, g_mu).add_(y)
        g_psi = blocks.lower_product(F, g_W, third, cuts).addr_(m, g_mu)
        blocks.lower_outer(g_psi, psi, P, cuts)
        P.sub_(blocks.lower_outer(Y.tril_(), F, memory, cuts)).addr_(y, m, alpha=-1.0)
        P.diagonal().add_(g_kl)
        g_q = self.U.solve_transposed(g_psi, other)
        from_q = self._kernel_gradients(self.mean_kernel, self.U, P, g_q)
        g_s = torch.dot(g_residual, self.u) - g_rho * rho / s
        g_s_mean = torch.dot(g_f, self.mu) / (2.0 * s_mean**0.5) + torch.dot(g_explained, self.e) + g_rho / s
        add_gradient(self.q.raw_root, g_root)
        add_gradient(self.q.mean, g_m)
        add_gradient(self.basis.inducing, from_k[0] + from_q[0])
        self.kernel.add_gradients(from_k[1], g_s)
        self.mean_kernel.add_gradients(from_q[1], g_s_mean)

    def _kernel_gradients(
        self, kernel: DirectKernel, triangle: LowerTriangle, P: Tensor, g_k: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of Z and the lengthscale; P and gk are overwritten."""
        P.diagonal().mul_(0.5)
        g_K = triangle.gradient_of_gram(P.tril_(), self.squares[3]).neg_()
        return kernel.backward(g_K, g_k)
