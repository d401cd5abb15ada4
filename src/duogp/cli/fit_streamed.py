"""`duogp fit` on files that are larger than a limit: their rows are read in chunks, pass after pass."""

import os
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from duogp.cli.errors import note
from duogp.cli.model_folder import facts, save_model
from duogp.reports.effects import relevance

#: Bytes of files from which on rows are streamed, unless asked otherwise.
STREAM_BYTES = 2 * 2**30
#: The method of streamed rows unless one is asked for: "auto" needs all rows in memory.
METHOD = "svgp"
#: Rows over which noise is averaged.
NOISE_ROWS = 1024


def is_streamed(paths: list[str], asked: bool | None) -> bool:
    """Whether rows are streamed: as asked for, else by the size of the files; by several processes always."""
    from duogp.numerics.groups import launched_processes

    several = launched_processes() > 1
    if several and asked is False:
        raise ValueError("--no-stream reads all rows in one process: start it without torchrun")
    if asked is not None or several:
        return asked or several
    return sum(os.path.getsize(path) for path in paths if os.path.isfile(path)) > STREAM_BYTES


@dataclass(frozen=True)
class StreamedFit:
    """A fit of files in chunks, as it was asked for."""

    paths: list[str]
    target: str
    folder: Path  # of the model
    parameters: dict[str, Any]  # method and settings
    reading: dict[str, Any]  # options of `TableSource`
    form: Any  # of CSV files

    def run(self) -> dict[str, Any] | None:
        """Fit a GP and save it; the report of it.

        Of the processes that torchrun starts the first one saves and reports, the others give None.
        """
        from duogp.numerics.groups import launched

        start = time.perf_counter()
        with launched() as group:
            source = self._source()
            gp = self._fitted(source, leads=group.leads)
            if not group.leads:
                return None
            for name, reason in source.schema.dropped.items():
                if reason != "as asked":
                    note(f"column {name!r} is left out: {reason}")
            report = self._report(gp, source) | {"seconds": time.perf_counter() - start}
            save_model(gp, source.schema, report, self.folder)
            return report

    def _source(self) -> Any:
        from duogp.tables.streamed import TableSource

        seed = self.parameters["random_state"]
        return TableSource(self.paths, self.target, form=self.form, seed=seed, **self.reading)

    def _fitted(self, source: Any, *, leads: bool) -> Any:
        """The GP; ``leads``: whether this process writes the model and the report."""
        from duogp.api import fit
        from duogp.errors import DataWarning

        settings = self.parameters | ({} if leads else {"verbose": False})
        method = settings.pop("method")
        if method.lower() == "auto":
            if leads:
                files = f"{len(self.paths)} files" if len(self.paths) > 1 else "a file"
                note(f"rows are streamed from {files}: the method is {METHOD}, as auto needs all of them")
            method = METHOD
        if source.classes is not None:
            settings.setdefault("likelihood", "classes")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X: ", DataWarning)
            return fit(source, method=method, **settings)

    def _report(self, gp: Any, source: Any) -> dict[str, Any]:
        schema = source.schema
        some_rows = schema.encode(source.sample.slice(0, NOISE_ROWS)).matrix
        noise = None if gp.classes is not None else float(np.sqrt(np.mean(gp.predict(some_rows).noise)))
        return {
            "model": str(self.folder),
            "target": self.target,
            **facts(gp, schema),
            "rows": int(gp.model.num_data[0]),
            "rows_without_target": None,
            "imputed": {},
            "method": gp.method.name,
            "reasons": [],
            "likelihood": type(gp.model.likelihood).__name__,
            "noise_std": noise,
            "relevance": relevance(gp, schema),
            "validation_nll": gp.history.validation_nll,
            "validation_nll_y": gp.history.validation_nll_y,
            "notes": list(gp.history.notes),
            "test_rows": 0,
            "test": None,
            "text": asdict(self.form),
        }


def require_none(refused: dict[str, Any]) -> None:
    """An error for options that mean nothing to streamed rows, by their names."""
    if given := [name for name, value in refused.items() if value]:
        raise ValueError(f"{given[0]} is not possible on rows that are streamed; --no-stream reads them all")
