"""Kernels of mapped inputs: k(h(x), h(x′))."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from duogp.kernels.base import FeatureMap, Kernel


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
        """Arguments of the constructor, for saving."""
        return {"kernel": self.kernel, "dims": self.active}
