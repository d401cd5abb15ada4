"""Means and variances of a frozen posterior in as few passes over k(Z, x) as they take.

With all of the variance in one number,

    f̄(x) = k(x, Z) a        v(x) = k(x, x) + k(x, Z) C k(Z, x)        C symmetric, that of the change

Kernels have unit variance here, what they are scaled by is part of a and C: k is written once. What concerns
Z alone is kept (`duogp.kernels.frozen`), unless somebody will differentiate. A symmetric
form takes the lower triangle of C alone, in blocks of rows, what lies below the diagonal counted twice: four
blocks do with five eighths of the products.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duogp.kernels import Kernel
from duogp.kernels.frozen import FrozenColumns
from duogp.kernels.stationary import split_variance
from duogp.kernels.warped import Warped
from duogp.numerics.factorisation import project
from duogp.numerics.products import even_cuts

#: Rows of C in a block: fewer save more products, and each of them is slower.
BLOCK_ROWS = 256


@dataclass(frozen=True, eq=False)
class Columns:
    """x ↦ k(Z, x); of a kernel of mapped inputs, k(h(x), h(x′)), the points are mapped once."""

    kernel: Kernel
    points: Tensor  # [..., M, d]
    inner: Kernel  # of the mapped inputs
    mapped: Tensor  # the points, mapped
    frozen: FrozenColumns | None

    @classmethod
    @torch.no_grad()
    def of(cls, kernel: Kernel, points: Tensor) -> Columns:
        inner, mapped = kernel, points
        if isinstance(kernel, Warped) and points.numel():
            inner, mapped = kernel.kernel, kernel.embed(points.double())
        return cls(kernel, points, inner, mapped, FrozenColumns.of(inner, mapped))

    def map(self, x: Tensor) -> Tensor:
        """What the inner kernel sees of rows."""
        return self.kernel.embed(x) if isinstance(self.kernel, Warped) else x

    def __call__(self, x: Tensor) -> Tensor:
        if self.frozen is None or torch.is_grad_enabled() or x.dtype != torch.float64:
            return self.kernel(self.points.to(x.dtype), x)
        return self.frozen(self.map(x))


@dataclass(frozen=True, eq=False)
class WeighedMean:
    """x ↦ k(x, Z) a."""

    columns: Columns
    weights: Tensor  # [..., M]

    @classmethod
    def of(cls, kernel: Kernel, points: Tensor, weights: Tensor) -> WeighedMean:
        kernel, variance = split_variance(kernel)
        weights = weights if variance is None else weights * variance.to(weights)[..., None]
        return cls(Columns.of(kernel, points), weights)

    def __call__(self, x: Tensor) -> Tensor:
        return self.weigh(self.columns(x))

    def weigh(self, k: Tensor) -> Tensor:
        return project(k, self.weights)


@dataclass(frozen=True, eq=False)
class SymmetricForm:
    """x ↦ k(x, Z) C k(Z, x)."""

    columns: Columns
    blocks: tuple[Tensor, ...]  # of rows of C, up to the diagonal

    @classmethod
    def of(cls, kernel: Kernel, points: Tensor, C: Tensor) -> SymmetricForm:
        kernel, variance = split_variance(kernel)
        if variance is not None:
            C = C * variance.to(C).square()[..., None, None]
        M = C.shape[-1]
        return cls(
            Columns.of(kernel, points),
            tuple(_below(C, *cut) for cut in even_cuts(M, max(1, round(M / BLOCK_ROWS)))),
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self.at(self.columns(x))

    def at(self, k: Tensor) -> Tensor:
        """kᵀCk of each column: [..., M, n] → [..., n]."""
        parts, begin = [], 0
        for block in self.blocks:
            end = block.shape[-1]
            product, own = block @ k[..., :end, :], k[..., begin:end, :]
            # In place where nobody will ask for a gradient: these are most of what a prediction writes.
            product = product * own if product.requires_grad else product.mul_(own)
            parts.append(product.sum(-2))
            begin = end
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]


def _below(C: Tensor, begin: int, end: int) -> Tensor:
    """Rows of a symmetric matrix up to the diagonal, what lies before the block on it twice."""
    block = C[..., begin:end, :end].clone()
    block[..., :begin] *= 2.0
    return block
