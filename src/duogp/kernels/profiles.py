"""Kernels that are a function of r² alone, evaluated in one go, with the backward pass written by hand.

With K = k(r²), r²ᵢⱼ = ‖aᵢ − bⱼ‖² and W = G ∘ k′(r²) for an incoming gradient G,

    gaᵢ = 2 (Σⱼ Wᵢⱼ aᵢ − Wᵢⱼ bⱼ)        gbⱼ = 2 (Σᵢ Wᵢⱼ bⱼ − Wᵢⱼ aᵢ)

one product per side. Automatic differentiation of the same formula walks some twenty times over n × m
numbers, which on a CPU is half of a training step. k′ = dk/d(r²) is computed with k and kept; second
derivatives, which few need, go through automatic differentiation.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from duogp.kernels.distance import EPS, distance, squared_distance


class Profile(ABC):
    """k and dk/d(r²) as functions of r²."""

    @abstractmethod
    def value_and_slope(self, r2: Tensor) -> tuple[Tensor, Tensor]:
        """Of r² ≥ 0, exactly 0 where points coincide; r² may be overwritten."""

    @abstractmethod
    def plain(self, a: Tensor, b: Tensor) -> Tensor:
        """k(‖a − b‖²) by the formula, for automatic differentiation to any order."""

    def __call__(self, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
        """[*b, n, d], [*b, m, d] in float64, centred → [*b, n, m] in the given precision."""
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (x.expand(*batch, *x.shape[-2:]) for x in (a, b))
        return _Evaluate.apply(a, b, self, dtype)


class _Evaluate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, profile: Profile, dtype: torch.dtype) -> Tensor:
        size = a.square().sum(-1).unsqueeze(-1) + b.square().sum(-1).unsqueeze(-2)
        r2 = size - (2.0 * a) @ b.mT
        # A root turns a rounding error of 1e-16 into 1e-8: what the expansion cannot tell from zero is zero.
        r2.masked_fill_(r2 <= size.mul_((a.shape[-1] + 4) * EPS), 0.0)
        value, slope = profile.value_and_slope(r2.to(dtype))
        ctx.profile = profile
        ctx.save_for_backward(a, b, slope)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        a, b, slope = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone wants to differentiate once more
            value = ctx.profile.plain(a, b).to(gradient.dtype)
            asked = [x for x, needed in zip((a, b), ctx.needs_input_grad, strict=False) if needed]
            found = iter(torch.autograd.grad(value, asked, gradient, create_graph=True))
            ga, gb = (next(found) if needed else None for needed in ctx.needs_input_grad[:2])
            return ga, gb, None, None
        w = (gradient * slope).double()
        ga = gb = None
        if ctx.needs_input_grad[0]:
            ga = 2.0 * (w.sum(-1, keepdim=True) * a - w @ b)
        if ctx.needs_input_grad[1]:
            gb = 2.0 * (w.sum(-2).unsqueeze(-1) * b - w.mT @ a)
        return ga, gb, None, None


class Exponential2(Profile):
    """exp(−r²/2)."""

    def value_and_slope(self, r2: Tensor) -> tuple[Tensor, Tensor]:
        value = r2.mul_(-0.5).exp_()
        return value, -0.5 * value

    def plain(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-0.5 * squared_distance(a, b))


class HalfInteger(Profile):
    """Matérn: a polynomial in s = √(2ν) r times exp(−s), for 2ν = 1, 3, 5."""

    def __init__(self, twice_nu: int) -> None:
        self.twice_nu = twice_nu

    def value_and_slope(self, r2: Tensor) -> tuple[Tensor, Tensor]:
        s = r2.mul_(self.twice_nu).sqrt_()
        decay = torch.exp(-s)
        if self.twice_nu == 1:  # not smooth where points coincide: their gradient is zero
            slope = torch.where(s > 0, -0.5 * decay / s, 0.0)
            return decay, slope
        if self.twice_nu == 3:
            return (1.0 + s).mul_(decay), decay.mul_(-1.5)
        slope = (1.0 + s).mul_(decay)
        value = s.square_().mul_(1.0 / 3.0).mul_(decay).add_(slope)
        return value, slope.mul_(-5.0 / 6.0)

    def plain(self, a: Tensor, b: Tensor) -> Tensor:
        s = math.sqrt(self.twice_nu) * distance(a, b)
        if self.twice_nu == 1:
            return torch.exp(-s)
        polynomial = 1.0 + s if self.twice_nu == 3 else 1.0 + s * (1.0 + s / 3.0)
        return polynomial * torch.exp(-s)
