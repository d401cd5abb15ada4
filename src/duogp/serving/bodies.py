"""Bodies of requests and answers: JSON, Arrow streams and Arrow files.

JSON is one of

    {"rows": [{"a": 1.5, "b": null}, ...]}       a row is an object with a key for every column of the fit
    {"rows": [[1.5, "x"], ...]}                  a row is a list in the order of the columns of the fit
    {"columns": {"a": [1.5, ...], "b": ["x", ...]}}

null is a gap; a key that is left out is refused, in one row as in all of them, and further keys are not read.
The values of a column are of one kind: numbers, texts, or true and false. ``"quantiles": [0.05, 0.95]`` is
given beside the rows or columns; with an Arrow body it is in the address (`?quantiles=0.05,0.95`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from duogp.serving.limits import Limits, RequestError
from duogp.tables.arrow import arrow, first_line
from duogp.tables.frames import as_arrow, listed
from duogp.tables.schema import nearest_names, require_columns

JSON = "application/json"
ARROW_STREAM, ARROW_FILE = "application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.file"
#: Beginning of an Arrow file.
MAGIC = b"ARROW1"
#: Most quantiles of one request.
MOST_LEVELS = 99


class Asked(NamedTuple):
    """A request: a pyarrow table and levels of quantiles."""

    table: Any
    levels: list[float]


def read_body(body: bytes, kind: str, columns: list[str], limits: Limits, levels: str | None = None) -> Asked:
    """The rows of a body of that content type; a `RequestError` where there are none."""
    media = kind.partition(";")[0].strip().lower()
    if media in (JSON, ""):
        return _from_json(body, columns, limits, levels)
    if media in (ARROW_STREAM, ARROW_FILE):
        return Asked(_from_arrow(body, limits), as_levels(levels.split(",") if levels else []))
    raise RequestError(415, f"the content type {media!r} is not known: send {JSON} or {ARROW_STREAM}")


def _from_json(body: bytes, columns: list[str], limits: Limits, levels: str | None) -> Asked:
    try:
        asked = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError:
        raise RequestError(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise RequestError(400, f"the body is no JSON: {error}") from None
    if isinstance(asked, list):
        asked = {"rows": asked}
    if not isinstance(asked, dict) or ("rows" in asked) == ("columns" in asked):
        raise RequestError(
            400, 'the body must be an object with "rows", a list, or with "columns", an object of lists'
        )
    if strange := asked.keys() - {"rows", "columns", "quantiles"}:
        raise RequestError(
            400, f"the body has an unknown name {min(strange)!r}; it may have rows, columns, quantiles"
        )
    own = asked.get("quantiles", levels.split(",") if levels else [])
    table = (
        _of_rows(asked["rows"], columns, limits)
        if "rows" in asked
        else _of_columns(asked["columns"], columns, limits)
    )
    return Asked(table, as_levels(own))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number; a gap is null")


def as_levels(values: Any) -> list[float]:
    """Levels of quantiles; a `RequestError` where they are none."""
    values = values if isinstance(values, list) else [values]
    try:
        levels = [float(value) for value in values]
    except (TypeError, ValueError):
        levels = [math.nan]
    if not all(0 < level < 1 for level in levels):
        raise RequestError(400, f"quantiles must be numbers strictly between 0 and 1, got {str(values)[:80]}")
    if len(levels) > MOST_LEVELS:
        raise RequestError(400, f"at most {MOST_LEVELS} quantiles are answered at once, got {len(levels)}")
    return list(dict.fromkeys(levels))


def _of_rows(rows: Any, columns: list[str], limits: Limits) -> Any:
    if not isinstance(rows, list):
        raise RequestError(400, f"rows must be a list, got {_word(rows)}")
    limits.require_rows(len(rows))
    named = isinstance(rows[0], dict)
    for i, row in enumerate(rows):
        if not isinstance(row, dict if named else list):
            kind = "an object" if named else "a list"
            raise RequestError(422, f"row {i} is {_word(row)}, expected {kind} as in row 0")
        if named and not all(name in row for name in columns):
            lacking = [name for name in columns if name not in row]
            noun = "key" if len(lacking) == 1 else f"{len(lacking)} keys"
            near = nearest_names(lacking, [name for name in row if name not in columns])
            hint = f"; did you mean {listed(near)}?" if near else ""
            raise RequestError(422, f"row {i} lacks the {noun} {listed(lacking)} (a gap is null){hint}")
        if not named and len(row) != len(columns):
            expected = ", ".join(columns[:8]) + (", …" if len(columns) > 8 else "")
            raise RequestError(422, f"row {i} has {len(row)} values, expected {len(columns)}: {expected}")
    places: Any = columns if named else range(len(columns))
    return _table({name: [row[at] for row in rows] for name, at in zip(columns, places, strict=True)})


def _of_columns(values: Any, columns: list[str], limits: Limits) -> Any:
    if not isinstance(values, dict) or not values or not all(isinstance(v, list) for v in values.values()):
        raise RequestError(400, "columns must be an object of lists, one for each column")
    limits.require_rows(max(len(v) for v in values.values()))
    try:
        require_columns(columns, values, "the model")
    except ValueError as error:
        raise RequestError(422, str(error)) from None
    return _table({name: values[name] for name in columns})


def _table(columns: Mapping[str, list[Any]]) -> Any:
    read = {name: _of_one_kind(name, values) for name, values in columns.items()}
    try:
        return as_arrow(read)
    except ValueError as error:
        raise RequestError(422, str(error)) from None


def _of_one_kind(name: str, values: list[Any]) -> list[Any]:
    """The values [n] of a column; a `RequestError` that names the first row with another kind of value."""
    types = set(map(type, values)) - {type(None)}
    if types <= {str} or types <= {bool}:
        return values
    if types <= {int, float}:
        return _numbers(name, values)
    first: tuple[int, str] | None = None
    for i, value in enumerate(values):
        if value is None:
            continue
        kind = _word(value)
        if isinstance(value, dict | list):
            raise RequestError(422, f"row {i}: {name!r} is {kind}, expected a number, a text or null")
        if first is None:
            first = (i, kind)
        elif kind != first[1]:
            said = json.dumps(value, ensure_ascii=False)[:60]
            raise RequestError(
                422, f"row {i}: {name!r} is {kind} ({said}), expected {first[1]} as in row {first[0]}"
            )
    return values


def _numbers(name: str, values: list[Any]) -> list[Any]:
    """Whole numbers, or floats where some are fractions or beyond 64 bits: Arrow takes no mixture."""
    if all(value is None or (type(value) is int and abs(value) < 2**63) for value in values):
        return values
    out: list[float | None] = []
    for i, value in enumerate(values):
        try:
            out.append(None if value is None else float(value))
        except OverflowError:
            raise RequestError(422, f"row {i}: {name!r} is a number beyond the range of float64") from None
    return out


def _word(value: Any) -> str:
    words = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return words.get(type(value), "a number")


def _from_arrow(body: bytes, limits: Limits) -> Any:
    pa = arrow()
    ipc = arrow("ipc")
    try:
        source = pa.BufferReader(body)
        reader = ipc.open_file(source) if body[:6] == MAGIC else ipc.open_stream(source)
        table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RequestError(400, f"the body is no Arrow stream or file: {first_line(error)}") from None
    limits.require_rows(table.num_rows)
    return table


def write_json(columns: Mapping[str, Any], rows: int, notes: Mapping[str, Any]) -> bytes:
    """An answer: the predicted columns by name; numbers that are not finite are null."""
    plain = {name: _plain(values) for name, values in columns.items()}
    answer = {"rows": rows, "predictions": plain, **({"notes": notes} if notes else {})}
    return json.dumps(answer, ensure_ascii=False, allow_nan=False).encode()


def _plain(values: Any) -> list[Any]:
    found = values.to_pylist() if hasattr(values, "to_pylist") else values.tolist()
    return [None if isinstance(v, float) and not math.isfinite(v) else v for v in found]


def write_arrow(columns: Mapping[str, Any]) -> bytes:
    """An answer as an Arrow stream."""
    pa = arrow()
    table = pa.table(dict(columns))
    sink = pa.BufferOutputStream()
    with arrow("ipc").new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found
