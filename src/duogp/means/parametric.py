"""Prior means μ(x): [*b, n, d] → [*b, n], added outside the KL; batched like kernels."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from duogp.kernels.foreign import Foreign
from duogp.numerics.networks import MLP


class Mean(nn.Module, ABC):
    """A prior mean function; a subclass defines `forward` and reads its parameters from the right."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """[*b, n, d] → [*b, n]."""


class Zero(Mean):
    """μ(x) = 0."""

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(()).expand(x.shape[:-1])


class ConstantMean(Mean):
    """μ(x) = c."""

    def __init__(self, constant: float = 0.0) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.tensor(float(constant)))

    def forward(self, x: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(self.constant.shape, x.shape[:-2])
        return self.constant.to(x.dtype)[..., None].expand(*shape, x.shape[-2])


class LinearMean(Mean):
    """μ(x) = wᵀx + b."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.dims = dims
        self.weights = nn.Parameter(torch.zeros(dims))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        slope = (x @ self.weights.to(x.dtype)[..., None]).squeeze(-1)
        return slope + self.bias.to(x.dtype)[..., None]


class ModuleMean(Mean):
    """Any module from [..., n, d] to [..., n] or [..., n, 1], called once for each leading index."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.of = Foreign(_OneValue(module))

    def config(self) -> dict[str, Any]:
        """Arguments of the constructor, for saving."""
        return {"module": self.of.module.module}

    def forward(self, x: Tensor) -> Tensor:
        return self.of(x)


class _OneValue(nn.Module):
    """A module with its output as one value for each point."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        out = self.module(x)
        if out.shape == (*x.shape[:-1], 1):
            return out.squeeze(-1)
        if out.shape != x.shape[:-1]:
            raise ValueError(
                f"a mean module must map {tuple(x.shape)} to {tuple(x.shape[:-1])} or {(*x.shape[:-1], 1)}, "
                f"got {tuple(out.shape)}"
            )
        return out


class NetworkMean(Mean):
    """μ(x) = net(x), a network with one output."""

    def __init__(self, net: MLP) -> None:
        super().__init__()
        if net.outputs != 1:
            raise ValueError(f"a mean has one value for each row, the network has {net.outputs}")
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).squeeze(-1)


def make_mean(spec: str | nn.Module, dims: int) -> Mean:
    """A mean from its name (zero, constant, linear), or a copy of a mean or of any module as one."""
    if isinstance(spec, nn.Module):
        own = copy.deepcopy(spec)
        return own if isinstance(own, Mean) else ModuleMean(own)
    makers: dict[str, Callable[[], Mean]] = {"zero": Zero, "constant": ConstantMean}
    makers["linear"] = lambda: LinearMean(dims)
    if spec.lower() not in makers:
        raise ValueError(f"unknown mean {spec!r}; the names are {', '.join(makers)}")
    return makers[spec.lower()]()
