"""The schema of a table: the encoding of its columns as inputs of a model, the same for every such table."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duogp.tables.columns import Category, Column, column_from_dict
from duogp.tables.frames import as_arrow, listed, repeated, some
from duogp.tables.learning import MAX_LEVELS, Unusable, learn_column
from duogp.tables.target import TargetColumn
from duogp.tables.values import kind_of, numbers

FORMAT, VERSION = "duogp table", 1
MISSING = ("impute", "refuse")


class Encoded(NamedTuple):
    matrix: NDArray[np.float64]  # [n, d], finite
    names: list[str]  # of its columns


@dataclass(frozen=True)
class Schema:
    """Columns and their encodings. Other columns of a table are ignored; the order of columns is free."""

    columns: tuple[Column, ...]
    target: TargetColumn | None = None
    weights: str | None = None  # the column of row weights
    missing: str = "impute"  # or "refuse"
    dropped: Mapping[str, str] = field(default_factory=dict)  # columns that are not used, and why

    @classmethod
    def learn(
        cls,
        table: Any,
        target: str | None = None,
        *,
        drop: Iterable[str] = (),
        weights: str | None = None,
        missing: str = "impute",
        category: Iterable[str] = (),
        classify: bool = False,
        max_levels: int = MAX_LEVELS,
    ) -> Schema:
        """The schema of the training rows: a pyarrow, pandas or polars table.

        ``category``: columns of numbers that are names (codes of places, say); ``classify``: whole numbers in
        the target are class labels; ``missing="refuse"``: gaps are an error, here and in every table encoded.
        """
        if missing not in MISSING:
            raise ValueError(f"missing must be 'impute' or 'refuse', got {missing!r}")
        table = as_arrow(table)
        drop, category = list(drop), list(category)
        if twice := repeated(name for name in table.column_names if name.strip()):
            raise ValueError(f"two columns have the same name: {listed(twice)}; names must be different")
        named: dict[str, Sequence[str | None]] = {"target": [target], "weights": [weights]}
        for what, names in (named | {"drop": drop, "category": category}).items():
            require_columns([name for name in names if name is not None], table.column_names, what)
        if target is not None and target in (weights, *drop):
            raise ValueError(f"the target {target!r} cannot also be dropped or be the weights")
        if table.num_rows < 2:
            raise ValueError(f"the table has {table.num_rows} rows; at least 2 are needed")
        goal = None if target is None else TargetColumn.learn(target, table.column(target), classify)
        reasons = dict.fromkeys(drop, "as asked")
        columns: list[Column] = []
        for index, name in enumerate(table.column_names):
            if name in (target, weights) or name in reasons:
                continue
            try:
                values = table.column(index)  # by its position: several may have no name
                columns.append(learn_column(name, values, max_levels=max_levels, category=name in category))
            except Unusable as reason:
                reasons[name] = str(reason)
        if not columns:
            why = "; ".join(f"{name!r}: {reason}" for name, reason in list(reasons.items())[:4])
            raise ValueError("there is no column to predict from" + (f" ({why})" if why else ""))
        schema = cls(tuple(columns), goal, weights, missing, reasons)
        if missing == "refuse":
            schema._require_complete(table)
        return schema

    # -- encoding --------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns, all different."""
        names = [name for column in self.columns for name in column.features]
        for i, name in enumerate(names):
            if copies := names[:i].count(name):  # a column "a=b" beside a level "b" of a
                names[i] = f"{name} ({copies + 1})"
        return names

    @property
    def sources(self) -> list[str]:
        """The column of the table behind each encoded one."""
        return [column.name for column in self.columns for _ in column.features]

    def encode(self, table: Any) -> Encoded:
        """The rows of a table with these columns as inputs of the model."""
        table = as_arrow(table)
        found = [self._column(table, column.name) for column in self.columns]
        if self.missing == "refuse":
            self._require_complete(table)
        parts = [column.encode(values) for column, values in zip(self.columns, found, strict=True)]
        return Encoded(np.ascontiguousarray(np.concatenate(parts, 1)), self.names)

    def unseen(self, table: Any) -> dict[str, int]:
        """Numbers of rows with a category that the model was not fitted on, by column.

        Columns with rare levels are left out: a new level is encoded as one of those.
        """
        table = as_arrow(table)
        counts = {}
        for column in self.columns:
            if isinstance(column, Category):
                values = self._column(table, column.name)
                new = (column.codes(values) == len(column.levels)) & ~column.gaps(values)
                counts[column.name] = 0 if column.other else int(new.sum())
        return {name: count for name, count in counts.items() if count}

    def gaps(self, table: Any) -> dict[str, int]:
        """Numbers of missing values, by column, where there are some."""
        table = as_arrow(table)
        counts = {c.name: int(c.gaps(self._column(table, c.name)).sum()) for c in self.columns}
        return {name: count for name, count in counts.items() if count}

    def targets(self, table: Any) -> tuple[NDArray, NDArray[np.bool_]]:
        """Targets of the rows, and which rows have one."""
        if self.target is None:
            raise ValueError("this schema was learned without a target")
        values = self._column(as_arrow(table), self.target.name)
        there = ~self.target.gaps(values)
        if self.missing == "refuse" and not there.all():
            raise ValueError(
                f"{int((~there).sum())} of {len(there)} rows have no target ({self.target.name!r}): leave "
                "them out, or allow missing values (--missing impute)"
            )
        return self.target.values(values), there

    def row_weights(self, table: Any) -> NDArray[np.float64] | None:
        """Weights of the rows, finite and not negative; None where the schema has none."""
        if self.weights is None:
            return None
        values = self._column(as_arrow(table), self.weights)
        if kind_of(values.type) not in ("number", "boolean"):
            raise TypeError(f"the weights {self.weights!r} must be numbers, they are {values.type}")
        weights = numbers(values)
        bad = ~(weights >= 0)
        if bad.any():
            raise ValueError(
                f"the weights {self.weights!r} must be numbers from 0: {int(bad.sum())} of {len(bad)} are "
                f"not, the first in row {int(np.argmax(bad))}"
            )
        return weights

    def csv_types(self, *, target: bool = False) -> dict[str, Any]:
        """The columns needed and the types to read them as from a CSV file."""
        types = {column.name: column.csv_type() for column in self.columns}
        if target and self.target is not None:
            types[self.target.name] = self.target.csv_type()
        return types

    def _column(self, table: Any, name: str) -> Any:
        at = [i for i, other in enumerate(table.column_names) if other == name]
        if len(at) > 1:
            raise ValueError(f"two columns have the same name: {name!r}")
        if not at:
            is_target = self.target is not None and name == self.target.name
            needed = [name] if is_target else [c.name for c in self.columns]
            require_columns(needed, table.column_names, "the model")
        return table.column(at[0])

    def _require_complete(self, table: Any) -> None:
        if gaps := self.gaps(table):
            counts = some(f"{name!r} ({count})" for name, count in gaps.items())
            raise ValueError(
                f"values are missing in {counts} of {table.num_rows} rows: fill them, drop the "
                "columns, or fit with missing='impute' (--missing impute)"
            )

    # -- as plain data ---------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "missing": self.missing,
            "target": None if self.target is None else asdict(self.target),
            "weights": self.weights,
            "columns": [column.to_dict() for column in self.columns],
            "dropped": dict(self.dropped),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Schema:
        """The inverse of `to_dict`: it encodes every table to the same numbers."""
        if not isinstance(state, Mapping) or state.get("format") != FORMAT:
            raise ValueError("this is not the description of a table by duogp")
        if not isinstance(state.get("version"), int) or state["version"] > VERSION:
            raise ValueError(
                f"the description of the table has version {state.get('version')!r}, this duogp reads up to "
                f"{VERSION}: update duogp"
            )
        try:
            target = None if state["target"] is None else TargetColumn(**state["target"])
            columns = tuple(column_from_dict(column) for column in state["columns"])
            return cls(columns, target, state["weights"], state["missing"], dict(state["dropped"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the description of the table is damaged: {error!r}") from None


def require_columns(wanted: Iterable[str], there: Iterable[str], what: str) -> None:
    """An error where a table lacks columns, with the nearest names that it has."""
    there = list(there)
    lacking = [name for name in wanted if name not in there]
    if not lacking:
        return
    folded = {name.casefold().strip(): name for name in there}
    near = (difflib.get_close_matches(name.casefold().strip(), folded, 1, 0.75) for name in lacking[:3])
    hints = [repr(folded[name]) for found in near for name in found]
    hint = f"; did you mean {', '.join(hints)}?" if hints else f"; it has {listed(there, 8) or 'none'}"
    noun = "column" if len(lacking) == 1 else f"{len(lacking)} columns"
    raise ValueError(f"the table lacks the {noun} {listed(lacking)} ({what}){hint}")
