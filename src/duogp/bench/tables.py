"""The paper's numbers beside ours: mean over splits, standard error, difference, verdict."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from duogp.bench.results import Results, Row
from duogp.bench.suite import Cell, Numbers, Suite

#: Metrics that papers report in another sign or unit than rows hold them: name → stored metric, factor.
DERIVED = {"loglik": ("nll", -1.0), "accuracy_percent": ("accuracy", 100.0)}
#: Everything else is better the lower it is.
HIGHER_IS_BETTER = frozenset({"loglik", "accuracy", "accuracy_percent"})
COLUMNS = ("data", "method", "paper", "ours", "splits", "difference", "verdict")


@dataclass(frozen=True)
class Comparison:
    """One number of a table: ours (None: not run) and the paper's (None: not there)."""

    data: str
    method: str
    metric: str
    ours: float | None
    paper: float | None
    stderr: float | None
    splits: int
    within: bool | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def verdict(self) -> str:
        if self.within is None:
            return "not run" if self.ours is None else ""
        return "ok" if self.within else "worse"


def compare(suite: Suite, results: Results, cells: Sequence[Cell] | None = None) -> list[Comparison]:
    """The suite's metrics for every data set and method, ours beside the paper's."""
    paths = {}
    for metric in suite.metrics:
        stored, factor = DERIVED.get(metric, (metric, 1.0))
        paths[metric] = (f"metrics.{stored}", factor)
    return list(_compare(suite, results, cells, paths, suite.paper))


def learned(suite: Suite, results: Results, cells: Sequence[Cell] | None = None) -> list[Comparison]:
    """Learned values (length-scales) beside those the paper reports; no verdict."""
    paths = {name: (f"hyperparameters.{key}", 1.0) for name, key in suite.learned.items()}
    rows = _compare(suite, results, cells, paths, suite.paper_learned)
    return [r for r in rows if r.paper is not None]


def within_tolerance(
    metric: str, ours: float | None, paper: float | None, tolerance: dict[str, float]
) -> bool | None:
    """Not worse than the paper's by more than the suite allows (the larger allowance); None if unknown."""
    if ours is None or paper is None:
        return None
    allowed = []
    if metric in tolerance:
        allowed.append(tolerance[metric])
    if f"{metric}_relative" in tolerance:
        allowed.append(abs(paper) * tolerance[f"{metric}_relative"])
    if not allowed:
        return None
    return ours >= paper - max(allowed) if metric in HIGHER_IS_BETTER else ours <= paper + max(allowed)


def render(rows: Sequence[Comparison], source: str = "", *, rich: bool | None = None) -> str:
    """Aligned text: one block per metric and, under it, how many are within tolerance."""
    if rich is None:
        rich = sys.stdout.isatty()
    draw = _rich_table if rich else _plain_table
    blocks = []
    for metric in dict.fromkeys(row.metric for row in rows):
        chosen = [row for row in rows if row.metric == metric]
        table = draw([_line(row) for row in chosen])
        blocks.append("\n".join([metric, table, *summary(chosen)]))
    if source:
        blocks.append(f"paper: {source}")
    return "\n\n".join(blocks)


def summary(rows: Sequence[Comparison]) -> list[str]:
    """``rmse SVGP: 6 of 7 within tolerance``, one line per metric and method."""
    lines = []
    for metric, method in dict.fromkeys((row.metric, row.method) for row in rows):
        judged = [r for r in rows if (r.metric, r.method) == (metric, method) and r.paper is not None]
        ran = [r for r in judged if r.within is not None]
        if ran:
            good, absent = sum(r.within is True for r in ran), len(judged) - len(ran)
            not_run = f" ({absent} not run)" if absent else ""
            lines.append(f"{metric} {method}: {good} of {len(judged)} within tolerance{not_run}")
    return lines


def _compare(
    suite: Suite,
    results: Results,
    cells: Sequence[Cell] | None,
    paths: dict[str, tuple[str, float]],
    paper: Numbers,
) -> Iterator[Comparison]:
    cells = suite.cells() if cells is None else cells
    for metric, (path, factor) in paths.items():
        for data in _in_order(suite.data, {c.data for c in cells}):
            for method in _in_order(suite.methods, {c.label for c in cells}):
                chosen = [c for c in cells if (c.data, c.label) == (data, method)]
                if not chosen:  # a method that is not for this data set
                    continue
                rows = [results.ok(c) for c in chosen]
                stored = [v for row in rows if row is not None and (v := _number_at(row, path)) is not None]
                values = [factor * value for value in stored]
                theirs = paper.get(metric, {}).get(data, {}).get(method)
                ours = statistics.fmean(values) if values else None
                yield Comparison(
                    data=data,
                    method=method,
                    metric=metric,
                    ours=ours,
                    paper=theirs,
                    stderr=statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None,
                    splits=len(values),
                    within=within_tolerance(metric, ours, theirs, suite.tolerance),
                )


def _in_order(entries: Iterable[Any], labels: set[str]) -> list[str]:
    return [e.label for e in entries if e.label in labels]


def _number_at(row: Row, path: str) -> float | None:
    """The number at a dotted path; of a list (ARD lengthscales) its mean."""
    value: Any = row
    while path and isinstance(value, dict):
        if path in value:  # names may hold dots themselves
            value, path = value[path], ""
        else:
            key, _, path = path.partition(".")
            value = value.get(key)
    return _mean(value)


def _mean(value: Any) -> float | None:
    if isinstance(value, list):
        parts = [p for v in value if (p := _mean(v)) is not None]
        return statistics.fmean(parts) if parts else None
    return float(value) if isinstance(value, int | float) else None


def _line(row: Comparison) -> tuple[str, ...]:
    number = "{:.4f}".format
    ours = "–" if row.ours is None else number(row.ours)
    if row.stderr is not None:
        ours += f" ± {row.stderr:.4f}"
    difference = "–" if row.ours is None or row.paper is None else f"{row.ours - row.paper:+.4f}"
    return (
        row.data,
        row.method,
        "–" if row.paper is None else number(row.paper),
        ours,
        str(row.splits),
        difference,
        row.verdict,
    )


def _plain_table(lines: Sequence[Sequence[str]]) -> str:
    table = [COLUMNS, *lines]
    widths = [max(len(line[i]) for line in table) for i in range(len(COLUMNS))]
    left = {"data", "method", "verdict"}
    aligned = [
        "  ".join(
            cell.ljust(w) if name in left else cell.rjust(w)
            for cell, w, name in zip(line, widths, COLUMNS, strict=True)
        ).rstrip()
        for line in table
    ]
    return "\n".join(aligned)


def _rich_table(lines: Sequence[Sequence[str]]) -> str:
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return _plain_table(lines)
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("data", "method", "verdict") else "right")
    colour = {"ok": "green", "worse": "red", "not run": "dim"}
    for line in lines:
        table.add_row(*line, style=None if line[-1] == "ok" else colour.get(line[-1]))
    console = Console()
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip("\n")
