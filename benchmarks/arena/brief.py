"""One half in brief, as the README has it: mean ranks, sets won and lost, Holm's p; and pages with marks.

python -m arena table --brief blind-3
python -m arena table --page ../docs/arena.md     the report between the marks of the page
python -m arena table --brief blind-3 --page ../README.md
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from arena.contestants import OURS
from arena.ranks import holm, paired, ranks
from arena.standings import METRICS, Standing, families

#: Marks of a page between which a report stands: of the whole report, and of one half in brief.
WHOLE, BRIEF = "arena-report", "arena-brief"
SHOWN = {
    "HGB + MAPIE": "HistGradientBoosting, conformal",
    "Deep ensemble": "deep ensemble",
    "Quantile forest": "quantile forest",
    "Random forest": "random forest",
    "Logistic regression": "logistic regression",
}
WHAT = {"regression": "numbers", "classification": "classes"}


def brief_table(kind: str, standings: dict[str, Standing]) -> str:
    """One table of a kind: a line per family, a column per metric; the best mean rank is bold."""
    columns = {METRICS[kind][metric]: _cells(families(found)[0]) for metric, found in standings.items()}
    first = next(iter(columns.values()))
    sets = len(next(iter(standings.values())).sets)
    heads = [f"{sets} tables of {WHAT[kind]}", *columns]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name in sorted(first, key=lambda name: (name != OURS, first[name][0])):
        label = "**duogp, untouched**" if name == OURS else SHOWN.get(name, name)
        lines.append("| " + " | ".join([label, *(column[name][1] for column in columns.values())]) + " |")
    return "\n".join(lines)


def _cells(found: Standing) -> dict[str, tuple[float, str]]:
    """Of each family its mean rank and the text of its cell."""
    means = ranks(found.scores).mean(0)
    peers = [name for name in found.names if name != OURS]
    tests = {name: paired(found.column(OURS), found.column(name)) for name in peers}
    adjusted = dict(zip(peers, holm(np.array([tests[name].p for name in peers])), strict=True))
    cells = {}
    for mean, name in zip(means, found.names, strict=True):
        text = f"**{mean:.2f}**" if mean == means.min() else f"{mean:.2f}"
        if name != OURS:
            text += f" ({tests[name].wins}–{tests[name].losses}, {_p(adjusted[name])})"
        cells[name] = (float(mean), text)
    return cells


def _p(value: float) -> str:
    """One digit: 0.3, 0.002, 4e-4."""
    text = f"{value:.1g}"
    return text.replace("e-0", "e-") if "e" in text or value >= 1e-3 else f"{value:.0e}".replace("e-0", "e-")


def put(page: Path, mark: str, text: str) -> None:
    """Replace what stands between ``<!-- mark -->`` and ``<!-- /mark -->``."""
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    whole = page.read_text(encoding="utf-8")
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise SystemExit(f"{page.name} needs the marks {begin} and {end}, each once")
    head, rest = whole.split(begin)
    tail = rest.split(end)[1]
    page.write_text(f"{head}{begin}\n{text.strip()}\n{end}{tail}", encoding="utf-8")
