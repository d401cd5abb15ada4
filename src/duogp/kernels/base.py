"""`Kernel`: a covariance function k(x, x′) and random features of its prior; scales, sums and products."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor, nn

from duogp.kernels import draws
from duogp.numerics.parameters import Positive, Prior

FeatureMap = Callable[[Tensor], Tensor]
#: Most numbers of a plain parameter that is described.
MOST_NUMBERS = 1000


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
        if isinstance(other, float | int):
            other = Scale(Constant(), other, trainable=False)
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Kernel | float) -> Kernel:
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
        """The kernel and its present hyperparameters as nested dictionaries and lists.

        `Positive` parts, plain parameters of at most 1,000 numbers, kernels inside, and the `Positive` parts
        of other modules inside, each under the name of its attribute.
        """
        out: dict[str, Any] = {"class": getattr(self, "saved_name", type(self).__name__), **self.settings()}
        for name, part in self._modules.items():
            if isinstance(part, Positive):
                out[name] = part().detach().tolist()
            elif isinstance(part, Kernel):
                out[name] = part.describe()
            elif isinstance(part, nn.ModuleList):
                out[name] = [k.describe() for k in part if isinstance(k, Kernel)]
            elif part is not None and (inner := _positive_parts(part)):
                out[name] = inner
        for name, value in self._parameters.items():
            if value is not None and value.numel() <= MOST_NUMBERS:
                out[name] = value.detach().tolist()
        return out

    def extra_repr(self) -> str:
        shown = [f"{name}={value}" for name, value in self.settings().items()]
        shown += [
            f"{name}={_brief(part())}" for name, part in self._modules.items() if isinstance(part, Positive)
        ]
        return ", ".join(shown)


class Scale(Kernel):
    """variance · k(x, x′)."""

    def __init__(
        self, kernel: Kernel, variance: float = 1.0, *, prior: Prior | None = None, trainable: bool = True
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.variance = Positive(float(variance), prior=prior, trainable=trainable)

    def config(self) -> dict[str, Any]:
        """Arguments of the constructor, for saving."""
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


class Constant(Kernel):
    """k(x, x′) = 1, an unknown constant; `Scale` gives it a variance."""

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
        return x1.new_ones(()).expand(*shape, x1.shape[-2], x2.shape[-2])

    def diag(self, x: Tensor) -> Tensor:
        return x.new_ones(()).expand(x.shape[:-1])

    def unbiased_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        return lambda x: x.new_ones(()).expand(*x.shape[:-1], num)

    def prior_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        """Exact: one feature, always 1."""
        return self.unbiased_features(1)


def _positive_parts(module: nn.Module) -> dict[str, Any]:
    """Values of the `Positive` parts inside a module that is no kernel, by their path."""
    parts = {path: part for path, part in module.named_modules() if isinstance(part, Positive)}
    return {path: part().detach().tolist() for path, part in parts.items()}


def check_dims(kernel: Kernel, dims: int, *inputs: Tensor) -> None:
    """An error where an x [..., n, d] has not the kernel's number of columns."""
    for x in inputs:
        if x.shape[-1] != dims:
            raise ValueError(
                f"{type(kernel).__name__}(dims={dims}) was given inputs with {x.shape[-1]} columns"
            )


def _brief(value: Tensor) -> str:
    """Few numbers as they are, many by their shape; by that too while a graph is traced: no numbers yet."""
    if value.numel() > 8 or torch.compiler.is_exporting():
        return f"<{'×'.join(map(str, value.shape))}>"
    text = ", ".join(f"{v:.4g}" for v in value.detach().flatten().tolist())
    return text if value.dim() == 0 else f"[{text}]"
