"""Positive parameters: an unconstrained tensor behind a transform, with an optional prior.

A parameter is declared with its *event* shape (a lengthscale: ``[d]`` or ``[1]``; a variance: ``[]``).
`batched` gives every parameter of a module the same leading shape (replicates, latents), so that a kernel or
a likelihood is written for one model and serves many. Modules therefore read their parameters from the
right: ``lengthscale[..., None, :]``, ``variance[..., None, None]``.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

Transform = Literal["softplus", "exp"]
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def inverse_softplus(value: Tensor) -> Tensor:
    """The x with log(1 + eˣ) = value, elementwise [...], stable for large and for tiny values."""
    return value + torch.log(-torch.expm1(-value))


class Positive(nn.Module):
    """A positive tensor, ``floor + transform(raw)``: a call reads it, `set_` writes it."""

    raw: nn.Parameter

    def __init__(
        self,
        value: float | Sequence[float] | Tensor,
        shape: Sequence[int] | None = None,
        *,
        transform: Transform = "softplus",
        floor: float = 0.0,
        prior: Prior | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        if transform not in ("softplus", "exp"):
            raise ValueError(f"transform must be 'softplus' or 'exp', got {transform!r}")
        self.transform = transform
        self.floor = float(floor)
        self.prior = prior
        initial = torch.as_tensor(value, dtype=torch.float64)
        if shape is not None:
            initial = initial.expand(tuple(shape)).clone()
        self.event_dims = initial.dim()
        self.raw = nn.Parameter(self._inverse(initial), requires_grad=trainable)

    @property
    def batch_shape(self) -> torch.Size:
        """The leading shape that `batched` gave it."""
        return self.raw.shape[: self.raw.dim() - self.event_dims]

    def forward(self) -> Tensor:
        value = softplus(self.raw) if self.transform == "softplus" else self.raw.exp()
        return value + self.floor if self.floor else value

    @torch.no_grad()
    def slope(self) -> Tensor:
        """The derivative of the value by ``raw``, elementwise, [...]."""
        return self.raw.sigmoid() if self.transform == "softplus" else self.raw.exp()

    @torch.no_grad()
    def set_(self, value: float | Sequence[float] | Tensor) -> None:
        """Write a value, broadcast to the parameter's shape [...]."""
        target = torch.as_tensor(value, dtype=self.raw.dtype, device=self.raw.device)
        self.raw.copy_(self._inverse(target).expand_as(self.raw))

    def log_prior(self) -> Tensor:
        """log p(value), elementwise [...]; zero without a prior."""
        return self.prior(self()) if self.prior is not None else torch.zeros_like(self.raw)

    def _inverse(self, value: Tensor) -> Tensor:
        shifted = value - self.floor
        if not bool((shifted > 0).all()):
            raise ValueError(
                f"a positive parameter must be above its floor {self.floor:g}, got {value.tolist()}"
            )
        return inverse_softplus(shifted) if self.transform == "softplus" else shifted.log()


class Prior(ABC):
    """A normalised log density, elementwise."""

    #: The most probable value, where training starts; None: it is not known, or at the edge.
    mode: float | None = None

    @abstractmethod
    def __call__(self, value: Tensor) -> Tensor:
        """log p(value)."""

    def slope(self, value: Tensor) -> Tensor:
        """d log p(value) / d value, elementwise, [...]."""
        with torch.enable_grad():
            leaf = value.detach().requires_grad_()
            (found,) = torch.autograd.grad(self(leaf).sum(), leaf)
        return found


class LogNormalPrior(Prior):
    """log value ~ N(loc, scale²)."""

    def __init__(self, loc: float, scale: float) -> None:
        self.loc, self.scale = loc, scale
        self.mode = math.exp(loc - scale**2)

    def __repr__(self) -> str:
        return f"LogNormalPrior({self.loc:g}, {self.scale:g})"

    def __call__(self, value: Tensor) -> Tensor:
        log_value = value.log()
        z = (log_value - self.loc) / self.scale
        return -0.5 * z.square() - log_value - math.log(self.scale) - 0.5 * math.log(2 * math.pi)

    def slope(self, value: Tensor) -> Tensor:
        return -(1.0 + (value.log() - self.loc) / self.scale**2) / value


class GammaPrior(Prior):
    """value ~ Gamma(shape, rate)."""

    def __init__(self, shape: float, rate: float) -> None:
        self.shape, self.rate = shape, rate
        self.mode = (shape - 1) / rate if shape > 1 else None

    def __repr__(self) -> str:
        return f"GammaPrior({self.shape:g}, {self.rate:g})"

    def __call__(self, value: Tensor) -> Tensor:
        a, b = self.shape, self.rate
        return a * math.log(b) - math.lgamma(a) + (a - 1) * value.log() - b * value

    def slope(self, value: Tensor) -> Tensor:
        return (self.shape - 1) / value - self.rate


def log_prior(module: nn.Module, batch_dims: int = 0) -> Tensor | float:
    """Sum of the log priors below a module, one value for each leading (batch) index; 0.0 without priors."""
    total: Tensor | float = 0.0
    for part in module.modules():
        if isinstance(part, Positive) and part.prior is not None:
            value = part.log_prior()
            total = total + (value.flatten(batch_dims).sum(-1) if value.dim() > batch_dims else value)
    return total


def batched(module: ModuleT, shape: Sequence[int]) -> ModuleT:
    """A copy of a module with the leading shape (replicates, latents) on all of its parameters.

    Buffers get it where a part names them in ``batched_buffers``.
    """
    out = copy.deepcopy(module)
    if not shape:
        return out
    for part in out.modules():
        for name in getattr(part, "batched_buffers", ()):
            buffer = part._buffers[name]
            assert buffer is not None
            part._buffers[name] = buffer.expand(*shape, *buffer.shape).clone()
        for name, p in list(part._parameters.items()):
            if p is not None:
                value = p.detach().expand(*shape, *p.shape).clone()
                part._parameters[name] = nn.Parameter(value, requires_grad=p.requires_grad)
    return out
