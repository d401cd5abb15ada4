"""The report: mean ranks, paired tests and all sets in markdown; critical-difference and rank figures."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arena.brief import BRIEF, WHOLE, brief_table, put
from arena.contestants import OURS
from arena.ranks import critical_difference, friedman, holm, paired, ranks
from arena.run import RESULTS, read_rows
from arena.standings import METRICS, Row, Standing, families, latest, standing
from arena.tables import BLIND

HALVES = ("choice", "report", *BLIND)
#: Nats by which our NLL may be worse than the best peer's on a set.
TOLERANCE = 0.1


class Report:
    """The rows of a results file, and what is said of them."""

    def __init__(self, rows: list[Row], labels: Sequence[str], within: float | None = None) -> None:
        self.rows, self.labels, self.within = rows, list(labels), within

    def standing(self, kind: str, metric: str, half: str) -> Standing:
        return standing(self.rows, kind, metric, self.labels, half, self.within)

    def kinds(self) -> list[str]:
        return [kind for kind in METRICS if any(row["kind"] == kind for row in self.rows)]

    def markdown(self, title: str = "# The arena") -> str:
        parts = [title, self.head()]
        for kind in self.kinds():
            for half in reversed(HALVES):
                parts.append(self.section(kind, half))
            parts.append(self.all_sets(kind))
        parts.append(self.failures())
        return "\n\n".join(part for part in parts if part) + "\n"

    def brief(self, half: str) -> str:
        """Mean ranks of one half, a table for each kind."""
        tables = []
        for kind, metrics in METRICS.items():
            standings = {metric: self.standing(kind, metric, half) for metric in metrics}
            if all(found.sets for found in standings.values()):
                tables.append(brief_table(kind, standings))
        if not tables:
            raise SystemExit(f"no rows of the half {half}")
        return "\n\n".join(tables)

    def head(self) -> str:
        return (
            "Ranks are over sets (means over splits), 1 is best; a contestant that did not finish a set "
            "ranks last there. Of the losses of one method the best for the metric counts. Settings of duogp "
            'are to be chosen on the half "choice" alone. p: Wilcoxon signed-rank '
            "of the scores over sets, two-sided, with Holm's correction in brackets."
        )

    def section(self, kind: str, half: str) -> str:
        lines = [f"## {kind.capitalize()}, half: {half}"]
        for metric, title in METRICS[kind].items():
            every = self.standing(kind, metric, half)
            if not every.sets:
                continue
            lines.append(f"### {title}, {len(every.sets)} sets\n\n" + rank_table(*families(every)))
            if metric == "nll":
                lines.append(worse_sets(every))
        return "\n\n".join(lines) if len(lines) > 1 else ""

    def all_sets(self, kind: str) -> str:
        """The table of all sets: each metric of every contestant."""
        lines = [f"## {kind.capitalize()}: all sets"]
        halves = {row["table"]: row["half"] for row in self.rows}
        for metric, title in METRICS[kind].items():
            found = self.standing(kind, metric, "all")
            if not found.sets:
                continue
            lines.append(f"### {title}")
            body = [
                [name, halves[name], *map(number, best_bold(scores))]
                for name, scores in zip(found.sets, found.scores, strict=True)
            ]
            lines.append(table(["set", "half", *found.names], body))
        return "\n\n".join(lines) if len(lines) > 1 else ""

    def failures(self) -> str:
        """What did not finish, and the median time of a fit."""
        rows = [r for r in latest(self.rows) if r["contestant"] != OURS or r["label"] in self.labels]
        body = []
        for name in dict.fromkeys(row["contestant"] for row in rows):
            own = [row for row in rows if row["contestant"] == name]
            seconds = [row["fit_seconds"] for row in own if row["status"] == "ok"]
            failed = sorted({row["table"] for row in own if row["status"] != "ok"})
            middle, most = (np.median(seconds), max(seconds)) if seconds else (np.nan, np.nan)
            body.append([name, str(len(own)), f"{middle:.1f}", f"{most:.0f}", ", ".join(failed) or "–"])
        heads = ["contestant", "rows", "median seconds of a fit", "most", "sets with a fit that failed"]
        return "## Time and failures\n\n" + table(heads, body)

    def draw(self, folder: Path) -> list[Path]:
        """The figures of both kinds; returns their files."""
        from arena.figures import save_critical_difference, save_ranks

        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for kind in self.kinds():
            halves: dict[str, dict[str, Standing]] = {}
            for half in HALVES:
                panels = {}
                for metric, title in METRICS[kind].items():
                    found, _ = families(self.standing(kind, metric, half))
                    if len(found.sets) > 1 and len(found.names) > 1:
                        panels[title] = found
                if len(panels) < len(METRICS[kind]):
                    continue
                halves[half] = panels
                paths.append(folder / f"arena_{kind}_{half}.png")
                save_critical_difference(paths[-1], panels, f"{kind}, {half}")
            if halves:
                paths.append(folder / f"arena_{kind}_ranks.png")
                save_ranks(paths[-1], halves, kind)
        return paths


def rank_table(found: Standing, members: dict[str, str]) -> str:
    """Mean ranks, and ours against each peer."""
    means = ranks(found.scores).mean(0)
    ours = [name for name in found.names if name.startswith(OURS)]
    mine = min(ours, key=lambda name: means[found.names.index(name)])
    peers = [name for name in found.names if name != mine]
    tests = {name: paired(found.column(mine), found.column(name)) for name in peers}
    adjusted = dict(zip(peers, holm(np.array([tests[name].p for name in peers])), strict=True))
    body = []
    for i in np.argsort(means, kind="stable"):
        name = found.names[i]
        loss = members.get(name, name)
        shown = name if loss == name or name.startswith(OURS) else f"{name} ({loss})"
        if name == mine:
            body.append([f"**{shown}**", f"**{means[i]:.2f}**", "", "", ""])
            continue
        test = tests[name]
        p = f"{test.p:.2g} ({adjusted[name]:.2g})"
        body.append([shown, f"{means[i]:.2f}", f"{test.wins}–{test.losses}", f"{test.median:+.4f}", p])
    heads = ["", "mean rank", f"{mine} better–worse", "median difference", "p (Holm)"]
    difference = critical_difference(len(found.sets), len(found.names)) if len(found.names) > 1 else np.nan
    words = f"Friedman p = {friedman(found.scores):.2g}; Nemenyi's critical difference {difference:.2f}."
    return table(heads, body) + f"\n\n{words}"


def worse_sets(every: Standing) -> str:
    """Sets where our NLL is more than `TOLERANCE` worse than that of the best single peer."""
    lines = []
    for mine in (name for name in every.names if name.startswith(OURS)):
        peers = [i for i, name in enumerate(every.names) if not name.startswith(OURS)]
        if not peers:
            continue
        body = []
        for row, name in enumerate(every.sets):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                best = np.nanmin(every.scores[row, peers])
            own = every.column(mine)[row]
            if not own - best <= TOLERANCE:
                at = peers[int(np.nanargmin(every.scores[row, peers]))]
                body.append([name, number(own), number(best), every.names[at], number(own - best)])
        body.sort(key=lambda line: line[-1], reverse=True)
        heads = ["set", mine, "best peer", "which", "difference"]
        title = f"Sets where {mine} is more than {TOLERANCE} nats worse than the best peer: {len(body)}."
        lines.append(title + ("\n\n" + table(heads, body) if body else ""))
    return "\n\n".join(lines)


def best_bold(scores: Any) -> list[Any]:
    """Scores of a row as text, the best one bold."""
    best = np.nanmin(scores) if np.isfinite(scores).any() else np.nan
    return [f"**{number(value)}**" if value == best else number(value) for value in scores]


def number(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "–" if np.isnan(value) else f"{value:.3f}"


def table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in body])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, nargs="+", default=[RESULTS], help="files of rows, joined")
    parser.add_argument(
        "--labels", help="versions of ours, separated by commas; default: the last in the file"
    )
    parser.add_argument("--contestants", help="only these peers, separated by commas")
    parser.add_argument("--within", type=float, help="seconds: fits that took longer count as not finished")
    parser.add_argument("--output", type=Path, help="a markdown file; default: standard output")
    parser.add_argument("--brief", choices=HALVES, metavar="HALF", help="only the mean ranks of one half")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write between the marks of this page")
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="write the figures there")


def main(options: argparse.Namespace) -> int:
    rows = [row for path in options.results for row in read_rows(path)]
    if options.contestants:
        wanted = {OURS, *options.contestants.split(",")}
        rows = [row for row in rows if row["contestant"] in wanted]
    mine = [row["label"] for row in rows if row["contestant"] == OURS]
    if not mine:
        raise SystemExit(f"no rows of {OURS} in {', '.join(map(str, options.results))}")
    labels = options.labels.split(",") if options.labels else mine[-1:]
    # Peers that ran on more splits than ours are compared on the same ones.
    ran = {
        (row["table"], row["split"]) for row in rows if row["contestant"] == OURS and row["label"] in labels
    }
    rows = [row for row in rows if (row["table"], row["split"]) in ran]
    report = Report(rows, labels, options.within)
    title = "" if options.page else "# The arena"
    text = report.brief(options.brief) if options.brief else report.markdown(title)
    if options.page:
        put(options.page, BRIEF if options.brief else WHOLE, text)
    elif options.output:
        options.output.write_text(text, encoding="utf-8")
    else:
        print(text)
    for path in report.draw(options.figures) if options.figures else []:
        print(path)
    return 0
