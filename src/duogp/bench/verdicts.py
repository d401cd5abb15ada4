"""Verdicts by rule: a table against its paper, cell by cell and by the order of its methods."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from duogp.bench.report import HIGHER_IS_BETTER, Comparison
from duogp.bench.suite import Suite


@dataclass(frozen=True)
class TableVerdict:
    """One metric of one suite beside its paper.

    ``within``, ``better``, ``worse``: cells by the two-sided tolerance; ``missing``: cells of the paper that
    have not run; ``without_cell``: numbers of the paper for which the suite has no cell. ``order``: Kendall's
    τ-b of the methods' order, ours against the paper's, for every data set with three methods or more.
    """

    suite: str
    metric: str
    within: int
    better: int
    worse: int
    missing: int
    without_cell: int
    stale: int
    order: dict[str, float]

    @property
    def judged(self) -> int:
        return self.within + self.better + self.worse

    @property
    def median_order(self) -> float | None:
        """The median of τ over the data sets."""
        return statistics.median(self.order.values()) if self.order else None

    def sentence(self) -> str:
        """``rmse: of 28 cells 20 within, …; order of methods: median τ 0.67 (7 sets)``."""
        text = (
            f"{self.metric}: of {self.judged} cells {self.within} within tolerance, {self.better} better, "
            f"{self.worse} worse; {self.missing} not run"
        )
        if self.without_cell:
            text += f", {self.without_cell} numbers of the paper without a cell"
        if self.median_order is not None:
            low, high = min(self.order.values()), max(self.order.values())
            text += (
                f"; order of methods: τ {self.median_order:.2f} (median of {len(self.order)} sets, "
                f"{low:.2f} to {high:.2f})"
            )
        return text.replace("-", "−")


def judge(suite: Suite, rows: Sequence[Comparison]) -> list[TableVerdict]:
    """The verdicts of a suite's metrics that the paper reports, given all its comparisons."""
    out = []
    for metric in suite.metrics:
        mine = [row for row in rows if row.metric == metric and row.paper is not None]
        if not mine:
            continue
        count = {name: sum(row.verdict == name for row in mine) for name in ("ok", "better", "worse")}
        out.append(
            TableVerdict(
                suite=suite.name,
                metric=metric,
                within=count["ok"],
                better=count["better"],
                worse=count["worse"],
                missing=sum(row.ours is None for row in mine),
                without_cell=len(list(without_cell(suite, metric))),
                stale=sum(row.stale > 0 for row in mine),
                order=dict(_orders(mine)),
            )
        )
    return out


def without_cell(suite: Suite, metric: str) -> Iterator[tuple[str, str, float]]:
    """(data, method, number) of the paper for which the suite has no cell."""
    pairs = {(cell.data, cell.label) for cell in suite.cells(splits=1)}
    for data, numbers in suite.paper.get(metric, {}).items():
        for method, number in numbers.items():
            if (data, method) not in pairs:
                yield data, method, number


def _orders(rows: Sequence[Comparison]) -> Iterator[tuple[str, float]]:
    """Kendall's τ-b of every data set with at least three methods that both have."""
    for data in dict.fromkeys(row.data for row in rows):
        both = [
            (r.ours, r.paper) for r in rows if r.data == data and r.ours is not None and r.paper is not None
        ]
        if len(both) >= 3 and math.isfinite(tau := kendall(*zip(*both, strict=True))):
            yield data, tau


def kendall(ours: Sequence[float], paper: Sequence[float]) -> float:
    """Kendall's τ-b of two lists; NaN where one of them is constant."""
    from scipy.stats import kendalltau

    return float(kendalltau(ours, paper).statistic)


def ranks(rows: Sequence[Comparison], metric: str) -> dict[str, float]:
    """Mean rank of every method over the data sets that all methods with a result share; 1 is the best."""
    mine = [row for row in rows if row.metric == metric and row.ours is not None]
    methods = list(dict.fromkeys(row.method for row in mine))
    by_set = {
        data: {row.method: row.ours for row in mine if row.data == data}
        for data in dict.fromkeys(row.data for row in mine)
    }
    complete = [values for values in by_set.values() if len(values) == len(methods)]
    if len(methods) < 2 or not complete:
        return {}
    from scipy.stats import rankdata

    sign = -1.0 if metric in HIGHER_IS_BETTER else 1.0
    each = [rankdata([sign * float(values[m] or 0.0) for m in methods]) for values in complete]
    return {m: statistics.fmean(float(r[i]) for r in each) for i, m in enumerate(methods)}
