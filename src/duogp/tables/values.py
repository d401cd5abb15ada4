"""Arrow columns as numpy: numbers, texts, moments. What a column holds now is checked against what it was.

Missing is what is null or, among numbers, not finite.
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
    if types.is_boolean(type_):
        return "boolean"
    if types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_):
        return "number"
    if types.is_duration(type_):
        return "number"
    if types.is_string(type_) or types.is_large_string(type_) or str(type_) == "string_view":
        return "category"
    if types.is_timestamp(type_) or types.is_date(type_):
        return "moment"
    if types.is_time(type_):
        return "clock"
    return "nothing" if types.is_null(type_) else str(type_)


def plain(values: Any) -> Any:
    """A column without dictionaries, in text of one type."""
    pa = arrow()
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if kind_of(values.type) == "category" and values.type != pa.large_string():
        values = values.cast(pa.large_string())
    return values


def numbers(values: Any) -> Floats:
    """Float64, NaN where missing. Durations are seconds."""
    pa = arrow()
    values = plain(values)
    if pa.types.is_duration(values.type):
        seconds = UNITS[values.type.unit]
        return seconds * _float64(values.cast(pa.int64()))
    return _float64(values)


def _float64(values: Any) -> Floats:
    pa = arrow()
    if pa.types.is_decimal(values.type) and values.type.bit_width > 256:
        values = values.cast(pa.string())
    out = np.array(values.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    out[~np.isfinite(out)] = np.nan
    return out


def texts(values: Any) -> Any:
    """Text of each value, null where missing; whole numbers without a point, whatever their type."""
    pa = arrow()
    values = plain(values)
    kind = kind_of(values.type)
    if kind == "category":
        return values
    if kind == "number":
        as_float = numbers(values)
        gaps = np.isnan(as_float)
        if np.all(gaps | (as_float == np.round(as_float))) and np.all(np.abs(as_float[~gaps]) < 2**53):
            whole = np.where(gaps, 0, as_float).astype(np.int64)
            values = pa.chunked_array([pa.array(whole, mask=gaps)])
        else:
            values = pa.chunked_array([pa.array(as_float, mask=gaps)])
    return values.cast(pa.large_string())


def days(values: Any, zone: str | None) -> Floats:
    """Days since 1970 (with their fraction) on the clock of a time zone; NaN where missing.

    Of a time of day: the fraction of the day that has gone.
    """
    pa = arrow()
    if pa.types.is_time(values.type):
        micro = values.cast(pa.time64("us"), safe=False).cast(pa.int64())
    else:
        if zone is not None:
            values = values.cast(pa.timestamp("us", zone), safe=False)
            values = arrow("compute").local_timestamp(values)
        micro = values.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    return np.array(micro.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64) / MICROSECONDS_A_DAY


def parse_moments(values: Any, zone: str | None, clock: bool) -> Any:
    """Text such as 2024-05-01 or 2024-05-01T12:30:00 as moments, 12:30:00 as times of day."""
    pa = arrow()
    text = plain(values)
    if clock:
        prefix = pa.scalar("1970-01-01T", pa.large_string())
        text = arrow("compute").binary_join_element_wise(prefix, text, pa.scalar("", pa.large_string()))
    try:
        moments = text.cast(pa.timestamp("us", zone))
    except pa.ArrowInvalid:  # nanoseconds have a shorter range, and are rarer
        moments = text.cast(pa.timestamp("ns", zone))
    return moments.cast(pa.time64("us"), safe=False) if clock else moments


def example(values: Any) -> str:
    """The first value that is there, for a message."""
    found = values.drop_null()
    return repr(found[0].as_py()) if len(found) else "nothing"
