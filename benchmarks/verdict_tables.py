"""Markdown of the verdicts: the state of all suites and experiments, tables against papers, claims."""

from __future__ import annotations

from collections.abc import Callable

from duogp.bench.claims import CLAIMS, FAILS, HOLDS, OPEN, decide, load_claims
from duogp.bench.experiments import load_experiments, state
from duogp.bench.status import counts, every_suite, states
from duogp.bench.verdicts import judge
from suite_tables import markdown, read, verdict_sentence


def status() -> str:
    """Cells of every suite by state, and rows of every experiment."""
    lines = []
    for suite in every_suite(CLAIMS.parent / "suites"):
        _, results, _ = read(suite.name)
        count = counts(states(suite, results))
        lines.append([f"`{suite.name}`", str(sum(count.values())), *map(str, count.values())])
    suites = markdown(("suite", "cells", "done", "stale", "failed", "missing"), lines)
    lines = []
    for each in load_experiments():
        rows, fresh = state(each)
        lines.append([f"`{each.name}`", each.asks, str(rows), "times" if each.speed else str(rows - fresh)])
    experiments = markdown(("experiment", "what it asks", "rows", "stale"), lines, text_columns=2)
    return f"{suites}\n\n{experiments}"


def with_state(make: Callable[[], str], *names: str) -> Callable[[], str]:
    """A block of experiments, with a sentence about stale rows behind it."""

    def block() -> str:
        known = {each.name: each for each in load_experiments()}
        parts = []
        for name in names:
            rows, fresh = state(known[name])
            if rows > fresh:
                what = "heads of times" if known[name].speed else "rows"
                parts.append(f"{rows - fresh} of {rows} {what} in `{known[name].results}`")
        stale = f"\n\n**Stale**: {', '.join(parts)} (other numerics or no provenance)." if parts else ""
        return make() + stale

    return block


def tables() -> str:
    """One sentence per suite and metric that a paper reports."""
    lines = []
    for suite in every_suite(CLAIMS.parent / "suites"):
        _, _, rows = read(suite.name)
        lines += [f"- `{suite.name}`: {verdict_sentence(verdict)}" for verdict in judge(suite, rows)]
    return "\n".join(lines)


def claims() -> str:
    """One line per claim of the papers."""
    known, sources = load_claims()
    decisions = [decide(claim, sources) for claim in known]
    lines = [
        [
            f"**{each.verdict}**" if each.p is not None else each.verdict,
            each.claim.text,
            f"{each.claim.paper}, {each.claim.place}",
            each.numbers,
            f"{each.stale} of {each.rows}" if each.rows else "",
        ]
        for each in decisions
    ]
    head = ("verdict", "claim", "paper", "n, p (one-sided, of the direction seen), effect", "stale rows")
    verdicts = [each.verdict for each in decisions]
    hold, not_hold, open_ = (verdicts.count(v) for v in (HOLDS, FAILS, OPEN))
    counted = f"{hold} hold, {not_hold} do not hold, {open_} cannot be told"
    return f"{markdown(head, lines, text_columns=4)}\n\nOf {len(decisions)} claims {counted}."
