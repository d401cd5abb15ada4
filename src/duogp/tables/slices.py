"""Made-up rows that differ in one column only, the others at what is typical of a table."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duogp.tables.columns import Boolean, Category, Column, Floats, Moment, Number
from duogp.tables.frames import as_arrow
from duogp.tables.learning import middle
from duogp.tables.schema import Schema, require_columns


class Slice(NamedTuple):
    along: NDArray  # values of the column: numbers, dates or texts
    matrix: Floats  # the rows, encoded
    data: NDArray | None  # the values that the table has; None for texts


def typical_row(schema: Schema, table: Any) -> Floats:
    """The encoded row of medians and most frequent levels, [d]."""
    table = as_arrow(table)
    parts = [_typical(column, table.column(column.name)) for column in schema.columns]
    return np.concatenate(parts)


def slice_of(schema: Schema, table: Any, name: str, points: int = 80) -> Slice:
    """Rows along the column ``name``, from its 1 % to its 99 % quantile (or over its levels)."""
    table = as_arrow(table)
    require_columns([name], [column.name for column in schema.columns], "the model")
    column = next(c for c in schema.columns if c.name == name)
    along, features, data = _along(column, table.column(name), points)
    rows = np.repeat(typical_row(schema, table)[None], len(along), 0)
    rows[:, [source == name for source in schema.sources]] = features
    return Slice(along, rows, data)


def _typical(column: Column, values: Any) -> Floats:
    if isinstance(column, Category):
        counts = np.bincount(column.codes(values)[~column.gaps(values)], minlength=len(column.levels) + 1)
        return column.encode_codes(np.array([np.argmax(counts)]))[0]
    x = _there(column, values)
    centre = np.array([middle(x) if len(x) else getattr(column, "fill", np.nan)])
    return _encode(column, centre)[0]


def _along(column: Column, values: Any, points: int) -> tuple[NDArray, Floats, NDArray | None]:
    if isinstance(column, Category):
        labels = [*column.levels, *column.other * ["(other)"]]
        return np.array(labels), column.encode_codes(np.arange(len(labels))), None
    if isinstance(column, Boolean):
        return np.array(["false", "true"]), _encode(column, np.array([0.0, 1.0])), None
    x = _there(column, values)
    if not len(x):
        raise ValueError(f"column {column.name!r} has no values to look along")
    low, high = np.quantile(x, [0.01, 0.99])
    if not low < high:
        low, high = x.min(), x.max()
    if not low < high:
        low, high = low - 0.5, low + 0.5
    grid = np.linspace(low, high, points)
    if isinstance(column, Moment) and not column.clock:
        return _dates(grid), _encode(column, grid), _dates(x)
    if isinstance(column, Moment):
        return 24 * grid, _encode(column, grid), 24 * x
    return grid, _encode(column, grid), x


def _there(column: Column, values: Any) -> Floats:
    """Values that are there: numbers, or days since 1970."""
    x = column.days(values) if isinstance(column, Moment) else column.numbers(values)  # type: ignore[attr-defined]
    return x[~np.isnan(x)]


def _encode(column: Column, x: Floats) -> Floats:
    if isinstance(column, Moment):
        return column.encode_days(x)
    assert isinstance(column, Number)
    return column.encode_numbers(x)


def _dates(x: Floats) -> NDArray:
    return (86_400_000 * x).round().astype("datetime64[ms]")
