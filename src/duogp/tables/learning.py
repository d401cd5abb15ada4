"""The encoding of each column, decided by the training rows, or the reason why it cannot be used."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duogp.tables.arrow import arrow
from duogp.tables.columns import CYCLES, Boolean, Category, Column, DateTime, Number, phase
from duogp.tables.texts import (
    READABLE,
    SAMPLE,
    Ambiguous,
    date_format,
    decimal_mark,
    parse_dates,
    parse_numbers,
    unreadable,
)
from duogp.tables.values import Floats, days, kind_of, numbers, parse_times, plain, require_finite, texts

#: Most levels of a category that get an indicator each.
MAX_LEVELS = 20
#: Fewest rows of such a level: two, or this share of a long table.
RARE_SHARE = 1e-3
#: Most rare levels that are listed.
MAX_RARE = 20_000
#: Smallest share of the rows that such levels cover; a text column below it is names or prose.
FREE_TEXT_SHARE = 0.2
#: Values of a column that a gap is filled with in turn, where the training rows had no gaps.
NUM_QUANTILES = 16
#: A level's mean target is shrunk as by so many rows at the mean; a training row has that of the other folds.
PRIOR_ROWS, FOLDS = 10.0, 5
DATE_LIKE = re.compile(r"^\d{4}-\d\d-\d\d")
CLOCK_LIKE = re.compile(r"^\d\d:\d\d(:\d\d(\.\d+)?)?$")


class Unusable(Exception):
    """Why a column cannot be used."""


class Idle(Unusable):
    """The same of a column that has nothing to tell: without a name, without values, or with one value."""


@dataclass(frozen=True)
class Reading:
    """How cells are to be read. ``decimal`` and ``date_format``: of text; None where the cells shall tell."""

    max_levels: int = MAX_LEVELS
    decimal: str | None = None
    date_format: str | None = None


READING = Reading()


class Learned(NamedTuple):
    """The encoding of a column, and a remark on cells that could not be read."""

    column: Column
    note: str | None = None  # cells that could not be read


def learn_column(
    name: str,
    values: Any,
    reading: Reading = READING,
    *,
    category: bool = False,
    target: Floats | None = None,
) -> Learned:
    """The encoding of a column; raises `Unusable` with the reason where there is none.

    ``category``: numbers are names of categories. ``target``: numbers [n] or [n, outcomes], of which those
    categories that have many levels keep a mean for each level.
    """
    kind = kind_of(values.type)
    if not name.strip():
        raise Idle("it has no name")
    if values.null_count == len(values):
        raise Idle("it has no values")
    if category and kind in ("number", "boolean", "category"):
        return Learned(_category(name, values, reading, target))
    if kind == "number" and reading.date_format is not None:
        dates = _dates_in(name, texts(values), reading)  # such as 20240531
        if dates is not None:
            return dates
    if kind in ("number", "boolean"):
        require_finite(values, name)
        return Learned(_number(name, numbers(values), Boolean if kind == "boolean" else Number))
    if kind == "category":
        return _of_text(name, values, reading, target)
    if kind in ("moment", "clock"):
        return Learned(_datetime(name, values, clock=kind == "clock"))
    reason = "bytes, or text that is not UTF-8" if "binary" in kind else f"values of type {kind}"
    raise Unusable(f"{reason} cannot be used")


def _of_text(name: str, values: Any, reading: Reading, target: Floats | None) -> Learned:
    """Dates, times of day or numbers that are written as text, or a category."""
    times = _times_in(values)
    if times is not None:
        return Learned(_datetime(name, times, clock=kind_of(times.type) == "clock"))
    there = plain(values).drop_null()
    if kind_of(there.type) != "category":  # a dictionary of numbers
        return Learned(_category(name, values, reading, target))
    sample = there.slice(0, SAMPLE).to_pylist()
    try:
        dates = _dates_in(name, values, reading)
        if dates is not None:
            return dates
        levels = len(arrow("compute").unique(there))
        if levels > reading.max_levels or (reading.decimal is not None and levels > 2):
            mark = decimal_mark(sample, reading.decimal)
            x = np.zeros(0) if mark is None else parse_numbers(values, mark)
            if mark is not None and np.isnan(x).mean() <= 1 - READABLE + values.null_count / len(values):
                number = replace(_number(name, x, Number), decimal=mark)
                return Learned(number, _note(values, np.isnan(x), "number"))
    except Ambiguous as reason:
        raise Unusable(str(reason)) from None
    return Learned(_category(name, values, reading, target))


def _dates_in(name: str, values: Any, reading: Reading) -> Learned | None:
    """Dates that are written in another way than 2024-05-31; None where the cells are none."""
    format_ = date_format(plain(values).drop_null().slice(0, SAMPLE).to_pylist(), reading.date_format)
    if format_ is None:
        return None
    parsed = parse_dates(values, format_)
    gaps = np.asarray(parsed.is_null().to_numpy())
    column = _datetime(name, parsed, clock=False)
    return Learned(replace(column, format=format_), _note(values, gaps, "date"))


def _note(values: Any, gaps: NDArray[np.bool_], what: str) -> str | None:
    """Words on cells that hold text but could not be read."""
    rows = unreadable(values, gaps)
    if not len(rows):
        return None
    shown = ", ".join(f"{values[int(row)].as_py()!r} in row {row}" for row in rows[:3])
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    return f"{len(rows)} of {len(gaps)} cells are no {what}, and are gaps now: {shown}{more}"


def _number(name: str, x: Floats, make: type[Number]) -> Number:
    gaps = np.isnan(x)
    there = x[~gaps]
    if not len(there):
        raise Unusable("it has no finite values")
    varies = bool(there.min() < there.max())
    if not varies and not gaps.any():
        raise Idle(f"it is {there[0]:g} in every row")
    return make(name, middle(there), varies, bool(gaps.any()), () if gaps.any() else spread(there))


def middle(values: np.ndarray) -> float:
    """The lower median: always one of the values, without overflow."""
    at = (len(values) - 1) // 2
    return float(np.partition(values, at)[at])


def spread(values: Floats) -> tuple[float, ...]:
    """Evenly spaced quantiles of values [n], each of them one of the values."""
    levels = (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES
    return tuple(np.quantile(values, levels, method="inverted_cdf").tolist())


def _category(name: str, values: Any, reading: Reading, target: Floats | None) -> Column:
    text = texts(values)
    gaps = text.null_count > 0
    there = text.drop_null()
    if not len(there):
        raise Unusable("it has no finite values")
    found = arrow("compute").value_counts(there)
    pairs = zip(found.field("counts").to_pylist(), found.field("values").to_pylist(), strict=True)
    counted = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
    if len(counted) == 1 and not gaps:
        raise Idle(f"it is {counted[0][1]!r} in every row")
    least = max(2, math.ceil(RARE_SHARE * len(text)))
    many = len(counted) > reading.max_levels
    kept = sorted(level for count, level in counted[: reading.max_levels] if count >= least)
    useful = 2 if many and target is not None else least
    shown = counted if many and target is not None else counted[: reading.max_levels]
    covered = sum(count for count, _ in shown if count >= useful)
    if covered < FREE_TEXT_SHARE * len(there):
        raise Unusable(
            f"its {len(counted):,} different texts in {len(there):,} rows are names or prose, not categories"
        )
    numeric = kind_of(plain(values).type) != "category"  # also a dictionary of numbers, as pandas makes them
    levels = set(kept)
    rest = sorted(level for _, level in counted if level not in levels)
    column = Category(
        name, tuple(kept), bool(rest), gaps, numeric, tuple(rest) if len(rest) <= MAX_RARE else ()
    )
    if not many or not column.rare:
        return column
    rows = {level: count for count, level in counted}
    counts = tuple(rows[level] for level in column.levels + column.rare)
    column = replace(column, counts=counts if len(set(counts)) > 1 else ())
    if target is None:
        return column
    effects = level_means(column.places(values), target, len(counts))
    return replace(column, effects=tuple(effects.ravel().tolist()), outcomes=effects.shape[1])


def level_means(places: NDArray[np.intp], target: Floats, levels: int) -> Floats:
    """Mean targets of the levels as deviations from that of all rows, in units of their spread, shrunk.

    ``target``: [n] or [n, outcomes]; the means are [levels, outcomes].
    """
    known = places >= 0
    away = target.reshape(len(target), -1) - target.mean(0)
    scale = away.std(0)
    away = away[known] / np.where(scale > 0, scale, 1.0)
    sums = np.stack([np.bincount(places[known], column, levels) for column in away.T], 1)
    return sums / (np.bincount(places[known], minlength=levels) + PRIOR_ROWS)[:, None]


def fold_means(places: NDArray[np.intp], target: Floats, levels: int) -> Floats:
    """The mean target of each row's level, learned from the rows of the other folds: [n, outcomes].

    A row's own target has no part in it; in means over all rows it would, and a model would trust them too
    much. A row without a level has zero, as a level without rows.
    """
    folds = np.random.default_rng(0).permutation(len(places)) % FOLDS
    out = np.zeros((len(places), 1 if target.ndim == 1 else target.shape[1]))
    for fold in range(FOLDS):
        own = folds == fold
        if not own.all():
            means = level_means(places[~own], target[~own], levels)
            out[own] = np.append(means, np.zeros((1, means.shape[1])), 0)[places[own]]
    return out


def _times_in(text: Any) -> Any:
    """Dates or times of day written as text, parsed; None for other text and for a dictionary of numbers."""
    text = plain(text)
    if kind_of(text.type) != "category":
        return None
    first = text.drop_null()[0].as_py()
    for pattern, zones, clock in ((DATE_LIKE, (None, "UTC"), False), (CLOCK_LIKE, (None,), True)):
        for zone in zones if pattern.match(first) else ():
            try:
                return parse_times(text, zone, clock)
            except arrow().ArrowException:
                continue
    return None


def _datetime(name: str, values: Any, *, clock: bool) -> DateTime:
    zone = getattr(values.type, "tz", None)
    x = days(values, zone)
    gaps = np.isnan(x)
    there = x[~gaps]
    if not len(there):
        raise Unusable("it has no values")
    span = np.ptp(there)
    if clock:
        cycles: tuple[str, ...] = ("time of day",) * bool(span > 0)
    else:  # less than a whole cycle is the same as a trend
        whole = (cycle for cycle, length in CYCLES.items() if span >= length)
        cycles = tuple(cycle for cycle in whole if np.ptp(phase(there, cycle)) > 1e-9)
    varies = bool(span > 0) and not clock
    if not varies and not cycles and not gaps.any():
        raise Idle(f"it is {values.drop_null()[0].as_py()} in every row")
    quantiles = () if gaps.any() else spread(there)
    return DateTime(name, middle(there), varies, cycles, bool(gaps.any()), zone, clock, quantiles)
