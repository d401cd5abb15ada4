"""A model folder: the saved estimator and ``table.json``, schema of its table and report of its fit."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from duogp.bench.results import finite
from duogp.cli.errors import note
from duogp.cli.options import files_in
from duogp.json_files import parse_json
from duogp.tables import Schema, TextForm, column_names_of, read_chunks
from duogp.tables.arrow import arrow
from duogp.tables.files import CHUNK_ROWS, column_types_of
from duogp.tables.schema import require_columns


@dataclass(frozen=True)
class SavedModel:
    """A model that `duogp fit` wrote, the schema of its table and the report of its fit."""

    folder: Path
    estimator: Any  # a GPRegressor or GPClassifier; None where the folder holds a model without one
    gp: Any
    schema: Schema
    report: dict[str, Any]  # of `duogp fit`
    form: TextForm = field(default_factory=TextForm)  # of the CSV files that it reads
    unseen: Counter[str] = field(default_factory=Counter)  # rows with an unknown category, by column
    gaps: Counter[str] = field(default_factory=Counter)  # rows with a gap that is new, by column

    @property
    def target(self) -> str:
        return self.schema.target.name if self.schema.target is not None else "y"

    @property
    def is_classifier(self) -> bool:
        return self.gp.classes is not None

    def new_rows(self, table: Any) -> Any:
        """The rows of a table as `NewRows`; those with values that are unknown to the model are counted."""
        from duogp.sklearn.new_rows import new_rows

        unknown = {name: int(rows.sum()) for name, rows in self.schema.unknown(table).items()}
        unseen = self.schema.unseen(table) if unknown else {}
        self.unseen.update(unseen)
        self.gaps.update({name: rest for name, n in unknown.items() if (rest := n - unseen.get(name, 0))})
        matrix = self.schema.encode(table).matrix
        return new_rows(self.gp, matrix, self.schema.completions(table, matrix) if unknown else None)

    def report_unseen(self) -> None:
        """A note for each column in which unknown categories or new gaps were met."""
        how = "they are predicted as an average over the values that it was fitted on, with wider intervals"
        for name, count in self.unseen.items():
            note(f"{count:,} rows have a {name!r} that the model was not fitted on: {how}")
        for name, count in self.gaps.items():
            note(f"{count:,} rows have no {name!r}, which the model was always given: {how}")

    def rows(
        self, path: str, *, target: bool = False, keep: list[str] | None = None, typed: bool = False
    ) -> Iterator[Any]:
        """Tables of a few rows of a file, or of files, with the column types that the model was fitted on.

        ``keep``: other columns, which are text in a CSV file, or with ``typed`` of the type that all their
        values have.
        """
        for each in files_in(path):
            yield from self._rows_of_file(each, target, keep or [], typed)

    def _rows_of_file(self, path: str, target: bool, keep: list[str], typed: bool) -> Iterator[Any]:
        types = self.schema.csv_types(target=target)
        if typed and keep:
            types = column_types_of(path, keep, self.form) | types
        names = column_names_of(path, self.form)
        require_columns(keep, names, "--keep")
        require_columns([self.target] if target else [], names, "the target")
        found = False
        for table in read_chunks(path, types, keep=keep, rows=CHUNK_ROWS, form=self.form):
            if table.num_rows:
                found = True
                yield table
        if not found:
            raise ValueError(f"{path!r} has no rows")

    def table(self, path: str) -> Any:
        """A whole file as one table, without its target."""
        return arrow().concat_tables(list(self.rows(path)))


def open_model(
    folder: str,
    device: str | None = None,
    *,
    encoding: str | None = None,
    decimal: str | None = None,
    from_python: bool = False,
) -> SavedModel:
    """The model in a folder that `duogp fit` wrote.

    ``encoding`` and ``decimal``: of the CSV files that it will read; None: those of the fit.
    ``from_python``: an estimator that was fitted to a frame and saved by `save` is taken too; it has the
    schema of its columns, and no name of a target.
    """
    from duogp.io import load
    from duogp.io.folder import file_of, undisturbed
    from duogp.io.kinds import TABLE

    path = Path(folder)
    if not path.exists():
        raise FileNotFoundError(f"there is no model folder {folder!r}; duogp fit makes one")
    description = path / TABLE

    def read() -> tuple[Any, bytes | None]:
        model = load(path, device=device)
        return model, file_of(path, TABLE) if description.is_file() else None

    loaded, data = undisturbed(path, read)
    given = {
        name: value for name, value in (("encoding", encoding), ("decimal", decimal)) if value is not None
    }
    if data is None:
        own = None if getattr(loaded, "_by_name", True) else loaded.schema_
        if from_python and own is not None:
            return SavedModel(path, loaded, loaded.gp_, own, {}, TextForm(**given))
        raise ValueError(
            f"{folder!r} has no {TABLE}: it was saved from Python, where duogp.load reads it. duogp export "
            "and serve take any saved model, predict and explain an estimator that was fitted to a frame; "
            "the other commands need a model that duogp fit wrote"
        )
    try:
        state = parse_json(data)
    except ValueError as error:
        raise ValueError(f"{str(description)!r} cannot be read: {error}") from None
    if not isinstance(state, dict) or not isinstance(state.get("fit"), dict):
        raise ValueError(f"{str(description)!r} is not what duogp fit writes")
    schema = Schema.from_dict(state.get("schema", {}))
    estimator = loaded if hasattr(loaded, "gp_") else None
    gp = loaded if estimator is None else estimator.gp_
    if len(schema.names) != len(gp.columns):
        raise ValueError(
            f"{folder!r}: {TABLE} describes {len(schema.names)} columns, the model has {len(gp.columns)}: "
            "they do not belong together"
        )
    form = TextForm(**{**(state["fit"].get("text") or {}), **given})
    return SavedModel(path, estimator, gp, schema, state["fit"], form)


def save_model(estimator: Any, schema: Schema, report: dict[str, Any], folder: Path) -> None:
    """Write the folder that `open_model` reads, all at once."""
    from duogp.io.kinds import TABLE, save

    text = json.dumps({"schema": schema.to_dict(), "fit": finite(report)}, indent=2, ensure_ascii=False)
    save(estimator, folder, {TABLE: (text + "\n").encode()})


def facts(gp: Any, schema: Schema) -> dict[str, Any]:
    """What reports of a model hold: task, classes, columns and inducing points.

    Networks have no inducing points, and neither has an exact GP, whose points are its rows: None.
    """
    try:
        num_inducing = None if gp.model.basis.points_are_rows else len(gp.inducing_points)
    except (AttributeError, ValueError, AssertionError):
        num_inducing = None
    return {
        "task": "regression" if gp.classes is None else "classification",
        "classes": None if gp.classes is None else gp.classes.tolist(),
        "columns": {column.name: column.kind for column in schema.columns},
        "inputs": len(schema.names),
        "dropped": dict(schema.dropped),
        "num_inducing": num_inducing,
    }


def rows_with_target(schema: Schema, table: Any) -> tuple[Any, NDArray, int]:
    """Rows of a table that have a target, their targets, and the number of rows without one."""
    values, there = schema.targets(table)
    missing = int((~there).sum())
    return (table.filter(arrow().array(there)) if missing else table), values[there], missing
