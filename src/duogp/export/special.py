"""The error function and its relatives by exp, log and a polynomial: onnxruntime has none in float64.

For x ≥ 0, erfc(x) = e^{−x²} P(t) with t = (x − K)/(x + K) in [−1, 1] and P the Chebyshev interpolant of
e^{x²}erfc(x), which is smooth on all of the half line. Its relative error is below 2e-14, so that logarithms
of small probabilities keep their digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.special import erfcx
from torch import Tensor

K, DEGREE = 3.0, 26


@cache
def coefficients() -> tuple[float, ...]:
    """Of P in the basis of Chebyshev polynomials."""

    def value(t: Any) -> Any:
        with np.errstate(divide="ignore"):
            return erfcx(K * (1 + t) / (1 - t))

    return tuple(float(c) for c in np.polynomial.chebyshev.chebinterpolate(value, DEGREE))


def scaled_erfc(x: Tensor) -> Tensor:
    """e^{x²} erfc(x) for x ≥ 0, by Clenshaw's recurrence."""
    t = (x - K) / (x + K)
    twice = 2.0 * t
    first, *rest = coefficients()
    b, after = torch.full_like(x, rest[-1]), torch.zeros_like(x)
    for c in reversed(rest[:-1]):
        b, after = twice * b - after + c, b
    return t * b - after + first


def erfc(x: Tensor) -> Tensor:
    """The complementary error function by exp and quotients, which every runtime has."""
    size = x.abs()
    tail = (-size.square()).exp() * scaled_erfc(size)
    return torch.where(x < 0, 2.0 - tail, tail)


def erf(x: Tensor) -> Tensor:
    """The error function, as `erfc`."""
    return 1.0 - erfc(x)


def ndtr(x: Tensor) -> Tensor:
    """Φ(x)."""
    return 0.5 * erfc(-math.sqrt(0.5) * x)


def log_ndtr(x: Tensor) -> Tensor:
    """log Φ(x), accurate in both tails."""
    size = math.sqrt(0.5) * x.abs()
    scaled = 0.5 * scaled_erfc(size)
    tail = (-size.square()).exp() * scaled
    return torch.where(x < 0, scaled.log() - size.square(), torch.log1p(-tail))


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x Φ(x), the activation of networks."""
    if approximate != "none":
        raise NotImplementedError("gelu by its tanh approximation")
    return x * ndtr(x)


def sinh(x: Tensor) -> Tensor:
    """Hyperbolic sine by exponentials."""
    return 0.5 * (x.exp() - (-x).exp())


def cosh(x: Tensor) -> Tensor:
    """Hyperbolic cosine by exponentials."""
    return 0.5 * (x.exp() + (-x).exp())


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Operators that are replaced before a graph becomes ONNX."""
    aten = torch.ops.aten
    return {
        aten.erf.default: erf,
        aten.erfc.default: erfc,
        aten.special_ndtr.default: ndtr,
        aten.special_log_ndtr.default: log_ndtr,
        aten.gelu.default: gelu,
        aten.sinh.default: sinh,
        aten.cosh.default: cosh,
    }
