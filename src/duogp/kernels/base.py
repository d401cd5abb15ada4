"""`Kernel`: a covariance function k(x, x′), its diagonal, and random features of its prior."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from duogp.numerics.parameters import Positive

FeatureMap = Callable[[Tensor], Tensor]


class Kernel(nn.Module, ABC):
    """A covariance function k(x, x′); a subclass defines `forward` and `diag`.

    Parameters (`Positive`) get leading dimensions (replicates, latents), so they are read from the right,
    `variance()[..., None, None]`, and cast to the dtype of x. With `unbiased_features` a kernel also has
    pathwise samples. Both run inside captured steps: no `.item()`, no branch on values of tensors.
    """

    @abstractmethod
    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """k(x1, x2): [*b, n, d], [*b, m, d] → [*b, n, m]."""

    @abstractmethod
    def diag(self, x: Tensor) -> Tensor:
        """k(xᵢ, xᵢ): [*b, n, d] → [*b, n], without the matrix."""

    @property
    def batch_shape(self) -> torch.Size:
        """The leading shape that `numerics.parameters.batched` gave the parameters: that of the parts."""
        return torch.broadcast_shapes(*(p.batch_shape for p in self._parts() if hasattr(p, "batch_shape")))

    def _parts(self) -> Iterator[Any]:
        """The modules directly inside this one, lists of modules opened."""
        for child in self.children():
            yield from child if isinstance(child, nn.ModuleList) else [child]

    # -- random features -------------------------------------------------------------------------------

    def unbiased_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        """ψ: [*b, n, d] → [*b, n, num], independent columns, each with E[ψⱼ(x) ψⱼ(x′)] = k(x, x′).

        The product of independent unbiased features is unbiased for the product of their kernels.
        """
        raise TypeError(
            f"{type(self).__name__} has no random features: pathwise samples are unavailable; define "
            "unbiased_features(num, generator) to have them"
        )

    def prior_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        """φ: [*b, n, d] → [*b, n, F] with E[φ(x) φ(x′)ᵀ] = k(x, x′), at the present hyperparameters.

        f = φ(x) w with w ~ N(0, I) is then a sample of the prior. F is num for most kernels, num per part
        for a sum, and the exact number of features for linear and constant kernels.
        """
        psi = self.unbiased_features(num, generator)
        return lambda x: psi(x) / math.sqrt(num)  # φφᵀ averages num unbiased estimates

    # -- algebra ---------------------------------------------------------------------------------------

    def __add__(self, other: Kernel | float) -> Kernel:
        from duogp.kernels.compose import Sum

        return Sum(self, _as_kernel(other)) if isinstance(other, Kernel | float | int) else NotImplemented

    def __mul__(self, other: Kernel | float) -> Kernel:
        from duogp.kernels.compose import Product, Scale

        if isinstance(other, Kernel):
            return Product(self, other)
        return Scale(self, other, trainable=False) if isinstance(other, float | int) else NotImplemented

    __radd__ = __add__
    __rmul__ = __mul__

    # -- description -----------------------------------------------------------------------------------

    def categorical_columns(self, dims: int) -> set[int]:
        """Which of ``dims`` columns hold category codes, to be neither scaled nor averaged."""
        parts = (part.categorical_columns(dims) for part in self._parts() if isinstance(part, Kernel))
        return set().union(*parts)

    def settings(self) -> dict[str, Any]:
        """The constructor's choices that are not learned, as JSON values."""
        return {}

    def describe(self) -> dict[str, Any]:
        """The kernel and its present hyperparameters as nested dictionaries and lists."""
        out: dict[str, Any] = {"class": getattr(self, "saved_name", type(self).__name__), **self.settings()}
        for name, part in self._modules.items():
            if isinstance(part, Positive):
                out[name] = part().detach().tolist()
            elif isinstance(part, Kernel):
                out[name] = part.describe()
            elif isinstance(part, nn.ModuleList):
                out[name] = [k.describe() for k in part if isinstance(k, Kernel)]
        return out

    def extra_repr(self) -> str:
        shown = [f"{name}={value}" for name, value in self.settings().items()]
        shown += [
            f"{name}={_brief(part())}" for name, part in self._modules.items() if isinstance(part, Positive)
        ]
        return ", ".join(shown)


def check_dims(kernel: Kernel, dims: int, *inputs: Tensor) -> None:
    """An error where an x has not the kernel's number of columns."""
    for x in inputs:
        if x.shape[-1] != dims:
            raise ValueError(
                f"{type(kernel).__name__}(dims={dims}) was given inputs with {x.shape[-1]} columns"
            )


def _as_kernel(value: Kernel | float) -> Kernel:
    from duogp.kernels.compose import Scale
    from duogp.kernels.finite import Constant

    return value if isinstance(value, Kernel) else Scale(Constant(), value, trainable=False)


def _brief(value: Tensor) -> str:
    if value.numel() > 8:
        return f"<{'×'.join(map(str, value.shape))}>"
    text = ", ".join(f"{v:.4g}" for v in value.detach().flatten().tolist())
    return text if value.dim() == 0 else f"[{text}]"
