"""The law of a stack, from what its members say about rows that they have not seen.

Everything is chosen by the log score of those rows, and shrunk to the plain average where they are few.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from duogp.numerics.lognormal import LogScale
from duogp.numerics.mixtures import log_normal, mixture_weights
from duogp.numerics.rounding import Rounding
from duogp.posterior.laws import (
    LADDER,
    ClassLaw,
    MixtureLaw,
    MixturePrediction,
    tempered_probabilities,
)

Array = NDArray[np.float64]

#: Rows that count for equal members and for the shape of a Gaussian.
PSEUDO_ROWS = 20.0
#: The same for classes, where a member that is wrong now and then must be able to vanish.
CLASS_PSEUDO_ROWS = 2.0
#: Shares of the scales of the ladder before any row is seen.
SHAPE = np.array([0.001, 0.003, 0.006, 0.04, 0.15, 0.5, 0.2, 0.08, 0.02])
#: b, by how much of the learned excess a variance is recalibrated.
POWERS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
#: Log score that a step of b must gain.
COST_OF_POWER = 1.0
TEMPERATURES = np.exp(np.linspace(np.log(0.5), np.log(3.0), 13))
#: The median of a squared standard normal number.
MEDIAN_OF_SQUARE = 0.4549
#: δ, how far members are moved to the average of the means.
SHARED = (0.0, 0.5, 1.0)
#: By how much of itself, and by how many standard errors, the CRPS must be lower for a law to be rounded.
ROUNDED_GAIN, ROUNDED_ERRORS = 0.05, 2.0
#: Weights below it are dropped.
LEAST_WEIGHT = 1e-3


def mixture_law(
    y: Array,
    mean: Array,
    variance: Array,
    g: Array,
    row_weights: Array | None = None,
    logs: LogScale | None = None,
    rounding: Rounding | None = None,
) -> tuple[MixtureLaw, float]:
    """The law of one output, and its log score per row; y [n], moments [K, n], log excess g [n].

    ``logs``: a scale on which the members may be Gaussian too; ``rounding``: a grid that targets may be on.
    """
    members = len(mean)
    if not _are_numbers(y, mean, variance):  # out of range: nothing to tell members apart by
        shape = np.tile(SHAPE / members, (members, 1))
        equal = np.full(members, 1 / members)
        return MixtureLaw(shape, np.zeros(members), np.zeros(members), equal), float("nan")
    mean_weights = average_weights(y, mean, row_weights)
    average = mean_weights @ mean
    found = []
    for shared in SHARED if len(mean) > 1 else SHARED[:1]:
        centres = (1 - shared) * mean + shared * average
        law, value = _mixture_law(y, centres, variance, g, row_weights)
        found.append((value, replace(law, mean_weights=mean_weights, shared=shared)))
        if logs is not None:
            z = logs.logs(y)
            law, value = _mixture_law(z, *logs.moments_of_logs(centres, variance), g, row_weights)
            value -= float(np.average(z, weights=row_weights))  # the density of y, not of z
            found.append((value, replace(law, mean_weights=mean_weights, shared=shared, logs=logs)))
    value, law = max(found, key=lambda entry: entry[0])
    if rounding is None:
        return law, value
    return rounded(law, value, y, (mean, variance, g), row_weights, rounding)


def rounded(
    law: MixtureLaw,
    value: float,
    y: Array,
    told: tuple[Array, Array, Array],
    row_weights: Array | None,
    rounding: Rounding,
) -> tuple[MixtureLaw, float]:
    """The law rounded to a grid, where that makes its CRPS clearly lower; and its log score.

    By the CRPS, because the log score of a law with steps is as good as its steps are narrow. Where the grid
    is finer than what is known of y, little is gained, and the density stays that of a continuous target.
    """
    mean, variance, g = told
    point, none = law.point(mean), np.zeros(len(y))
    m, std, weights = law.components(mean, variance, g)
    plain = MixturePrediction(point, none, none, none, 0.0, m, std, weights, (law.logs,))
    steps = replace(plain, roundings=(rounding,))
    rows = np.ones(len(y)) if row_weights is None else row_weights
    before = plain.crps(y)
    gain = before - steps.crps(y)
    average = float(np.average(gain, weights=rows))
    error = float(np.sqrt(np.average((gain - average) ** 2, weights=rows) / len(y)))
    if not average > max(ROUNDED_GAIN * float(np.average(before, weights=rows)), ROUNDED_ERRORS * error):
        return law, value
    return replace(law, rounding=rounding), float(np.average(steps.log_density(y), weights=rows))


def _are_numbers(y: Array, mean: Array, variance: Array) -> bool:
    """Whether moments are finite, and squares of errors in units of the variance are."""
    tiny = np.finfo(np.float64).tiny
    if not (np.isfinite(mean).all() and np.isfinite(variance).all() and (variance > tiny).all()):
        return False
    with np.errstate(over="ignore"):
        return bool(np.isfinite((y - mean) ** 2 / variance).all() and np.isfinite(y**2).all())


def average_weights(y: Array, mean: Array, row_weights: Array | None = None) -> Array:
    """Weights [K] ≥ 0 of sum one with the least squared error of the average, shrunk to equal ones."""
    members, n = mean.shape
    rows = np.ones(n) if row_weights is None else row_weights
    scale = np.sqrt(rows / rows.sum())
    spread = max(float(np.average((y - mean.mean(0)) ** 2, weights=rows)), 1e-300)
    pull = np.sqrt(spread * PSEUDO_ROWS / (n + PSEUDO_ROWS) / members)
    # A heavy last row makes the sum one; the others pull each weight to 1/K.
    heavy = 1e3 * np.sqrt(np.average(y**2, weights=rows) + spread)
    A = np.concatenate([(scale * (mean - y)).T, pull * np.eye(members), np.full((1, members), heavy)])
    b = np.concatenate([np.zeros(n), np.full(members, pull / members), [heavy]])
    weights = nnls(A, b)[0]
    return weights / weights.sum()


def _mixture_law(
    y: Array, mean: Array, variance: Array, g: Array, row_weights: Array | None
) -> tuple[MixtureLaw, float]:
    fitted = [_recalibration(y, m, v, g, row_weights) for m, v in zip(mean, variance, strict=True)]
    log_scale, power = (np.array(values) for values in zip(*fitted, strict=True))
    factor = np.exp(log_scale[:, None] + power[:, None] * g)
    logs = np.stack([_ladder(y, m, v * c) for m, v, c in zip(mean, variance, factor, strict=True)])
    members, scales, n = logs.shape
    prior = np.tile(SHAPE / members, members)
    weights = mixture_weights(logs.reshape(-1, n), prior, row_weights, PSEUDO_ROWS)
    weights = np.where(weights < LEAST_WEIGHT, 0.0, weights)
    weights /= weights.sum()
    law = MixtureLaw(weights.reshape(members, scales), log_scale, power, np.full(members, 1 / members))
    return law, score(logs.reshape(-1, n), weights, row_weights)


def score(logs: Array, weights: Array, row_weights: Array | None = None) -> float:
    """The mean log score of a mixture of densities [J, n]."""
    top = logs.max(0)
    rows = np.log(np.maximum(weights @ np.exp(logs - top), 1e-300)) + top
    return float(np.average(rows, weights=row_weights))


def _ladder(y: Array, mean: Array, variance: Array) -> Array:
    """Log densities on the scales of the ladder, [S, n]."""
    return np.stack([log_normal(y, mean, variance * r**2) for r in LADDER])


def _recalibration(
    y: Array, mean: Array, variance: Array, g: Array, row_weights: Array | None
) -> tuple[float, float]:
    """a and b of one member: a by the median of its squared errors, b by the log score."""
    square = (y - mean) ** 2 / variance
    n = len(y)
    best, chosen = -np.inf, (0.0, 0.0)
    for power in POWERS if np.ptp(g) > 0 else POWERS[:1]:
        ratio = np.median(square * np.exp(-power * g)) / MEDIAN_OF_SQUARE
        log_scale = float(np.clip(np.log(max(ratio, 1e-12)), -6, 6)) * n / (n + PSEUDO_ROWS)
        logs = _ladder(y, mean, variance * np.exp(log_scale + power * g))
        weights = mixture_weights(logs, SHAPE, row_weights, PSEUDO_ROWS, iterations=50)
        gained = n * score(logs, weights, row_weights) - COST_OF_POWER * power
        if gained > best:
            best, chosen = gained, (log_scale, power)
    return chosen


def density_weights(log_density: Array, row_weights: Array | None = None) -> Array:
    """Weights [K] of members whose densities are mixed as they are; ``log_density`` [K, n]."""
    members = len(log_density)
    weights = mixture_weights(log_density, np.full(members, 1 / members), row_weights, PSEUDO_ROWS)
    weights = np.where(weights < LEAST_WEIGHT, 0.0, weights)
    return weights / weights.sum()


def class_law(
    codes: NDArray[np.intp], probabilities: Array, frequencies: Array, row_weights: Array | None = None
) -> tuple[ClassLaw, float]:
    """The law of classes, and its log score per row; probabilities of the members [K, n, C]."""
    rows = np.arange(len(codes))
    sound = np.isfinite(probabilities).all(-1, keepdims=True)
    probabilities = np.where(sound, probabilities, frequencies)
    temperature = np.array([_temperature(codes, p, row_weights) for p in probabilities])
    tempered = tempered_probabilities(probabilities, temperature)[:, rows, codes]
    logs = np.log(np.concatenate([frequencies[codes][None], tempered]))
    members = len(probabilities)
    prior = np.r_[0.02, np.full(members, 0.98 / members)]
    weights = mixture_weights(logs, prior, row_weights, CLASS_PSEUDO_ROWS)
    return ClassLaw(weights, temperature, frequencies), score(logs, weights, row_weights)


def _temperature(codes: NDArray[np.intp], p: Array, row_weights: Array | None) -> float:
    """T of one member by the log score, shrunk to 1 where rows are few."""
    n, rows = len(codes), np.arange(len(codes))
    scores = [
        np.average(
            np.log(tempered_probabilities(p[None], np.array([t]))[0, rows, codes]), weights=row_weights
        )
        for t in TEMPERATURES
    ]
    return float(TEMPERATURES[int(np.argmax(scores))] ** (n / (n + PSEUDO_ROWS)))
