"""Tables of the paper's numbers beside ours: mean over splits, standard error, difference, verdict.

A verdict is two-sided: "ok" within the suite's tolerance, else "better" or "worse" than the paper.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from duogp.bench.results import Results, Row
from duogp.bench.status import is_stale
from duogp.bench.suite import Cell, Numbers, Suite

#: Metrics that papers report in another sign or unit than rows hold them: name → stored metric, factor.
DERIVED = {"loglik": ("nll", -1.0), "accuracy_percent": ("accuracy", 100.0)}
#: Everything else is better the lower it is.
HIGHER_IS_BETTER = frozenset({"loglik", "accuracy", "accuracy_percent"})
#: Relative room for the rounding of a difference that is exactly the tolerance.
ROUNDING = 1e-9
COLUMNS = ("data", "method", "paper", "ours", "splits", "difference", "verdict", "stale")
#: Terminal colours of lines, by verdict: red, green and faint.
COLOURS = {"worse": "\033[31m", "better": "\033[32m", "not run": "\033[2m"}
#: Columns of text; all others are numbers.
TEXTS = frozenset({"data", "method", "verdict", "stale"})


@dataclass(frozen=True)
class Comparison:
    """One number of a table: ours (None: not run) and the paper's (None: not reported).

    ``within``: whether they differ by no more than the tolerance, on either side; ``stale``: how many of the
    splits have a stale row (`duogp.bench.provenance`).
    """

    data: str
    method: str
    metric: str
    ours: float | None
    paper: float | None
    stderr: float | None
    splits: int
    within: bool | None
    stale: int = 0

    @property
    def verdict(self) -> str:
        """``ok``, ``better``, ``worse``, ``not run``, or nothing without a paper's number or a tolerance."""
        if self.within is None or self.ours is None or self.paper is None:
            return "not run" if self.ours is None else ""
        if self.within:
            return "ok"
        return "better" if (self.ours > self.paper) == (self.metric in HIGHER_IS_BETTER) else "worse"


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
    """Whether ours differs from the paper's by no more than the suite allows (the larger allowance).

    None where a number or the allowance is not known.
    """
    if ours is None or paper is None:
        return None
    scales = {metric: 1.0, f"{metric}_relative": abs(paper)}
    allowed = [scale * tolerance[name] for name, scale in scales.items() if name in tolerance]
    if not allowed:
        return None
    return abs(ours - paper) <= max(allowed) * (1 + ROUNDING)


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
    """``rmse SVGP: of 7 cells 5 within tolerance, 1 better, 1 worse``, one line per metric and method."""
    lines = []
    for metric, method in dict.fromkeys((row.metric, row.method) for row in rows):
        judged = [r for r in rows if (r.metric, r.method) == (metric, method) and r.paper is not None]
        ran = [r for r in judged if r.within is not None]
        if ran:
            good, better, worse = (sum(r.verdict == v for r in ran) for v in ("ok", "better", "worse"))
            counts = f"{good} within tolerance, {better} better, {worse} worse"
            not_run = f" ({len(judged) - len(ran)} not run)" if len(judged) > len(ran) else ""
            lines.append(f"{metric} {method}: of {len(ran)} cells {counts}{not_run}")
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
            values = [factor * value for row in rows if (value := number_at(row, path)) is not None]
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
                stale=sum(map(is_stale, rows)),
            )


def number_at(row: Row, path: str) -> float | None:
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
    stale = f"{row.stale} of {row.splits}" if row.stale else ""
    return row.data, row.method, paper, ours, str(row.splits), difference, row.verdict, stale


def text_table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A head and lines in aligned columns: texts to the left, numbers to the right."""
    table = [columns, *lines]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    sides = ["<" if name in TEXTS else ">" for name in columns]
    aligned = [[f"{c:{s}{w}}" for c, s, w in zip(line, sides, widths, strict=True)] for line in table]
    return "\n".join("  ".join(line).rstrip() for line in aligned)
