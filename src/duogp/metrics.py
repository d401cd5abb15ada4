"""What a predictive distribution N(mean, std²) is worth on held-out targets (MATH §4, §2.4).

Pure numpy functions of vectors ``[n]``, in float64 whatever comes in. `rmse`, `mae`, `nmse` judge the mean;
`nll` and `crps` (lower is better) judge the whole distribution; `coverage`, `quantile_calibration_error` and
`zscore_wasserstein` judge only whether the uncertainty is honest; `noise_share` says how much of it is noise.

Inputs that are not finite are refused rather than averaged over: a NaN would count as "outside the interval"
in a coverage and make a failed model look merely overconfident.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

Vector = NDArray[np.float64]

# The levels p at which the quantile calibration is read: 0.01, …, 0.99.
LEVELS: Vector = np.arange(1, 100) / 100.0


def rmse(y: ArrayLike, mean: ArrayLike) -> float:
    """√ mean (y − μ)²."""
    y, mean = _vectors(y=y, mean=mean)
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def mae(y: ArrayLike, mean: ArrayLike) -> float:
    """mean |y − μ|."""
    y, mean = _vectors(y=y, mean=mean)
    return float(np.mean(np.abs(y - mean)))


def nmse(y: ArrayLike, mean: ArrayLike) -> float:
    """mean (y − μ)² / var(y): 1 for a model that predicts the mean of y; NaN when y is constant."""
    y, mean = _vectors(y=y, mean=mean)
    variance = float(np.var(y))
    return float(np.mean((y - mean) ** 2)) / variance if variance > 0 else float("nan")


def nll(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """mean of ½ log 2πσ² + z²/2, in nats per datum."""
    z, std = _standardise(y, mean, std)
    return float(np.mean(0.5 * np.log(2 * np.pi) + np.log(std) + 0.5 * z**2))


def crps(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Continuous ranked probability score, ∫ (P(Y ≤ t) − 1[y ≤ t])² dt, in the units of y."""
    z, std = _standardise(y, mean, std)
    return float(np.mean(std * (z * (2 * ndtr(z) - 1) + 2 * _phi(z) - 1 / np.sqrt(np.pi))))


def coverage(y: ArrayLike, mean: ArrayLike, std: ArrayLike, level: float = 0.95) -> float:
    """Share of targets inside the central interval of probability `level`; honest models give `level`."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie strictly between 0 and 1, got {level!r}")
    z, _ = _standardise(y, mean, std)
    return float(np.mean(np.abs(z) <= ndtri(0.5 + level / 2)))


def quantile_calibration_error(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Mean over p = 0.01 … 0.99 of |P̂(y ≤ q_p) − p|: 0 when every predicted quantile is honest."""
    z, _ = _standardise(y, mean, std)
    below = np.searchsorted(np.sort(z), ndtri(LEVELS), side="right") / z.size  # P̂(z ≤ Φ⁻¹(p))
    return float(np.mean(np.abs(below - LEVELS)))


def zscore_wasserstein(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Wasserstein-1 distance between the z-scores and N(0, 1), exactly.

    W₁ = ∫₀¹ |F̂⁻¹(u) − Φ⁻¹(u)| du, and F̂⁻¹ is the sorted zᵢ on the cell [(i−1)/n, i/n]. With the
    antiderivative F(u) = −φ(Φ⁻¹(u)) and c = Φ(zᵢ), clipped into its cell [a, b], where the sign changes:
    ∫ |z − Φ⁻¹| = z (2c − a − b) + F(a) + F(b) − 2F(c). No sampling and no binning, so it can be compared
    across test sets; its floor for n honest z-scores is of order 1/√n.
    """
    z, _ = _standardise(y, mean, std)
    z = np.sort(z)
    edges = np.arange(z.size + 1) / z.size
    a, b = edges[:-1], edges[1:]
    c = np.clip(ndtr(z), a, b)
    cells = z * (2 * c - a - b) + _quantile_integral(a) + _quantile_integral(b) - 2 * _quantile_integral(c)
    return float(max(np.sum(cells), 0.0))


def noise_share(noise_variance: ArrayLike, variance_total: ArrayLike) -> float:
    """Mean of s²/(s² + v): the part of the predictive variance that is observation noise.

    Near 1 for SVGP, small for PPGPR (MATH §4). `variance_total` is s² + v, i.e. std²; the noise may be one
    number or one per datum.
    """
    (total,) = _vectors(variance_total=variance_total)
    noise = _noise(noise_variance, total.size)
    _require_positive("variance_total", total)
    return float(np.mean(noise / total))


def regression_metrics(
    y: ArrayLike, mean: ArrayLike, std: ArrayLike, noise_variance: ArrayLike | None = None
) -> dict[str, float]:
    """Every metric of this module under its function's name; `noise_share` only when the noise is given."""
    y, mean, std = _vectors(y=y, mean=mean, std=std)
    _require_positive("std", std)
    values = {
        "rmse": rmse(y, mean),
        "mae": mae(y, mean),
        "nmse": nmse(y, mean),
        "nll": nll(y, mean, std),
        "crps": crps(y, mean, std),
        "coverage": coverage(y, mean, std),
        "quantile_calibration_error": quantile_calibration_error(y, mean, std),
        "zscore_wasserstein": zscore_wasserstein(y, mean, std),
    }
    if noise_variance is not None:
        noise = _noise(noise_variance, std.size)
        values["noise_share"] = float(np.mean((np.sqrt(noise) / std) ** 2))  # σ² may underflow, the ratio not
    return values


def _phi(z: Vector) -> Vector:
    return np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)


def _quantile_integral(u: Vector) -> Vector:
    """∫₀ᵘ Φ⁻¹ = −φ(Φ⁻¹(u)), which is 0 at both ends."""
    return -_phi(ndtri(u))


def _standardise(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> tuple[Vector, Vector]:
    y, mean, std = _vectors(y=y, mean=mean, std=std)
    _require_positive("std", std)
    return (y - mean) / std, std


def _vectors(**named: Any) -> list[Vector]:
    """Finite float64 vectors of one length, or an error that names the argument."""
    vectors: list[Vector] = []
    first = next(iter(named))
    for name, value in named.items():
        vector = _float64(value)
        if vector.ndim != 1:
            raise ValueError(f"{name} must be one-dimensional [n], got shape {vector.shape}")
        if vector.size == 0:
            raise ValueError(f"{name} is empty: at least one value is needed")
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
    if hasattr(value, "detach"):  # a torch tensor, perhaps on a device or with a gradient
        value = value.detach().cpu()
    return np.asarray(value, dtype=np.float64)


def _require_finite(name: str, vector: Vector) -> None:
    bad = int(np.sum(~np.isfinite(vector)))
    if bad:
        raise ValueError(f"{name} holds {bad} of {vector.size} values that are NaN or infinite")


def _require_positive(name: str, vector: Vector) -> None:
    if np.any(vector <= 0):
        raise ValueError(f"{name} must be positive, got a minimum of {float(vector.min())!r}")
