"""What is to be predicted: a number, or one of a few classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.tables.arrow import arrow
from duogp.tables.columns import WORDS
from duogp.tables.values import example, kind_of, numbers, plain, texts

#: More labels than this are taken for a mistake, and so are more than a few with fewer than two rows each.
MAX_LABELS = 200
FEW_LABELS = 10


@dataclass(frozen=True)
class Target:
    """``labels``: None for numbers, otherwise the type of the class labels: text, boolean or integer."""

    name: str
    labels: str | None = None

    @classmethod
    def learn(cls, name: str, values: Any, classify: bool = False) -> Target:
        kind = kind_of(values.type)
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
        return self.labels is not None

    def gaps(self, values: Any) -> NDArray[np.bool_]:
        """Rows without a target."""
        if kind_of(values.type) == "number":
            return np.isnan(numbers(values))
        return values.is_null().to_numpy()

    def values(self, values: Any) -> NDArray:
        """Targets as float64, str, bool or int64; rows without one hold NaN, "", False or 0."""
        kind = kind_of(values.type)
        wanted = {None: "number", "integer": "number", "boolean": "boolean", "text": "category"}[self.labels]
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
        if (there != np.round(there)).any() or (np.abs(there) >= 2**53).any():
            raise ValueError(
                f"the target {self.name!r} holds numbers that are not whole (such as "
                f"{there[there != np.round(there)][:1].tolist()}): they are no class labels"
            )
        return np.nan_to_num(x).astype(np.int64)

    def csv_type(self) -> Any:
        pa = arrow()
        types = {None: pa.float64(), "integer": pa.float64(), "boolean": pa.bool_(), "text": pa.string()}
        return types[self.labels]

    def arrow_labels(self, labels: NDArray) -> Any:
        """Predicted labels as an arrow column of the target's own type."""
        pa = arrow()
        types = {"integer": pa.int64(), "boolean": pa.bool_(), "text": pa.string()}
        return pa.array(labels.tolist(), types[str(self.labels)])
