"""Deciding from the training rows what each column is, and which cannot be used, with the reason."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from duogp.tables.arrow import arrow
from duogp.tables.columns import CYCLES, Boolean, Category, Column, Moment, Number, phase
from duogp.tables.values import days, kind_of, numbers, parse_moments, plain, texts

#: Levels of a category that get an indicator of their own.
MAX_LEVELS = 20
#: Rows that a level needs for one: two, or this share of a long table.
RARE_SHARE = 1e-3
#: Text whose frequent levels cover less of the rows than this is names or prose.
FREE_TEXT_SHARE = 0.2
#: Numbers that a parser did not take for numbers: "1,5", "12 %", "3.5 kg", "1'000".
NUMBER_LIKE = re.compile(r"^\s*[-+$€£]?(?!0\d)[\d.,' ]*\d\s*(%|[^\W\d]{0,3})\s*$")
DATE_LIKE = re.compile(r"^\d{4}-\d\d-\d\d")
CLOCK_LIKE = re.compile(r"^\d\d:\d\d(:\d\d(\.\d+)?)?$")


class Unusable(Exception):
    """Why a column cannot be used."""


def learn_column(name: str, values: Any, *, max_levels: int = MAX_LEVELS, category: bool = False) -> Column:
    """What a column is; `Unusable` with the reason if it is nothing that a model could use."""
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
        moments = None if category else _moments_in(values)
        if moments is None:
            return _category(name, values, max_levels)
        values, kind = moments, kind_of(moments.type)
    if kind in ("moment", "clock"):
        return _moment(name, values, clock=kind == "clock")
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
    """The lower median: always one of the values, and never an overflow."""
    at = (len(values) - 1) // 2
    return float(np.partition(values, at)[at])


def _category(name: str, values: Any, max_levels: int) -> Column:
    text = texts(values)
    gaps = text.null_count > 0
    there = text.drop_null()
    if not len(there):
        raise Unusable("it has no finite values")
    counted = sorted(
        ((entry["counts"], entry["values"]) for entry in arrow("compute").value_counts(there).to_pylist()),
        key=lambda pair: (-pair[0], pair[1]),
    )
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
    numeric = kind_of(values.type) != "category" or _numeric_levels(values.type)
    return Category(name, levels, len(kept) < len(counted), gaps, numeric)


def _numeric_levels(type_: Any) -> bool:
    """Whether a dictionary's values are numbers, as in a pandas category of integers."""
    return bool(arrow().types.is_dictionary(type_)) and kind_of(type_.value_type) != "category"


def _moments_in(text: Any) -> Any:
    """Dates or times of day that are written as text, parsed; None if the column is other text."""
    text = plain(text)
    if kind_of(text.type) != "category":  # a dictionary of numbers
        return None
    first = text.drop_null()[0].as_py()
    for pattern, zones, clock in ((DATE_LIKE, (None, "UTC"), False), (CLOCK_LIKE, (None,), True)):
        for zone in zones if pattern.match(first) else ():
            try:
                return parse_moments(text, zone, clock)
            except arrow().ArrowException:
                continue
    return None


def _moment(name: str, values: Any, *, clock: bool) -> Column:
    zone = getattr(values.type, "tz", None)
    x = days(values, zone)
    gaps = np.isnan(x)
    there = x[~gaps]
    if clock:
        cycles: tuple[str, ...] = ("time of day",) if there.min() < there.max() else ()
    else:
        span = there.max() - there.min()
        # Only a whole cycle tells it from a trend.
        cycles = tuple(
            cycle for cycle, length in CYCLES.items() if span >= length and np.ptp(phase(there, cycle)) > 1e-9
        )
    varies = bool(there.min() < there.max()) and not clock
    if not varies and not cycles and not gaps.any():
        raise Unusable(f"it is {values.drop_null()[0].as_py()} in every row")
    return Moment(name, middle(there), varies, cycles, bool(gaps.any()), zone, clock)
