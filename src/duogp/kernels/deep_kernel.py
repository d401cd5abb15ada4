"""Deep kernels: k(h(x), h(x′)), a feature extractor h in front of any kernel (Wilson et al. 2016).

Inducing points live in the space of the inputs and go through h like data (what Zhu et al. 2023 found
better), or directly in the space of the features: then a point is told from a row by its number of columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from duogp.kernels.base import FeatureMap, Kernel
from duogp.kernels.foreign import Foreign
from duogp.kernels.stationary import Stationary
from duogp.numerics.networks import MLP


class Deep(Kernel):
    """``extractor``: a `duogp.numerics.networks.MLP`, or any module from [..., n, d] to [..., n, features].

    ``inputs``: columns of a row of data. A tensor with another number of columns, that of the features, is
    taken as points in feature space.
    """

    def __init__(self, extractor: nn.Module, kernel: Kernel, inputs: int, features: int) -> None:
        super().__init__()
        own = isinstance(extractor, MLP | Foreign | nn.Identity)
        self.extractor = extractor if own else Foreign(extractor)
        self.kernel = kernel
        self.inputs, self.features = inputs, features

    @property
    def batch_shape(self) -> torch.Size:
        shape = self.kernel.batch_shape
        if isinstance(self.extractor, MLP | Foreign):
            shape = torch.broadcast_shapes(shape, self.extractor.batch_shape)
        return shape

    def settings(self) -> dict[str, Any]:
        return {"inputs": self.inputs, "features": self.features}

    def embed(self, x: Tensor) -> Tensor:
        """h(x); points that already are features stay as they are."""
        if x.shape[-1] == self.features and self.features != self.inputs:
            return x
        if x.shape[-1] != self.inputs:
            raise ValueError(
                f"a deep kernel of {self.inputs} inputs and {self.features} features was given "
                f"{x.shape[-1]} columns"
            )
        h = self.extractor(x)
        if h.shape[-1] != self.features:
            raise ValueError(f"the extractor has {h.shape[-1]} features, {self.features} were announced")
        return h

    @property
    def observes(self) -> bool:
        """Whether the extractor keeps running moments of the data."""
        return isinstance(self.extractor, MLP) and self.extractor.normalisation == "batch"

    def observe(self, x: Tensor) -> None:
        """Let running moments see a batch of data."""
        if isinstance(self.extractor, MLP):
            self.extractor.observe(x)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        h1 = self.embed(x1)
        return self.kernel(h1, h1 if x2 is x1 else self.embed(x2))

    def diag(self, x: Tensor) -> Tensor:
        if all(isinstance(part, Stationary) for part in _leaves(self.kernel)):  # the same at every point
            return self.kernel.diag(x.new_zeros(()).expand(*x.shape[:-1], self.features))
        return self.kernel.diag(self.embed(x))

    def unbiased_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        psi = self.kernel.unbiased_features(num, generator)
        return lambda x: psi(self.embed(x))

    def prior_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        phi = self.kernel.prior_features(num, generator)
        return lambda x: phi(self.embed(x))


def _leaves(kernel: Kernel) -> list[Kernel]:
    """The kernels at the ends of a composition."""
    parts = [part for part in kernel.modules() if isinstance(part, Kernel)]
    return [p for p in parts if not any(isinstance(q, Kernel) and q is not p for q in p.modules())]
