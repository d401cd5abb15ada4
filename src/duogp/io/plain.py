"""Entries of a manifest, checked one by one; scalers, labels and histories as JSON, and back.

JSON has no NaN and no infinity: in histories they are written as text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.data.labels import MAX_CLASSES
from duogp.data.scaling import Scaler
from duogp.errors import SavedModelError
from duogp.training.history import History, Record

SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
#: Kinds of numpy types of labels: written as they are, and (times) as integers.
LABEL_KINDS, LABEL_TIMES = "Ubiuf", "mM"
NUMBER = (int, float, str, type(None))


def entry(part: Any, name: str, *kinds: type) -> Any:
    """``part[name]``, which must be of one of these types (True is no int)."""
    if not isinstance(part, Mapping) or name not in part:
        raise SavedModelError(f"its manifest has no entry {name!r} where there must be one")
    value = part[name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
        raise SavedModelError(f"its manifest has a {type(value).__name__} as {name!r}, expected {expected}")
    return value


def entries(part: Any, name: str, *kinds: type) -> list[Any]:
    """A list of values of these types."""
    values = entry(part, name, list)
    if not all(isinstance(v, kinds) and (not isinstance(v, bool) or bool in kinds) for v in values):
        raise SavedModelError(f"its manifest has a list {name!r} with values of an unexpected type")
    return values


# -- scalers and labels --------------------------------------------------------------------------------------


def scaler_of(part: Any, name: str) -> Scaler:
    """The scaler under a name of a manifest; an error where its numbers are impossible."""
    state = entry(part, name, dict)
    numbers = {key: entries(state, key, int, float) for key in ("shift", "scale")}
    try:
        return Scaler.from_dict(numbers)
    except (ValueError, OverflowError) as error:
        raise SavedModelError(f"its manifest has an impossible {name!r}: {error}") from error


def labels_to_plain(classes: NDArray | None) -> dict[str, Any] | None:
    """Class labels and their type."""
    if classes is None:
        return None
    kind = classes.dtype.kind
    if kind in "UT":  # as wide as its longest label, and no wider
        classes, kind = np.array(classes.tolist(), dtype=str), "U"
    if kind not in LABEL_KINDS + LABEL_TIMES:
        kinds = "text, numbers, booleans or numpy times"
        raise SavedModelError(f"class labels of type {classes.dtype} cannot be saved: use {kinds}")
    values = classes.astype(np.int64) if kind in LABEL_TIMES else classes
    return {"dtype": classes.dtype.str, "values": values.tolist()}


def labels_from_plain(state: Any) -> NDArray | None:
    """Class labels from their JSON form, of the dtype that they had; None for regression."""
    if state is None:
        return None
    name, values = entry(state, "dtype", str), entries(state, "values", str, int, float, bool)
    if len(values) > MAX_CLASSES:
        raise SavedModelError(f"its manifest has {len(values)} classes; at most {MAX_CLASSES} are supported")
    try:
        dtype = np.dtype(name)
        if dtype.kind not in LABEL_KINDS + LABEL_TIMES or dtype.itemsize > 4 * max(map(_length, values)):
            raise TypeError(f"labels of type {name!r}")
        if dtype.kind == "U" and not all(isinstance(v, str) for v in values):
            raise TypeError("labels that should be text")
        stored = np.array(values, dtype=np.int64 if dtype.kind in LABEL_TIMES else dtype)
        classes = stored.astype(dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise SavedModelError(f"its manifest has impossible class labels: {error}") from error
    if len(np.unique(classes)) != len(values) or len(values) < 2:
        raise SavedModelError("its manifest has class labels that are not different from each other")
    return classes


def _length(label: Any) -> int:
    """Letters of a label, at least four: the bound on the size of its type."""
    return max(len(label), 4) if isinstance(label, str) else 4


# -- histories -----------------------------------------------------------------------------------------------


def history_to_plain(history: History) -> dict[str, Any]:
    """A history as JSON, its records by column."""
    out = {f.name: number_to_plain(getattr(history, f.name)) for f in fields(History) if f.name != "records"}
    out["notes"] = [str(note) for note in history.notes]
    out["records"] = {
        f.name: [number_to_plain(getattr(record, f.name)) for record in history.records]
        for f in fields(Record)
    }
    return out


def history_from_plain(state: Any) -> History:
    """The inverse of `history_to_plain`; entries of a newer version are left out."""
    columns = entry(state, "records", dict)
    known = {f.name: entries(columns, f.name, *NUMBER) for f in fields(Record) if f.name in columns}
    lengths = {len(column) for column in known.values()}
    if len(lengths) > 1 or not known.keys() >= {"epoch", "loss", "seconds"}:
        raise SavedModelError("its manifest has a history whose columns do not fit together")
    rows = zip(*([number_from_plain(v) for v in column] for column in known.values()), strict=True)
    records = [Record(**dict(zip(known, row, strict=True))) for row in rows]
    notes, solver = entries(state, "notes", str), entry(state, "solver", str)
    names = {f.name for f in fields(History) if f.name in state} - {"records", "notes", "solver"}
    rest = {name: number_from_plain(entry(state, name, *NUMBER, bool)) for name in names}
    return History(records=records, notes=notes, solver=solver, **rest)


def number_to_plain(value: Any) -> Any:
    """A number as JSON: infinities and NaN, which it does not know, as texts."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and not math.isfinite(value):
        return next(text for text, special in SPECIAL.items() if value == special or value != value)
    return value


def number_from_plain(value: Any) -> Any:
    """The inverse of `number_to_plain`."""
    if isinstance(value, str) and value not in SPECIAL:
        raise SavedModelError(f"its manifest has the text {value!r} where a number must be")
    return SPECIAL[value] if isinstance(value, str) else value
