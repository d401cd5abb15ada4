"""A fitted model behind a service: tables to encoded rows, batches of rows to predicted columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.serving.limits import RequestError
from duogp.sklearn.new_rows import new_rows
from duogp.tables.frames import listed
from duogp.tables.schema import Completions, Schema, require_columns
from duogp.tables.values import kind_of, numbers

Columns = dict[str, Any]


@dataclass(frozen=True)
class EncodedRows:
    """Rows of one request, ready for the model. ``unknown``: rows with values that it was not fitted on."""

    matrix: NDArray[np.float64]
    completions: Completions | None
    levels: list[float] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.matrix)


class ServedModel:
    """A fitted model and the schema of its table; without one, its columns are numbers.

    ``model``: what `duogp.load` returns. ``schema``: that of the table (default: the estimator's own).
    """

    def __init__(self, model: Any, schema: Schema | None = None, name: str = "model") -> None:
        self.gp, self.name = getattr(model, "gp_", model), name
        self.schema = schema
        if schema is None and not getattr(model, "_by_name", False):
            self.schema = getattr(model, "schema_", None)
        if not hasattr(self.gp, "columns"):
            raise TypeError(f"{type(model).__name__} cannot be served: it is no fitted model")
        names = getattr(model, "feature_names_in_", None)
        own = self.gp.column_names if names is None else [str(each) for each in names]
        self._names = list(own) if own is not None else [f"x{i}" for i in range(len(self.gp.columns))]

    @property
    def is_classifier(self) -> bool:
        """Whether classes are predicted."""
        return self.gp.classes is not None

    @property
    def columns(self) -> list[str]:
        """Names of the columns of a request."""
        return self._names if self.schema is None else [column.name for column in self.schema.columns]

    def describe(self) -> dict[str, Any]:
        """What a client must know."""
        kinds = {} if self.schema is None else {column.name: column.kind for column in self.schema.columns}
        return {
            "model": self.name,
            "task": "classification" if self.is_classifier else "regression",
            "columns": {name: kinds.get(name, "number") for name in self.columns},
            "classes": np.asarray(self.gp.classes).tolist() if self.is_classifier else None,
        }

    # -- rows ------------------------------------------------------------------------------------------------

    def encode(self, table: Any, levels: Sequence[float] = ()) -> EncodedRows:
        """The rows of a table; a `RequestError` that names the column where they cannot be read."""
        if levels and self.is_classifier:
            raise RequestError(422, "quantiles are of numbers; this model predicts classes")
        try:
            if self.schema is None:
                return EncodedRows(self._matrix(table), None, list(levels))
            unknown = {name: int(rows.sum()) for name, rows in self.schema.unknown(table).items()}
            matrix = self.schema.encode(table).matrix
            completions = self.schema.completions(table, matrix) if unknown else None
        except (ValueError, TypeError) as error:
            raise RequestError(422, " ".join(str(error).split())) from None
        return EncodedRows(matrix, completions, list(levels), unknown)

    def _matrix(self, table: Any) -> NDArray[np.float64]:
        """Columns of numbers by their names."""
        require_columns(self._names, table.column_names, "the model")
        parts = []
        for name in self._names:
            column = table.column(name)
            if kind_of(column.type) not in ("number", "boolean"):
                raise ValueError(f"column {name!r} must hold numbers, it holds {column.type}")
            values = numbers(column)
            bad = np.flatnonzero(~np.isfinite(values))
            if len(bad):
                raise ValueError(f"row {bad[0]}: {name!r} has no finite number, and this model knows no gaps")
            parts.append(values)
        return np.stack(parts, 1)

    # -- predictions -----------------------------------------------------------------------------------------

    def predict(self, batch: Sequence[EncodedRows]) -> list[Columns]:
        """Predicted columns of every request of a batch, by one evaluation of the model."""
        rows = new_rows(self.gp, np.concatenate([each.matrix for each in batch]), _joined(batch))
        levels = sorted({level for each in batch for level in each.levels})
        prediction = rows.predict()
        columns = self._class_columns(prediction) if self.is_classifier else self._number_columns(prediction)
        found = rows.quantiles(np.array(levels)) if levels else None  # [levels, n, outputs]
        out, begin = [], 0
        for each in batch:
            part = slice(begin, begin + len(each))
            begin = part.stop
            own = {name: values[part] for name, values in columns.items()}
            if found is not None:
                for level in each.levels:
                    own |= self._by_output(f"q{level:g}", found[levels.index(level), part])
            out.append(own)
        return out

    def _number_columns(self, prediction: Any) -> Columns:
        n = len(prediction)
        out: Columns = {}
        for name in ("mean", "std", "residual", "explained", "noise", "disagreement"):
            values = np.broadcast_to(getattr(prediction, name), prediction.mean.shape)
            out |= self._by_output(name, values.reshape(n, -1))
        return out

    def _by_output(self, name: str, values: NDArray) -> Columns:
        """Values [n, outputs] as columns: name, or name_0, name_1, … of several outputs."""
        if self.gp.single_output:
            return {name: values[:, 0]}
        return {f"{name}_{p}": values[:, p] for p in range(values.shape[1])}

    def _class_columns(self, prediction: Any) -> Columns:
        target = None if self.schema is None else self.schema.target
        labels = prediction.labels if target is None else target.arrow_labels(prediction.labels)
        pairs = zip(prediction.classes, prediction.probabilities.T, strict=True)
        return {"label": labels, **{f"p_{label}": p for label, p in pairs}}

    def notes(self, rows: EncodedRows) -> dict[str, Any]:
        """Remarks on an answer: numbers of rows with values that the model was not fitted on, by column."""
        if not rows.unknown:
            return {}
        return {
            "unknown": rows.unknown,
            "meaning": f"values of {listed(rows.unknown)} that no training row had: predictions are averages "
            "over known values, with wider intervals",
        }


def _joined(batch: Sequence[EncodedRows]) -> Completions | None:
    """Completions of all requests, their rows counted through the batch."""
    parts, begin = [], 0
    for each in batch:
        if each.completions is not None:
            parts.append(each.completions._replace(rows=each.completions.rows + begin))
        begin += len(each)
    if not parts:
        return None
    return Completions(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.matrices for part in parts], 1),
        np.concatenate([part.inflation for part in parts]),
    )
