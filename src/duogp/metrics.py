"""Metrics of predictions on held-out targets (MATH §2.4, §3.5, §4): pure numpy functions in float64.

For a predictive distribution N(mean, std²), in vectors ``[n]``: `rmse`, `mae`, `nmse` of the mean; `nll` and
`crps` (lower is better) of the whole distribution; `coverage`, `quantile_calibration_error` and
`zscore_wasserstein` of its calibration alone; `noise_share`, the part of its variance that is noise. For
class probabilities ``[n, classes]``: `accuracy` of the most probable class, `log_loss` and `brier` of the
whole distribution, `expected_calibration_error` of its calibration.

Inputs that are not finite are refused: a NaN would count as "outside the interval" in a coverage, and make a
failed model look merely overconfident.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from duogp.data.labels import codes_of

Vector = NDArray[np.float64]

# The levels p of the quantile calibration: 0.01, …, 0.99.
LEVELS: Vector = np.arange(1, 100) / 100.0
# Lower probabilities are raised to this: a certain prediction that is wrong costs 27.6 nats, not infinity.
SMALLEST_PROBABILITY = 1e-12
CALIBRATION_BINS = 15
# Largest deviation of the sum of a row from 1 (probabilities by quadrature).
_SUM_TOLERANCE = 0.05


def rmse(y: ArrayLike, mean: ArrayLike) -> float:
    """Root mean squared error, √ mean (y − μ)², of y and μ [n]."""
    y, mean = _vectors(y=y, mean=mean)
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def mae(y: ArrayLike, mean: ArrayLike) -> float:
    """Mean absolute error, mean |y − μ|, of y and μ [n]."""
    y, mean = _vectors(y=y, mean=mean)
    return float(np.mean(np.abs(y - mean)))


def nmse(y: ArrayLike, mean: ArrayLike) -> float:
    """Normalised squared error, mean (y − μ)² / var(y); y, μ [n]: 1 for μ = mean of y; NaN for constant y."""
    y, mean = _vectors(y=y, mean=mean)
    variance = float(np.var(y))
    return float(np.mean((y - mean) ** 2)) / variance if variance > 0 else float("nan")


def nll(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Negative log likelihood, mean of ½ log 2πσ² + z²/2, in nats per datum; y, μ, σ [n]."""
    z, std = standardise(y, mean, std)
    return float(np.mean(0.5 * np.log(2 * np.pi) + np.log(std) + 0.5 * z**2))


def crps(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Continuous ranked probability score, ∫ (P(Y ≤ t) − 1[y ≤ t])² dt, in the units of y; y, μ, σ [n]."""
    z, std = standardise(y, mean, std)
    return float(np.mean(std * (z * (2 * ndtr(z) - 1) + 2 * _phi(z) - 1 / np.sqrt(np.pi))))


def coverage(y: ArrayLike, mean: ArrayLike, std: ArrayLike, level: float = 0.95) -> float:
    """Share of targets [n] inside the central interval of probability `level`: `level` if calibrated."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie strictly between 0 and 1, got {level!r}")
    z, _ = standardise(y, mean, std)
    return float(np.mean(np.abs(z) <= ndtri(0.5 + level / 2)))


def quantile_calibration_error(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Mean over p = 0.01 … 0.99 of |P̂(y ≤ q_p) − p|: 0 if every quantile is calibrated; y, μ, σ [n]."""
    z, _ = standardise(y, mean, std)
    below = np.searchsorted(np.sort(z), ndtri(LEVELS), side="right") / z.size  # P̂(z ≤ Φ⁻¹(p))
    return float(np.mean(np.abs(below - LEVELS)))


def zscore_wasserstein(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Wasserstein-1 distance between the z-scores and N(0, 1), exactly.

    W₁ = ∫₀¹ |F̂⁻¹(u) − Φ⁻¹(u)| du, and F̂⁻¹ is the sorted zᵢ on the cell [(i−1)/n, i/n]. With the
    antiderivative F(u) = −φ(Φ⁻¹(u)) and c = Φ(zᵢ), clipped into its cell [a, b], where the sign changes:
    ∫ |z − Φ⁻¹| = z (2c − a − b) + F(a) + F(b) − 2F(c). Without sampling or binning it can be compared across
    test sets; for n z-scores that are N(0, 1) it is of order 1/√n.
    """
    z, _ = standardise(y, mean, std)
    z = np.sort(z)
    edges = np.arange(z.size + 1) / z.size
    a, b = edges[:-1], edges[1:]
    c = np.clip(ndtr(z), a, b)
    cells = z * (2 * c - a - b) + _quantile_integral(a) + _quantile_integral(b) - 2 * _quantile_integral(c)
    return float(max(np.sum(cells), 0.0))


def noise_share(noise_variance: ArrayLike, variance_total: ArrayLike) -> float:
    """Mean of s²/(s² + v): the part of the predictive variance that is observation noise.

    Near 1 for SVGP, small for PPGPR (MATH §4). `variance_total` [n] is s² + v, i.e. std²; the noise may be
    one number or one per datum, [n].
    """
    (total,) = _vectors(variance_total=variance_total)
    noise = _noise(noise_variance, total.size)
    _require_positive("variance_total", total)
    return float(np.mean(noise / total))


def regression_metrics(
    y: ArrayLike, mean: ArrayLike, std: ArrayLike, noise_variance: ArrayLike | None = None
) -> dict[str, float]:
    """All regression metrics by the names of their functions; `noise_share` only when the noise is given.

    y, mean and std [n], noise_variance [n] or one number.
    """
    y, mean, std = _vectors(y=y, mean=mean, std=std)
    _require_positive("std", std)
    of_mean = (rmse, mae, nmse)
    of_all = (nll, crps, coverage, quantile_calibration_error, zscore_wasserstein)
    values = {metric.__name__: metric(y, mean) for metric in of_mean}
    values |= {metric.__name__: metric(y, mean, std) for metric in of_all}
    if noise_variance is not None:
        noise = _noise(noise_variance, std.size)
        values["noise_share"] = float(np.mean((np.sqrt(noise) / std) ** 2))  # σ² may underflow, the ratio not
    return values


# -- classes -----------------------------------------------------------------------------------------------


def accuracy(labels: ArrayLike, probabilities: ArrayLike, classes: ArrayLike | None = None) -> float:
    """Share of rows whose most probable class is the true one.

    labels [n], probabilities [n, C], classes [C].
    """
    y, p = _class_rows(labels, probabilities, classes)
    return float(np.mean(p.argmax(1) == y))


def log_loss(labels: ArrayLike, probabilities: ArrayLike, classes: ArrayLike | None = None) -> float:
    """Negative log likelihood, mean of −log p(true class), in nats per datum.

    labels [n], probabilities [n, C], classes [C].
    """
    y, p = _class_rows(labels, probabilities, classes)
    return float(-np.mean(np.log(p[np.arange(y.size), y])))


def brier(labels: ArrayLike, probabilities: ArrayLike, classes: ArrayLike | None = None) -> float:
    """Brier score, mean of Σ_c (p_c − 1[y = c])², from 0 to 2."""
    y, p = _class_rows(labels, probabilities, classes)
    off = p.copy()
    off[np.arange(y.size), y] -= 1.0
    return float(np.mean(np.sum(off**2, 1)))


def expected_calibration_error(
    labels: ArrayLike,
    probabilities: ArrayLike,
    classes: ArrayLike | None = None,
    *,
    bins: int = CALIBRATION_BINS,
) -> float:
    """Σ_b (n_b/n) |accuracy − mean top probability| over equal-width bins of the top probability.

    labels [n], probabilities [n, C], classes [C].
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins!r}")
    y, p = _class_rows(labels, probabilities, classes)
    top = p.max(1)
    excess = (p.argmax(1) == y) - top
    bin_of = np.minimum((top * bins).astype(np.intp), bins - 1)
    return float(np.sum(np.abs(np.bincount(bin_of, excess, bins))) / y.size)


def classification_metrics(
    labels: ArrayLike, probabilities: ArrayLike, classes: ArrayLike | None = None
) -> dict[str, float]:
    """accuracy, nll, brier and ece (15 bins) of class probabilities ``[n, C]``.

    ``labels`` are column numbers or, with ``classes`` ``[C]``, the names of columns; a label that is not
    among the classes has probability 0. Probabilities are clipped to [1e-12, 1 − 1e-12] and renormalised.
    """
    return {
        "accuracy": accuracy(labels, probabilities, classes),
        "nll": log_loss(labels, probabilities, classes),
        "brier": brier(labels, probabilities, classes),
        "ece": expected_calibration_error(labels, probabilities, classes),
    }


def _class_rows(
    labels: ArrayLike, probabilities: ArrayLike, classes: ArrayLike | None
) -> tuple[NDArray[np.intp], Vector]:
    """Column numbers [n] and probabilities [n, C], clipped and renormalised."""
    p = _float64(probabilities)
    if p.ndim != 2 or p.shape[1] == 0:
        raise ValueError(f"probabilities must have shape [n, classes], got {p.shape}")
    y = _array(labels)
    _require_vector("labels", y)
    if y.size != p.shape[0]:
        raise ValueError(f"probabilities has {p.shape[0]} rows but labels has {y.size} values")
    _require_finite("probabilities", p)
    if p.min() < -1e-6 or p.max() > 1 + 1e-6:
        raise ValueError(f"probabilities must lie in [0, 1], got {float(p.min())!r} to {float(p.max())!r}")
    if np.any(off := np.abs(p.sum(1) - 1) > _SUM_TOLERANCE):
        raise ValueError(f"probabilities must sum to 1 in every row, got a sum of {float(p[off][0].sum())!r}")
    if classes is None:
        y = _column_numbers(y, p.shape[1])
    else:
        names = _array(classes)
        if names.shape != (p.shape[1],) or len(np.unique(names)) != p.shape[1]:
            raise ValueError(f"classes must be {p.shape[1]} different names, got shape {names.shape}")
        labels, y = y, codes_of(y, names)
        strange = np.unique(labels[y < 0])  # no classes: columns without mass, of which −1 is the last
        p = np.pad(p, ((0, 0), (0, strange.size)))
    p = np.clip(p, SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY)
    return y, p / p.sum(1, keepdims=True)


def _column_numbers(labels: NDArray, columns: int) -> NDArray[np.intp]:
    if labels.dtype.kind not in "biuf" or np.any(labels != np.floor(labels)):
        raise ValueError("labels must be column numbers unless classes are given")
    if labels.min() < 0 or labels.max() >= columns:
        raise ValueError(
            f"labels must be column numbers from 0 to {columns - 1}, got {labels.min()} to {labels.max()}"
        )
    return labels.astype(np.intp)


def _phi(z: Vector) -> Vector:
    return np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)


def _quantile_integral(u: Vector) -> Vector:
    """∫₀ᵘ Φ⁻¹ = −φ(Φ⁻¹(u)), which is 0 at both ends."""
    return -_phi(ndtri(u))


def standardise(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> tuple[Vector, Vector]:
    """z = (y − μ)/σ and σ, each ``[n]``, checked."""
    y, mean, std = _vectors(y=y, mean=mean, std=std)
    _require_positive("std", std)
    return (y - mean) / std, std


def _vectors(**named: Any) -> list[Vector]:
    """Finite float64 vectors of one length, or an error that names the argument."""
    vectors: list[Vector] = []
    first = next(iter(named))
    for name, value in named.items():
        vector = _float64(value)
        _require_vector(name, vector)
        if vectors and vector.size != vectors[0].size:
            raise ValueError(f"{name} has {vector.size} values but {first} has {vectors[0].size}")
        _require_finite(name, vector)
        vectors.append(vector)
    return vectors


def _noise(value: Any, n: int) -> Vector:
    noise = _float64(value)
    if noise.shape not in ((), (n,)):
        raise ValueError(f"noise_variance must be one number or have shape ({n},), got shape {noise.shape}")
    _require_finite("noise_variance", noise)
    if np.any(noise < 0):
        raise ValueError(f"noise_variance must not be negative, got {float(noise.min())!r}")
    return noise


def _float64(value: Any) -> Vector:
    return np.asarray(_array(value), dtype=np.float64)


def _array(value: Any) -> NDArray:
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu()
    return np.asarray(value)


def _require_vector(name: str, array: NDArray) -> None:
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional [n], got shape {array.shape}")
    if array.size == 0:
        raise ValueError(f"{name} is empty: at least one value is needed")


def _require_finite(name: str, vector: Vector) -> None:
    bad = int(np.sum(~np.isfinite(vector)))
    if bad:
        raise ValueError(f"{name} holds {bad} of {vector.size} values that are NaN or infinite")


def _require_positive(name: str, vector: Vector) -> None:
    if np.any(vector <= 0):
        raise ValueError(f"{name} must be positive, got a minimum of {float(vector.min())!r}")
