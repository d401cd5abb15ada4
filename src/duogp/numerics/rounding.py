"""Targets on a grid: y is the value of the grid that is nearest to what a continuous law says.

P(y = a | x) = F(b₊ | x) − F(b₋ | x),    b₋, b₊: half way from a to the values below and above it

with F the distribution function of the continuous law. A target that takes eleven values is no Gaussian
around a mean: its distribution has steps, and the law that has them where they are has the better CRPS. As a
density, each value is a Gaussian of a hundredth of the smallest distance between values; log scores of such
targets depend on that width, and are not to be compared with those of targets that are not on a grid. CRPS,
quantiles and draws do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from duogp.numerics.mixtures import LOG_2PI

Array = NDArray[np.float64]
#: F at levels t [levels, n], one for each row: [levels, n].
Cdf = Callable[[Array], Array]

#: Values that a grid has at most, and at most as a share of the rows.
MOST_VALUES, MOST_OF_ROWS = 100, 0.1
#: How often a value must occur to be one of the grid, and the share of rows that must be on such values.
LEAST_COUNT, LEAST_ON = 2, 0.95
#: The standard deviation of a value as a density, relative to the smallest distance between two.
RELATIVE_WIDTH = 0.01
#: Least share of targets that are taken to be off the grid.
LEAST_OFF = 0.01


class Rounding(NamedTuple):
    """``values`` of the grid [A], increasing; ``off``: the share of targets that are not on it."""

    values: Array
    off: float

    @classmethod
    def of(cls, y: Array) -> Rounding | None:
        """The grid that targets [n] are on; None where they are on none."""
        values, counts = np.unique(y, return_counts=True)
        often = counts >= LEAST_COUNT
        on = counts[often].sum() / len(y)
        few = often.sum() <= min(MOST_VALUES, MOST_OF_ROWS * len(y))
        if often.sum() < 2 or not few or on < LEAST_ON:
            return None
        return cls(values[often].astype(np.float64), max(1.0 - float(on), LEAST_OFF))

    @property
    def edges(self) -> Array:
        """Half way between neighbouring values, [A − 1]."""
        return self.values[:-1] + 0.5 * np.diff(self.values)

    @property
    def width(self) -> float:
        """The standard deviation of a value as a density."""
        return RELATIVE_WIDTH * float(np.diff(self.values).min())

    def nearest(self, y: Array) -> Array:
        """The values of the grid next to y, elementwise, [...]."""
        return self.values[np.searchsorted(self.edges, y)]

    def log_density(self, y: Array, cdf: Cdf, continuous: Array) -> Array:
        """log p(y) of every row, [n]; ``continuous``: of the continuous law, for targets off the grid."""
        place = np.searchsorted(self.edges, y)
        ends = np.concatenate([[-np.inf], self.edges, [np.inf]])
        below, above = cdf(np.stack([ends[place], ends[place + 1]]))
        mass = np.maximum(above - below, np.finfo(np.float64).tiny)
        with np.errstate(over="ignore"):
            away = (y - self.values[place]) / self.width  # no square of the width, which may be tiny
            on = np.log(mass) - 0.5 * (LOG_2PI + away**2) - np.log(self.width)
        return np.logaddexp(np.log1p(-self.off) + on, np.log(self.off) + continuous)

    def crps(self, y: Array, cdf: Cdf) -> Array:
        """∫ (P(Y ≤ t) − 1{y ≤ t})² dt of every row, [n], for Y on the grid and any y."""
        first, last = self.values[0], self.values[-1]
        out = np.maximum(first - y, 0.0) + np.maximum(y - last, 0.0)
        for left, right, edge in zip(self.values[:-1], self.values[1:], self.edges, strict=True):
            p = cdf(np.full((1, len(y)), edge))[0]
            before = np.clip(y - left, 0.0, right - left)
            out += before * p**2 + (right - left - before) * (1.0 - p) ** 2
        return out
