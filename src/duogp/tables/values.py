"""Values of arrow columns: numbers and days as numpy, texts as arrow.

A value is missing where it is null or not a number; infinite numbers are refused (`require_finite`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.tables.arrow import arrow

Floats = NDArray[np.float64]

MICROSECONDS_A_DAY = 86_400_000_000
#: Seconds in one unit of an arrow duration.
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def kind_of(type_: Any) -> str:
    """The kind of an arrow type: number, boolean, category, moment, clock; otherwise its name."""
    types = arrow().types
    if types.is_dictionary(type_):
        inner = kind_of(type_.value_type)
        return "category" if inner in ("category", "number", "boolean") else inner
    tests = {
        "boolean": [types.is_boolean],
        "number": [types.is_integer, types.is_floating, types.is_decimal, types.is_duration],
        "category": [types.is_string, types.is_large_string, lambda type_: str(type_) == "string_view"],
        "moment": [types.is_timestamp, types.is_date],
        "clock": [types.is_time],
        "nothing": [types.is_null],
    }
    return next((kind for kind, of in tests.items() if any(test(type_) for test in of)), str(type_))


def plain(values: Any) -> Any:
    """A column without a dictionary, its text as large_string."""
    pa = arrow()
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if kind_of(values.type) == "category" and values.type != pa.large_string():
        values = values.cast(pa.large_string())
    return values


def numbers(values: Any) -> Floats:
    """Float64 [n], NaN where missing. Durations are seconds."""
    pa = arrow()
    values = plain(values)
    if pa.types.is_duration(values.type):
        return UNITS[values.type.unit] * numbers(values.cast(pa.int64()))
    out = np.array(values.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    out[~np.isfinite(out)] = np.nan
    return out


def require_finite(values: Any, name: str, place: str = "row", first: int = 0) -> None:
    """An error for an infinite number, which is neither a value nor a gap.

    It names the place of the value: rows are counted from ``first``.
    """
    pa = arrow()
    values = plain(values)
    if not pa.types.is_floating(values.type):
        return
    infinite = np.isinf(np.asarray(values.to_numpy(), dtype=np.float64))
    if infinite.any():
        row = int(np.argmax(infinite))
        raise ValueError(
            f"column {name!r} holds {values[row].as_py()} in {place} {row + first} "
            f"({int(infinite.sum())} such values): infinity is no measurement; write a "
            "number, or leave the cell empty"
        )


def texts(values: Any) -> Any:
    """Text of each value, null where missing; whole numbers of any type without a point."""
    pa = arrow()
    values = plain(values)
    kind = kind_of(values.type)
    if kind == "category":
        return values
    if kind == "number":
        as_float = numbers(values)
        gaps = np.isnan(as_float)
        there = as_float[~gaps]
        if np.all(there == np.round(there)) and np.all(np.abs(there) < 2**53):
            as_float = np.where(gaps, 0, as_float).astype(np.int64)
        values = pa.chunked_array([pa.array(as_float, mask=gaps)])
    return values.cast(pa.large_string())


def days(values: Any, zone: str | None) -> Floats:
    """Days [n] since 1970 with their fraction, in local time of a time zone; NaN where missing.

    Of a time of day: the elapsed fraction of the day.
    """
    pa = arrow()
    if pa.types.is_time(values.type):
        micro = values.cast(pa.time64("us"), safe=False).cast(pa.int64())
    else:
        if zone is not None:
            values = arrow("compute").local_timestamp(values.cast(pa.timestamp("us", zone), safe=False))
        micro = values.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    return np.array(micro.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64) / MICROSECONDS_A_DAY


def parse_times(values: Any, zone: str | None, clock: bool) -> Any:
    """Text such as 2024-05-01 or 2024-05-01T12:30:00 as timestamps; 12:30:00 as times of day (``clock``)."""
    pa = arrow()
    text = plain(values)
    if clock:
        prefix = pa.scalar("1970-01-01T", pa.large_string())
        text = arrow("compute").binary_join_element_wise(prefix, text, pa.scalar("", pa.large_string()))
    try:
        times = text.cast(pa.timestamp("us", zone))
    except pa.ArrowInvalid:  # nanoseconds have a shorter range, and are rarer
        times = text.cast(pa.timestamp("ns", zone))
    return times.cast(pa.time64("us"), safe=False) if clock else times


def example(values: Any) -> str:
    """The first value that is not missing, for a message."""
    found = values.drop_null()
    return repr(found[0].as_py()) if len(found) else "nothing"
