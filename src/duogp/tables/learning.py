"""The encoding of each column, decided by the training rows, or the reason why it cannot be used."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from duogp.tables.arrow import arrow
from duogp.tables.columns import CYCLES, Boolean, Category, Column, DateTime, Number, phase
from duogp.tables.values import days, kind_of, numbers, parse_times, plain, texts

#: Most levels of a category that get an indicator each.
MAX_LEVELS = 20
#: Fewest rows of such a level: two, or this share of a long table.
RARE_SHARE = 1e-3
#: Smallest share of the rows that such levels cover; a text column below it is names or prose.
FREE_TEXT_SHARE = 0.2
#: Numbers that the parser reads as text: "1,5", "12 %", "3.5 kg", "1'000".
NUMBER_LIKE = re.compile(r"^\s*[-+$€£]?(?!0\d)[\d.,' ]*\d\s*(%|[^\W\d]{0,3})\s*$")
DATE_LIKE = re.compile(r"^\d{4}-\d\d-\d\d")
CLOCK_LIKE = re.compile(r"^\d\d:\d\d(:\d\d(\.\d+)?)?$")


class Unusable(Exception):
    """Why a column cannot be used."""


def learn_column(name: str, values: Any, *, max_levels: int = MAX_LEVELS, category: bool = False) -> Column:
    """The encoding of a column; raises `Unusable` with the reason where there is none.

    ``category``: numbers are names of categories.
    """
    kind = kind_of(values.type)
    if not name.strip():
        raise Unusable("it has no name")
    if values.null_count == len(values):
        raise Unusable("it has no values")
    if category and kind in ("number", "boolean", "category"):
        return _category(name, values, max_levels)
    if kind in ("number", "boolean"):
        return _number(name, values, kind)
    if kind == "category":
        times = _times_in(values)
        if times is None:
            return _category(name, values, max_levels)
        values, kind = times, kind_of(times.type)
    if kind in ("moment", "clock"):
        return _datetime(name, values, clock=kind == "clock")
    reason = "bytes, or text that is not UTF-8" if "binary" in kind else f"values of type {kind}"
    raise Unusable(f"{reason} cannot be used")


def _number(name: str, values: Any, kind: str) -> Column:
    x = numbers(values)
    gaps = np.isnan(x)
    there = x[~gaps]
    if not len(there):
        raise Unusable("it has no finite values")
    varies = bool(there.min() < there.max())
    if not varies and not gaps.any():
        raise Unusable(f"it is {there[0]:g} in every row")
    make = Boolean if kind == "boolean" else Number
    return make(name, middle(there), varies, bool(gaps.any()))


def middle(values: np.ndarray) -> float:
    """The lower median: always one of the values, without overflow."""
    at = (len(values) - 1) // 2
    return float(np.partition(values, at)[at])


def _category(name: str, values: Any, max_levels: int) -> Column:
    text = texts(values)
    gaps = text.null_count > 0
    there = text.drop_null()
    if not len(there):
        raise Unusable("it has no finite values")
    entries = arrow("compute").value_counts(there).to_pylist()
    counted = sorted(((e["counts"], e["values"]) for e in entries), key=lambda pair: (-pair[0], pair[1]))
    if len(counted) == 1 and not gaps:
        raise Unusable(f"it is {counted[0][1]!r} in every row")
    least = max(2, math.ceil(RARE_SHARE * len(text)))
    kept = [(count, level) for count, level in counted[:max_levels] if count >= least]
    covered = sum(count for count, _ in kept)
    number_like = kind_of(values.type) == "category" and all(NUMBER_LIKE.match(v) for _, v in counted[:50])
    if number_like and (len(counted) > max_levels or covered < FREE_TEXT_SHARE * len(there)):
        raise Unusable(f"its numbers are written as text (such as {counted[0][1]!r}): write them as 1234.5")
    if covered < FREE_TEXT_SHARE * len(there):
        raise Unusable(
            f"its {len(counted):,} different texts in {len(there):,} rows are names or prose, not categories"
        )
    levels = tuple(sorted(level for _, level in kept))
    numeric = kind_of(plain(values).type) != "category"  # also a dictionary of numbers, as pandas makes them
    return Category(name, levels, len(kept) < len(counted), gaps, numeric)


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


def _datetime(name: str, values: Any, *, clock: bool) -> Column:
    zone = getattr(values.type, "tz", None)
    x = days(values, zone)
    gaps = np.isnan(x)
    there = x[~gaps]
    span = np.ptp(there)
    if clock:
        cycles: tuple[str, ...] = ("time of day",) * bool(span > 0)
    else:  # less than a whole cycle is the same as a trend
        whole = (cycle for cycle, length in CYCLES.items() if span >= length)
        cycles = tuple(cycle for cycle in whole if np.ptp(phase(there, cycle)) > 1e-9)
    varies = bool(span > 0) and not clock
    if not varies and not cycles and not gaps.any():
        raise Unusable(f"it is {values.drop_null()[0].as_py()} in every row")
    return DateTime(name, middle(there), varies, cycles, bool(gaps.any()), zone, clock)
