"""Columns of X: those that are not constant, and a check of new rows against those of the fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.data.validation import as_matrix, column_names


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


def rows_of_the_fit(X: Any, names: list[str] | None, width: int) -> NDArray:
    """New rows as a matrix [n, width]; an error where the columns are not those of the fit."""
    given = column_names(X)
    if given is not None and names is not None and given != names:
        raise ValueError(f"X: {_difference(given, names)}")
    matrix = as_matrix(X, "X", min_rows=1)
    if matrix.shape[1] != width:
        raise ValueError(f"X has {matrix.shape[1]} columns, but the model was fitted on {width}")
    return matrix


def _difference(given: list[str], expected: list[str]) -> str:
    missing = [name for name in expected if name not in given]
    strange = [name for name in given if name not in expected]
    if not missing and not strange:
        return f"the columns are those of the fit in another order; expected {', '.join(expected[:8])}, ..."
    named = (("missing", missing), ("unknown", strange))
    parts = [f"{what} {', '.join(names[:8])}" for what, names in named if names]
    return f"the columns are not those of the fit: {'; '.join(parts)}"
