"""What a report is about: a fitted model and the rows of one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from duogp.reports.effects import effects
from duogp.reports.scores import LEVELS, Scores, score_rows
from duogp.tables.arrow import arrow
from duogp.tables.columns import Category, Number
from duogp.tables.frames import as_arrow
from duogp.tables.schema import Schema

if TYPE_CHECKING:
    from duogp.sklearn.new_rows import NewRows

#: Rows of a larger table that a report is made from, unless asked otherwise.
MOST_ROWS = 10_000

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Subject:
    """A fitted model, n rows with the columns of its schema and, where they are known, their targets."""

    gp: Any
    schema: Schema
    table: Any  # an arrow table of n rows
    target: str = "y"
    y: NDArray | None = None  # [n]; only the rows of `there` count
    there: NDArray[np.bool_] | None = None  # [n]
    sample: Array | None = None  # [m, d]: encoded training rows
    method: str = ""
    reasons: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # further lines on the model
    test: Mapping[str, float] | None = None  # metrics on rows that the fit held back
    numbers: NDArray[np.intp] | None = None  # [n]: places of the rows in the table that was given
    given_rows: int | None = None  # of that table

    def __post_init__(self) -> None:
        if self.gp.classes is None and not self.gp.single_output:
            raise ValueError("a report is of one target; this model predicts several: fit one model for each")

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def is_classifier(self) -> bool:
        """Whether classes are predicted."""
        return self.gp.classes is not None

    def row_number(self, place: int) -> int:
        """The number of a row in the table that was given, from 1."""
        return 1 + int(place if self.numbers is None else self.numbers[place])

    @cached_property
    def rows(self) -> NewRows:
        """All rows as the model takes them."""
        return self._new_rows(self.table)

    @cached_property
    def prediction(self) -> Any:
        """Of all rows: a `Prediction` or a `ClassPrediction`."""
        return self.rows.predict()

    @property
    def known(self) -> NDArray[np.intp]:
        """Places [k] of the rows whose target is known."""
        if self.y is None:
            return np.arange(0)
        return np.arange(len(self)) if self.there is None else np.flatnonzero(self.there)

    def known_rows(self) -> tuple[NewRows, NDArray]:
        """The rows whose target is known, and their targets, [k]."""
        assert self.y is not None
        if len(self.known) == len(self):
            return self.rows, self.y
        return self._new_rows(self.table.take(arrow().array(self.known))), self.y[self.known]

    @cached_property
    def scores(self) -> Scores:
        """Targets and predictions of the rows whose target is known; numbers with quantiles of `LEVELS`."""
        return score_rows([self.known_rows()], None if self.is_classifier else LEVELS)

    @cached_property
    def effects(self) -> dict[str, float]:
        """How far the predictions move when a column is shuffled, the largest first."""
        return effects(self.gp, self.schema, self.rows.matrix)

    def repeated(self) -> int:
        """How many of the training rows that are kept have the same inputs as one of these rows.

        Means of the target by level are left out of the comparison: they differ in training.
        """
        if self.sample is None:
            return 0
        kept = self._plain_inputs()
        new = {row.tobytes() for row in np.ascontiguousarray(self.rows.matrix[:, kept] + 0.0)}
        return sum(row.tobytes() in new for row in np.ascontiguousarray(self.sample[:, kept] + 0.0))

    def _plain_inputs(self) -> NDArray[np.bool_]:
        parts = []
        for column in self.schema.columns:
            measures = len(column.measures) if isinstance(column, Category) else 0
            parts += [True] * (len(column.features) - measures) + [False] * measures
        return np.array(parts, dtype=bool)

    def _new_rows(self, table: Any) -> NewRows:
        from duogp.sklearn.new_rows import new_rows

        matrix = self.schema.encode(table).matrix
        return new_rows(self.gp, matrix, self.schema.completions(table, matrix))

    def taken(self, most: int, seed: int = 0) -> Subject:
        """The same of at most ``most`` rows, drawn at random and kept in their order."""
        n = len(self)
        if n <= most:
            return self
        chosen = np.sort(np.random.default_rng(seed).permutation(n)[:most])
        return Subject(
            gp=self.gp,
            schema=self.schema,
            table=self.table.take(arrow().array(chosen)),
            target=self.target,
            y=None if self.y is None else self.y[chosen],
            there=None if self.there is None else self.there[chosen],
            sample=self.sample,
            method=self.method,
            reasons=self.reasons,
            facts=self.facts,
            test=self.test,
            numbers=chosen,
            given_rows=n,
        )


def subject_of(model: Any, X: Any, y: Any = None, *, target: str = "y") -> Subject:
    """The subject of a fitted estimator or `GP` and a table X: an array, or a frame of its columns."""
    estimator = model if hasattr(model, "gp_") else None
    gp = model if estimator is None else estimator.gp_
    schema = getattr(estimator, "schema_", None)
    table = _table_of(estimator, gp, X, schema)
    sample = getattr(estimator, "_sample", None)
    if schema is None:
        schema = _plain_schema(table, sample)
    n = table.num_rows
    if not n:
        raise ValueError("X has no rows")
    return Subject(
        gp=gp,
        schema=schema,
        table=table,
        target=str(getattr(y, "name", None) or target),
        y=None if y is None else _targets(gp, y, n),
        sample=sample,
        method=getattr(estimator, "method_", None) or (gp.method.name if gp.method is not None else "stack"),
        reasons=tuple(getattr(estimator, "reasons_", ())),
    )


def _table_of(estimator: Any, gp: Any, X: Any, schema: Schema | None) -> Any:
    """Rows as an arrow table with the names of the fit, checked as `predict` checks them."""
    from duogp.data.columns import rows_of_the_fit
    from duogp.sklearn.frames import arrow_table, collected, is_frame, selected, table_of_array
    from duogp.sklearn.training_rows import dense

    X = collected(X)
    if schema is None:
        matrix = (
            estimator._encoded(X)[0]
            if estimator is not None
            else rows_of_the_fit(X, gp.column_names, len(gp.columns))
        )
        names = gp.column_names or [f"column {j}" for j in range(matrix.shape[1])]
        return as_arrow({name: matrix[:, j] for j, name in enumerate(names)})
    own = list(estimator._table_names or [column.name for column in schema.columns])
    if not is_frame(X):
        return table_of_array(dense(X), own)
    frame = selected(X, own, list(schema.dropped))
    return arrow_table(frame, own) if len(as_arrow(frame).column_names) == len(own) else arrow_table(frame)


def _plain_schema(table: Any, sample: Array | None) -> Schema:
    """The schema of a matrix: every column is a number that is encoded as itself."""
    columns = []
    for j, name in enumerate(table.column_names):
        x = table.column(name).to_numpy() if sample is None else sample[:, j]
        columns.append(Number(name, float(np.median(x))))
    return Schema(tuple(columns))


def _targets(gp: Any, y: Any, n: int) -> NDArray:
    from duogp.data.labels import as_labels
    from duogp.data.validation import as_target

    return as_labels(y, n) if gp.classes is not None else as_target(y, n, "y").astype(np.float64).reshape(-1)
