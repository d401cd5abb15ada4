"""Differences between the training rows and new ones, from the sample of training rows that a model keeps.

An estimator keeps up to 256 of its training rows, encoded (`duogp.sklearn.importances.SAMPLE_ROWS`), and of
each column its levels, its median and some quantiles. It keeps neither the other rows, nor ranges, nor
targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import chi2_contingency, ks_2samp

from duogp.tables.columns import Category, Column, DateTime, Quantity
from duogp.tables.frames import as_arrow
from duogp.tables.schema import Schema

#: A column has drifted where its p-value, corrected for the number of columns, is below this.
SIGNIFICANT = 0.01
#: A row is far from the training rows where it is farther than this share of them is from the others.
USUAL = 0.99
#: Rows whose distances are computed at once.
ROWS_AT_ONCE = 4096

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ColumnDrift:
    """The values of one column in the training rows and in new ones."""

    name: str
    kind: str
    distance: float  # largest difference of the distribution functions, or total variation of the levels
    p: float  # of no difference, Holm's correction over the columns
    before: str  # of the training rows, in words
    now: str
    gaps_before: float  # share of rows without a value
    gaps_now: float
    unseen: int  # new rows with a level that no training row had

    @property
    def has_drifted(self) -> bool:
        """Whether chance alone would seldom make such a difference."""
        return self.p < SIGNIFICANT


def drift(schema: Schema, sample: Array, table: Any, matrix: Array) -> list[ColumnDrift]:
    """The drift of every column, the largest distance first.

    ``sample`` [m, d]: encoded training rows; ``table`` and ``matrix`` [n, d]: the new rows, as they are and
    encoded. Numbers by the test of Kolmogorov and Smirnov, categories by χ² on counts of their levels, shares
    of gaps by χ²; the least p-value of a column times the number of its tests.
    """
    table = as_arrow(table)
    unseen = schema.unseen(table)
    found, at = [], 0
    for column in schema.columns:
        own = slice(at, at + len(column.features))
        at = own.stop
        values = table.column(column.name)
        found.append(_compare(column, sample[:, own], matrix[:, own], values, unseen.get(column.name, 0)))
    corrected = holm(np.array([each.p for each in found]))
    result = [
        ColumnDrift(**{**each.__dict__, "p": float(p)}) for each, p in zip(found, corrected, strict=True)
    ]
    return sorted(result, key=lambda each: (not each.has_drifted, -each.distance))


def _compare(column: Column, old: Array, new: Array, values: Any, unseen: int) -> ColumnDrift:
    gaps_now = column.gaps(values)
    if isinstance(column, Category):
        return _compare_levels(column, old, new, gaps_now, unseen)
    assert isinstance(column, Quantity)
    gaps_before = old[:, -1] > 0.5 if column.indicator else np.zeros(len(old), dtype=bool)
    width = len(column.features) - column.indicator
    there, now = old[~gaps_before, :width], new[~gaps_now, :width]
    tests = [ks_2samp(there[:, j], now[:, j]) for j in range(width)] if len(there) and len(now) else []
    distance = max((float(test.statistic) for test in tests), default=0.0)
    ps = [float(test.pvalue) for test in tests] + [_same_share(gaps_before, gaps_now)]
    before, after = (
        _range_of(column, part[:, 0]) if column.value and len(part) else "" for part in (there, now)
    )
    return ColumnDrift(
        column.name,
        "time" if isinstance(column, DateTime) else column.kind,
        distance,
        min(1.0, len(ps) * min(ps)),
        before,
        after,
        float(gaps_before.mean()),
        float(gaps_now.mean()),
        0,
    )


def _compare_levels(
    column: Category, old: Array, new: Array, gaps_now: NDArray[np.bool_], unseen: int
) -> ColumnDrift:
    width = len(column.features) - len(column.measures)
    names = [*column.levels, *column.other * ["(other)"], *column.indicator * ["(none)"]]
    counts = np.stack([_level_counts(part[:, :width]) for part in (old, new)])
    shares = counts / counts.sum(1, keepdims=True)
    used = counts[:, counts.sum(0) > 0]
    p = float(chi2_contingency(used).pvalue) if used.shape[1] > 1 else 1.0
    gaps_before = float(shares[0, width - 1]) if column.indicator else 0.0
    before, now = (_levels_of(names, row) for row in shares)
    distance = 0.5 * float(np.abs(shares[0] - shares[1]).sum())
    return ColumnDrift(
        column.name, "category", distance, p, before, now, gaps_before, float(gaps_now.mean()), unseen
    )


def _level_counts(indicators: Array) -> Array:
    """Rows with each level and, last, with none of them."""
    counts = (indicators > 0.5).sum(0)
    return np.append(counts, len(indicators) - counts.sum()).astype(np.float64)


def _levels_of(names: list[str], shares: Array, most: int = 2) -> str:
    order = np.argsort(-shares[: len(names)], kind="stable")[:most]
    return ", ".join(f"{names[j]} {100 * shares[j]:.0f} %" for j in order if shares[j] > 0)


def _range_of(column: Quantity, x: Array) -> str:
    """Median and the central 90 % in words."""
    low, middle, high = np.quantile(x, [0.05, 0.5, 0.95])
    if isinstance(column, DateTime) and not column.clock:
        dates = (np.array([low, middle, high])).astype("int64").astype("datetime64[D]")
        return f"{dates[1]} ({dates[0]} to {dates[2]})"
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def _same_share(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    counts = np.array([[part.sum(), len(part) - part.sum()] for part in (one, other)], dtype=np.float64)
    return 1.0 if not counts.sum(0).all() else float(chi2_contingency(counts).pvalue)


def holm(p: Array) -> Array:
    """Holm's corrected p-values, in the order given, [k]."""
    order = np.argsort(p)
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    out = np.empty_like(p)
    out[order] = np.minimum(steps, 1.0)
    return out


@dataclass(frozen=True)
class Distances:
    """How far new rows are from the nearest of the training rows that are kept."""

    distance: Array  # [n], in units of the typical distance between neighbours among these
    limit: float  # which 99 % of the training rows stay below
    column: list[str]  # [n]: the column in which a row differs most from its neighbour

    @property
    def is_far(self) -> NDArray[np.bool_]:
        """Mask [n] of rows beyond the limit; of rows like the training rows about one in a hundred."""
        return self.distance > self.limit


def distances(schema: Schema, sample: Array, matrix: Array) -> Distances | None:
    """Distances of encoded rows [n, d] to a sample of training rows [m, d], columns scaled to one spread.

    None where the sample has fewer than ten different rows.
    """
    sample = np.unique(sample, axis=0)
    if len(sample) < 10:
        return None
    scale = sample.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    known = sample / scale
    among = cdist(known, known)
    np.fill_diagonal(among, np.inf)
    neighbours = among.min(1)
    unit = float(np.median(neighbours))
    names = np.array(schema.sources)
    labels, place = np.unique(names, return_inverse=True)
    nearest, column = [], []
    for start in range(0, len(matrix), ROWS_AT_ONCE):
        rows = matrix[start : start + ROWS_AT_ONCE] / scale
        apart = cdist(rows, known)
        which = apart.argmin(1)
        nearest.append(apart[np.arange(len(rows)), which])
        squares = (rows - known[which]) ** 2
        by_column = np.stack([squares[:, place == k].sum(1) for k in range(len(labels))], 1)
        column += labels[by_column.argmax(1)].tolist()
    return Distances(np.concatenate(nearest) / unit, float(np.quantile(neighbours, USUAL)) / unit, column)
