"""The state of every cell of a suite: done, stale, failed or missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from duogp.bench.numerics import Ledger
from duogp.bench.provenance import staleness
from duogp.bench.results import Results, Row
from duogp.bench.suite import REPOSITORY, Cell, Suite, load_suite

#: States in the order they are shown.
STATES = ("done", "stale", "failed", "missing")
#: Cells of one state that `status_lines` names.
LISTED = 12


@dataclass(frozen=True)
class CellState:
    """A cell, its state and why: the reasons of a stale row, the error of a failed one."""

    cell: Cell
    state: str
    why: str = ""
    row: Row | None = None


@cache
def ledger() -> Ledger:
    """The repository's ledger of numerics versions."""
    return Ledger.read()


def state_of(cell: Cell, results: Results, known: Ledger | None = None) -> CellState:
    """The state of one cell, by its latest successful row or else its latest failure."""
    if (row := results.ok(cell)) is not None:
        reasons = staleness(row, ledger() if known is None else known)
        return CellState(cell, "stale" if reasons else "done", "; ".join(reasons), row)
    if (row := results.failure(cell)) is not None:
        error = row["error"]
        return CellState(cell, "failed", f"{error['type']}: {error['message']}".splitlines()[0], row)
    return CellState(cell, "missing")


def states(suite: Suite, results: Results, cells: Iterable[Cell] | None = None) -> list[CellState]:
    """The states of a suite's cells, in the order they run."""
    return [state_of(cell, results) for cell in (suite.cells() if cells is None else cells)]


def is_stale(row: Row) -> bool:
    """Whether a row may not be what the library computes now."""
    return bool(staleness(row, ledger()))


def every_suite(folder: Path | None = None) -> list[Suite]:
    """All suites of a folder, by default ``benchmarks/suites`` here or of the repository."""
    here = Path("benchmarks/suites")
    places = [folder] if folder else [here, REPOSITORY / "benchmarks" / "suites"]
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        raise FileNotFoundError(f"no suites in {' or '.join(map(str, places))}")
    return [load_suite(path) for path in sorted(found.glob("*.toml"))]


def counts(found: Sequence[CellState]) -> dict[str, int]:
    """The number of cells of every state."""
    counted = Counter(each.state for each in found)
    return {state: counted[state] for state in STATES}


def status_lines(suite: Suite, found: Sequence[CellState], *, listed: int = LISTED) -> list[str]:
    """``paper_dc: 280 cells, 10 done, …``, and under it the first cells of each state that is not done."""
    parts = ", ".join(f"{count} {state}" for state, count in counts(found).items())
    lines = [f"{suite.name}: {len(found)} cells, {parts}"]
    for state in STATES[1:] if listed else ():
        chosen = [each for each in found if each.state == state]
        for each in chosen[:listed]:
            lines.append(f"  {state}: {each.cell}" + (f" ({each.why})" if each.why else ""))
        if len(chosen) > listed:
            lines.append(f"  {state}: and {len(chosen) - listed} more")
    return lines
