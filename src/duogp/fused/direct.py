"""Training steps of one model on a CPU without a tape for the large work: `DirectStep` and its kernel part.

A fused step is one node of autograd's graph. Around it stand some hundred operations on few numbers
(transforms of parameters, triangles, sums), and on a CPU with 200 inducing points they take a quarter of the
step. A direct step writes the gradients of all parameters of its basis itself, into memory that it keeps from
step to step. Only what follows the moments of f (prior mean, likelihood, weights of penalties) is left to
autograd, on the few numbers that there are.

For one replicate with one latent function and rows without a gradient; `fused.table.find_direct` decides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from duogp.bases.marginals import Moments, Penalties
from duogp.kernels.base import Kernel, Scale
from duogp.kernels.distance import FARTHEST
from duogp.kernels.profiles import Profile, norm_factor
from duogp.kernels.stationary import Stationary
from duogp.numerics.blocks import Cuts, LowerTriangle
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import Positive


class DirectStep(ABC):
    """Moments and penalties of a batch as leaves, and from their gradients those of the parameters."""

    @abstractmethod
    def forward(self, x: Tensor, numerics: Numerics) -> tuple[Moments, Penalties]:
        """The values for rows x [1, 1, n, d], leaves that take a gradient."""

    @abstractmethod
    def backward(self) -> None:
        """Add the gradients of the parameters to their ``.grad``, once the leaves have theirs."""


class DirectKernel:
    """k(Z, Z) and k(Z, x) of a kernel s·k(r²), and the gradients of Z, lengthscale and s.

    As `kernels.grams`, for one matrix: with r² = [a, ‖a‖², 1] [−2b, 1, ‖b‖²]ᵀ of the scaled points a and the
    scaled points and rows b, both matrices come from one product.
    """

    def __init__(self, kernel: Kernel, base: Stationary, profile: Profile, points: Tensor, x: Tensor) -> None:
        self.scale: Positive | None = kernel.variance if isinstance(kernel, Scale) else None
        self.lengthscale, self.profile = base.lengthscale, profile
        M, n, d, dtype = points.shape[-2], x.shape[-2], x.shape[-1], x.dtype
        self.M, self.n, self.d = M, n, d
        self.left = torch.ones(M, d + 2, dtype=torch.float64)
        self.right = torch.ones(M + n, d + 2, dtype=torch.float64)
        self.scaled = torch.empty(M + n, d, dtype=torch.float64)
        self.r2 = torch.empty(M, M + n, dtype=torch.float64)
        self.K = torch.empty(M, M, dtype=torch.float64)
        self.k = torch.empty(M, n, dtype=dtype)
        self.weights = torch.ones(n, 2 * d + 1, dtype=dtype)  # [b, b², 1]
        self.point_weights = torch.ones(M, d + 1, dtype=dtype)  # [a, 1]

    def variance(self) -> float:
        """s."""
        return 1.0 if self.scale is None else float(self.scale())

    def forward(self, z: Tensor, x: Tensor, jitter: Tensor) -> tuple[Tensor, Tensor]:
        """k(Z, Z) + jitter I in float64 and k(Z, x) in the precision of x, both of unit variance."""
        M, d, scaled, left, right = self.M, self.d, self.scaled, self.left, self.right
        scaled[:M], scaled[M:] = z, x
        self.inverse = self.lengthscale().detach().double().reciprocal().reshape(-1)
        scaled.sub_(scaled[:M].mean(0)).mul_(self.inverse).clamp_(-FARTHEST, FARTHEST)
        norm = scaled.square().sum(-1).mul_(norm_factor(d))
        left[:, :d], left[:, d] = scaled[:M], norm[:M]
        left.mul_(self.profile.stretch)
        left[:, d + 1] = self.profile.stretch
        torch.mul(scaled, -2.0, out=right[:, :d])
        right[:, d + 1] = norm
        torch.mm(left, right.mT, out=self.r2)
        self.K.copy_(self.r2[:, :M])
        self.k.copy_(self.r2[:, M:])
        K, self.K_slope = self.profile.value_and_slope(self.K)
        k, self.k_slope = self.profile.value_and_slope(self.k)
        K.diagonal().add_(jitter)  # where the slope multiplies a difference that is zero
        return K, k

    def backward(self, g_K: Tensor, g_k: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of Z [M, d] and of the lengthscale [d], float64; both arguments are overwritten."""
        M, d = self.M, self.d
        a, b = self.scaled[:M], self.scaled[M:]
        self.weights[:, :d] = b
        torch.square(self.weights[:, :d], out=self.weights[:, d : 2 * d])
        self.point_weights[:, :d] = a
        found = (g_k.mul_(self.k_slope) @ self.weights).double()
        W = g_K.mul_(self.K_slope.to(g_K.dtype))  # no more digits than the gradient has
        among = (W @ self.point_weights + W.mT @ self.point_weights).double()
        sums, squares, ones = found[:, :d], found[:, d : 2 * d], found[:, 2 * d :]
        towards = ones * a - sums
        of_points = among[:, d:] * a - among[:, :d]
        of_scale = ((towards - sums).add_(of_points).mul_(a).add_(squares)).sum(0)
        scale = 2.0 * self.profile.slope_scale * self.inverse
        return towards.add_(of_points).mul_(scale), of_scale.mul_(-scale)

    def add_gradients(self, of_lengthscale: Tensor, of_variance: Tensor) -> None:
        add_to_positive(self.lengthscale, of_lengthscale)
        if self.scale is not None:
            add_to_positive(self.scale, of_variance)


def factorised(K: Tensor, dtype: torch.dtype, cuts: Cuts, numerics: Numerics) -> LowerTriangle:
    """The Cholesky factor of K in float64, for solves in the working precision; a failure is noted."""
    L, info = torch.linalg.cholesky_ex(K)
    numerics.note(info.reshape(1))
    return LowerTriangle(L, dtype, cuts)


def add_gradient(p: Tensor, gradient: Tensor) -> None:
    """Add to ``p.grad`` what has p's numbers, in any shape; memory of its own is not copied."""
    if not p.requires_grad:
        return
    gradient = gradient.to(p.dtype).reshape(p.shape)
    p.grad = gradient if p.grad is None else p.grad + gradient


def add_to_positive(parameter: Positive, gradient: Tensor) -> None:
    """Add the gradient of a positive value to that of its raw parameter; summed where values share one."""
    raw = parameter.raw
    if raw.requires_grad:
        gradient = gradient.reshape(-1) if gradient.numel() == raw.numel() else gradient.sum()
        add_gradient(raw, gradient.to(raw.dtype).reshape(raw.shape) * parameter.slope())
