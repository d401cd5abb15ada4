"""Training steps of one model on a CPU without a tape for the large work: `DirectStep` and its kernel part.

A fused step is one node of autograd's graph. Around it stand some hundred operations on few numbers
(transforms of parameters, triangles, sums), and on a CPU with 200 inducing points they take a quarter of the
step. A direct step writes the gradients of all parameters of its basis itself, into memory that it keeps from
step to step. Only what follows the moments of f (prior mean, likelihood, weights of penalties) is left to
autograd, on the few numbers that there are.

For one replicate with one latent function and rows without a gradient; `fused.table.find_direct` decides.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import partial

import torch
from torch import Tensor

from duogp.bases.marginals import Moments, Penalties
from duogp.fused.direct_products import Plan, product, slices_of
from duogp.kernels.base import Kernel, Scale
from duogp.kernels.distance import FARTHEST
from duogp.kernels.profiles import Profile, norm_factor
from duogp.kernels.stationary import Stationary
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import Positive
from duogp.numerics.products import even_cuts

#: What numbers of Python are at least: they raise an error where tensors become infinite.
TINY = 1e-150
#: Numbers of float64 that stay in the cache of a core, and the fewest rows of a piece.
CACHED, FEWEST_ROWS = 65_536, 128


class DirectStep(ABC):
    """Moments and penalties of a batch, and from their gradients those of the parameters.

    It reads the parameters where they lay when it was made: made for one training, which leaves them there.
    Columns are shared out among the threads that torch has then; with others it is as right, and slower.
    """

    @abstractmethod
    def forward(self, x: Tensor, numerics: Numerics) -> tuple[Moments, Penalties]:
        """The values for rows x [1, 1, n, d], without a graph."""

    @abstractmethod
    def backward(self, f: Moments, penalties: Penalties) -> None:
        """Add the gradients of the parameters to their ``.grad``, from those of the values.

        The tuples hold gradients in the shapes of the values of the last `forward`. A ``.grad`` may lie in
        memory of the step and be overwritten by the next one.
        """


class Numbers:
    """A positive parameter of few values as Python floats: an operation on a small tensor takes longer."""

    def __init__(self, parameter: Positive) -> None:
        self.parameter, self.raw = parameter, parameter.raw.detach().view(-1)
        self.softplus, self.floor = parameter.transform == "softplus", parameter.floor

    def values(self) -> list[float]:
        """What the parameter's call gives."""
        self.now = [(_softplus if self.softplus else _exp)(v) for v in self.raw.tolist()]
        return [value + self.floor for value in self.now]

    def value(self) -> float:
        """The only one."""
        (only,) = self.values()
        return only

    def add(self, gradient: list[float]) -> None:
        """Add the gradient of `values`, as they were read last; summed where several share a value."""
        raw = self.parameter.raw
        if not raw.requires_grad:
            return
        if len(gradient) != len(self.now):
            gradient = [sum(gradient)]
        slopes = (-math.expm1(-v) if self.softplus else v for v in self.now)
        found = [g * slope for g, slope in zip(gradient, slopes, strict=True)]
        add_gradient(raw, torch.tensor(found, dtype=raw.dtype).view(raw.shape))


def _softplus(v: float) -> float:
    """log(1 + eᵛ), which is v where float64 sees no difference; its derivative is 1 − exp(−softplus)."""
    return v if v > 40.0 else max(math.log1p(math.exp(v)), TINY)


def _exp(v: float) -> float:
    return math.inf if v > 700.0 else max(math.exp(v), TINY)


class DirectKernel:
    """k(Z, Z) and k(Z, x) of a kernel s·k(r²), and the gradients of Z, lengthscale and s.

    As `kernels.grams`, for one matrix: r² = [a, ‖a‖², 1] J [b, ‖b‖², 1]ᵀ of the scaled points a and the
    scaled points and rows b. Rows are taken in pieces that stay in the cache until they have the working
    precision. Views of the memory are made once.

    Matrices of the rows are `wide`: [M, n], or [slices, M, n / slices] (see `direct_products`). `g_K` [M, M]
    and `g_k` (wide) are memory for the gradients, which the caller leaves there.
    """

    def __init__(self, kernel: Kernel, base: Stationary, profile: Profile, points: Tensor, x: Tensor) -> None:
        self.variance = Numbers(kernel.variance) if isinstance(kernel, Scale) else None
        self.lengthscale, self.profile = Numbers(base.lengthscale), profile
        M, n, d, dtype, double = points.shape[-2], x.shape[-2], x.shape[-1], x.dtype, torch.float64
        self.M, self.n, self.d, self.dtype, self.slices = M, n, d, dtype, slices_of(n, x.dtype)
        table = torch.ones(M + n, 2 * d + 2, dtype=double)  # [b², b, ‖b‖², 1]
        self.squares, self.scaled, self.norm = table[:, :d], table[:, d : 2 * d], table[:, 2 * d]
        self.points, self.rows = self.scaled[:M], self.scaled[M:]
        self.table, self.weights = table, table if dtype == double else table.to(dtype)
        left = torch.zeros(M, d + 2, dtype=double)
        self.K, self.k = torch.zeros(M, M, dtype=double), self.wide(M)
        self.products = product(table[:M, d:], form_of_squares(d, profile.stretch), left)
        self.products += product(left, table[:M, d:].mT, self.K)
        self.products += self._squares(left, self._by_slice(table[M:, d:]).mT)
        self.g_K, self.g_k = x.new_zeros(M, M), self.wide(M)
        self.slope = x.new_zeros(M, M)
        # W [b², b, ‖b‖², 1], of K and of the slices of k.
        found = x.new_zeros(1 + self.slices, M, 2 * d + 2)
        self.found = found
        self.of_weights = product(self.g_K, self.weights[:M], found[0])
        to = found[1] if self.slices == 1 else found[1:]
        self.of_weights += product(self.g_k, self._by_slice(self.weights[M:]), to)
        self.of_points, self.of_table = self.weights[:M, d:].mT, self.weights[:M].mT
        self.own_points = self.weights[:M, d : 2 * d]
        self.of_columns = x.new_zeros(d + 2, M)
        self.crossed = x.new_zeros(2 * d + 2, 2 * d + 2)

    def wide(self, rows: int) -> Tensor:
        """Memory of so many rows for what belongs to the rows of x."""
        if self.slices == 1:
            return torch.zeros(rows, self.n, dtype=self.dtype)
        return torch.zeros(self.slices, rows, self.n // self.slices, dtype=self.dtype)

    def across(self, values: Tensor) -> Tensor:
        """Numbers of the rows of x [n] as a factor of columns."""
        return values if self.slices == 1 else values.view(self.slices, 1, -1)

    def _by_slice(self, table: Tensor) -> Tensor:
        return table if self.slices == 1 else table.unflatten(0, (self.slices, -1))

    def _squares(self, left: Tensor, right: Tensor) -> Plan:
        """r² of points and rows in the working precision, in pieces."""
        if self.dtype == left.dtype:
            return product(left, right, self.k)
        M, (*slices, _, n) = self.M, right.shape
        pieces = even_cuts(n, -(-n // max(FEWEST_ROWS, CACHED // M)))
        memory = torch.zeros(self.slices * M * max(j - i for i, j in pieces), dtype=left.dtype)
        plan = Plan()
        for i, j in pieces:
            piece = memory[: self.slices * M * (j - i)].view(*slices, M, j - i)
            plan += product(left, right[..., i:j], piece)
            plan.append(partial(self.k[..., i:j].copy_, piece))
        return plan

    def read_variance(self) -> float:
        """s, as it is now."""
        return 1.0 if self.variance is None else self.variance.value()

    def forward(self, z: Tensor, x: Tensor, jitter: Tensor) -> Tensor:
        """k(Z, Z) + jitter I in float64; `k` then is k(Z, x) in the precision of x. Both of unit variance."""
        scaled = self.scaled
        # Distances do not see the centre; r² has fewer digits far from it. It follows from the points: a
        # training that goes on from a checkpoint has the same one.
        centre = z.mean(-2, dtype=torch.float64)
        torch.sub(z, centre, out=self.points)
        torch.sub(x, centre, out=self.rows)
        inverse = [1.0 / v for v in self.lengthscale.values()]
        self.inverse = inverse if len(inverse) == self.d else inverse * self.d
        scaled.mul_(torch.tensor(self.inverse, dtype=torch.float64)).clamp_(-FARTHEST, FARTHEST)
        torch.sum(torch.mul(scaled, scaled, out=self.squares), 1, out=self.norm)
        self.products()
        K, self.K_slope = self.profile.value_and_slope(self.K)
        k, self.k_slope = self.profile.value_and_slope(self.k)
        if k is not self.k:
            self.k.copy_(k)
        K.diagonal().add_(jitter)  # where the slope multiplies a difference that is zero
        return K

    def backward(self, factor: float = 1.0) -> tuple[Tensor, list[float]]:
        """Gradients of Z [M, d] and of the lengthscale from gK / factor and gk / factor, both overwritten.

        With W = [gK, gk] ∘ k′: Σ W (a − b)² = Σ a² (Σ W) − 2 Σ a (Σ W b) + Σ (Σ W b²), numbers of the product
        [a², a, ‖a‖², 1]ᵀ W [b², b, ‖b‖², 1].
        """
        d = self.d
        if self.weights is not self.table:
            self.weights.copy_(self.table)
        self.g_k.mul_(self.k_slope)
        self.g_K.mul_(self.slope.copy_(self.K_slope))  # no more digits than the gradient has
        self.of_weights()
        found = self.found.sum(0)
        both = found[:, d:]  # [Σ b, Σ ‖b‖², Σ 1]
        crossed = torch.mm(self.of_table, found, out=self.crossed).tolist()
        # Wᵀb as (bᵀW)ᵀ: the former takes twice to five times as long.
        both.add_(torch.mm(self.of_points, self.g_K, out=self.of_columns).mT)
        g_a = (both[:, d + 1 :] * self.own_points).sub_(both[:, :d])  # Σ W (a − b)
        scale = [2.0 * self.profile.slope_scale * factor * v for v in self.inverse]
        each = [crossed[j][-1] - 2.0 * crossed[d + j][d + j] + crossed[-1][j] for j in range(d)]
        return g_a.mul_(g_a.new_tensor(scale)), [-g * v for g, v in zip(each, scale, strict=True)]

    def add_gradients(self, of_lengthscale: list[float], of_variance: float) -> None:
        self.lengthscale.add(of_lengthscale)
        if self.variance is not None:
            self.variance.add([of_variance])


def form_of_squares(d: int, stretch: float) -> Tensor:
    """J [d + 2, d + 2] with stretch · ‖a − b‖² = [a, ‖a‖², 1] J [b, ‖b‖², 1]ᵀ, a little too small."""
    J = torch.zeros(d + 2, d + 2, dtype=torch.float64)
    J.diagonal()[:d] = -2.0 * stretch
    J[d, d + 1] = J[d + 1, d] = stretch * norm_factor(d)
    return J


def add_gradient(p: Tensor, gradient: Tensor) -> None:
    """Add to ``p.grad`` what has p's numbers, in any shape; memory of its own is not copied."""
    if not p.requires_grad:
        return
    if gradient.shape != p.shape or gradient.dtype != p.dtype:
        gradient = gradient.to(p.dtype).reshape(p.shape)
    p.grad = gradient if p.grad is None else p.grad + gradient


def memory_for(p: Tensor, memory: Tensor) -> Tensor:
    """Memory for a gradient of p: the given one, unless p holds a gradient, which may lie there.

    New memory of a megabyte takes ten times as long to write as memory that was written before.
    """
    return memory if p.grad is None else torch.empty_like(memory)


def add_to_positive(parameter: Positive, gradient: Tensor) -> None:
    """Add the gradient of a positive value to that of its raw parameter."""
    if parameter.raw.requires_grad:
        add_gradient(parameter.raw, parameter.slope() * gradient.to(parameter.raw.dtype))


def squared_norm(x: Tensor) -> float:
    """The sum of squares of all numbers of contiguous memory."""
    x = x.view(-1)
    return float(torch.dot(x, x))


def norms(A: Tensor, memory: Tensor) -> Tensor:
    """Squared norms of all columns; `torch.linalg.vector_norm` takes ten times as long over columns."""
    return torch.mul(A, A, out=memory).sum(-2).view(-1)


def times_columns(A: Tensor, values: Tensor) -> Tensor:
    """A v [M] for A [M, n] or slices of it [t, M, n / t], and v [n]."""
    if A.dim() == 2:
        return torch.mv(A, values)
    values = values.reshape(len(A), 1, -1)
    return torch.bmm(values, A.mT).sum((0, 1))  # six times as quick as the other way round


def times_rows(A: Tensor, values: Tensor) -> Tensor:
    """Aᵀv [n] for A [M, n], or for slices [t, M, c], and v [M]."""
    if A.dim() == 2:
        return torch.mv(A.mT, values)
    return torch.bmm(values.expand(len(A), 1, -1), A).view(-1)


def lower_mask(M: int, like: Tensor) -> Tensor:
    """[M, M]: 1 on and below the diagonal, 0 above it. To multiply is quicker than `tril`."""
    return like.new_ones(M, M).tril_()


def minus_half_mask(M: int, like: Tensor) -> Tensor:
    """−Φ as a mask: −1 below the diagonal, −½ on it, 0 above it."""
    mask = lower_mask(M, like).neg_()
    mask.diagonal().mul_(0.5)
    return mask
