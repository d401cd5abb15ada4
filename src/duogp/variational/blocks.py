"""q(u) of several independent blocks, and a block without parameters."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor, nn

from duogp.numerics.factorisation import Factor
from duogp.variational.families import Q


class ShrunkQ(Q):
    """S = εI around zero: no parameters. ε = 1 is the prior, ε → 0 says that v is known to be zero.

    Its KL, (M/2)(ε − 1 − log ε), diverges as ε → 0. At ε = 0 it is dropped, as DSGPC does, and with it the
    claim to be a bound (MATH §5.2).
    """

    learns_mean = False

    def __init__(self, size: int, batch_shape: Sequence[int] = (), *, epsilon: float = 0.0) -> None:
        if not 0 <= epsilon <= 1:
            raise ValueError(f"epsilon must be in [0, 1], got {epsilon}")
        super().__init__(size, batch_shape)
        self.mean.requires_grad_(False)
        self.epsilon = float(epsilon)

    def perturb_mean(self, scale: float, generators: Sequence[torch.Generator]) -> None:
        """The mean is zero by definition."""

    def root(self) -> Tensor:
        return torch.diag_embed(torch.full_like(self.mean, self.epsilon**0.5))

    def root_of(self, phi: Tensor) -> Tensor:
        return self.epsilon**0.5 * phi

    def log_det(self) -> Tensor:
        """log|S| [R, latent]; at ε = 0, where it is −∞, the value with which the penalty is zero."""
        value = self.size * math.log(self.epsilon) if self.epsilon else -self.size
        return self.mean.new_full(self.mean.shape[:-1], value)

    def num_parameters(self) -> int:
        return 0

    def set_(self, mean: Tensor, root: Tensor) -> None:
        """Nothing to set: mean [..., M] and root [..., M, M] are not read."""


class BlockQ(Q):
    """Independent blocks, q(u) q(v) ...: the features are stacked, S is block diagonal, penalties add up."""

    def __init__(self, *blocks: Q) -> None:
        nn.Module.__init__(self)
        self.blocks = nn.ModuleList(blocks)
        self.size = sum(block.size for block in self)

    def __iter__(self) -> Iterator[Q]:
        return iter(self.blocks)  # type: ignore[arg-type]

    def parts(self) -> list[tuple[Q, slice]]:
        ends = itertools.accumulate(block.size for block in self)
        return [(block, slice(end - block.size, end)) for block, end in zip(self, ends, strict=True)]

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """Means of the blocks side by side, [R, latent, ΣM]."""
        return torch.cat([block.mean for block in self], -1)

    def perturb_mean(self, scale: float, generators: Sequence[torch.Generator]) -> None:
        for block in self:
            block.perturb_mean(scale, generators)

    def shrink(self, factor: float) -> None:
        for block in self:
            block.shrink(factor)

    def variance_of(self, phi: Tensor) -> Tensor:
        # Blocks may broadcast over latent functions: one without parameters is the same for all of them.
        return reduce(operator.add, (b.variance_of(phi[..., s, :]) for b, s in self.parts()))

    def root_of(self, phi: Tensor) -> Tensor:
        parts = [b.root_of(phi[..., s, :]) for b, s in self.parts()]
        shape = torch.broadcast_shapes(*(p.shape[:-2] for p in parts))
        return torch.cat([p.expand(*shape, *p.shape[-2:]) for p in parts], -2)

    def bind(self, factor: Factor, points: Tensor) -> Q:
        """The first block stands on the points [R, 1, M, d]."""
        first, *others = self
        bound = first.bind(factor, points)
        return self if bound is first else BlockQ(bound, *others)

    def root(self) -> Tensor:
        roots = [block.root() for block in self]
        out = roots[0].new_zeros(*self.mean.shape[:-1], self.size, sum(r.shape[-1] for r in roots))
        column = 0
        for root, (_, s) in zip(roots, self.parts(), strict=True):
            out[..., s, column : column + root.shape[-1]] = root
            column += root.shape[-1]
        return out

    def log_det(self) -> Tensor:
        return torch.stack([block.log_det() for block in self]).sum(0)

    def trace(self) -> Tensor:
        """tr S, the sum over the blocks, [R, latent]."""
        return torch.stack([block.trace() for block in self]).sum(0)

    def penalty(self) -> Tensor:
        return torch.stack([block.penalty() for block in self]).sum(0)

    def num_parameters(self) -> int:
        return sum(block.num_parameters() for block in self)

    def set_(self, mean: Tensor, root: Tensor) -> None:
        for block, s in self.parts():
            block.set_(mean[..., s], root[..., s, s])
