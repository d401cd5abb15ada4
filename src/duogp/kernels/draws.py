"""Random numbers for features: float64, from the caller's generator, on the device of the parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from scipy.special import gammaincinv
from torch import Tensor


def normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal draws [*shape] in float64, on the device of ``like``."""
    device = _device(like, generator)
    return torch.randn(*shape, generator=generator, device=device, dtype=torch.float64).to(like.device)


def uniform(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform draws [*shape] in [0, 1) in float64, on the device of ``like``."""
    device = _device(like, generator)
    return torch.rand(*shape, generator=generator, device=device, dtype=torch.float64).to(like.device)


def angle(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform draws [*shape] in [0, 2π)."""
    return 2.0 * math.pi * uniform(shape, like, generator)


def sign(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """−1 or 1 with equal probability, [*shape]."""
    return torch.where(uniform(shape, like, generator) < 0.5, -1.0, 1.0).double()


def poisson(rate: Tensor, generator: torch.Generator | None) -> Tensor:
    """Poisson draws of rates [...], in float64 and of their shape."""
    rates = rate.double().to(_device(rate, generator))
    return torch.poisson(rates, generator=generator).to(rate.device)


def chi2(dof: int, shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """A sum of dof squared normals, [*shape]."""
    return normal((dof, *shape), like, generator).square().sum(0)


def gamma(concentration: Tensor, generator: torch.Generator | None) -> Tensor:
    """Gamma(concentration, 1), [...], by inverting its distribution function: torch's takes no generator."""
    u = uniform(concentration.shape, concentration, generator).cpu().numpy()
    draws = gammaincinv(concentration.double().cpu().numpy(), u)
    return torch.as_tensor(draws, dtype=torch.float64).to(concentration.device)


def _device(like: Tensor, generator: torch.Generator | None) -> torch.device:
    return like.device if generator is None else generator.device
