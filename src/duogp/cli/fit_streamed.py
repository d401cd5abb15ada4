"""`duogp fit` on files that are larger than a limit: their rows are read in chunks, pass after pass."""

import os
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from duogp.cli.errors import note
from duogp.cli.model_folder import facts, relevance, save_model

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


def fit_streamed(
    paths: list[str],
    target: str,
    folder: Path,
    parameters: dict[str, Any],
    reading: dict[str, Any],
    *,
    form: Any,
    refused: dict[str, Any],
) -> dict[str, Any] | None:
    """Fit a GP to files in chunks and save it; the report of it.

    ``parameters``: method and settings; ``reading``: options of `TableSource`; ``refused``: options that mean
    nothing to streamed rows, by their names, which must not have been given. Of the processes that torchrun
    starts the first one saves and reports, the others give None.
    """
    from duogp.numerics.groups import launched

    if given := [name for name, value in refused.items() if value]:
        raise ValueError(f"{given[0]} is not possible on rows that are streamed; --no-stream reads them all")
    with launched() as group:
        if not group.leads:
            parameters = parameters | {"verbose": False}
        return _fitted(paths, target, folder, parameters, reading, form, group.leads)


def _fitted(
    paths: list[str],
    target: str,
    folder: Path,
    parameters: dict[str, Any],
    reading: dict[str, Any],
    form: Any,
    leads: bool,
) -> dict[str, Any] | None:
    from duogp.api import fit
    from duogp.errors import DataWarning
    from duogp.tables.streamed import TableSource

    start = time.perf_counter()
    settings = dict(parameters)
    method = settings.pop("method")
    if method.lower() == "auto":
        if leads:
            files = f"{len(paths)} files" if len(paths) > 1 else "a file"
            note(f"rows are streamed from {files}: the method is {METHOD}, as auto needs all of them")
        method = METHOD
    source = TableSource(paths, target, form=form, seed=settings["random_state"], **reading)
    if source.classes is not None:
        settings.setdefault("likelihood", "classes")
    schema = source.schema
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X: ", DataWarning)
        gp: Any = fit(source, method=method, **settings)
    if not leads:
        return None
    for name, reason in schema.dropped.items():
        if reason != "as asked":
            note(f"column {name!r} is left out: {reason}")
    some_rows = schema.encode(source.sample.slice(0, NOISE_ROWS)).matrix
    report = {
        "model": str(folder),
        "target": target,
        **facts(gp, schema),
        "rows": int(gp.model.num_data[0]),
        "rows_without_target": None,
        "imputed": {},
        "method": gp.method.name,
        "reasons": [],
        "likelihood": type(gp.model.likelihood).__name__,
        "noise_std": None if gp.classes is not None else float(np.sqrt(np.mean(gp.predict(some_rows).noise))),
        "relevance": relevance(gp, schema),
        "validation_nll": gp.history.validation_nll,
        "notes": list(gp.history.notes),
        "test_rows": 0,
        "test": None,
        "text": asdict(form),
        "seconds": time.perf_counter() - start,
    }
    save_model(gp, schema, report, folder)
    return report
