"""Slices: artificial rows that differ in one column only, the other columns at a typical value."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duogp.tables.columns import Boolean, Category, Column, DateTime, Quantity
from duogp.tables.frames import as_arrow
from duogp.tables.learning import middle
from duogp.tables.schema import Schema, require_columns
from duogp.tables.values import Floats


class Slice(NamedTuple):
    """Rows that differ in one column only."""

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


def sweep_of(
    schema: Schema, table: Any, name: str, background: Floats, points: int
) -> tuple[NDArray, NDArray[np.float64]]:
    """Values [t] of the column ``name``, and the rows ``background`` [r, d] with each of them, [t, r, d]."""
    table = as_arrow(table)
    require_columns([name], [column.name for column in schema.columns], "the model")
    column = next(c for c in schema.columns if c.name == name)
    along, features, _ = _along(column, table.column(name), points)
    rows = np.repeat(background[None], len(along), 0)
    rows[:, :, [source == name for source in schema.sources]] = features[:, None]
    return along, rows


def _typical(column: Column, values: Any) -> Floats:
    if isinstance(column, Category):
        counts = np.bincount(column.codes(values)[~column.gaps(values)], minlength=len(column.levels) + 1)
        return column.encode_codes(np.array([np.argmax(counts)]))[0]
    assert isinstance(column, Quantity)
    x = _there(column, values)
    return column.encode_numbers(np.array([middle(x) if len(x) else column.fill]))[0]


def _along(column: Column, values: Any, points: int) -> tuple[NDArray, Floats, NDArray | None]:
    """The fields of a `Slice`, its rows restricted to the features of the column."""
    if isinstance(column, Category):
        labels = [*column.levels, *column.other * ["(other)"]]
        return np.array(labels), column.encode_codes(np.arange(len(labels))), None
    assert isinstance(column, Quantity)
    if isinstance(column, Boolean):
        return np.array(["false", "true"]), column.encode_numbers(np.array([0.0, 1.0])), None
    x = _there(column, values)
    if not len(x):
        raise ValueError(f"column {column.name!r} has no values to look along")
    low, high = np.quantile(x, [0.01, 0.99])
    if not low < high:
        low, high = x.min(), x.max()
    if not low < high:
        low, high = low - 0.5, low + 0.5
    grid = np.linspace(low, high, points)
    features = column.encode_numbers(grid)
    if isinstance(column, DateTime):
        shown = _hours if column.clock else _dates
        return shown(grid), features, shown(x)
    return grid, features, x


def _there(column: Quantity, values: Any) -> Floats:
    """The numbers of the rows that have a value."""
    x = column.numbers(values)
    return x[~np.isnan(x)]


def _hours(days: Floats) -> NDArray:
    return 24 * days


def _dates(days: Floats) -> NDArray:
    return (86_400_000 * days).round().astype("datetime64[ms]")
