"""Targets on the log scale, z = log(y + s), and the moments that a Gaussian z gives y.

z ~ N(μ, v)   ⇔   E y = exp(μ + v/2) − s,   Var y = (E y + s)² (eᵛ − 1)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Least mean relative to the standard deviation that a number above zero is taken to have.
LEAST_RATIO = 0.1
#: Targets below the support are taken for this share of s above its edge.
EDGE = 1e-3


class LogScale(NamedTuple):
    """z = log(y + s) with the shift s ≥ 0."""

    shift: float = 0.0

    @classmethod
    def of(cls, y: Array) -> LogScale:
        """The scale of targets [...] above zero: half the smallest is s, so that zero is no wonder."""
        return cls(0.5 * float(y.min()))

    def logs(self, y: Array) -> Array:
        return np.log(np.maximum(y + self.shift, EDGE * self.shift + np.finfo(np.float64).tiny))

    def back(self, z: Array) -> Array:
        return np.exp(z) - self.shift

    def moments(self, mu: Array, v: Array) -> tuple[Array, Array]:
        """E y and Var y from the moments of z, elementwise, [...]."""
        mean = np.exp(mu + 0.5 * v)
        return mean - self.shift, mean**2 * np.expm1(v)

    def moments_of_logs(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """μ and v from those of y, elementwise, [...]: the inverse where E y + s is above zero.

        A mean near the edge or below it is raised to a tenth of the standard deviation above it.
        """
        above = np.maximum(mean + self.shift, LEAST_RATIO * np.sqrt(variance))
        v = np.log1p(variance / above**2)
        return np.log(above) - 0.5 * v, v
