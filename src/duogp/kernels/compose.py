"""Kernels made of kernels: scales, sums, products and restrictions to some columns."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor, nn

from duogp.kernels import draws
from duogp.kernels.base import FeatureMap, Kernel
from duogp.numerics.parameters import Positive, Prior


class Scale(Kernel):
    """variance · k(x, x′)."""

    def __init__(
        self, kernel: Kernel, variance: float = 1.0, *, prior: Prior | None = None, trainable: bool = True
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.variance = Positive(float(variance), prior=prior, trainable=trainable)

    def config(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "variance": self.variance, "prior": self.variance.prior}

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return self.variance().to(x1.dtype)[..., None, None] * self.kernel(x1, x2)

    def diag(self, x: Tensor) -> Tensor:
        return self.variance().to(x.dtype)[..., None] * self.kernel.diag(x)

    def unbiased_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        return self._scaled(self.kernel.unbiased_features(num, generator))

    def prior_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        return self._scaled(self.kernel.prior_features(num, generator))

    def _scaled(self, features: FeatureMap) -> FeatureMap:
        root = self.variance().detach().sqrt()[..., None, None]
        return lambda x: root.to(x.dtype) * features(x)


class _Many(Kernel):
    """Several kernels; one of the same class among them is replaced by its parts: (a + b) + c has three."""

    def __init__(self, *kernels: Kernel) -> None:
        super().__init__()
        if not kernels:
            raise ValueError(f"{type(self).__name__} needs at least one kernel")
        opened = [list(k) if type(k) is type(self) else [k] for k in kernels]
        self.kernels = nn.ModuleList([part for parts in opened for part in parts])

    def __iter__(self) -> Iterator[Kernel]:
        return iter(cast("list[Kernel]", list(self.kernels)))


class Sum(_Many):
    """Σᵢ kᵢ(x, x′)."""

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return reduce(operator.add, (k(x1, x2) for k in self))

    def diag(self, x: Tensor) -> Tensor:
        return reduce(operator.add, (k.diag(x) for k in self))

    def unbiased_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        """Σᵢ sᵢψᵢ(x) with random signs sᵢ, so that E[sᵢsⱼ] = 0 removes the cross terms."""
        parts = [k.unbiased_features(num, generator) for k in self]
        like = next(self.parameters(), torch.empty(0))
        signs = [draws.sign((*self.batch_shape, 1, num), like, generator) for _ in parts]
        return lambda x: reduce(operator.add, (s.to(x) * psi(x) for s, psi in zip(signs, parts, strict=True)))

    def prior_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        """The parts' features side by side: [φ₁, φ₂, …][φ₁, φ₂, …]ᵀ = Σᵢ φᵢφᵢᵀ."""
        parts = [k.prior_features(num, generator) for k in self]

        def features(x: Tensor) -> Tensor:
            columns = [phi(x) for phi in parts]
            shape = torch.broadcast_shapes(*(c.shape[:-1] for c in columns))
            return torch.cat([c.expand(*shape, c.shape[-1]) for c in columns], -1)

        return features


class Product(_Many):
    """Πᵢ kᵢ(x, x′)."""

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return reduce(operator.mul, (k(x1, x2) for k in self))

    def diag(self, x: Tensor) -> Tensor:
        return reduce(operator.mul, (k.diag(x) for k in self))

    def unbiased_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        """Πᵢ ψᵢ(x): the expectation of a product of independent draws is the product of expectations."""
        parts = [k.unbiased_features(num, generator) for k in self]
        return lambda x: reduce(operator.mul, (psi(x) for psi in parts))


class Warped(Kernel):
    """k(h(x), h(x′)) for a map h of the inputs, `embed`."""

    kernel: Kernel

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """h(x): [*b, n, d] → [*b, n, features]."""

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        h1 = self.embed(x1)
        return self.kernel(h1, h1 if x2 is x1 else self.embed(x2))

    def diag(self, x: Tensor) -> Tensor:
        return self.kernel.diag(self.embed(x))

    def unbiased_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        psi = self.kernel.unbiased_features(num, generator)
        return lambda x: psi(self.embed(x))

    def prior_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        phi = self.kernel.prior_features(num, generator)
        return lambda x: phi(self.embed(x))


class ActiveDims(Warped):
    """k on some columns of x only."""

    index: Tensor

    def __init__(self, kernel: Kernel, dims: int | Sequence[int]) -> None:
        super().__init__()
        self.kernel = kernel
        self.active = [dims] if isinstance(dims, int) else [int(d) for d in dims]
        self.register_buffer("index", torch.tensor(self.active, dtype=torch.long), persistent=False)

    def embed(self, x: Tensor) -> Tensor:
        return x.index_select(-1, self.index)

    def categorical_columns(self, dims: int) -> set[int]:
        return {self.active[i] for i in self.kernel.categorical_columns(len(self.active))}

    def settings(self) -> dict[str, Any]:
        return {"active": self.active}

    def config(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "dims": self.active}
