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
from duogp.bases.two_block import TwoBlock
from duogp.fused.direct import DirectKernel, DirectStep, add_gradient, factorised, norms, squared_norm
from duogp.kernels.base import Kernel
from duogp.kernels.stationary import profile_of, stationary_part
from duogp.numerics import blocks
from duogp.numerics.factorisation import Numerics
from duogp.variational import CholeskyQ, Q

#: Rows for each inducing point from which the sum of the variances is taken from φφᵀ.
MANY_ROWS = 1.5


def find(basis: Coupled, x: Tensor, reads: Reads, with_omega: bool) -> DirectStep | None:
    """The step for one latent function with a free S and a kernel with a profile."""
    return direct_step(basis.kernel, [basis.inducing], basis.q, x, reads)


def find_orthogonal(basis: TwoBlock, x: Tensor, reads: Reads, with_omega: bool) -> DirectStep | None:
    """The step of two blocks, the second of which has a mean only (ORTH); conditions as in `find`."""
    if not basis.mean_only:
        return None
    return direct_step(basis.kernel, [basis.inducing, basis.orthogonal_inducing], basis.q, x, reads)


def direct_step(kernel: Kernel, points: list[Tensor], q: Q, x: Tensor, reads: Reads) -> DirectStep | None:
    """The step by hand of one model with a stationary kernel and a Cholesky q(u); None for any other."""
    base = stationary_part(kernel, points[0], x)
    profile = None if base is None else profile_of(base)
    alone = all(p.shape[:-2] == (1, 1) for p in points) and q.mean.shape[:-1] == (1, 1)
    if type(q) is not CholeskyQ or base is None or profile is None or not alone:
        return None
    if q.mean.shape[-1] != sum(p.shape[-2] for p in points) or q.size != points[0].shape[-2]:
        return None
    return DirectCoupled(DirectKernel(kernel, base, profile, torch.cat(points, -2), x), points, q, x, reads)


class DirectCoupled(DirectStep):
    """Keeps the memory of a step: some eight matrices [M, n] and [M, M]; more where there is a second block.

    A second block of points has a mean and its prior covariance: `two_block_projections.MeanVariance`.
    """

    def __init__(
        self, kernel: DirectKernel, points: list[Tensor], q: CholeskyQ, x: Tensor, reads: Reads
    ) -> None:
        self.kernel, self.points, self.q = kernel, points, q
        sizes = [p.shape[-2] for p in points]
        M, n, N = sizes[0], kernel.n, kernel.M
        self.M, self.cuts = M, blocks.cuts_of(M)
        self.all_cuts = self.cuts + [(M + i, M + j) for size in sizes[1:] for i, j in blocks.cuts_of(size)]
        self.sums = reads == "sum" and n >= MANY_ROWS * M
        self.phi = x.new_empty(M, n)
        self.root = x.new_empty(M, M)
        self.squares = [x.new_empty(M, M) for _ in range(4)]
        self.rows = [x.new_empty(M, n) for _ in range(1 if self.sums else 2)]
        # Of both blocks: P, its memory, and gk.
        self.both = [x.new_empty(N, N), x.new_empty(N, N), x.new_empty(N, n)] if N > M else []
        self.z = [p.detach()[0, 0] for p in points]
        self.m, self.raw_root = q.mean.detach()[0, 0], q.raw_root.detach()[0, 0]

    @torch.no_grad()
    def forward(self, x: Tensor, numerics: Numerics) -> tuple[Moments, Penalties]:
        kernel, cuts, n, m = self.kernel, self.cuts, self.kernel.n, self.m
        z = torch.cat(self.z) if self.both else self.z[0]
        K, k = kernel.forward(z, x[0, 0], numerics.jitter[0, 0])
        self.whole = factorised(K, k.dtype, self.all_cuts, numerics)
        self.T = self.whole.leading(len(cuts)) if self.both else self.whole
        phi = self.T.solve(self.rows[0].copy_(k[: self.M]), self.phi)
        R = torch.tril(self.raw_root, out=self.root)
        s = self.s = kernel.variance()
        self.k, self.a = k, self.whole.solve_transposed(m.unsqueeze(-1).clone(), m.new_empty(len(m), 1))
        self.mu = torch.mv(k.mT, self.a.squeeze(-1)) if self.both else torch.mv(phi.mT, m)
        mean = (s**0.5 * self.mu).view(1, 1, n)
        kl = 0.5 * (squared_norm(R) + squared_norm(m) - R.diagonal().square().log_().sum() - len(R))
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
        if isinstance(f, VarianceSum):
            g_total = f.total[0, 0]
            P, g_R, g_k = self._from_sums(2.0 * s * float(g_total))
            g_s = g_total * (n + self.change)
        else:
            assert isinstance(f, Marginals)
            g_residual, g_explained = f.residual.reshape(-1), f.explained.reshape(-1)
            P, g_R, g_k = self._from_parts(s * g_residual, s * g_explained)
            g_s = torch.dot(g_residual, self.unit_residual) + torch.dot(g_explained, self.unit_explained)
        g_s = g_s + torch.dot(g_f, self.mu) / (2.0 * s**0.5)
        # The mean: P += tril(m gmᵀ), gk += (L⁻ᵀm) gμᵀ.
        a = self.a.squeeze(-1)
        if self.both:
            whole, memory, all_k = self.both
            found = torch.mv(self.k, g_mu).unsqueeze(-1)
            g_m = self.whole.solve(found, torch.empty_like(found)).squeeze(-1)
            torch.outer(m, g_m, out=whole)[: self.M, : self.M] += P.tril_()
            torch.outer(a, g_mu, out=all_k)[: self.M] += g_k
            P, g_k = whole, all_k
        else:
            memory, g_m = self.squares[3], torch.mv(phi, g_mu)
            P.addr_(m, g_m)
            g_k.addr_(a, g_mu)
        P.diagonal().mul_(0.5)
        g_K = self.whole.gradient_of_gram(P.tril_(), memory).neg_()
        g_z, g_lengthscale = self.kernel.backward(g_K, g_k)
        # The KL: gR += gKL (R − diag(R)⁻¹), gm += gKL m.
        g_R = torch.addcmul(g_R, R, g_kl).tril_()
        g_R.diagonal().sub_(g_kl / R.diagonal())
        add_gradient(self.q.raw_root, g_R)
        add_gradient(self.q.mean, g_m.add_(m * g_kl))
        for points, gradient in zip(self.points, g_z.split([len(z) for z in self.z]), strict=True):
            add_gradient(points, gradient)
        self.kernel.add_gradients(g_lengthscale, g_s)

    def _from_sums(self, twice: float) -> tuple[Tensor, Tensor, Tensor]:
        """P, gR and gk for a gradient 2g of the sum of t, without what comes through the mean."""
        (A, Y, D, B), R, cuts = self.squares, self.root, self.cuts
        blocks.gram_of_lower(R, D, cuts).diagonal().sub_(1.0)
        self.T.solve_transposed(D.mul_(twice), B)
        g_k = torch.mm(B, self.phi, out=self.rows[0])
        P = A.mul_(-twice)
        blocks.add_lower_product(P, R, Y.mT, cuts, twice)
        return P, Y.mul_(twice), g_k

    def _from_parts(self, g_residual: Tensor, g_explained: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """P, gR and gk for gradients of the parts of single rows, those of the unit kernel; likewise."""
        (P, g_R, *_), R, phi, cuts = self.squares, self.root, self.phi, self.cuts
        W, G = self.rows
        H = W.mul_(2.0 * g_explained)
        blocks.lower_outer(phi, H, g_R, cuts)
        blocks.lower_product(R, H, G, cuts).addcmul_(phi, 2.0 * g_residual, value=-1.0)
        blocks.lower_outer(G, phi, P, cuts)
        return P, g_R, self.T.solve_transposed(G, W)
