"""The direct step of a coupled basis (see `direct`): all gradients by hand, one model, on a CPU.

Symbols as in `projections`, with the unit kernel and its variance s. Where only the sum of the variances is
read, with gradient g, and there are rows enough, three products of M²n, half of two of them skipped:

    A = φφᵀ    Y = A R    Σt = ⟨R, Y⟩ − tr A                       A is symmetric, so S A = R Yᵀ
    gR = 2g tril Y        P = tril(m gmᵀ + 2g (R Yᵀ − A))          gk = 2g (L⁻ᵀ(S − I)) φ + (L⁻ᵀm) gμᵀ

else six, half of each skipped (`projections.Parts`). The KL of q is differentiated here too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from duogp.bases.coupled import Coupled
from duogp.bases.marginals import Marginals, Moments, Penalties, Reads, VarianceSum
from duogp.fused.direct import DirectKernel, DirectStep, add_gradient, factorised, norms, squared_norm
from duogp.kernels.stationary import profile_of, stationary_part
from duogp.numerics import blocks
from duogp.numerics.factorisation import Numerics
from duogp.variational import CholeskyQ

#: Rows for each inducing point from which the sum of the variances is taken from φφᵀ.
MANY_ROWS = 1.5


def find(basis: Coupled, x: Tensor, reads: Reads, with_omega: bool) -> DirectStep | None:
    """The step for one latent function with a free S and a kernel with a profile."""
    kernel = stationary_part(basis.kernel, basis.inducing, x)
    q = basis.q
    if type(q) is not CholeskyQ or kernel is None or basis.inducing.shape[:-2] != (1, 1):
        return None
    if q.mean.shape[:-1] != (1, 1) or q.mean.shape[-1] != q.size:
        return None
    return DirectCoupled(basis, x, reads)


class DirectCoupled(DirectStep):
    """Keeps the memory of a step: some eight matrices [M, n] and [M, M]."""

    def __init__(self, basis: Coupled, x: Tensor, reads: Reads) -> None:
        self.basis = basis
        base = stationary_part(basis.kernel, basis.inducing, x)
        assert base is not None
        profile = profile_of(base)
        assert profile is not None
        self.kernel = DirectKernel(basis.kernel, base, profile, basis.inducing, x)
        M, n = self.kernel.M, self.kernel.n
        self.cuts = blocks.cuts_of(M)
        self.sums = reads == "sum" and n >= MANY_ROWS * M
        self.phi = x.new_empty(M, n)
        self.root = x.new_empty(M, M)
        self.squares = [x.new_empty(M, M) for _ in range(4)]
        self.rows = [x.new_empty(M, n) for _ in range(1 if self.sums else 2)]
        q = basis.q
        assert isinstance(q, CholeskyQ)
        self.z, self.m, self.raw_root = (p.detach()[0, 0] for p in (basis.inducing, q.mean, q.raw_root))
        self.q = q

    @torch.no_grad()
    def forward(self, x: Tensor, numerics: Numerics) -> tuple[Moments, Penalties]:
        kernel, cuts, n, m = self.kernel, self.cuts, self.kernel.n, self.m
        K, k = kernel.forward(self.z, x[0, 0], numerics.jitter[0, 0])
        self.T = factorised(K, k.dtype, cuts, numerics)
        phi = self.T.solve(self.rows[0].copy_(k), self.phi)
        R = torch.tril(self.raw_root, out=self.root)
        s = self.s = kernel.variance()
        self.mu = torch.mv(phi.mT, m)
        mean = (s**0.5 * self.mu).view(1, 1, n)
        kl = 0.5 * (squared_norm(R) + squared_norm(m) - R.diagonal().square().log_().sum() - len(m))
        f: Moments
        if self.sums:
            A, Y, *_ = self.squares
            blocks.gram(phi, A, cuts)
            blocks.product_with_lower(A, R, Y, cuts)
            self.change = torch.dot(R.view(-1), Y.view(-1)) - A.trace()
            f = VarianceSum(mean, (s * (n + self.change)).view(1, 1))
        else:
            W, free = self.rows
            blocks.upper_product(R, phi, W, cuts)
            self.unit_residual, self.unit_explained = 1.0 - norms(phi, free), norms(W, free)
            parts = (s * part for part in (self.unit_residual, self.unit_explained))
            f = Marginals(mean, *(part.view(1, 1, n) for part in parts))
        return f, Penalties(kl.view(1))

    @torch.no_grad()
    def backward(self, f: Moments, penalties: Penalties) -> None:
        s, n, phi, m, R = self.s, self.kernel.n, self.phi, self.m, self.root
        g_f, g_kl = f.mean.reshape(-1), penalties.kl[0]
        g_mu = g_f * s**0.5
        g_m = torch.mv(phi, g_mu)
        if isinstance(f, VarianceSum):
            g_total = f.total[0, 0]
            P, g_R, g_k = self._from_sums(2.0 * s * float(g_total), g_mu, g_m)
            g_s = g_total * (n + self.change)
        else:
            assert isinstance(f, Marginals)
            g_residual, g_explained = f.residual.reshape(-1), f.explained.reshape(-1)
            P, g_R, g_k = self._from_parts(s * g_residual, s * g_explained, g_mu)
            g_s = torch.dot(g_residual, self.unit_residual) + torch.dot(g_explained, self.unit_explained)
        g_s = g_s + torch.dot(g_f, self.mu) / (2.0 * s**0.5)
        P.diagonal().mul_(0.5)
        g_K = self.T.gradient_of_gram(P.tril_(), self.squares[3]).neg_()
        g_z, g_lengthscale = self.kernel.backward(g_K, g_k)
        # The KL: gR += gKL (R − diag(R)⁻¹), gm += gKL m.
        g_R = torch.addcmul(g_R, R, g_kl).tril_()
        g_R.diagonal().sub_(g_kl / R.diagonal())
        basis = self.basis
        add_gradient(self.q.raw_root, g_R)
        add_gradient(self.q.mean, g_m.add_(m * g_kl))
        add_gradient(basis.inducing, g_z)
        self.kernel.add_gradients(g_lengthscale, g_s)

    def _from_sums(self, twice: float, g_mu: Tensor, g_m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """P, gR and gk for a gradient 2g of the sum of t."""
        (A, Y, D, B), R, m, cuts = self.squares, self.root, self.m, self.cuts
        blocks.gram_of_lower(R, D, cuts).diagonal().sub_(1.0)
        self.T.solve_transposed(D.mul_(twice), B)
        a = self.T.solve_transposed(m.unsqueeze(-1).clone(), m.new_empty(len(m), 1))
        g_k = torch.mm(B, self.phi, out=self.rows[0]).addr_(a.squeeze(-1), g_mu)
        P = A.mul_(-twice).addr_(m, g_m)
        blocks.add_lower_product(P, R, Y.mT, cuts, twice)
        return P, Y.mul_(twice), g_k

    def _from_parts(
        self, g_residual: Tensor, g_explained: Tensor, g_mu: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """P, gR and gk for gradients of the parts of single rows, those of the unit kernel."""
        (P, g_R, *_), R, phi, cuts = self.squares, self.root, self.phi, self.cuts
        W, G = self.rows
        H = W.mul_(2.0 * g_explained)
        blocks.lower_outer(phi, H, g_R, cuts)
        blocks.lower_product(R, H, G, cuts).addr_(self.m, g_mu).addcmul_(phi, 2.0 * g_residual, value=-1.0)
        blocks.lower_outer(G, phi, P, cuts)
        return P, g_R, self.T.solve_transposed(G, W)
