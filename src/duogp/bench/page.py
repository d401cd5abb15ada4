"""``duogp bench report``: one self-contained HTML page of all suites, claims and experiments.

Every number comes from the results files when the page is made. Stale, failed and missing cells are shown,
never dropped; numbers of a paper for which there is no cell stand beside the others.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from html import escape

from duogp.bench.claims import CLAIMS, FAILS, HOLDS, Decision, decide, load_claims
from duogp.bench.experiments import load_experiments, state
from duogp.bench.numerics import numerics_version
from duogp.bench.page_plots import colours, curves, dots, number, quantiles
from duogp.bench.page_style import CSS, SCRIPT
from duogp.bench.provenance import tree_state
from duogp.bench.report import HIGHER_IS_BETTER, Comparison, compare
from duogp.bench.results import Results, Row
from duogp.bench.status import CellState, counts, every_suite, states
from duogp.bench.suite import Cell, Suite
from duogp.bench.verdicts import judge, ranks, without_cell

METRIC_NAMES = {
    "rmse": "RMSE", "nll": "NLL", "loglik": "log-likelihood", "accuracy": "accuracy", "crps": "CRPS",
    "accuracy_percent": "accuracy, %", "noise_share": "share of noise in the variance",
}  # fmt: skip
#: Metrics of calibration, by the field of a row, with their title.
CALIBRATION = {
    "zscore_wasserstein": "distance of z-scores to N(0, 1), mean over shared sets",
    "ece": "expected calibration error, mean over shared sets",
}
TAGS = {HOLDS: "ok", FAILS: "worse"}


def page(suites: Sequence[Suite] | None = None, *, claims: bool = True, experiments: bool = True) -> str:
    """The page as text; ``suites``: by default all that the repository has."""
    chosen = every_suite() if suites is None else suites
    found = [(suite, Results.read(suite.results)) for suite in chosen]
    cells = {suite.name: states(suite, results) for suite, results in found}
    parts = [_overview(found, cells)]
    if claims:
        parts.append(_claims())
    parts += [_suite(suite, results, cells[suite.name]) for suite, results in found]
    if experiments:
        parts.append(_experiments())
    links = [("claims", "Claims")] if claims else []
    links += [(suite.name, suite.name) for suite in chosen]
    links += [("experiments", "Experiments")] if experiments else []
    menu = "".join(f'<li><a href="#{escape(key, quote=True)}">{escape(name)}</a></li>' for key, name in links)
    commit, dirty = tree_state()
    where = f"commit {commit}{' with uncommitted changes' if dirty else ''}" if commit else "commit not known"
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>duogp: results beside the papers</title>\n<style>{CSS}</style>\n</head>\n<body>",
            "<header><h1>duogp: results beside the papers</h1>",
            f'<p class="faint">Numerics version {numerics_version()}, {escape(where)}. '
            "Click a column's head to sort.</p></header>",
            f'<nav aria-label="Sections"><ul>{menu}</ul></nav>',
            f"<main>{''.join(parts)}</main>",
            "<footer>Made by <code>duogp bench report</code> from benchmarks/results.</footer>",
            f"<script>{SCRIPT}</script>\n</body>\n</html>\n",
        ]
    )


def _overview(found: Iterable[tuple[Suite, Results]], cells: dict[str, list[CellState]]) -> str:
    """One line per suite: how many cells are done, stale, failed, missing."""
    head = ("suite", "what it asks", "cells", "done", "stale", "failed", "missing")
    lines = []
    for suite, _ in found:
        count = counts(cells[suite.name])
        link = f'<a href="#{escape(suite.name, quote=True)}">{escape(suite.name)}</a>'
        numbers = [sum(count.values()), *count.values()]
        lines.append(
            [f"<th>{link}</th>", f'<td class="text prose">{escape(suite.description)}</td>']
            + [f'<td data-v="{n}">{n}</td>' for n in numbers]
        )
    text = (
        "<p>A cell is one fit: a data set, a split, a method. It is <em>stale</em> when the source it "
        "depends on or a default has changed since, or when its row does not say where it comes from.</p>"
    )
    return text + _table(head, lines, texts=2)


def _claims() -> str:
    claims, sources = load_claims(CLAIMS)
    lines = []
    for claim in claims:
        found = decide(claim, sources)
        tag = f'<span class="tag {TAGS.get(found.verdict, "open")}">{found.verdict}</span>'
        lines.append(
            [
                f'<td class="text">{tag}</td>',
                f'<td class="text prose">{escape(claim.text)}</td>',
                f'<td class="text place">{escape(claim.paper)}, {escape(claim.place)}</td>',
                *_claim_numbers(found),
            ]
        )
    head = ("verdict", "claim", "paper", "units won", "p", "median difference", "stale rows")
    text = (
        "<p>Each claim is a paired comparison of two methods. A unit is a data set (its mean difference over "
        "splits), or, with fewer than five sets, a set and a split. Wilcoxon's signed-rank test, one-sided "
        "at 5 %: the claim holds, does not hold (the opposite is significant), or cannot be told. p is that "
        "of the direction seen; the difference is positive where the claim is right.</p>"
    )
    return f'<section><h2 id="claims">Claims of the papers</h2>{text}{_table(head, lines, texts=3)}</section>'


def _claim_numbers(found: Decision) -> list[str]:
    if found.effect is None or found.p is None:
        return [f'<td class="missing text" data-v="">{escape(found.note)}</td>'] + ['<td data-v=""></td>'] * 3
    return [
        f'<td data-v="{found.wins / found.units}">{found.wins} of {found.units} {found.unit}</td>',
        f'<td data-v="{found.p}">{found.p:.2g}</td>',
        f'<td data-v="{found.effect}">{found.shown_effect}</td>',
        f'<td data-v="{found.stale}">{found.stale} of {found.rows}</td>',
    ]


def _suite(suite: Suite, results: Results, cells: list[CellState]) -> str:
    rows = compare(suite, results)
    palette = colours([method.label for method in suite.methods])
    verdicts = "".join(f"<li>{escape(verdict.sentence())}</li>" for verdict in judge(suite, rows))
    parts = [
        f'<section><h2 id="{escape(suite.name, quote=True)}">{escape(suite.name)}</h2>',
        f"<p>{escape(suite.description)}</p>",
        f'<p class="faint">{escape(suite.source)}</p>' if suite.source else "",
        _bar(cells),
        f"<ul>{verdicts}</ul>" if verdicts else "",
        _key() if suite.paper else "",
    ]
    for metric in suite.metrics:
        parts.append(f"<h3>{escape(METRIC_NAMES.get(metric, metric))}</h3>{_matrix(suite, rows, metric)}")
    parts += [_plots(suite, rows, results, palette), _curves(suite, results, palette), _absent(suite)]
    parts += [_listed(cells, name) for name in ("stale", "failed", "missing")]
    return "".join(parts) + "</section>"


def _key() -> str:
    kinds = {
        "ok": "within tolerance",
        "better": "better",
        "worse": "worse",
        "missing": "not run",
        "stale": "stale",
    }
    tags = "".join(f'<span class="tag {kind}">{text}</span>' for kind, text in kinds.items())
    return (
        f'<div class="key"><span class="faint">the paper\'s mean / ours ± standard error</span>{tags}</div>'
    )


def _bar(cells: Sequence[CellState]) -> str:
    count = counts(cells)
    text = ", ".join(f"{n} {name}" for name, n in count.items())
    kinds = zip(("done", "old", "failed", "none"), count.values(), strict=True)
    bars = "".join(f'<span class="{kind}" style="flex:{n}"></span>' for kind, n in kinds if n)
    return f'<p>{len(cells)} cells: {text}.</p><div class="bar" aria-hidden="true">{bars}</div>'


def _matrix(suite: Suite, rows: Sequence[Comparison], metric: str) -> str:
    """Data sets by methods: the suite's, then those that only the paper has."""
    mine = {(row.data, row.method): row for row in rows if row.metric == metric}
    theirs = {(data, method): value for data, method, value in without_cell(suite, metric)}
    methods = list(dict.fromkeys([method for _, method in mine] + [method for _, method in theirs]))
    sets = list(dict.fromkeys([data for data, _ in mine] + [data for data, _ in theirs]))
    digits = 1 if metric == "accuracy_percent" else 3
    choose = max if metric in HIGHER_IS_BETTER else min
    lines = []
    for data in sets:
        ours = [row.ours for (d, _), row in mine.items() if d == data and row.ours is not None]
        best = choose(ours) if len(ours) > 1 else None
        line = [f"<th>{escape(data.removeprefix('classification/'))}</th>"]
        for method in methods:
            if (row := mine.get((data, method))) is not None:
                line.append(_cell(row, digits, best))
            elif (value := theirs.get((data, method))) is not None:
                line.append(f'<td class="missing" data-v="">{number(value, digits)} / no cell</td>')
            else:
                line.append('<td data-v=""></td>')
        lines.append(line)
    return _table(["data", *methods], lines)


def _cell(row: Comparison, digits: int, best: float | None) -> str:
    paper = "" if row.paper is None else f'<span class="paper">{number(row.paper, digits)} / </span>'
    if row.ours is None:
        return f'<td class="missing" data-v="">{paper}not run</td>'
    kinds = [row.verdict] if row.verdict in ("ok", "better", "worse") else []
    kinds += ["stale"] * (row.stale > 0) + ["best"] * (row.ours == best)
    error = "" if row.stderr is None else f" ± {number(row.stderr, digits)}"
    hint = f"{row.splits} splits, {row.stale} stale"
    return (
        f'<td class="{" ".join(kinds)}" data-v="{row.ours}" title="{hint}">'
        f"{paper}{number(row.ours, digits)}{error}</td>"
    )


def _plots(suite: Suite, rows: Sequence[Comparison], results: Results, palette: dict[str, str]) -> str:
    """Mean ranks by metric, calibration by method, quantiles of z-scores where rows have them."""
    out = []
    for metric in suite.metrics:
        if found := ranks(rows, metric):
            title = f"mean rank, {METRIC_NAMES.get(metric, metric)} (sets that all methods share)"
            out.append(dots(title, found, palette, 1, len(found)))
    ok = [(cell, row) for cell in suite.cells() if (row := results.ok(cell)) is not None]
    for name, title in CALIBRATION.items():
        if means := _means(ok, name):
            out.append(dots(title, means, palette, 0, round(1.1 * max(means.values()), 2) or 1.0))
    for data in dict.fromkeys(cell.data for cell, _ in ok):
        of_set = {cell.label: row.get("zscores") or [] for cell, row in ok if cell.data == data}
        out.append(quantiles(f"quantiles of z-scores, {data}", of_set, palette))
    shown = "".join(out)
    return f'<h3>Ranks and calibration</h3><div class="plots">{shown}</div>' if shown else ""


def _means(ok: Sequence[tuple[Cell, Row]], metric: str) -> dict[str, float]:
    """The mean of a metric for every method, over the data sets that all of them have."""
    values: dict[str, dict[str, list[float]]] = {}
    for cell, row in ok:
        if isinstance(value := row["metrics"].get(metric), float):
            values.setdefault(cell.label, {}).setdefault(cell.data, []).append(value)
    shared = set.intersection(*(set(by_set) for by_set in values.values())) if values else set()
    if not shared:
        return {}
    return {
        label: statistics.fmean(statistics.fmean(by_set[data]) for data in shared)
        for label, by_set in values.items()
    }


def _curves(suite: Suite, results: Results, palette: dict[str, str]) -> str:
    """Training losses against iterations, a plot per data set, the first split that has them."""
    by_set: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for cell in suite.cells():
        row = results.ok(cell)
        trace = row.get("history", {}).get("trace") if row else None
        if trace and cell.label not in by_set.setdefault(cell.data, {}):
            by_set[cell.data][cell.label] = [(point[0], point[2]) for point in trace if point[2] is not None]
    names = {data: data.removeprefix("classification/") for data in by_set}
    shown = "".join(curves(names[data], lines, palette, "loss per datum") for data, lines in by_set.items())
    if not shown:
        return ""
    return f'<details><summary>Learning curves</summary><div class="plots">{shown}</div></details>'


def _absent(suite: Suite) -> str:
    """Parts of the paper that cannot be run, with the reason."""
    reasons: dict[str, str] = getattr(suite, "absent", {})
    items = "".join(f"<li>{escape(what)}: {escape(why)}</li>" for what, why in reasons.items())
    return f"<h3>Not available</h3><ul>{items}</ul>" if items else ""


def _listed(cells: Sequence[CellState], name: str) -> str:
    chosen = [each for each in cells if each.state == name]
    if not chosen:
        return ""
    items = "".join(f"<li>{escape(str(e.cell))}{f' ({escape(e.why)})' if e.why else ''}</li>" for e in chosen)
    return f"<details><summary>{len(chosen)} {name} cells</summary><ul>{items}</ul></details>"


def _experiments() -> str:
    lines = []
    for each in load_experiments():
        count, fresh = state(each)
        old = "" if each.speed else count - fresh
        lines.append(
            [
                f"<th>{escape(each.name)}</th>",
                f'<td class="text prose">{escape(each.asks)}</td>',
                f'<td class="text prose">{escape(each.paper)}</td>',
                f'<td class="text prose"><code>{escape(each.command)}</code></td>',
                f'<td class="text">{escape(each.needs)}</td>',
                f'<td data-v="{count}">{count or "no results"}</td>',
                f'<td data-v="{old}">{old if old != "" else "times"}</td>',
            ]
        )
    head = ("experiment", "what it asks", "paper", "command", "needs", "rows", "stale")
    return f'<section><h2 id="experiments">Experiments</h2>{_table(head, lines, texts=5)}</section>'


def _table(head: Sequence[str], lines: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A sortable table; ``lines`` hold finished cells, the first ``texts`` columns are text."""
    kinds = ["text" if i < texts else "" for i in range(len(head))]
    cells = zip(head, kinds, strict=True)
    heads = "".join(f'<th scope="col" class="{k}"><button>{escape(name)}</button></th>' for name, k in cells)
    body = "".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    table = f'<table class="sortable"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="wide" tabindex="0">{table}</div>'
