"""Claims of the papers, decided from the store: holds, does not hold, or cannot be told.

``benchmarks/claims.toml`` lists them. A claim says that one method is better than another in a metric, on
all or some of the data sets. Its **units** are the data sets, each with the mean difference over the splits
that both methods have; with fewer than `FEW_SETS` sets the units are pairs of set and split (for experiments:
set and seed). The test is Wilcoxon's signed-rank test of the units, one-sided, at `LEVEL`: the claim *holds*
where the differences are significantly in its direction, *does not hold* where they are significantly in the
other, and *cannot be told* otherwise. The effect is the median difference of the units, positive in the
claim's direction.
"""

from __future__ import annotations

import json
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duogp.bench.report import DERIVED, HIGHER_IS_BETTER, number_at
from duogp.bench.results import Results, Row
from duogp.bench.status import is_stale
from duogp.bench.suite import REPOSITORY, find_suite, load_suite

CLAIMS = REPOSITORY / "benchmarks" / "claims.toml"
#: Level of the one-sided tests.
LEVEL = 0.05
#: Below so many data sets a unit is a set and a split.
FEW_SETS = 5
HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be told"

#: (data, split) → value, for one method.
Values = dict[tuple[str, str], float]


@dataclass(frozen=True)
class Source:
    """A results file of an experiment: the fields of its rows for data set, method and repetition."""

    name: str
    file: str
    data: str
    method: str
    split: str
    where: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """``better`` beats ``than`` in ``metric``, as ``paper`` says at ``place``."""

    text: str
    paper: str
    place: str
    source: str  # a suite, or an experiment of [[sources]]
    metric: str
    better: str
    than: str
    data: tuple[str, ...] | None = None
    higher: bool | None = None  # whether more is better; None: by the metric


@dataclass(frozen=True)
class Decision:
    """The verdict on a claim, with the numbers behind it."""

    claim: Claim
    verdict: str
    sets: int = 0
    units: int = 0
    wins: int = 0
    effect: float | None = None
    p: float | None = None  # one-sided, in the direction that was seen
    stale: int = 0
    rows: int = 0
    note: str = ""

    @property
    def unit(self) -> str:
        return "sets" if self.units == self.sets else "pairs"

    @property
    def numbers(self) -> str:
        """``6 of 7 sets, p = 0.016, median difference +0.0062``, or why there are none."""
        if self.effect is None or self.p is None:
            return self.note
        n = f"{self.wins} of {self.units} {self.unit}"
        return f"{n}, p = {self.p:.2g}, median difference {self.shown_effect}"

    @property
    def shown_effect(self) -> str:
        """The median difference with its sign, to three digits."""
        if self.effect is None:
            return ""
        large = abs(self.effect) >= 1000
        return (f"{self.effect:+,.0f}" if large else f"{self.effect:+.3g}").replace("-", "−")


def load_claims(path: Path = CLAIMS) -> tuple[list[Claim], dict[str, Source]]:
    """The claims of a file and the experiments they refer to."""
    raw = tomllib.loads(path.read_text("utf-8"))
    sources = {table["name"]: Source(**table) for table in raw.get("sources", [])}
    claims = []
    for table in raw.get("claims", []):
        sets = table.get("data")
        try:
            claims.append(Claim(**table | {"data": None if sets is None else tuple(sets)}))
        except TypeError as error:
            raise ValueError(f"{path.name}: {table.get('text', table)}: {error}") from None
    return claims, sources


def decide(claim: Claim, sources: Mapping[str, Source], results: Path | None = None) -> Decision:
    """The verdict on a claim from the rows of its suite or experiment."""
    folder = results or REPOSITORY / "benchmarks" / "results"
    if (source := sources.get(claim.source)) is not None:
        rows = list(_experiment_rows(claim, source, folder / source.file))
    else:
        try:
            rows = list(_suite_rows(claim, results))
        except FileNotFoundError:
            return Decision(claim, OPEN, note=f"no suite {claim.source}")
    if claim.data is not None:
        rows = [row for row in rows if row[0] in claim.data]
    names = (claim.better, claim.than)
    first, second = ({(d, s): v for d, s, m, v, _ in rows if m == name} for name in names)
    sign = 1.0 if _more_is_better(claim) else -1.0
    differences: Values = {key: sign * (first[key] - second[key]) for key in first if key in second}
    if not differences:
        absent = [name for name, found in zip(names, (first, second), strict=True) if not found]
        note = f"not run: {' and '.join(absent)}" if absent else "no set that both have"
        return Decision(claim, OPEN, note=note)
    used = [row for row in rows if (row[0], row[1]) in differences and row[2] in names]
    return _decide(claim, differences, stale=sum(row[4] for row in used), rows=len(used))


def _decide(claim: Claim, differences: Values, stale: int, rows: int) -> Decision:
    by_set: dict[str, list[float]] = {}
    for (data, _), value in differences.items():
        by_set.setdefault(data, []).append(value)
    means = [statistics.fmean(values) for values in by_set.values()]
    units = means if len(means) >= FEW_SETS else list(differences.values())
    greater, less = signed_rank(units)
    verdict = HOLDS if greater < LEVEL else FAILS if less < LEVEL else OPEN
    return Decision(
        claim, verdict, sets=len(by_set), units=len(units), wins=sum(u > 0 for u in units),
        effect=statistics.median(units), p=min(greater, less), stale=stale, rows=rows,
    )  # fmt: skip


def signed_rank(differences: Sequence[float]) -> tuple[float, float]:
    """One-sided p-values of Wilcoxon's signed-rank test: that differences are above zero, and below.

    Zeros are dropped; without a difference both are 1.
    """
    from scipy.stats import wilcoxon

    kept = [d for d in differences if d != 0]
    if not kept:
        return 1.0, 1.0
    greater, less = (float(wilcoxon(kept, alternative=side).pvalue) for side in ("greater", "less"))
    return greater, less


def _more_is_better(claim: Claim) -> bool:
    return claim.metric in HIGHER_IS_BETTER if claim.higher is None else claim.higher


#: data, repetition, method, value, whether the row is stale
Found = tuple[str, str, str, float, bool]


def _suite_rows(claim: Claim, folder: Path | None) -> Iterator[Found]:
    suite = load_suite(find_suite(claim.source))
    path = suite.results if folder is None else folder / f"{suite.name}.jsonl"
    found = Results.read(path)
    name, factor = DERIVED.get(claim.metric, (claim.metric, 1.0))
    for cell in suite.cells():
        if cell.label in (claim.better, claim.than) and (row := found.ok(cell)) is not None:
            value = number_at(row, name if name.startswith("hyperparameters.") else f"metrics.{name}")
            if value is not None:
                yield cell.data, str(cell.split), cell.label, factor * value, is_stale(row)


def _experiment_rows(claim: Claim, source: Source, path: Path) -> Iterator[Found]:
    for row in _lines(path):
        value = number_at(row, claim.metric)
        if value is not None and all(row.get(k) == v for k, v in source.where.items()):
            data, split, method = (str(row[name]) for name in (source.data, source.split, source.method))
            yield data, split, method, value, is_stale(row)


def _lines(path: Path) -> Iterator[Row]:
    """The rows of a file of JSON lines; none where there is no file."""
    if path.is_file():
        for line in path.read_text("utf-8").splitlines():
            if line.strip():
                yield json.loads(line)
