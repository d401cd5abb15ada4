"""Rows that a sample may lack and a schema must know of: gaps, extremes, and levels of categories.

A column that is constant in a sample, has no gap in it, or lacks one of its levels would be read in another
way than in a table that is read as a whole. Rows that show such a thing first are kept beside the sample.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from duogp.tables.arrow import arrow
from duogp.tables.values import kind_of, plain

#: Most rows that are kept for the levels of all categories; what comes later is unknown to the schema.
MOST_LEVELS = 5000
#: Number of a batch, and of a row in it.
Key = tuple[int, int]
ORDERED = ("number", "moment", "clock")


class Witnesses:
    """One row for each new thing, from batch to batch; see the module."""

    def __init__(self) -> None:
        self._levels: dict[str, set[Any]] = {}
        self._count = 0
        self._ends: dict[tuple[str, str], tuple[Any, Key, Any]] = {}  # (column, end): value, place, row
        self._rows: dict[Key, Any] = {}  # first gaps and levels, by their places
        self._gaps: set[str] = set()
        self._batches = 0

    def see(self, batch: Any) -> None:
        """Take in a batch of rows."""
        chosen: set[int] = set()
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name not in self._gaps and (row := _first_gap(column)) is not None:
                self._gaps.add(name)
                chosen.add(row)
            kind = kind_of(column.type)
            if kind in ORDERED:
                self._see_ends(name, column, batch)
            elif kind in ("category", "boolean"):
                chosen |= self._new_levels(name, plain(column))
        self._rows |= {(self._batches, row): batch.slice(row, 1) for row in sorted(chosen)}
        self._batches += 1

    def table(self) -> list[Any]:
        """The rows that were kept, each once, as tables."""
        rows = self._rows | {place: row for _, place, row in self._ends.values()}
        return [arrow().Table.from_batches([row]) for row in rows.values()]

    def _see_ends(self, name: str, column: Any, batch: Any) -> None:
        compute = arrow("compute")
        found = compute.min_max(column)
        for end, beyond in (("min", operator.lt), ("max", operator.gt)):
            value = found[end].as_py()
            if value is None or value != value:
                continue
            before = self._ends.get((name, end))
            if before is None or beyond(value, before[0]):
                row = compute.index(column, found[end]).as_py()
                self._ends[name, end] = value, (self._batches, row), batch.slice(row, 1)

    def _new_levels(self, name: str, column: Any) -> set[int]:
        """Rows of levels that were not there before."""
        known = self._levels.setdefault(name, set())
        fresh = [v for v in column.unique().to_pylist() if v is not None and v not in known]
        fresh = fresh[: MOST_LEVELS - self._count]
        known.update(fresh)
        self._count += len(fresh)
        compute = arrow("compute")
        return {compute.index(column, arrow().scalar(v, column.type)).as_py() for v in fresh}


def _first_gap(column: Any) -> int | None:
    """The first row without a value; NaN is none."""
    if not column.null_count and not _has_nan(column):
        return None
    return int(np.argmax(column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)))


def _has_nan(column: Any) -> bool:
    if not arrow().types.is_floating(column.type):
        return False
    return bool(arrow("compute").any(arrow("compute").is_nan(column)).as_py())


def with_witnesses(sample: Any, parts: Sequence[Any]) -> Any:
    """A sample and further rows as one table."""
    return arrow().concat_tables([sample, *parts]).combine_chunks() if parts else sample
