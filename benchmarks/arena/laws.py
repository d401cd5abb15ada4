"""Predicted laws of test rows and their scores: Gaussian, mixture, a law told by functions, classes.

A contestant predicts in the units of y; `regression_scores` divides by the standard deviation of the training
targets, so that sets can be compared: NLL − log s, CRPS/s, RMSE/s.

Contestants that give quantiles or a sample instead of a density are scored by a Gaussian mixture: equal
weights at the quantiles of the levels (k − ½)/K, with a bandwidth per row (`silverman`) times a factor that
the contestant chooses by the likelihood of rows it has not trained on (`choose_factor`). The same law gives
NLL, CRPS and coverage; RMSE is of its mean unless the contestant has a mean of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr, ndtri

from duogp.metrics import accuracy, expected_calibration_error, log_loss

Vector = NDArray[np.float64]
LEVEL = 0.95
FACTORS = np.array([0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0])
#: Levels at which a law told by functions is asked for its quantiles.
TOLD_LEVELS: Vector = (np.arange(100) + 0.5) / 100
PIECE = 500  # rows at once in pairwise sums


class Law(Protocol):
    """A predicted law of n rows."""

    @property
    def mean(self) -> Vector: ...
    def log_density(self, y: Vector) -> Vector: ...
    def crps(self, y: Vector) -> Vector: ...
    def inside(self, y: Vector, level: float) -> NDArray[np.bool_]: ...


@dataclass(frozen=True, eq=False)
class Gaussian:
    """N(mean, std²) per row."""

    mean: Vector
    std: Vector

    def log_density(self, y: Vector) -> Vector:
        z = (y - self.mean) / self.std
        return -0.5 * z**2 - np.log(self.std) - 0.5 * np.log(2 * np.pi)

    def crps(self, y: Vector) -> Vector:
        z = (y - self.mean) / self.std
        density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        return self.std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))

    def inside(self, y: Vector, level: float) -> NDArray[np.bool_]:
        return np.abs(y - self.mean) <= ndtri(0.5 + level / 2) * self.std


@dataclass(frozen=True, eq=False)
class Mixture:
    """Equal-weight Gaussian mixture per row: means and stds [n, K]; ``centre``: a mean of its own [n]."""

    means: Vector
    stds: Vector
    centre: Vector | None = None

    @property
    def mean(self) -> Vector:
        return self.means.mean(1) if self.centre is None else self.centre

    def log_density(self, y: Vector) -> Vector:
        parts = Gaussian(self.means, self.stds).log_density(y[:, None])
        return np.asarray(logsumexp(parts, 1)) - np.log(self.means.shape[1])

    def cdf(self, y: Vector) -> Vector:
        return np.asarray(ndtr((y[:, None] - self.means) / self.stds).mean(1))

    def crps(self, y: Vector) -> Vector:
        """E|Y − y| − ½ E|Y − Y′| in closed form."""
        values = []
        for start in range(0, len(y), PIECE):
            rows = slice(start, start + PIECE)
            m, s = self.means[rows], self.stds[rows]
            first = absolute_moment(y[rows, None] - m, s).mean(1)
            spread = np.sqrt(s[:, :, None] ** 2 + s[:, None, :] ** 2)
            values.append(first - 0.5 * absolute_moment(m[:, :, None] - m[:, None, :], spread).mean((1, 2)))
        return np.concatenate(values)

    def inside(self, y: Vector, level: float) -> NDArray[np.bool_]:
        return np.abs(self.cdf(y) - 0.5) <= level / 2


@dataclass(frozen=True, eq=False)
class Told:
    """A law by its own log density and quantiles (`log_density` of y; quantiles [n, levels] of levels)."""

    mean: Vector
    density: Callable[[Vector], Vector]
    quantiles: Callable[[Vector], Vector]

    def log_density(self, y: Vector) -> Vector:
        return self.density(y)

    def crps(self, y: Vector) -> Vector:
        """2 ∫ pinball loss, by the midpoint rule over `TOLD_LEVELS`."""
        below = y[:, None] - self.quantiles(TOLD_LEVELS)
        return 2 * np.maximum(TOLD_LEVELS * below, (TOLD_LEVELS - 1) * below).mean(1)

    def inside(self, y: Vector, level: float) -> NDArray[np.bool_]:
        low, high = self.quantiles(np.array([0.5 - level / 2, 0.5 + level / 2])).T
        return (low <= y) & (y <= high)


def absolute_moment(d: Vector, s: Vector) -> Vector:
    """E|X| of X ~ N(d, s²)."""
    z = d / s
    return d * (2 * ndtr(z) - 1) + s * np.sqrt(2 / np.pi) * np.exp(-0.5 * z**2)


def midlevels(count: int) -> Vector:
    return (np.arange(count) + 0.5) / count


def silverman(sample: Vector, least: float) -> Vector:
    """Bandwidths [n] of samples [n, K]: 0.9 min(σ, IQR/1.34) K^(−1/5), at least ``least``."""
    quartiles = np.quantile(sample, [0.25, 0.75], axis=1)
    iqr = (quartiles[1] - quartiles[0]) / 1.34
    sigma = sample.std(1)
    width = np.where(iqr > 0, np.minimum(sigma, iqr), sigma)
    return np.maximum(0.9 * width * sample.shape[1] ** -0.2, least)


def sample_law(sample: Vector, least: float, factor: float = 1.0, centre: Vector | None = None) -> Mixture:
    """The mixture of a sample or of quantiles at mid-levels, [n, K]."""
    width = factor * silverman(sample, least)
    return Mixture(sample, np.broadcast_to(width[:, None], sample.shape), centre)


def choose_factor(sample: Vector, y: Vector, least: float) -> float:
    """The factor of the bandwidth with the best likelihood of rows that were not trained on."""
    found = [sample_law(sample, least, factor).log_density(y).mean() for factor in FACTORS]
    return float(FACTORS[int(np.argmax(found))])


def regression_scores(law: Law, y: Vector, scale: float) -> dict[str, float]:
    """nll, crps, rmse in units of ``scale``, and the coverage of central 95 % intervals."""
    density = law.log_density(y)
    scores = {
        "nll": -float(np.mean(density)) - float(np.log(scale)),
        "crps": float(np.mean(law.crps(y))) / scale,
        "rmse": float(np.sqrt(np.mean((y - law.mean) ** 2))) / scale,
        "coverage": float(np.mean(law.inside(y, LEVEL))),
    }
    if not all(np.isfinite(value) for value in scores.values()):
        raise FloatingPointError(f"scores are not finite: {scores}")
    return scores


def class_scores(probabilities: Vector, y: NDArray) -> dict[str, float]:
    """nll (log loss), error (1 − accuracy) and the expected calibration error."""
    p = np.clip(probabilities, 0, 1)
    p = p / p.sum(1, keepdims=True)
    return {
        "nll": log_loss(y, p),
        "error": 1 - accuracy(y, p),
        "ece": expected_calibration_error(y, p),
    }
