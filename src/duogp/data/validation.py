"""Tables and columns of any library as finite numpy arrays, or an error that says what to change.

Frames are recognised by their methods, never by importing their library. Every message names the argument,
the value found and the value expected. Some wordings ("Reshape your data", "Complex data not supported",
"0 feature(s)", "1 sample", "requires y") are those that scikit-learn's estimator checks look for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

# Larger float32 matrices stay float32: twice the memory is not worth the precision.
KEEP_FLOAT32_ABOVE = 50_000_000
# Arrays of more numbers are summed by several cores.
MANY = 1_000_000


class UnsupportedDtypeError(TypeError, ValueError):
    """Values that are not real numbers: a TypeError, and a ValueError for scikit-learn's checks."""


def as_matrix(X: Any, name: str = "X", *, min_rows: int = 2) -> NDArray:
    """Inputs as a finite ``[n, d]`` array of float64 (float32 stays so past `KEEP_FLOAT32_ABOVE` elements).

    Takes lists, numpy arrays, torch tensors, pandas and polars frames and pyarrow tables. Fitting needs two
    rows (one has no scale); prediction passes ``min_rows=1``.
    """
    array, labels = _to_array(X, name)
    if array.ndim < 2:
        raise ValueError(
            f"{name}: expected a 2D array [n, d], got a {array.ndim}D array of shape {array.shape}. "
            f"Reshape your data: {name}.reshape(-1, 1) if it is one feature, {name}.reshape(1, -1) if it is "
            "one sample"
        )
    if array.ndim > 2:
        raise ValueError(f"{name}: expected a 2D array [n, d], got shape {array.shape}; flatten each row")
    n, d = array.shape
    if d == 0:
        raise ValueError(f"{name}: found 0 feature(s) (shape={(n, 0)}) while a minimum of 1 is required.")
    if n < min_rows:
        found = {0: "no samples (it is empty)", 1: "1 sample"}.get(n, f"{n} samples")
        raise ValueError(f"{name}: found {found}, shape {array.shape}; at least {min_rows} rows are required")
    _require_finite(array, labels, name)
    return array


def column_names(data: Any) -> list[str] | None:
    """The names of a frame's or an arrow table's columns; None for what has no names."""
    names = getattr(data, "column_names", getattr(data, "columns", None))  # pyarrow; pandas, polars
    return None if names is None or callable(names) else [str(name) for name in names]


def as_target(y: Any, n: int, name: str = "y") -> NDArray:
    """Real targets as a finite ``[n]`` or ``[n, P]`` array; `n` is the number of rows of X."""
    if y is None:
        raise ValueError(f"requires y to be passed, but the target {name} is None; expected {n} numbers")
    array, labels = _to_array(y, name)
    if array.ndim not in (1, 2):
        raise ValueError(f"{name}: expected shape [n] or [n, P], got {array.shape}")
    require_length(array, n, name)
    if array.ndim == 2 and array.shape[1] == 0:
        raise ValueError(f"{name}: found 0 outputs (shape={array.shape}) while a minimum of 1 is required")
    _require_finite(array, labels, name)
    return array


def as_row_vector(
    values: Any, n: int, name: str = "sample_weight", *, allow_zero: bool = False
) -> NDArray[np.float64]:
    """One positive number per row (weights, known noise variances) ``[n]``; a single number is repeated."""
    array, labels = _to_array(values, name)
    if array.ndim == 0:
        array = np.full(n, array)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected one number per row, shape ({n},), got shape {array.shape}")
    require_length(array, n, name)
    _require_finite(array, labels, name)
    bad = np.flatnonzero(array < 0 if allow_zero else array <= 0)
    if bad.size:
        wanted = "must not be negative" if allow_zero else "must be positive"
        raise ValueError(
            f"{name} {wanted}: {bad.size} of {n} are not, first row {bad[0]} ({array[bad[0]]:g})"
        )
    return array.astype(np.float64, copy=False)


def as_row_noise(values: Any, n: int) -> NDArray[np.float64]:
    """Known noise variances: one for each row, [n], or one for each row and output, [n, outputs]."""
    array, _ = _to_array(values, "noise")
    if array.ndim != 2:
        return as_row_vector(values, n, "noise")[:, None]
    return np.stack([as_row_vector(column, n, "noise") for column in array.T], 1)


def _to_array(data: Any, name: str) -> tuple[NDArray, list[str] | None]:
    """A real floating-point array of any shape, and its column labels where the source has them."""
    if scipy.sparse.issparse(data) or (isinstance(data, torch.Tensor) and data.layout != torch.strided):
        raise TypeError(f"{name}: sparse data ({type(data).__name__}) is unsupported; pass {name}.toarray()")
    columns = _frame_columns(data)
    if columns is not None:
        labels = [label for label, _ in columns]
        for label, values in columns:
            if values.ndim != 1:
                raise UnsupportedDtypeError(
                    f"{name}, column {label!r}: found arrays of shape {values.shape[1:]}, expected one "
                    "number in each row: give each of theirs a column of its own"
                )
        arrays = [_real(values, name, label) for label, values in columns]
        rows = len(arrays[0]) if arrays else len(data)
        return (np.column_stack(arrays) if arrays else np.empty((rows, 0))), labels
    if isinstance(data, torch.Tensor):
        tensor = data.detach().cpu()
        data = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    elif isinstance(data, np.ma.MaskedArray):
        data = np.ma.filled(data.astype(np.float64), np.nan)  # missing values, refused below
    else:
        data = from_column(data)
    return _real(_ndarray(data, name), name, None), None


def from_column(data: Any) -> Any:
    """A Series or an arrow column as an array, gaps included; anything else as it is."""
    if not hasattr(data, "to_numpy"):
        return data
    if hasattr(data, "to_pylist"):  # arrow
        return getattr(data, "combine_chunks", lambda: data)().to_numpy(zero_copy_only=False)
    return data.to_numpy()


def _ndarray(data: Any, name: str) -> NDArray:
    if isinstance(data, np.ndarray):
        return np.asarray(data)
    try:
        array = np.asarray(data)
        if array.dtype.kind in "US":  # numpy turned the numbers beside a string into strings too
            array = np.asarray(data, dtype=object)
    except ValueError as error:
        raise ValueError(f"{name}: rows of unequal length cannot form an array ({error})") from error
    return array


def _frame_columns(data: Any) -> list[tuple[str, NDArray]] | None:
    """(label, values) per column, or None when `data` is not a frame.

    Column by column, since a frame of mixed dtypes would become an array of objects.
    """
    if hasattr(data, "iloc") and hasattr(data, "columns"):  # pandas; by position, as labels may repeat
        return [(str(label), data.iloc[:, j].to_numpy()) for j, label in enumerate(data.columns)]
    if hasattr(data, "get_columns"):  # polars
        return [(str(column.name), column.to_numpy()) for column in data.get_columns()]
    if hasattr(data, "column_names") and hasattr(data, "column"):  # pyarrow
        columns = enumerate(data.column_names)
        return [(str(label), data.column(j).to_numpy(zero_copy_only=False)) for j, label in columns]
    return None


def _real(array: NDArray, name: str, label: str | None) -> NDArray:
    """An array as float64 (or large float32); `label`: the column's name in errors."""
    where = name if label is None else f"{name}, column {label!r}"
    kind = array.dtype.kind
    if kind == "c":
        raise UnsupportedDtypeError(f"{where}: Complex data not supported, expected real numbers")
    if kind in "OUST":
        return _from_objects(array.astype(object), name, label)
    if kind not in "fiub":
        raise UnsupportedDtypeError(f"{where}: dtype {array.dtype} is not numeric, expected real numbers")
    if array.dtype == np.float32 and array.size > KEEP_FLOAT32_ABOVE:
        return array
    with np.errstate(over="ignore"):  # a long double past 1.8e308 becomes inf, which is reported as such
        return array.astype(np.float64, copy=False)


def _from_objects(array: NDArray, name: str, label: str | None) -> NDArray[np.float64]:
    """The numbers of an object array; None and NA become NaN, other values raise an error."""
    out = np.empty(array.shape)
    for index in np.ndindex(array.shape):
        value, row = array[index], index[0] if index else 0
        column = label if label is not None else (index[1] if len(index) > 1 else None)
        where = name if column is None else f"{name}, column {column!r}"
        if is_missing(value):
            out[index] = np.nan
            continue
        if isinstance(value, str | bytes | complex | np.complexfloating):
            hint = "encode text and categories as numbers first"
            if name.endswith("y"):
                hint = "labels are for likelihood='classes' and GPClassifier"
            raise UnsupportedDtypeError(
                f"{where}: found {value!r} of type {type(value).__name__} in row {row}, expected real "
                f"numbers; {hint}"
            )
        try:
            out[index] = float(value)
        except (TypeError, ValueError) as error:
            raise UnsupportedDtypeError(f"{where}: row {row}: {error}") from error
        except OverflowError:
            out[index] = np.inf
    return out


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or pandas' NA or NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def require_length(array: NDArray, n: int, name: str) -> None:
    """An error where an array [n, ...] has another number of rows than X."""
    if array.shape[0] != n:
        raise ValueError(f"{name} has {array.shape[0]} rows but X has {n}: lengths must agree")


def _sum(array: NDArray) -> float:
    if array.size > MANY and array.dtype in (np.float32, np.float64) and array.flags.carray:
        return float(torch.from_numpy(array).sum())  # by all cores
    with np.errstate(all="ignore"):
        return float(array.sum())


def _require_finite(array: NDArray, labels: list[str] | None, name: str) -> None:
    if np.isfinite(_sum(array)):  # one number instead of a mask; a sum may also overflow
        return
    bad = np.argwhere(~np.isfinite(array))
    if not len(bad):
        return
    row, *column = bad[0]
    place = f"row {row}" + "".join(f", column {labels[c]!r}" if labels else f", column {c}" for c in column)
    raise ValueError(
        f"{name} contains {len(bad)} value(s) that are NaN or inf, the first ({array[tuple(bad[0])]}) at "
        f"{place}; expected finite numbers: drop or impute them"
    )
