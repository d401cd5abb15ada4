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
    """Moments and penalties of a batch, and from their gradients those of the parameters.

    It reads the parameters where they lay when it was made: made for one training, which leaves them there.
    """

    @abstractmethod
    def forward(self, x: Tensor, numerics: Numerics) -> tuple[Moments, Penalties]:
        """The values for rows x [1, 1, n, d], without a graph."""

    @abstractmethod
    def backward(self, f: Moments, penalties: Penalties) -> None:
        """Add the gradients of the parameters to their ``.grad``, from those of the values.

        The tuples hold gradients in the shapes of the values of the last `forward`.
        """


class DirectKernel:
    """k(Z, Z) and k(Z, x) of a kernel s·k(r²), and the gradients of Z, lengthscale and s.

    As `kernels.grams`, for one matrix: with r² = [a, ‖a‖², 1] [−2b, 1, ‖b‖²]ᵀ of the scaled points a and the
    scaled points and rows b, both matrices come from one product. Views of the memory are made once.
    """

    def __init__(self, kernel: Kernel, base: Stationary, profile: Profile, points: Tensor, x: Tensor) -> None:
        self.scale: Positive | None = kernel.variance if isinstance(kernel, Scale) else None
        self.lengthscale, self.profile = base.lengthscale, profile
        M, n, d, dtype, double = points.shape[-2], x.shape[-2], x.shape[-1], x.dtype, torch.float64
        self.M, self.n, self.d = M, n, d
        self.scaled = torch.empty(M + n, d, dtype=double)
        self.points, self.rows = self.scaled[:M], self.scaled[M:]
        self.squares, self.norm = torch.empty(M + n, d, dtype=double), torch.empty(M + n, dtype=double)
        left = torch.full((M, d + 2), profile.stretch, dtype=double)
        right = torch.ones(M + n, d + 2, dtype=double)
        self.left, self.right = (left, left[:, :d], left[:, d]), (right.mT, right[:, :d], right[:, d + 1])
        self.r2 = torch.empty(M, M + n, dtype=double)
        self.r2_points, self.r2_rows = self.r2[:, :M], self.r2[:, M:]
        self.K = torch.empty(M, M, dtype=double)
        self.k = torch.empty(M, n, dtype=dtype)
        weights = torch.ones(n, 2 * d + 1, dtype=dtype)  # [b, b², 1]
        self.weights = weights, weights[:, :d], weights[:, d : 2 * d]
        point_weights = torch.ones(M, d + 1, dtype=dtype)  # [a, 1]
        self.point_weights = point_weights, point_weights[:, :d]

    def variance(self) -> float:
        """s."""
        return 1.0 if self.scale is None else float(self.scale())

    def forward(self, z: Tensor, x: Tensor, jitter: Tensor) -> tuple[Tensor, Tensor]:
        """k(Z, Z) + jitter I in float64 and k(Z, x) in the precision of x, both of unit variance."""
        scaled, norm, stretch = self.scaled, self.norm, self.profile.stretch
        (left, left_points, left_norm), (right, right_points, right_norm) = self.left, self.right
        self.points.copy_(z)
        self.rows.copy_(x)
        self.inverse = self.lengthscale().double().reciprocal_().view(-1)
        scaled.sub_(self.points.mean(0)).mul_(self.inverse).clamp_(-FARTHEST, FARTHEST)
        torch.sum(torch.mul(scaled, scaled, out=self.squares), -1, out=norm).mul_(norm_factor(self.d))
        torch.mul(self.points, stretch, out=left_points)
        torch.mul(norm[: self.M], stretch, out=left_norm)
        torch.mul(scaled, -2.0, out=right_points)
        right_norm.copy_(norm)
        torch.mm(left, right, out=self.r2)
        K, self.K_slope = self.profile.value_and_slope(self.K.copy_(self.r2_points))
        k, self.k_slope = self.profile.value_and_slope(self.k.copy_(self.r2_rows))
        K.diagonal().add_(jitter)  # where the slope multiplies a difference that is zero
        return K, k

    def backward(self, g_K: Tensor, g_k: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of Z [M, d] and of the lengthscale [d], float64; both arguments are overwritten."""
        d, a = self.d, self.points
        weights, of_rows, of_squares = self.weights
        points, of_points = self.point_weights
        torch.square(of_rows.copy_(self.rows), out=of_squares)
        of_points.copy_(a)
        found = (g_k.mul_(self.k_slope) @ weights).double()
        W = g_K.mul_(self.K_slope.to(g_K.dtype))  # no more digits than the gradient has
        among = (W @ points).addmm_(W.mT, points).double()
        sums, squares, ones = found[:, :d], found[:, d : 2 * d], found[:, 2 * d :]
        towards = ones * a - sums
        between = among[:, d:] * a - among[:, :d]
        of_scale = (towards - sums).add_(between).mul_(a).add_(squares).sum(0)
        scale = 2.0 * self.profile.slope_scale * self.inverse
        return towards.add_(between).mul_(scale), of_scale.mul_(-scale)

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


def squared_norm(x: Tensor) -> Tensor:
    """The sum of squares of all numbers of contiguous memory."""
    return torch.dot(x.view(-1), x.view(-1))


def norms(A: Tensor, memory: Tensor) -> Tensor:
    """Squared norms of the columns; `torch.linalg.vector_norm` takes ten times as long over columns."""
    return torch.mul(A, A, out=memory).sum(0)
