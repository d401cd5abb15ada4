"""Kernels that are a function of r² alone, with the backward pass written by hand.

With K = k(r²), r²ᵢⱼ = ‖aᵢ − bⱼ‖² and W = G ∘ k′(r²) for an incoming gradient G,

    gaᵢ = 2 (Σⱼ Wᵢⱼ aᵢ − Wᵢⱼ bⱼ)        gbⱼ = 2 (Σᵢ Wᵢⱼ bⱼ − Wᵢⱼ aᵢ)

one product per side, where a last column of ones gives the row sums. Automatic differentiation of the same
formula makes some twenty passes over n × m numbers, on a CPU half of a training step. k′ = dk/d(r²) is
computed with k and kept; second derivatives are left to automatic differentiation.

r² is one product too, [a, ‖a‖², 1] [−2b, 1, ‖b‖²]ᵀ, always in float64 (see `distance`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from duogp.kernels.distance import EPS, distance, squared_distance

#: r² past which a Matérn kernel is zero in any precision.
FAR = 1e30


class Profile(ABC):
    """k and dk/d(r²) as functions of r²."""

    #: factor of r² in the argument of `value_and_slope`; it costs nothing inside the matrix product
    stretch: float = 1.0
    #: factor that makes the second result of `value_and_slope` dk/d(r²)
    slope_scale: float = 1.0

    @abstractmethod
    def value_and_slope(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """k and its slope from q = stretch · r², overwritten; its sign may be wrong where points coincide.

        Elementwise: [*b, n, m] each.
        """

    def value(self, q: Tensor, *, sound: bool = False) -> Tensor:
        """k from q [...], overwritten. ``sound``: wrong signs of q are too small to matter."""
        return self.value_and_slope(q)[0]

    @abstractmethod
    def plain(self, a: Tensor, b: Tensor) -> Tensor:
        """k(‖a − b‖²) by the formula, for automatic differentiation to any order.

        [*b, n, d], [*b, m, d] → [*b, n, m].
        """

    def __call__(self, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
        """[*b, n, d], [*b, m, d] in float64, centred → [*b, n, m] in the given precision."""
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (x.expand(*batch, *x.shape[-2:]) for x in (a, b))
        return _Evaluate.apply(a, b, self, dtype)

    def at(self, a: Tensor, b: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """k of every pair, and its slope up to `slope_scale`: [*b, n, d], [*b, m, d] → [*b, n, m] each."""
        return self.value_and_slope((self.left(a) @ right(b).mT).to(dtype))

    def left(self, a: Tensor) -> Tensor:
        """[a, ‖a‖², 1], stretched."""
        norm = _norm(a)
        return torch.cat([a, norm, torch.ones_like(norm)], -1) * self.stretch


def right(b: Tensor) -> Tensor:
    """[−2b, 1, ‖b‖²]."""
    norm = _norm(b)
    return torch.cat([-2.0 * b, torch.ones_like(norm), norm], -1)


def _norm(x: Tensor) -> Tensor:
    """‖x‖², a little too small.

    A root turns a rounding error of 1e-16 into 1e-8, so r² within its rounding error of zero must be zero.
    The norms are reduced by that error, and the negative r² that follow are clamped.
    """
    return norm_factor(x.shape[-1]) * x.square().sum(-1, keepdim=True)


def norm_factor(dims: int) -> float:
    """What ‖x‖² of so many coordinates is multiplied by, to be a little too small."""
    return 1.0 - 2 * (dims + 4) * EPS


class _Evaluate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, profile: Profile, dtype: torch.dtype) -> Tensor:
        value, slope = profile.at(a, b, dtype)
        ctx.profile = profile
        ctx.save_for_backward(a, b, slope)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        a, b, slope = ctx.saved_tensors
        a_needed, b_needed, *_ = ctx.needs_input_grad
        if torch.is_grad_enabled():  # create_graph: a second derivative is wanted
            value = ctx.profile.plain(a, b).to(gradient.dtype)
            asked = [x for x, needed in ((a, a_needed), (b, b_needed)) if needed]
            found = iter(torch.autograd.grad(value, asked, gradient, create_graph=True))
            return next(found) if a_needed else None, next(found) if b_needed else None, None, None
        w = gradient * slope
        scale = 2.0 * ctx.profile.slope_scale
        ga = scale * _differences(w, a, b) if a_needed else None
        gb = scale * _differences(w.mT, b, a) if b_needed else None
        return ga, gb, None, None


def _differences(w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Σⱼ wᵢⱼ (aᵢ − bⱼ)."""
    sums, weights = weighted_sums(w, b)
    return weights * a - sums


def weighted_sums(w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """w b [..., n, d] and the row sums of w [..., n, 1], by one product: w [..., n, m], b [..., m, d]."""
    found = (w @ torch.cat([b, torch.ones_like(b[..., :1])], -1).to(w.dtype)).to(b.dtype)
    return found[..., :-1], found[..., -1:]


class Exponential2(Profile):
    """exp(−r²/2)."""

    stretch = -0.5
    slope_scale = -0.5

    def value_and_slope(self, q: Tensor) -> tuple[Tensor, Tensor]:
        value = q.clamp_max_(0.0).exp_()
        return value, value

    def value(self, q: Tensor, *, sound: bool = False) -> Tensor:
        return q.exp_() if sound else q.clamp_max_(0.0).exp_()

    def plain(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-0.5 * squared_distance(a, b))


class HalfInteger(Profile):
    """Matérn: a polynomial in s = √(2ν) r times exp(−s), for 2ν = 1, 3, 5."""

    def __init__(self, twice_nu: int) -> None:
        self.twice_nu = twice_nu
        self.stretch = float(twice_nu)
        self.slope_scale = {1: -0.5, 3: -1.5, 5: -5.0 / 6.0}[twice_nu]

    def value_and_slope(self, q: Tensor) -> tuple[Tensor, Tensor]:
        s = q.clamp_(0.0, FAR).sqrt_()  # finite in float32 too: no ∞ · exp(−∞)
        decay = torch.neg(s).exp_()
        if self.twice_nu == 1:  # not smooth where points coincide: their gradient is zero
            return decay, torch.where(s > 0, decay / s, 0.0)
        linear = torch.addcmul(decay, s, decay)  # (1 + s) exp(−s)
        if self.twice_nu == 3:
            return linear, decay
        return torch.addcmul(linear, s.square_(), decay, value=1.0 / 3.0), linear

    def plain(self, a: Tensor, b: Tensor) -> Tensor:
        s = math.sqrt(self.twice_nu) * distance(a, b)
        if self.twice_nu == 1:
            return torch.exp(-s)
        polynomial = 1.0 + s if self.twice_nu == 3 else 1.0 + s * (1.0 + s / 3.0)
        return polynomial * torch.exp(-s)
