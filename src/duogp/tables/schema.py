"""The schema of a table: the encoding of its columns as inputs of a model, the same for every such table."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duogp.tables.columns import Category, Column, column_from_dict
from duogp.tables.frames import as_arrow, listed, repeated, require_moderate_width, some
from duogp.tables.learning import MAX_LEVELS, Idle, Reading, Unusable, fold_means, learn_column
from duogp.tables.target import TargetColumn
from duogp.tables.values import Floats, kind_of, numbers

FORMAT, VERSION = "duogp table", 2
MISSING = ("impute", "refuse")
DECIMALS = (None, ".", ",")
#: Values that a row with an unknown one is predicted with.
NUM_COMPLETIONS = 24


class NothingUsableError(ValueError):
    """A table of which no column can be used."""


class Encoded(NamedTuple):
    """Rows of a table as inputs of a model."""

    matrix: NDArray[np.float64]  # [n, d], finite
    names: list[str]  # of its columns


class Completions(NamedTuple):
    """Rows with values that are unknown to the model, with other rows' values in their place.

    ``inflation``: by how much the variance between the completions is too small. Of K levels the variance
    between them, (K − 1)/K of what it is in the population that they are from, is that of a further level
    around their mean after multiplication by (K + 1)/(K − 1).
    """

    rows: NDArray[np.intp]  # [r]
    matrices: NDArray[np.float64]  # [completions, r, d]
    inflation: NDArray[np.float64]  # [r]


@dataclass(frozen=True)
class Schema:
    """Columns and their encodings. Other columns of a table are ignored; the order of columns is free."""

    columns: tuple[Column, ...]
    target: TargetColumn | None = None
    weights: str | None = None  # the column of row weights
    missing: str = "impute"  # or "refuse"
    dropped: Mapping[str, str] = field(default_factory=dict)  # columns that are not used, and why
    notes: Mapping[str, str] = field(default_factory=dict)  # columns with cells that could not be read

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
        decimal: str | None = None,
        date_format: str | None = None,
        strict: bool = False,
        y: Floats | None = None,
    ) -> Schema:
        """The schema of the training rows: a pyarrow, pandas or polars table.

        ``category``: columns of numbers that are names (codes of places, say); ``classify``: whole numbers in
        the target are class labels; ``missing="refuse"``: gaps are an error, here and in every table encoded.
        ``decimal`` ("." or ",") and ``date_format`` (such as "%d/%m/%Y"): of numbers and dates that are
        written as text; None: as the cells tell. ``strict``: a column that cannot be used and a cell that
        cannot be read are errors. ``y`` [n] or [n, outcomes]: numbers of each row, of which categories with
        many levels keep the mean of each level; `encode_training` then encodes these rows.
        """
        if missing not in MISSING:
            raise ValueError(f"missing must be 'impute' or 'refuse', got {missing!r}")
        if decimal not in DECIMALS:
            raise ValueError(f"decimal must be '.' or ',', got {decimal!r}")
        reading = Reading(max_levels, decimal, date_format)
        table = as_arrow(table)
        drop, category = list(drop), list(category)
        check_roles(table, target, weights, drop, category)
        goal = None
        if target is not None:
            goal = TargetColumn.learn(target, table.column(target), classify, decimal)
        reasons = dict.fromkeys(drop, "as asked")
        notes: dict[str, str] = {}
        columns: list[Column] = []
        lost: dict[str, str] = {}
        for index, name in enumerate(table.column_names):
            if name in (target, weights) or name in reasons:
                continue
            try:
                values = table.column(index)  # by its position: several may have no name
                column, note = learn_column(name, values, reading, category=name in category, target=y)
                columns.append(column)
                if note is not None:
                    notes[name] = note
            except Unusable as reason:
                reasons[name] = str(reason)
                if not isinstance(reason, Idle):
                    lost[name] = str(reason)
        if not columns:
            why = "; ".join(f"{name!r}: {reason}" for name, reason in list(reasons.items())[:4])
            raise NothingUsableError("there is no column to predict from" + (f" ({why})" if why else ""))
        if strict:
            _refuse_losses(lost | notes)
        schema = cls(tuple(columns), goal, weights, missing, reasons, notes)
        if missing == "refuse":
            schema._require_complete(table)
        return schema

    # -- encoding --------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns, all different."""
        names = [name for column in self.columns for name in column.features]
        seen: Counter[str] = Counter()
        for i, name in enumerate(names):
            seen[name] += 1
            if seen[name] > 1:  # a column "a=b" beside a level "b" of a
                names[i] = f"{name} ({seen[name]})"
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

    def encode_training(self, table: Any, y: Floats | None) -> Encoded:
        """The rows that the schema was learned from, [n, d], with its numbers ``y``, [n] or [n, outcomes].

        As `encode`, but the mean target of a row's level is that of other rows: see `fold_means`.
        """
        table = as_arrow(table)
        matrix, names = self.encode(table)
        at = 0
        for column in self.columns:
            at += len(column.features)
            if y is not None and isinstance(column, Category) and column.effects:
                places = column.places(self._column(table, column.name))
                levels = len(column.effects) // column.outcomes
                matrix[:, at - column.outcomes : at] = fold_means(places, y, levels)  # its last features
        return Encoded(matrix, names)

    def unknown(self, table: Any) -> dict[str, NDArray[np.bool_]]:
        """Masks [n] of rows with a level, or a gap, that no training row had, by column that has some."""
        table = as_arrow(table)
        found = {column.name: column.unknown(self._column(table, column.name)) for column in self.columns}
        return {name: rows for name, rows in found.items() if rows.any()}

    def unseen(self, table: Any) -> dict[str, int]:
        """Numbers of rows with a category that the model was not fitted on, by column."""
        table = as_arrow(table)
        counts = {}
        for column in self.columns:
            if isinstance(column, Category):
                values = self._column(table, column.name)
                counts[column.name] = int((column.unknown(values) & ~column.gaps(values)).sum())
        return {name: count for name, count in counts.items() if count}

    def completions(self, table: Any, matrix: Floats | None = None) -> Completions | None:
        """Rows with unknown values, and candidates in their place; None where every value is known.

        The average over them is the prediction without the value, and their spread is the variance that the
        missing value causes. ``matrix`` [n, d]: the encoded table, if it is there already. Candidates of
        several columns are combined at random, the same way every time.
        """
        table = as_arrow(table)
        unknown = self.unknown(table)
        if not unknown:
            return None
        matrix = self.encode(table).matrix if matrix is None else matrix
        rows = np.flatnonzero(np.any(list(unknown.values()), axis=0))
        matrices = np.repeat(matrix[None, rows], NUM_COMPLETIONS, 0)
        inflation = np.ones(len(rows))
        rng = np.random.default_rng(0)
        at = 0
        for column in self.columns:
            features = slice(at, at + len(column.features))
            at = features.stop
            if column.name not in unknown:
                continue
            own = np.flatnonzero(unknown[column.name][rows])
            candidates = column.candidates()
            drawn = rng.permutation(np.arange(NUM_COMPLETIONS) * len(candidates) // NUM_COMPLETIONS)
            matrices[:, own, features] = candidates[drawn][:, None]
            if (column.num_levels or 0) > 1:
                levels = min(column.num_levels or 0, len(candidates))
                inflation[own] = np.maximum(inflation[own], (levels + 1) / max(1, levels - 1))
        return Completions(rows, matrices, inflation)

    def gaps(self, table: Any) -> dict[str, int]:
        """Numbers of missing values, by column, where there are some."""
        table = as_arrow(table)
        counts = {c.name: int(c.gaps(self._column(table, c.name)).sum()) for c in self.columns}
        return {name: count for name, count in counts.items() if count}

    def targets(self, table: Any) -> tuple[NDArray, NDArray[np.bool_]]:
        """Targets of the rows, [n], and which rows have one, [n]."""
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
        """Weights of the rows, [n], finite and not negative; None where the schema has none."""
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
            "notes": dict(self.notes),
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
            rest = state["weights"], state["missing"], dict(state["dropped"]), dict(state.get("notes", {}))
            return cls(columns, target, *rest)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the description of the table is damaged: {error!r}") from None


def check_roles(
    table: Any, target: str | None, weights: str | None, drop: Sequence[str], category: Sequence[str]
) -> None:
    """Errors for a table that is no training table, and for columns that it lacks."""
    require_moderate_width(table.num_columns)
    if twice := repeated(name for name in table.column_names if name.strip()):
        raise ValueError(f"two columns have the same name: {listed(twice)}; names must be different")
    named: dict[str, Sequence[str | None]] = {"target": [target], "weights": [weights]}
    for what, names in (named | {"drop": drop, "category": category}).items():
        require_columns([name for name in names if name is not None], table.column_names, what)
    if target is not None and target in (weights, *drop):
        raise ValueError(f"the target {target!r} cannot also be dropped or be the weights")
    if table.num_rows < 2:
        raise ValueError(f"the table has {table.num_rows} rows; at least 2 are needed")


def _refuse_losses(losses: Mapping[str, str]) -> None:
    if losses:
        why = "; ".join(f"{name!r}: {reason}" for name, reason in list(losses.items())[:4])
        raise ValueError(f"columns that cannot be read as a whole, which strict forbids ({why})")


def require_columns(wanted: Iterable[str], there: Iterable[str], what: str) -> None:
    """An error where a table lacks columns, with the nearest names that it has."""
    there = list(there)
    lacking = [name for name in wanted if name not in there]
    if not lacking:
        return
    hints = listed(nearest_names(lacking, there))
    hint = f"; did you mean {hints}?" if hints else f"; it has {listed(there, 8) or 'none'}"
    noun = "column" if len(lacking) == 1 else f"{len(lacking)} columns"
    raise ValueError(f"the table lacks the {noun} {listed(lacking)} ({what}){hint}")


def nearest_names(lacking: Sequence[str], there: Iterable[str]) -> list[str]:
    """Of the first three names that are lacking, the names that are there and differ by little."""
    folded = {name.casefold().strip(): name for name in there}
    near = (difflib.get_close_matches(name.casefold().strip(), folded, 1, 0.75) for name in lacking[:3])
    return [folded[name] for found in near for name in found]
