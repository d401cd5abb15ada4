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
BLOCK_ROWS = 128
CUDA_BLOCK_ROWS = 256


@dataclass(frozen=True, eq=False)
class Columns:
    """x ↦ k(Z, x) without the variance of k; of k(h(x), h(x′)) the points are mapped once."""

    kernel: Kernel  # of mapped inputs
    points: Tensor  # mapped, [..., M, d]
    warp: Warped | None  # h
    frozen: FrozenColumns | None

    @classmethod
    @torch.no_grad()
    def of(cls, kernel: Kernel, points: Tensor) -> tuple[Columns, Tensor | None]:
        """The columns, and the variance that they were divided by, [...]; None: they were not."""
        kernel, variance = split_variance(kernel)
        warp = None
        if isinstance(kernel, Warped):
            warp, points = kernel, kernel.embed(points.double())
            kernel, own = split_variance(kernel.kernel)
            variance = own if variance is None else variance if own is None else variance * own
        return cls(kernel, points, warp, FrozenColumns.of(kernel, points)), variance

    def map(self, x: Tensor) -> Tensor:
        """What the kernel sees of rows x [..., n, d]: h(x) [..., n, features], or x itself."""
        return x if self.warp is None else self.warp.embed(x)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.map(x)
        if self.frozen is None or torch.is_grad_enabled() or x.dtype != torch.float64:
            return self.kernel(self.points.to(x.dtype), x)
        return self.frozen(x)


@dataclass(frozen=True, eq=False)
class WeighedMean:
    """x ↦ k(x, Z) a."""

    columns: Columns
    weights: Tensor  # [..., M]

    @classmethod
    def of(cls, kernel: Kernel, points: Tensor, weights: Tensor) -> WeighedMean:
        columns, variance = Columns.of(kernel, points)
        return cls(columns, weights if variance is None else weights * variance.to(weights)[..., None])

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
        columns, variance = Columns.of(kernel, points)
        if variance is not None:
            C = C * variance.to(C).square()[..., None, None]
        M, size = C.shape[-1], CUDA_BLOCK_ROWS if C.is_cuda else BLOCK_ROWS
        return cls(
            columns,
            tuple(_below(C, *cut) for cut in even_cuts(M, max(1, round(M / size)))),
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self.at(self.columns(x))

    def at(self, k: Tensor) -> Tensor:
        """kᵀCk of each column: [..., M, n] → [..., n]."""
        parts, begin = [], 0
        for block in self.blocks:
            end = block.shape[-1]
            product, own = block @ k[..., :end, :], k[..., begin:end, :]
            # In place where no gradient is needed: these are most of what a prediction writes.
            product = product * own if product.requires_grad else product.mul_(own)
            parts.append(product.sum(-2))
            begin = end
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]


def _below(C: Tensor, begin: int, end: int) -> Tensor:
    """Rows of a symmetric matrix up to the diagonal, what lies before the block on it twice."""
    block = C[..., begin:end, :end].clone()
    block[..., :begin] *= 2.0
    return block
