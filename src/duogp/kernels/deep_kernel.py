"""Deep kernels: k(h(x), h(x′)) with a network h, the feature extractor (Wilson et al. 2016).

Inducing points are inputs and pass through h like data (better in Zhu et al. 2023), or are features
themselves; the number of columns distinguishes the two.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from duogp.kernels.base import Kernel
from duogp.kernels.foreign import Foreign
from duogp.kernels.stationary import Stationary
from duogp.kernels.warped import Warped
from duogp.numerics.networks import MLP


class DeepKernel(Warped):
    """k(h(x), h(x′)). ``extractor``: an `MLP`, or any module from [..., n, d] to [..., n, features].

    ``inputs``: the columns of a row of data. A tensor with the number of columns of the features is taken as
    points in feature space, unless the two numbers agree.
    """

    #: the name of this class in saved models
    saved_name = "Deep"

    def __init__(self, extractor: nn.Module, kernel: Kernel, inputs: int, features: int) -> None:
        super().__init__()
        own = isinstance(extractor, MLP | Foreign | nn.Identity)
        self.extractor = extractor if own else Foreign(extractor)
        self.kernel = kernel
        self.inputs, self.features = inputs, features

    def settings(self) -> dict[str, Any]:
        return {"inputs": self.inputs, "features": self.features}

    def config(self) -> dict[str, Any]:
        """Arguments of the constructor, for saving."""
        own = self.extractor.module if isinstance(self.extractor, Foreign) else self.extractor
        return {"extractor": own, "kernel": self.kernel, **self.settings()}

    def embed(self, x: Tensor) -> Tensor:
        """h(x) [..., n, features] of x [..., n, inputs]; features are returned as they are."""
        if x.shape[-1] == self.features and self.features != self.inputs:
            return x
        if x.shape[-1] != self.inputs:
            raise ValueError(
                f"a deep kernel of {self.inputs} inputs and {self.features} features was given "
                f"{x.shape[-1]} columns"
            )
        h = self.extractor(x)
        if h.shape[-1] != self.features:
            raise ValueError(f"the extractor returned {h.shape[-1]} features, expected {self.features}")
        return h

    @property
    def observes(self) -> bool:
        """Whether the extractor keeps running moments of the data."""
        return isinstance(self.extractor, MLP) and self.extractor.normalisation == "batch"

    def observe(self, x: Tensor) -> None:
        """Update the running moments from a batch of data, x [..., n, inputs]."""
        if isinstance(self.extractor, MLP):
            self.extractor.observe(x)

    def diag(self, x: Tensor) -> Tensor:
        if all(isinstance(part, Stationary) for part in _leaves(self.kernel)):  # the same at every point
            return self.kernel.diag(x.new_zeros(()).expand(*x.shape[:-1], self.features))
        return super().diag(x)


def _leaves(kernel: Kernel) -> list[Kernel]:
    """The kernels at the ends of a composition."""
    parts = [part for part in kernel.modules() if isinstance(part, Kernel)]
    return [p for p in parts if not any(isinstance(q, Kernel) and q is not p for q in p.modules())]


#: the former name
Deep = DeepKernel
