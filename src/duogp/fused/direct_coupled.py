"""The direct step of a coupled basis (see `direct`): all gradients by hand, one model, on a CPU.

Symbols as in `projections`, with the unit kernel and its variance s. Where only the sum of the variances is
read, with gradient g, and there are rows enough, three products of M²n, half of two of them skipped:

    A = φφᵀ    Y = A R    Σt = ⟨R, Y⟩ − tr A                       A is symmetric, so S A = R Yᵀ
    gR = 2g tril Y        P = tril(m gmᵀ + 2g (R Yᵀ − A))          gk = 2g (L⁻ᵀ(S − I)) φ + (L⁻ᵀm) gμᵀ

else six, half of each skipped (`projections.Parts`). The KL of q is differentiated here too.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from duogp.bases.coupled import Coupled
from duogp.bases.marginals import Marginals, Moments, Penalties, Reads, VarianceSum
from duogp.bases.two_block import TwoBlock
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
    gram,
    gram_of_lower,
    less_lower_product,
    lower_outer,
    lower_product,
    product,
    product_with_lower,
    upper_product,
)
from duogp.kernels.base import Kernel
from duogp.kernels.stationary import profile_of, stationary_part
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
    made: type[DirectCoupled] = DirectOrthogonal if len(points) > 1 else DirectCoupled
    return made(DirectKernel(kernel, base, profile, torch.cat(points, -2), x), points, q, x, reads)


class DirectCoupled(DirectStep):
    """Keeps the memory of a step: some ten matrices [M, n] and [M, M].

    Where the sum of the variances is read, L⁻ᵀ is applied to [S − I, m] and P L⁻¹ at once.
    """

    def __init__(
        self, kernel: DirectKernel, points: list[Tensor], q: CholeskyQ, x: Tensor, reads: Reads
    ) -> None:
        self.kernel, self.points, self.q = kernel, points, q
        self.M = M = q.size
        self.cuts = cuts_of(M)
        self.sums = reads == "sum" and kernel.n >= MANY_ROWS * M
        self.z = [p.detach()[0, 0] for p in points]
        self.m, self.raw_root = q.mean.detach()[0, 0], q.raw_root.detach()[0, 0]
        self.lower, self.R, self.g_root = lower_mask(M, x), x.new_zeros(M, M), x.new_zeros(M, M)
        self.R_diagonal = self.R.diagonal()
        self.phi_and_g_mu, self.g_R, self.P = kernel.wide(M + 1), x.new_zeros(M, M), x.new_zeros(M, M)
        self.phi, self.g_mu = self.phi_and_g_mu[..., :M, :], self.phi_and_g_mu[..., M, :]
        self.T, self.features = self.triangle(x)
        if self.sums:
            self.forward_plan = gram(self.phi, self.P, self.cuts) + product_with_lower(
                self.P, self.R, self.g_R, self.cuts
            )
            self.plan_sums(x)
        else:
            self.W, self.forward_plan = kernel.wide(M), Plan()
            self.plan_parts(x)
            self.forward_plan += upper_product(self.R, self.phi, self.W, self.cuts)

    def triangle(self, x: Tensor) -> tuple[Triangle, Plan]:
        """The factor of k(Z, Z), and φ with it."""
        T = Triangle(self.M, x.dtype, self.cuts)
        return T, T.solve(self.kernel.k, self.phi)

    def plan_sums(self, x: Tensor) -> None:
        M, T, R, cuts, kernel = self.M, self.T, self.R, self.cuts, self.kernel
        given, found = x.new_zeros(2, M, 2 * M + 1)
        self.D, self.m_given, between = given[:, :M], given[:, M], given[:, M + 1 :]
        B, g_K = found[:, : M + 1], found[:, M + 1 :]
        self.D_diagonal = self.D.diagonal()
        self.minus_half = minus_half_mask(M, x)
        self.before = gram_of_lower(R, self.D, cuts) + less_lower_product(self.P, R, self.g_R.mT, cuts)
        self.after = (
            T.divide(self.P, between)
            + T.solve_transposed(given, found)
            + [partial(kernel.g_K.copy_, g_K)]
            + product(B, self.phi_and_g_mu, kernel.g_k)
        )

    def plan_parts(self, x: Tensor) -> None:
        M, T, R, cuts, kernel = self.M, self.T, self.R, self.cuts, self.kernel
        self.G = kernel.wide(M)
        self.minus_half = minus_half_mask(M, x)
        self.before = lower_outer(self.phi, self.W, self.g_R, cuts) + lower_product(R, self.W, self.G, cuts)
        self.outer = lower_outer(self.G, self.phi, self.P, cuts)
        self.after = T.from_both_sides(self.P, kernel.g_K)
        self.after += T.solve_transposed(self.G, kernel.g_k)

    @torch.no_grad()
    def forward(self, x: Tensor, numerics: Numerics) -> tuple[Moments, Penalties]:
        kernel, n, m, R = self.kernel, self.kernel.n, self.m, self.R
        z = self.z[0] if len(self.z) == 1 else torch.cat(self.z)
        self.T.factorise(kernel.forward(z, x.reshape(n, -1), numerics.jitter.view(1)), numerics)
        self.features()
        torch.mul(self.raw_root, self.lower, out=R)
        s = self.s = kernel.read_variance()
        self.mu = self.unit_mean()
        mean = (s**0.5 * self.mu).view(1, 1, n)
        log_det = float(self.R_diagonal.square().log_().sum())
        kl = 0.5 * (squared_norm(R) + squared_norm(m) - log_det - self.M)
        penalties = Penalties(x.new_full((1,), kl))
        self.forward_plan()
        if self.sums:
            self.change = float(torch.dot(R.view(-1), self.g_R.view(-1))) - float(self.P.trace())
            return VarianceSum(mean, x.new_full((1, 1), s * (n + self.change))), penalties
        self.unit_residual, self.unit_explained = 1.0 - norms(self.phi, self.G), norms(self.W, self.G)
        parts = (s * part for part in (self.unit_residual, self.unit_explained))
        return Marginals(mean, *(part.view(1, 1, n) for part in parts)), penalties

    def unit_mean(self) -> Tensor:
        """The mean of f for a kernel of unit variance."""
        return times_rows(self.phi, self.m)

    @torch.no_grad()
    def backward(self, f: Moments, penalties: Penalties) -> None:
        s, n, m, R = self.s, self.kernel.n, self.m, self.R
        g_f, g_kl = f.mean.reshape(-1), float(penalties.kl)
        g_s = float(torch.dot(g_f, self.mu)) / (2.0 * s**0.5)
        if isinstance(f, VarianceSum):
            g_total = float(f.total)
            twice = 2.0 * s * g_total
            torch.mul(g_f.view(self.g_mu.shape), s**0.5 / twice, out=self.g_mu)
            g_m = self.from_sum()
            g_s += g_total * (n + self.change)
        else:
            assert isinstance(f, Marginals)
            g_residual, g_explained = f.residual.reshape(-1), f.explained.reshape(-1)
            twice = 1.0
            torch.mul(g_f.view(self.g_mu.shape), s**0.5, out=self.g_mu)
            across = self.kernel.across
            g_m = self.from_parts(across((2.0 * s) * g_residual), across((2.0 * s) * g_explained))
            g_s += float(torch.dot(g_residual, self.unit_residual))
            g_s += float(torch.dot(g_explained, self.unit_explained))
        g_z, g_lengthscale = self.kernel.backward(twice)
        # The KL: gR += gKL (R − diag(R)⁻¹), gm += gKL m.
        g_R = torch.mul(R, g_kl, out=memory_for(self.q.raw_root, self.g_root))
        g_R.addcmul_(self.g_R, self.lower, value=twice)
        g_R.diagonal().sub_(self.R_diagonal.reciprocal().mul_(g_kl))
        add_gradient(self.q.raw_root, g_R)
        add_gradient(self.q.mean, (m * g_kl).add_(g_m, alpha=twice))
        at = 0
        for p, z in zip(self.points, self.z, strict=True):
            add_gradient(p, g_z[at : at + len(z)])
            at += len(z)
        self.kernel.add_gradients(g_lengthscale, g_s)

    def from_sum(self) -> Tensor:
        """gm / 2g, from gμ / 2g; gK and gk are left with the kernel, and gR in `g_R`, all of them / 2g."""
        self.before()
        self.D_diagonal.sub_(1.0)
        self.m_given.copy_(self.m)
        g_m = times_columns(self.phi, self.g_mu)
        self.P.addr_(self.m, g_m).mul_(self.minus_half)
        self.after()
        return g_m

    def from_parts(self, twice_residual: Tensor, twice_explained: Tensor) -> Tensor:
        """Likewise with 2g = 1, from twice the gradients of the parts of single rows."""
        self.W.mul_(twice_explained)
        self.before()
        self.G.addcmul_(self.phi, twice_residual, value=-1.0)
        self.G.addcmul_(self.m.unsqueeze(-1), self.kernel.across(self.g_mu))
        self.outer()
        self.P.mul_(self.minus_half)
        self.after()
        return times_columns(self.phi, self.g_mu)


class DirectOrthogonal(DirectCoupled):
    """With a second block of points, which has a mean and its prior covariance.

    As `two_block_projections.MeanVariance`: the mean is kᵀa with a = L⁻ᵀm of both blocks; the first block
    alone is coupled.
    """

    def triangle(self, x: Tensor) -> tuple[Triangle, Plan]:
        N, first = self.kernel.M, len(self.cuts)
        others = [(self.M + i, self.M + j) for i, j in cuts_of(N - self.M)]
        T = Triangle(N, x.dtype, self.cuts + others)
        self.a, self.g_m, self.along = (x.new_zeros(N, 1) for _ in range(3))
        self.all_P = x.new_zeros(N, N)
        self.minus_half = minus_half_mask(N, x)
        self.of_mean = T.solve(self.along, self.g_m)
        self.of_K = T.from_both_sides(self.all_P, self.kernel.g_K)
        self.g_k = self.kernel.wide(self.M)
        solves = T.solve(self.kernel.k[..., : self.M, :], self.phi, first)
        return T, solves + T.solve_transposed(self.m.unsqueeze(-1), self.a)

    def plan_sums(self, x: Tensor) -> None:
        M, R, cuts = self.M, self.R, self.cuts
        self.D, B = x.new_zeros(M, M), x.new_zeros(M, M)
        self.D_diagonal = self.D.diagonal()
        self.before = gram_of_lower(R, self.D, cuts) + less_lower_product(self.P, R, self.g_R.mT, cuts)
        self.after = self.T.solve_transposed(self.D, B, len(cuts)) + product(B, self.phi, self.g_k)

    def plan_parts(self, x: Tensor) -> None:
        R, cuts = self.R, self.cuts
        self.G = self.kernel.wide(self.M)
        self.before = lower_outer(self.phi, self.W, self.g_R, cuts) + lower_product(R, self.W, self.G, cuts)
        self.outer = lower_outer(self.G, self.phi, self.P, cuts)
        self.after = self.T.solve_transposed(self.G, self.g_k, len(cuts))

    def unit_mean(self) -> Tensor:
        return times_rows(self.kernel.k, self.a.view(-1))

    def from_sum(self) -> Tensor:
        self.before()
        self.D_diagonal.sub_(1.0)
        self.after()
        return self._with_mean()

    def from_parts(self, twice_residual: Tensor, twice_explained: Tensor) -> Tensor:
        self.W.mul_(twice_explained)
        self.before()
        self.G.addcmul_(self.phi, twice_residual, value=-1.0)
        self.outer()
        self.after()
        return self._with_mean()

    def _with_mean(self) -> Tensor:
        """gm; the mean adds m gmᵀ to P and a gμᵀ to gk, of both blocks."""
        M, kernel = self.M, self.kernel
        self.along.view(-1).copy_(times_columns(kernel.k, self.g_mu))
        self.of_mean()
        g_m = self.g_m.view(-1)
        torch.outer(self.m, g_m, out=self.all_P)[:M, :M].add_(self.P)
        self.all_P.mul_(self.minus_half)
        self.of_K()
        torch.mul(self.a, kernel.across(self.g_mu), out=kernel.g_k)[..., :M, :].add_(self.g_k)
        return g_m
