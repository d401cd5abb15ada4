"""A model folder: the saved estimator, and beside it ``table.json``, which says what the table was."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import duogp
from duogp.cli.manners import say
from duogp.io.kinds import TABLE
from duogp.tables import Schema, column_names_of, read_chunks
from duogp.tables.files import CHUNK_ROWS, column_types_of
from duogp.tables.schema import require_columns


@dataclass(frozen=True)
class SavedModel:
    folder: Path
    estimator: Any  # a GPRegressor or GPClassifier; None where the folder holds a bare model
    gp: Any
    schema: Schema
    report: dict[str, Any]  # what `duogp fit` said
    unseen: dict[str, int] = field(default_factory=dict)  # rows with categories that are new, by column

    def encode(self, table: Any) -> NDArray[np.float64]:
        """Rows as the model takes them; categories that it does not know are counted."""
        for name, count in self.schema.unseen(table).items():
            self.unseen[name] = self.unseen.get(name, 0) + count
        return self.schema.encode(table).matrix

    def tell_unseen(self) -> None:
        for name, count in self.unseen.items():
            say(
                f"note: {count:,} rows have a {name!r} that the model was not fitted on; their predictions "
                "leave it out, and their intervals do not know it",
                "yellow",
            )

    @property
    def target(self) -> str:
        return self.schema.target.name if self.schema.target is not None else "y"

    @property
    def is_classifier(self) -> bool:
        return self.gp.classes is not None

    def rows(
        self, path: str, *, target: bool = False, keep: list[str] | None = None, typed: bool = False
    ) -> Iterator[Any]:
        """A file in tables of a few rows, read as the columns were when the model was fitted.

        ``keep``: other columns, which a CSV has as text; ``typed``: as what the whole of it says they are.
        """
        found = False
        types = self.schema.csv_types(target=target)
        if typed and keep:
            types = column_types_of(path, keep) | types
        names = column_names_of(path)
        require_columns(keep or [], names, "--keep")
        require_columns([self.target] if target else [], names, "the target")
        for table in read_chunks(path, types, keep=keep or [], rows=CHUNK_ROWS):
            found |= table.num_rows > 0
            if table.num_rows:
                yield table
        if not found:
            raise ValueError(f"{path!r} has no rows")

    def table(self, path: str, *, target: bool = True) -> Any:
        """A whole file as one table."""
        from duogp.tables.arrow import arrow

        return arrow().concat_tables(list(self.rows(path, target=target)))


def open_model(folder: str, device: str | None = None) -> SavedModel:
    """Load a folder that `duogp fit` wrote; a clear error for anything else."""
    path = Path(folder)
    if not path.exists():
        raise FileNotFoundError(f"there is no model folder {folder!r}; duogp fit makes one")
    loaded = duogp.load(path, device=device)
    description = path / TABLE
    if not description.is_file():
        raise ValueError(
            f"{folder!r} has no {TABLE}: it was saved from Python, where duogp.load reads it; the command "
            "line needs a model that duogp fit wrote"
        )
    try:
        state = json.loads(description.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{str(description)!r} cannot be read: {error}") from None
    if not isinstance(state, dict) or not isinstance(state.get("fit"), dict):
        raise ValueError(f"{str(description)!r} is not what duogp fit writes")
    schema = Schema.from_dict(state.get("schema", {}))
    is_estimator = hasattr(loaded, "gp_")
    gp = loaded.gp_ if is_estimator else loaded
    if len(schema.names) != len(gp.columns):
        raise ValueError(
            f"{folder!r}: {TABLE} describes {len(schema.names)} columns, the model has {len(gp.columns)}: "
            "they do not belong together"
        )
    return SavedModel(path, loaded if is_estimator else None, gp, schema, state["fit"])


def save_model(estimator: Any, schema: Schema, report: dict[str, Any], folder: Path) -> None:
    from duogp.cli.showing import plain

    estimator.save(folder)
    text = json.dumps({"schema": schema.to_dict(), "fit": plain(report)}, indent=2, ensure_ascii=False)
    (folder / TABLE).write_text(text + "\n", encoding="utf-8")


def relevance(gp: Any, schema: Schema) -> dict[str, float] | None:
    """1 / lengthscale of each column of the table as a share of their sum, the largest first.

    A column that became several inputs counts by the shortest of their lengthscales.

    Of decoupled conditionals it is that of the mean's kernel. None where there is not one lengthscale for
    each input: a kernel without them, one for all columns, or a network's features.
    """
    if not hasattr(gp, "hyperparameters"):
        return None
    learned = gp.hyperparameters()
    found = learned.get("lengthscale_mean", learned.get("lengthscale"))
    columns = np.asarray(gp.columns, dtype=bool)
    try:
        lengths = np.atleast_1d(np.asarray(found, dtype=np.float64))
    except (TypeError, ValueError):
        return None
    used = int(columns.sum())
    extractor = gp.method is not None and getattr(gp.method, "has_network", False)
    if extractor or lengths.shape[-1] != used or not (lengths > 0).all():
        return None
    inverse = np.zeros(len(columns))
    inverse[columns] = (1 / lengths).reshape(-1, used).mean(0)
    sources = np.array(schema.sources)
    shares = {c.name: float(inverse[sources == c.name].max()) for c in schema.columns}
    total = sum(shares.values())
    if not total > 0:
        return None
    return dict(sorted(((name, value / total) for name, value in shares.items()), key=lambda p: -p[1]))


def rows_with_target(schema: Schema, table: Any) -> tuple[Any, NDArray, int]:
    """Rows of a table that have a target, their targets, and how many rows had none."""
    values, there = schema.targets(table)
    if not there.any():
        raise ValueError("no row has a target")
    missing = int((~there).sum())
    return (table.filter(_mask(there)) if missing else table), values[there], missing


def _mask(there: NDArray[np.bool_]) -> Any:
    from duogp.tables.arrow import arrow

    return arrow().array(there)
