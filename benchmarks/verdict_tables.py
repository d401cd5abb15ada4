"""Markdown of the verdicts: the state of all suites and experiments, tables against papers, claims."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from duogp.bench.claims import CLAIMS, FAILS, HOLDS, OPEN, Decision, decide, load_claims
from duogp.bench.experiments import load_experiments, state, stored
from duogp.bench.rerun import describe, latest
from duogp.bench.status import counts, every_suite, states
from duogp.bench.verdicts import judge
from suite_tables import markdown, read, verdict_sentence

#: Page of docs/families → the suites and experiments whose claims stand on it.
FAMILIES = {
    "conditional": ("paper_dc", "paper_dc_ard", "paper_dc_whitening", "paper_dc_beta2", "paper_bo"),
    "orthogonal": ("paper_orth", "paper_orth_classification"),
    "components": ("paper_components",),
    "predictive": ("paper_ppgpr", "calibration"),
    "linear": ("online_robot",),
    "deep": ("paper_dkl", "paper_deep"),
}


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


def coverage() -> str:
    """Every table and figure of the five papers: cells that are stored of those wanted, or who draws it."""
    import paper_coverage
    from priorities import Store

    lines = []
    parts = tomllib.loads(paper_coverage.PARTS.read_text("utf-8"))["part"]
    for part in paper_coverage.coverage(parts, Store(None)):
        if "suite" in part:
            how, done = f"`{part['suite']}`", f"{part['done']} of {part['cells']}"
        elif "script" in part:
            how, done = f"`{part['script']}`", "stored" if part["done"] else "not run"
        else:
            how, done = part["absent"], ""
        lines.append([part["paper"], part["part"], how, done])
    return markdown(
        ("paper", "table or figure", "suite, script, or why not", "cells stored"), lines, text_columns=3
    )


def reruns() -> str:
    """Cells that were drawn at random and run again, by suite and rule."""
    found = latest()
    if not found:
        return "None yet."
    lines = []
    for suite, rule in sorted({(each["suite"], each["rule"]) for each in found}):
        own = [each for each in found if (each["suite"], each["rule"]) == (suite, rule)]
        commits = sorted({str(each.get("commit")) for each in own})
        devices = sorted({str(each.get("device_name")) for each in own})
        agree = sum(each["agrees"] for each in own)
        rules = {"digits": "1e-6", "standard error": "one standard error"}
        lines.append(
            [f"`{suite}`", rules[rule], ", ".join(devices), ", ".join(commits), str(len(own)), str(agree)]
        )
    head = ("suite", "must agree to", "device", "at commit", "cells", "agree")
    differ = [f"- {describe(each)}" for each in found if not each["agrees"]]
    text = markdown(head, lines, text_columns=4)
    return f"{text}\n\nThose that differ (stored → again):\n\n" + "\n".join(differ) if differ else text


def with_state(make: Callable[[], str], *names: str) -> Callable[[], str]:
    """A block of experiments, with sentences about runs that confirm it and about stale rows behind it."""

    def block() -> str:
        known = {each.name: each for each in load_experiments()}
        parts = []
        again = ""
        for name in names:
            rows, fresh = state(known[name])
            for row in stored(known[name].path):
                if isinstance(row, dict) and "confirmed" in row:
                    again += f"\n\n{confirmation(row['confirmed'])}"
            if rows > fresh:
                what = "heads of times" if known[name].speed else "rows"
                parts.append(f"{rows - fresh} of {rows} {what} in `{known[name].results}`")
        stale = f"\n\n**Stale**: {', '.join(parts)} (other numerics or no provenance)." if parts else ""
        return make() + again + stale

    return block


def confirmation(found: Mapping[str, Any]) -> str:
    """What runs that were made again say of the stored ones."""
    near = " and ".join(f"{count} to {limit}" for limit, count in found["within"].items())
    where = f"at {found['commit']} ({found['device']})"
    return (
        f"{found['runs']} of the {found['of']} runs were made again {where}, {found['to_the_end']} of them "
        f"to the same last iteration: {near} nats per datum, the worst to {found['worst']:.4f}."
    )


def tables() -> str:
    """One sentence per suite and metric that a paper reports."""
    lines = []
    for suite in every_suite(CLAIMS.parent / "suites"):
        _, _, rows = read(suite.name)
        lines += [f"- `{suite.name}`: {verdict_sentence(verdict)}" for verdict in judge(suite, rows)]
    return "\n".join(lines)


@cache
def decisions() -> tuple[Decision, ...]:
    """All claims, decided once."""
    known, sources = load_claims()
    return tuple(decide(claim, sources) for claim in known)


def claims() -> str:
    """One line per claim of the papers."""
    return _claims(decisions())


def claims_of(family: str) -> Callable[[], str]:
    """One line per claim that stands on a family's page."""
    return lambda: _claims([each for each in decisions() if each.claim.source in FAMILIES[family]])


def _claims(found: Sequence[Decision]) -> str:
    lines = [
        [
            f"**{each.verdict}**" if each.p is not None else each.verdict,
            each.claim.text,
            f"{each.claim.paper}, {each.claim.place}",
            each.numbers,
            f"{each.stale} of {each.rows}" if each.rows else "",
        ]
        for each in found
    ]
    head = ("verdict", "claim", "paper", "n, p (one-sided, of the direction seen), effect", "stale rows")
    verdicts = [each.verdict for each in found]
    hold, not_hold, open_ = (verdicts.count(v) for v in (HOLDS, FAILS, OPEN))
    counted = f"{hold} hold, {not_hold} do not hold, {open_} cannot be told"
    return f"{markdown(head, lines, text_columns=4)}\n\nOf {len(found)} claims {counted}."
