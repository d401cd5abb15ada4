"""Tables of the paper's numbers beside ours: mean over splits, standard error, difference, verdict."""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from duogp.bench.results import Results, Row
from duogp.bench.suite import Cell, Numbers, Suite

#: Metrics that papers report in another sign or unit than rows hold them: name → stored metric, factor.
DERIVED = {"loglik": ("nll", -1.0), "accuracy_percent": ("accuracy", 100.0)}
#: Everything else is better the lower it is.
HIGHER_IS_BETTER = frozenset({"loglik", "accuracy", "accuracy_percent"})
COLUMNS = ("data", "method", "paper", "ours", "splits", "difference", "verdict")
#: Terminal colours of lines, by verdict: red and faint.
COLOURS = {"worse": "\033[31m", "not run": "\033[2m"}
#: Columns of text; all others are numbers.
TEXTS = frozenset({"data", "method", "verdict"})


@dataclass(frozen=True)
class Comparison:
    """One number of a table: ours (None: not run) and the paper's (None: not reported)."""

    data: str
    method: str
    metric: str
    ours: float | None
    paper: float | None
    stderr: float | None
    splits: int
    within: bool | None

    @property
    def verdict(self) -> str:
        if self.within is None:
            return "not run" if self.ours is None else ""
        return "ok" if self.within else "worse"


def compare(suite: Suite, results: Results, cells: Sequence[Cell] | None = None) -> list[Comparison]:
    """The suite's metrics for every data set and method, ours beside the paper's."""
    stored = {metric: DERIVED.get(metric, (metric, 1.0)) for metric in suite.metrics}
    paths = {metric: (f"metrics.{name}", factor) for metric, (name, factor) in stored.items()}
    return list(_compare(suite, results, cells, paths, suite.paper))


def learned(suite: Suite, results: Results, cells: Sequence[Cell] | None = None) -> list[Comparison]:
    """Learned values (length-scales) beside those the paper reports; no verdict."""
    paths = {name: (f"hyperparameters.{key}", 1.0) for name, key in suite.learned.items()}
    rows = _compare(suite, results, cells, paths, suite.paper_learned)
    return [r for r in rows if r.paper is not None]


def within_tolerance(
    metric: str, ours: float | None, paper: float | None, tolerance: dict[str, float]
) -> bool | None:
    """Whether ours is not worse than the paper's by more than the suite allows (the larger allowance).

    None where a number or the allowance is not known.
    """
    if ours is None or paper is None:
        return None
    scales = {metric: 1.0, f"{metric}_relative": abs(paper)}
    allowed = [scale * tolerance[name] for name, scale in scales.items() if name in tolerance]
    if not allowed:
        return None
    return ours >= paper - max(allowed) if metric in HIGHER_IS_BETTER else ours <= paper + max(allowed)


def render(rows: Sequence[Comparison], source: str = "", *, rich: bool | None = None) -> str:
    """Aligned text: one block per metric and, under it, how many are within tolerance.

    ``rich``: with colours, by default on a terminal (unless the environment has NO_COLOR).
    """
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR") if rich is None else rich
    blocks = []
    for metric in dict.fromkeys(row.metric for row in rows):
        chosen = [row for row in rows if row.metric == metric]
        head, *lines = text_table(COLUMNS, [_line(row) for row in chosen]).split("\n")
        if coloured:
            colours = [COLOURS.get(row.verdict) for row in chosen]
            lines = [f"{c}{line}\033[0m" if c else line for c, line in zip(colours, lines, strict=True)]
        blocks.append("\n".join([metric, head, *lines, *summary(chosen)]))
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
    by_pair: dict[tuple[str, str], list[Cell]] = {}
    for cell in suite.cells() if cells is None else cells:
        by_pair.setdefault((cell.data, cell.label), []).append(cell)
    pairs = [(d.label, m.label) for d in suite.data for m in suite.methods if (d.label, m.label) in by_pair]
    for metric, (path, factor) in paths.items():
        for data, method in pairs:
            rows = [row for cell in by_pair[data, method] if (row := results.ok(cell)) is not None]
            values = [factor * value for row in rows if (value := _number_at(row, path)) is not None]
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
    paper, ours = ("–" if value is None else f"{value:.4f}" for value in (row.paper, row.ours))
    if row.stderr is not None:
        ours += f" ± {row.stderr:.4f}"
    difference = "–" if row.ours is None or row.paper is None else f"{row.ours - row.paper:+.4f}"
    return row.data, row.method, paper, ours, str(row.splits), difference, row.verdict


def text_table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A head and lines in aligned columns: texts to the left, numbers to the right."""
    table = [columns, *lines]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    sides = ["<" if name in TEXTS else ">" for name in columns]
    aligned = [[f"{c:{s}{w}}" for c, s, w in zip(line, sides, widths, strict=True)] for line in table]
    return "\n".join("  ".join(line).rstrip() for line in aligned)
