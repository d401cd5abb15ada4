"""Rows of a fit: tables read as matrices, equal rows joined into one with the sum of their weights.

A row that comes three times and a row of weight three are the same to every objective, but not to the choice
of inducing points, to minibatches or to a validation split. Equal rows are therefore joined first: weights
then mean what scikit-learn says, and copies of a row cannot stand on both sides of a validation split.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from sklearn.exceptions import DataConversionWarning

from duogp.data.rows import digests
from duogp.data.validation import UnsupportedDtypeError, as_matrix, as_row_vector
from duogp.errors import DataWarning
from duogp.sklearn.frames import check_columns

#: New rows farther out, in deviations of a column, are moved here, where distances keep their digits; without
#: scaling the data may lie anywhere, and only squares must stay finite.
FARTHEST, FARTHEST_UNSCALED = 1e6, 1e60
ENCODERS = (
    "give a frame (pandas, polars, pyarrow), whose text, categories, dates and gaps are read as they are"
)
GAPS = "give a frame (pandas, polars, pyarrow), which may have gaps"
#: Most numbers of a sparse matrix that is made dense.
MOST_DENSE = 500_000_000
#: Mean of weights that are no counts from which, and below whose inverse, a fit asks whether they are meant.
UNUSUAL = 3.0


class TrainingRows(NamedTuple):
    """Inputs and targets of n rows, their weights and their known noise variances."""

    X: NDArray
    y: NDArray  # targets or labels
    weight: NDArray[np.float64] | None
    noise: NDArray[np.float64] | None

    def take(self, index: NDArray[np.intp]) -> TrainingRows:
        return TrainingRows(*(None if part is None else part[index] for part in self))  # type: ignore[arg-type]


def read_inputs(estimator: Any, X: Any, *, reset: bool, min_rows: int = 1) -> NDArray:
    """An array as a finite matrix [n, d]; the estimator learns, or checks, its columns."""
    try:
        matrix = as_matrix(dense(X), "X", min_rows=min_rows)
    except UnsupportedDtypeError as error:
        if "argument must be" in str(error):  # an object that is neither text nor number
            raise
        raise UnsupportedDtypeError(f"{error}; {ENCODERS}") from error
    except ValueError as error:
        if "the first (nan)" not in str(error):
            raise
        raise ValueError(f"{error}; or {GAPS}") from error
    check_columns(estimator, X, reset=reset)
    return matrix


def dense(X: Any) -> Any:
    """A sparse matrix, such as that of a OneHotEncoder, as an array; anything else as it is."""
    in_torch = isinstance(X, torch.Tensor) and X.layout != torch.strided
    if not in_torch and not scipy.sparse.issparse(X):
        return X
    size = math.prod(X.shape)
    if size > MOST_DENSE:
        raise ValueError(
            f"X is sparse, and with {X.shape[0]:,} rows and {X.shape[1]:,} columns too large for a dense "
            f"array ({size * 8 / 2**30:.0f} GiB): reduce it first (sklearn.decomposition.TruncatedSVD)"
        )
    return X.to_dense() if in_torch else X.toarray()


def read_weights(sample_weight: Any, n: int) -> NDArray[np.float64] | None:
    """Row weights [n], not negative and not all zero; None where none are given."""
    if sample_weight is None:
        return None
    weight = as_row_vector(sample_weight, n, "sample_weight", allow_zero=True)
    if not weight.any():
        raise ValueError("sample_weight must not be zero for every row")
    return weight


def look_at_weights(weight: NDArray[np.float64]) -> None:
    """An error where fewer than two rows have a weight; a warning where weights are hardly counts of rows."""
    if (count := np.count_nonzero(weight)) < 2 <= len(weight):
        raise ValueError(
            f"sample_weight is zero but for {count} of {len(weight)} rows: at least 2 are required"
        )
    mean = float(weight.mean())
    counts = bool((weight == weight.round()).all()) and np.ptp(weight) > 0
    if not counts and not 1 / UNUSUAL < mean < UNUSUAL:
        warnings.warn(
            f"sample_weight has a mean of {mean:.3g}, and a row of weight w counts as w rows: divide it by "
            "its mean if only the ratios of weights mean something",
            DataWarning,
            stacklevel=5,
        )


def require_rows(n: int) -> None:
    """An error where there are too few rows to fit to."""
    if n < 2:
        found = {0: "no samples (it is empty)", 1: "1 sample"}[n]
        raise ValueError(f"X: found {found}; at least 2 rows are required")


def within_reach(X: NDArray, gp: Any) -> NDArray:
    """New rows [n, d], clipped to where distances between rows are finite."""
    return np.clip(X.astype(np.float64), *reach_of(gp))


def reach_of(gp: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ends of the range of every column of X that a model tells rows apart in, each [d]."""
    used, scaler = np.asarray(gp.columns, dtype=bool), gp.x_scaler
    low, high = np.full(len(used), -np.inf), np.full(len(used), np.inf)
    with np.errstate(over="ignore"):
        reach = (FARTHEST if gp.settings.standardize else FARTHEST_UNSCALED) * scaler.scale
        low[used], high[used] = scaler.shift - reach, scaler.shift + reach
    return low, high


def require_finite(gp: Any, rows: TrainingRows, most: int = 100) -> None:
    """An error where numbers went out of range in training."""
    prediction = gp.predict(rows.X[:most])
    values = prediction.std if gp.classes is None else prediction.probabilities
    if not np.isfinite(values).all():
        hint = "" if gp.settings.standardize else "; standardize=True brings columns of any scale to one"
        raise ValueError(f"the fitted model has no finite predictions: numbers went out of range{hint}")


def join_repeated(rows: TrainingRows) -> TrainingRows:
    """Equal rows joined and their weights added.

    The result is sorted; where no rows are equal and every weight is one, it is the input.
    """
    X, y, weight, noise = rows
    keys = [*X.T, *_codes(y).reshape(len(X), -1).T] + ([] if noise is None else [noise])
    order = _repeats(keys)
    if order is None and (weight is None or (weight == 1).all()):
        return rows._replace(weight=None)
    if order is None:
        order = np.lexsort(keys[::-1])
    ordered = [key[order] for key in keys]
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.any([key[1:] != key[:-1] for key in ordered], axis=0)
    total = np.bincount(new.cumsum() - 1, None if weight is None else weight[order]).astype(np.float64)
    joined = rows.take(order[new])
    return joined._replace(weight=None if (total == 1).all() else total)


def _repeats(keys: list[NDArray]) -> NDArray[np.intp] | None:
    """The order in which equal rows are neighbours; None where no two rows are equal.

    A digest of the bits of each row tells that most tables have none, without a sort by every column.
    """
    digest = np.sort(digests(keys))
    if not (digest[1:] == digest[:-1]).any():
        return None
    return np.lexsort(keys[::-1])


def _codes(y: NDArray) -> NDArray:
    """Targets unchanged, labels by number."""
    return y if y.dtype.kind == "f" else np.unique(y, return_inverse=True)[1].astype(np.float64)


def warn_of_column(y: Any) -> None:
    """Scikit-learn's warning where labels come as a column."""
    shape = getattr(y, "shape", ())
    if len(shape) == 2:
        message = "A column-vector y was passed when a 1d array was expected: its column is used"
        warnings.warn(message, DataConversionWarning, stacklevel=5)
