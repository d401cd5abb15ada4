"""The RBF kernel with basis points that have lengthscales of their own (Cheng and Boots 2017, eq. 19).

A basis point carries a factor c_d for every lengthscale, l_d = s_d c_d; a row of data has c = 1:

    k(x, z) = Π_d √(2 l_x l_z / (l_x² + l_z²)) · exp(−Σ_d (x_d − z_d)² / (l_x² + l_z²))

This is the L² inner product of the unit-norm Gaussians ∝ exp(−(u − x)²/l_x²): positive definite, one on the
diagonal, the RBF kernel where c = 1. As a function of x, k(x, z) is a bump of squared lengthscale
(s² + l_z²)/2 ≥ s²/2, so it stays in the RKHS of the prior and every KL stays finite (MATH §6.3).

With t = log c the prefactor is Π_d cosh(t_x − t_z)^−½. Between data and basis points the weights
1/(s²(1 + c²)) = sigmoid(−2t)/s² belong to the basis point alone, and the exponent is one matrix product.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from duogp.kernels import draws
from duogp.kernels.base import FeatureMap
from duogp.kernels.distance import scaled
from duogp.kernels.stationary import LN2, RBF


class GeneralisedRBF(RBF):
    """RBF between rows of d columns; a point of 2d columns is (z, log c), see `generalised_points`."""

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        (_, t1), (_, t2) = self._split(x1), self._split(x2)
        if t1 is None and t2 is None:
            return self.covariance(x1, x2, self.lengthscale()[..., None, :])
        if t1 is None:
            return self._against_data(x2, x1).mT.to(x1.dtype)
        if t2 is None:
            return self._against_data(x1, x2).to(x1.dtype)
        return self._between_bases(x1, x2).to(x1.dtype)

    def diag(self, x: Tensor) -> Tensor:
        return super().diag(self._split(x)[0])

    @torch.no_grad()
    def unbiased_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        """A basis point multiplies √2 cos(ωᵀz + b) by Π_d √c_d exp(−(c_d² − 1)(s_d ω_d)²/4).

        Unbiased for every c; of finite variance where all c_d > 1/√2. Narrower points have frequencies that
        the spectrum of the prior hardly ever draws.
        """
        omega = self.frequencies(num, generator)  # [*b, d, F]
        phase = draws.angle((*self.batch_shape, 1, num), omega, generator)
        energy = 0.25 * (omega * self._event(self.lengthscale)).square()  # (sω)²/4

        def features(x: Tensor) -> Tensor:
            z, t = self._split(x)
            psi = math.sqrt(2.0) * torch.cos(z.double() @ omega + phase)
            if t is not None:
                t = t.double()
                psi = psi * torch.exp(0.5 * t.sum(-1, keepdim=True) - torch.expm1(2.0 * t) @ energy)
            return psi.to(x.dtype)

        return features

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Locations and log c; None for data."""
        columns = x.shape[-1]
        if columns == self.dims:
            return x, None
        if columns != 2 * self.dims:
            raise ValueError(
                f"{type(self).__name__}(dims={self.dims}) was given inputs with {columns} columns; "
                f"expected {self.dims} (data) or {2 * self.dims} (basis points with their log c)"
            )
        return x[..., : self.dims], x[..., self.dims :]

    def _scaled(self, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
        return scaled(x1[..., : self.dims], x2[..., : self.dims], self.lengthscale()[..., None, :])

    def _against_data(self, points: Tensor, x: Tensor) -> Tensor:
        """Σ_d w_zd (u_d − v_d)² = Σ_d w u² + [w, −2wu] [v², v]ᵀ: no [m, n, d] tensor."""
        u, v = self._scaled(points, x)
        t = points[..., self.dims :].double()
        w, u = torch.broadcast_tensors(torch.sigmoid(-2.0 * t), u)
        weighed = w * u
        left, right = torch.cat([w, -2.0 * weighed], -1), torch.cat([v.square(), v], -1)
        exponent = (weighed * u).sum(-1).unsqueeze(-1) + left @ right.mT
        exponent = exponent - exponent.detach().clamp_max(0.0)  # as in `squared_distance`
        return torch.exp(-exponent - 0.5 * log_cosh(t).sum(-1).unsqueeze(-1))

    def _between_bases(self, x1: Tensor, x2: Tensor) -> Tensor:
        u1, u2 = self._scaled(x1, x2)
        t1, t2 = (x[..., self.dims :].double() for x in (x1, x2))
        batch = torch.broadcast_shapes(*(v.shape[:-2] for v in (u1, t1, u2, t2)))
        u1, t1, u2, t2 = (v.expand(*batch, *v.shape[-2:]) for v in (u1, t1, u2, t2))
        return torch.exp(-_PairExponent.apply(u1, t1, u2, t2))


def generalised_points(z: Tensor) -> Tensor:
    """Basis points with the lengthscales of the data, log c = 0: [..., d] → [..., 2d]."""
    return torch.cat([z, torch.zeros_like(z)], -1)


def log_cosh(t: Tensor) -> Tensor:
    """log cosh t, elementwise [...], without overflow, smooth at zero."""
    return torch.logaddexp(t, -t) - LN2


class _PairExponent(torch.autograd.Function):
    """Σ_d (u − u′)²/(c² + c′²) + ½ log cosh(t − t′), c = eᵗ, of every pair: [*b, n, d] → [*b, n, m].

    The weights depend on the pair, so there is no matrix product. One dimension at a time, forward and
    backward: the memory is that of the result for every d.
    """

    @staticmethod
    def forward(ctx: Any, u1: Tensor, t1: Tensor, u2: Tensor, t2: Tensor) -> Tensor:
        ctx.save_for_backward(u1, t1, u2, t2)
        total = u1.new_zeros(*u1.shape[:-1], u2.shape[-2])
        for d in range(u1.shape[-1]):
            difference, squares1, squares2, gap = _pairs(u1, t1, u2, t2, d)
            total += difference.square() / (squares1 + squares2) + 0.5 * log_cosh(gap)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        u1, t1, u2, t2 = ctx.saved_tensors
        g_u1, g_t1, g_u2, g_t2 = (torch.empty_like(v) for v in (u1, t1, u2, t2))
        for d in range(u1.shape[-1]):
            difference, squares1, squares2, gap = _pairs(u1, t1, u2, t2, d)
            ratio = difference / (squares1 + squares2)
            slope = 2.0 * g * ratio
            g_u1[..., d], g_u2[..., d] = slope.sum(-1), -slope.sum(-2)
            steep, turn = slope * ratio, 0.5 * g * torch.tanh(gap)
            g_t1[..., d] = (turn - squares1 * steep).sum(-1)
            g_t2[..., d] = (-turn - squares2 * steep).sum(-2)
        return g_u1, g_t1, g_u2, g_t2


def _pairs(u1: Tensor, t1: Tensor, u2: Tensor, t2: Tensor, d: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """u − u′, c², c′² and t − t′ in dimension d, rows against columns."""
    row_u, row_t = (v[..., d].unsqueeze(-1) for v in (u1, t1))
    column_u, column_t = (v[..., d].unsqueeze(-2) for v in (u2, t2))
    return row_u - column_u, (2.0 * row_t).exp(), (2.0 * column_t).exp(), row_t - column_t
