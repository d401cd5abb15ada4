"""The three commands behind ``duogp bench`` and ``python -m duogp.bench``; each returns an exit status."""

from __future__ import annotations

import json
from pathlib import Path

from duogp.bench.results import Results
from duogp.bench.runner import run
from duogp.bench.suite import Cell, load_suite
from duogp.bench.tables import compare, learned, render

SHOWN = 20


def run_suite(
    suite: str,
    *,
    results: str | Path | None = None,
    data: str | None = None,
    methods: str | None = None,
    splits: int | None = None,
    device: str | None = None,
    workers: int = 1,
    replicates: int = 1,
    time_limit: float | None = None,
) -> int:
    """Run what has no result yet; 1 when a cell failed."""
    loaded = load_suite(suite)
    cells = loaded.cells(names(data), names(methods), splits)
    path = Path(results or loaded.results)
    done = run(
        cells, path, device=device, workers=workers, replicates=replicates, time_limit=time_limit, report=say
    )
    say(f"{done.ok} finished, {done.failed} failed, {len(done.missing)} of {len(cells)} missing; {path}")
    for line in missing_lines(done.missing[:SHOWN], Results.read(path)):
        say(f"missing: {line}")
    if len(done.missing) > SHOWN:
        say(f"missing: and {len(done.missing) - SHOWN} more")
    return 1 if done.failed else 0


def table_of_suite(
    suite: str,
    *,
    results: str | Path | None = None,
    data: str | None = None,
    methods: str | None = None,
    splits: int | None = None,
    as_json: bool = False,
    learned_values: bool = False,
) -> int:
    """Print the paper's numbers beside ours."""
    loaded = load_suite(suite)
    found = Results.read(results or loaded.results)
    cells = loaded.cells(names(data), names(methods), splits)
    rows = (learned if learned_values else compare)(loaded, found, cells)
    if as_json:
        say(json.dumps([row.as_dict() for row in rows], indent=2))
    else:
        say(render(rows, loaded.source))
    return 0


def missing_of_suite(
    suite: str,
    *,
    results: str | Path | None = None,
    data: str | None = None,
    methods: str | None = None,
    splits: int | None = None,
) -> int:
    """List the cells without a successful row, in the order they would run."""
    loaded = load_suite(suite)
    found = Results.read(results or loaded.results)
    cells = loaded.cells(names(data), names(methods), splits)
    missing = found.missing(cells)
    for line in missing_lines(missing, found):
        say(line)
    say(f"{len(missing)} of {len(cells)} cells missing")
    return 0


def missing_lines(cells: list[Cell], found: Results) -> list[str]:
    """One line a cell, with the error of those that were tried."""
    lines = []
    for cell in cells:
        row = found.failure(cell)
        why = f" (failed: {row['error']['type']}: {row['error']['message']})" if row else ""
        lines.append(f"{cell}{why}".splitlines()[0])
    return lines


def names(text: str | None) -> list[str] | None:
    """``"pol,bike"`` → its parts; None stays None (all)."""
    return text.split(",") if text else None


def say(line: str) -> None:
    """Print at once, so that a log shows progress."""
    print(line, flush=True)
