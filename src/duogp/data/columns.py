"""Which input columns carry information."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def informative_columns(X: NDArray, tol: float = 1e-10, *, absolute: bool = False) -> NDArray[np.bool_]:
    """Mask ``[d]``, True where a column is not constant.

    By default relative: a column counts as constant when its range is at most `tol` times its largest
    absolute value, so that a column in units of 1e-12 is kept and a constant one with rounding noise is not.
    With ``absolute=True`` it is the rule of the decoupled-conditionals benchmark (MATH §2.4): variance below
    `tol`.
    """
    if X.ndim != 2:
        raise ValueError(f"X must be two-dimensional [n, d], got shape {X.shape}")
    if absolute:
        return np.var(X, axis=0, dtype=np.float64) >= tol
    low, high = X.min(axis=0).astype(np.float64), X.max(axis=0).astype(np.float64)
    largest = np.maximum(np.abs(low), np.abs(high))
    return high / 2 - low / 2 > tol * (largest / 2)  # halves: the range of ±1e308 would overflow
