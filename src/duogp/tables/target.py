"""The column to be predicted: numbers, or labels of a few classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.tables.arrow import arrow
from duogp.tables.columns import WORDS
from duogp.tables.texts import SAMPLE, Ambiguous, decimal_mark, parse_numbers, unreadable
from duogp.tables.values import example, kind_of, numbers, plain, require_finite, texts

#: Most labels of a target, and most that may have fewer than two rows each: more are an error.
MAX_LABELS = 200
FEW_LABELS = 10
#: By the type of the class labels (None: numbers): the kind of the column, and the arrow type of predictions.
KINDS = {None: "number", "integer": "number", "boolean": "boolean", "text": "category"}
TYPES = {None: "float64", "integer": "int64", "boolean": "bool", "text": "string"}


@dataclass(frozen=True)
class TargetColumn:
    """The name of the target and ``labels``: None for numbers, else "text", "boolean" or "integer"."""

    name: str
    labels: str | None = None
    decimal: str | None = None  # of numbers that are written as text: their decimal mark

    @classmethod
    def learn(
        cls, name: str, values: Any, classify: bool = False, decimal: str | None = None
    ) -> TargetColumn:
        """The target by the type of its values; ``classify``: numbers are class labels.

        Text that is numbers (see `decimal_mark`) is numbers, every cell of it.
        """
        kind = kind_of(values.type)
        if kind == "category" and not classify:
            mark = _mark_of(name, values, decimal)
            if mark is not None:
                return cls(name, decimal=mark)
        if kind == "nothing" or values.null_count == len(values):
            raise ValueError(f"the target {name!r} has no values")
        if kind not in ("number", "boolean", "category"):
            raise ValueError(
                f"the target {name!r} holds {WORDS.get(kind, kind)} (such as {example(values)}); "
                "numbers and class labels can be predicted"
            )
        if kind == "number" and not classify:
            return cls(name)
        target = cls(name, {"number": "integer", "boolean": "boolean"}.get(kind, "text"))
        found = target.values(values)
        labels = len(np.unique(found[~target.gaps(values)]))
        if labels < 2:
            raise ValueError(f"the target {name!r} is the same in every row: there is nothing to tell apart")
        rows = len(found) - values.null_count
        if labels > min(MAX_LABELS, max(FEW_LABELS, rows // 2)):
            raise ValueError(
                f"the target {name!r} has {labels:,} different labels in {rows:,} rows: that is too many "
                "for classes" + ("; leave out --classify to predict numbers" if classify else "")
            )
        return target

    @property
    def is_class(self) -> bool:
        """Whether the target is class labels."""
        return self.labels is not None

    def gaps(self, values: Any) -> NDArray[np.bool_]:
        """Mask [n] of the rows without a target."""
        require_finite(values, self.name)
        if self.decimal is None and kind_of(values.type) == "number":
            return np.isnan(numbers(values))
        return values.is_null().to_numpy()

    def values(self, values: Any) -> NDArray:
        """Targets [n] as float64, str, bool or int64; rows without one hold NaN, "", False or 0."""
        kind = kind_of(values.type)
        if self.decimal is not None and kind == "category":
            return _all_numbers(self.name, values, self.decimal)
        wanted = KINDS[self.labels]
        if kind != wanted and not (self.labels == "text" and kind in ("number", "boolean")):
            raise TypeError(
                f"the target {self.name!r} must hold {WORDS[wanted]}, it holds {WORDS.get(kind, kind)} "
                f"(such as {example(values)})"
            )
        if self.labels is None:
            return numbers(values)
        if self.labels == "text":
            return np.asarray(texts(values).fill_null("").to_pylist(), dtype=str)
        if self.labels == "boolean":
            return np.asarray(plain(values).fill_null(False).to_numpy(), dtype=bool)
        x = numbers(values)
        there = x[~np.isnan(x)]
        broken = there[there != np.round(there)]
        if len(broken) or (np.abs(there) >= 2**53).any():
            raise ValueError(
                f"the target {self.name!r} holds numbers that are not whole (such as "
                f"{broken[:1].tolist()}): they are no class labels"
            )
        return np.nan_to_num(x).astype(np.int64)

    def csv_type(self) -> Any:
        """The arrow type as which cells of a CSV file are read: whole numbers may be written 1.0."""
        if self.decimal is not None:
            return arrow().string()
        return arrow().type_for_alias(TYPES[None if self.labels == "integer" else self.labels])

    def arrow_labels(self, labels: NDArray) -> Any:
        """Predicted labels [n] as an arrow column of the target's own type."""
        return arrow().array(labels.tolist(), TYPES[self.labels])


def _mark_of(name: str, values: Any, decimal: str | None) -> str | None:
    """The decimal mark of numbers that are written as text; None for labels."""
    there = plain(values).drop_null()
    if kind_of(there.type) != "category" or len(arrow("compute").unique(there)) <= FEW_LABELS:
        return None
    try:
        mark = decimal_mark(there.slice(0, SAMPLE).to_pylist(), decimal)
    except Ambiguous as reason:
        raise ValueError(f"the target {name!r}: {reason}") from None
    if mark is not None:
        _all_numbers(name, values, mark)
    return mark


def _all_numbers(name: str, values: Any, decimal: str) -> NDArray[np.float64]:
    x = parse_numbers(values, decimal)
    bad = unreadable(values, np.isnan(x))
    if len(bad):
        row = int(bad[0])
        raise ValueError(
            f"the target {name!r} holds {values[row].as_py()!r} in row {row}, which is no number "
            f"({len(bad)} of {len(x)} cells are none): correct it, or leave the cell empty"
        )
    return x
