"""Frames of pandas, polars and pyarrow as inputs of the estimators: one `Schema`, that of `duogp fit`.

A frame is read by the names of its columns, which are those of scikit-learn's ``feature_names_in_``; a name
that is empty or not unique gets its place added. A frame of plain numbers without gaps is read as an array.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from duogp.data.validation import is_missing
from duogp.errors import DataWarning
from duogp.tables.arrow import arrow
from duogp.tables.frames import as_arrow, some
from duogp.tables.schema import Schema
from duogp.tables.values import kind_of

#: Options of `Schema.learn` for cells of text.
READING = ("decimal", "date_format", "max_levels", "strict")
#: Attributes by which the frames of each library are recognised.
FRAMES = (("iloc", "columns"), ("get_columns", "to_arrow"), ("column_names", "schema"), ("collect", "schema"))


def is_frame(X: Any) -> bool:
    """Whether X is a pandas, polars or pyarrow table (without pyarrow, frames are read as arrays)."""
    return find_spec("pyarrow") is not None and any(
        all(hasattr(X, name) for name in names) for names in FRAMES
    )


def collected(X: Any) -> Any:
    """A lazy frame of polars as the frame that it describes; anything else as it is."""
    return X.collect() if hasattr(X, "collect") and not hasattr(X, "get_columns") else X


def arrow_table(X: Any, names: Sequence[str] | None = None) -> Any:
    """A frame as an arrow table whose columns have different names, or the given ones."""
    table = as_arrow(X)
    if not table.num_columns:
        raise ValueError(f"X: found 0 feature(s) (shape={(len(X), 0)}) while a minimum of 1 is required.")
    return table.rename_columns(list(different(table.column_names) if names is None else names))


def different(names: Sequence[str]) -> list[str]:
    """Names of columns, those that are empty or not unique with their place."""
    counts = Counter(name.strip() for name in names)
    return [
        name if name.strip() and counts[name.strip()] == 1 else f"{name} (column {place})".strip()
        for place, name in enumerate(names)
    ]


def check_columns(estimator: Any, X: Any, *, reset: bool) -> None:
    """Let an estimator learn, or check, its columns; names that are not unique get their place added."""
    names = getattr(X, "column_names", getattr(X, "columns", None))
    if names is not None and not callable(names) and len(set(names)) < len(names):
        own = different([str(name) for name in names])
        X = X.rename_columns(own) if hasattr(X, "rename_columns") else X.set_axis(own, axis=1)
    validate_data(estimator, X, reset=reset, skip_check_array=True)


def selected(X: Any, names: Sequence[str], idle: Sequence[str] = ()) -> Any:
    """The columns of a fit, where a frame has these and others besides; otherwise the frame.

    ``idle``: columns that the fit left out; where the frame lacks some of them they are filled with nulls.
    """
    there = list(getattr(X, "column_names", None) or X.columns)
    lacking = set(names) - set(there)
    if len(set(there)) < len(there) or lacking - set(idle) or (not lacking and len(there) <= len(names)):
        return X
    if not lacking:
        return X.select(list(names)) if hasattr(X, "select") else X[list(names)]
    table = as_arrow(X)
    nothing = arrow().nulls(table.num_rows)
    columns = [nothing if name in lacking else table.column(name) for name in names]
    return arrow().Table.from_arrays(columns, list(names))


def table_of_array(X: Any, names: Sequence[str]) -> Any:
    """Rows without names, in the order of the columns of a fit; its errors are those of one column."""
    array = np.asarray(X, dtype=None if isinstance(X, np.ndarray) else object)
    if array.ndim != 2:
        raise ValueError(f"X: expected a 2D array [n, {len(names)}], got shape {array.shape}")

    def cells(j: int) -> Any:
        if array.dtype != object:
            return array[:, j]
        return [None if is_missing(cell) else cell for cell in array[:, j]]

    return as_arrow({name: cells(j) for j, name in enumerate(names)})


def learn_schema(
    table: Any,
    *,
    categorical: Iterable[str],
    missing: str,
    reading: Mapping[str, Any] | None,
    level_target: NDArray[np.float64] | None,
) -> Schema:
    """The schema of training rows, with a warning of columns that are left out and of unreadable cells."""
    given = dict(reading or {})
    if unknown := given.keys() - READING:
        raise ValueError(f"reading must hold some of {', '.join(READING)}, got {sorted(unknown)}")
    schema = Schema.learn(table, category=categorical, missing=missing, y=level_target, **given)
    lost = [f"{name!r} is left out: {reason}" for name, reason in schema.dropped.items()]
    lost += [f"{name!r}: {note}" for name, note in schema.notes.items()]
    if lost:
        warnings.warn(f"X: {some(lost, 6)}", DataWarning, stacklevel=5)
    return schema


def all_numbers(table: Any) -> bool:
    """Whether an arrow table holds numbers without gaps, and nothing else."""
    return all(kind_of(c.type) in ("number", "boolean") and not c.null_count for c in table.columns)


def is_plain(schema: Schema, table: Any) -> bool:
    """Whether every column of a table is a number without gaps, encoded as itself."""
    types = arrow().types
    numbers = all(types.is_integer(c.type) or types.is_floating(c.type) for c in table.columns)
    return numbers and not schema.dropped and schema.names == list(table.column_names)
