"""Mixtures of Gaussians at n rows, and the weights of a mixture of given densities.

Arrays are [J, n] for J components; weights are [J] and sum to one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr, ndtri

from duogp.numerics.root_finding import find_roots

Array = NDArray[np.float64]

LOG_2PI = float(np.log(2 * np.pi))
#: Numbers held at once where every component meets every other.
SLAB = 2**24


def log_normal(y: Array, mean: Array, variance: Array) -> Array:
    """log N(y | mean, variance), elementwise, [...]."""
    return -0.5 * (LOG_2PI + np.log(variance) + (y - mean) ** 2 / variance)


def mixture_log_density(y: Array, mean: Array, std: Array, weights: Array) -> Array:
    """log Σ_j w_j N(y | μ_j, σ_j²) of every row, [n]."""
    with np.errstate(divide="ignore"):
        return logsumexp(np.log(weights)[:, None] + log_normal(y, mean, std**2), axis=0)


def mixture_cdf(t: Array, mean: Array, std: Array, weights: Array) -> Array:
    """P(y ≤ t) at levels t [levels, n]: [levels, n]."""
    out = np.zeros_like(t)
    for m, s, w in zip(mean, std, weights, strict=True):
        out += w * ndtr((t - m) / s)
    return out


def mixture_quantiles(levels: Array, mean: Array, std: Array, weights: Array) -> Array:
    """[levels, n]: by inversion of the distribution function, between the bounds of Cantelli's inequality."""
    p = np.asarray(levels, dtype=np.float64)[:, None]
    if len(mean) == 1:
        return mean[0] + std[0] * ndtri(p)
    centre = weights @ mean
    deviation = np.sqrt(weights @ (std**2 + (mean - centre) ** 2))
    shape = (len(p), len(centre))
    low, high = (np.broadcast_to(end, shape) for end in (-np.sqrt((1 - p) / p), np.sqrt(p / (1 - p))))
    root = find_roots(lambda s: mixture_cdf(centre + deviation * s, mean, std, weights) - p, low, high)
    return centre + deviation * root


def mixture_crps(y: Array, mean: Array, std: Array, weights: Array) -> Array:
    """The continuous ranked probability score of every row, [n] (Grimit et al. 2006).

    Σ_j w_j A(y − μ_j, σ_j) − ½ Σ_jk w_j w_k A(μ_j − μ_k, √(σ_j² + σ_k²)),  A(m, s) = E|m + s ε|, ε ~ N(0, 1)
    """
    out: Array = (weights[:, None] * _mean_absolute(y - mean, std)).sum(0)
    for j, w in enumerate(weights):
        others = _mean_absolute(mean[j] - mean, np.sqrt(std[j] ** 2 + std**2))
        out = out - 0.5 * w * (weights[:, None] * others).sum(0)
    return out


def _mean_absolute(m: Array, s: Array) -> Array:
    z = m / s
    return 2 * s * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) + m * (2 * ndtr(z) - 1)


def mixture_weights(
    log_density: Array,
    prior: Array,
    row_weights: Array | None = None,
    pseudo_rows: float = 1.0,
    iterations: int = 500,
) -> Array:
    """Weights [J] that maximise Σ_i log Σ_j w_j p_j(i), the log score of the mixture; ``log_density`` [J, n].

    ``pseudo_rows``: that many rows speak for the weights ``prior`` [J], so that few rows change little. The
    problem is concave; these are the steps of EM.
    """
    n = log_density.shape[1]
    rows = np.ones(n) if row_weights is None else row_weights
    relative = np.exp(log_density - log_density.max(0))
    weights = np.array(prior)
    for _ in range(iterations):
        share = weights[:, None] * relative
        share /= share.sum(0)
        new = (share @ rows + pseudo_rows * prior) / (rows.sum() + pseudo_rows)
        done = np.abs(new - weights).max() < 1e-7
        weights = new
        if done:
            break
    return weights
