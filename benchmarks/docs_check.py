"""Every number of the results pages must be in the store.

    python benchmarks/docs_check.py     exit status 1 where one of these does not hold

1. Marked blocks are made anew and compared (`readme_tables.out_of_date`), their marks of stale rows too.
2. Decimal numbers in the prose of `PAGES` are looked up, to the digits that are printed, among the numbers of
   the suites and experiments that their section names (in the text or by a block): metrics of rows and their
   means, differences of two methods, the paper's numbers, stored values of experiments, verdicts and claims.
   ``benchmarks/docs_numbers.toml`` lists the exceptions, each with its reason.
3. README.md refuses stale rows: where a section of it names a suite or experiment that has some, it must say
   at which commit they were made, and that commit must be theirs. Other pages mark them (1).
4. Stale rows behind the pages are counted and reported.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import readme_tables
import verdict_tables
from duogp.bench.claims import decide, load_claims
from duogp.bench.experiments import Experiment, load_experiments, state, stored
from duogp.bench.status import counts, every_suite, states
from duogp.bench.suite import Suite
from suite_tables import read

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "docs/results.md",
    "docs/which-method.md",
    *(f"docs/families/{name}.md" for name in verdict_tables.FAMILIES),
)
#: Pages on which a stale row needs the commit it was made with.
REFUSING = ("README.md",)
COMMIT = re.compile(r"\bcommit\s+`?([0-9a-f]{7,40})")
EXCEPTIONS = ROOT / "benchmarks" / "docs_numbers.toml"
#: A decimal number in prose: 0.307, −1.075, 1.97; not a version (2.13.0), a section (11.2.1) or a power.
NUMBER = re.compile(r"(?<![\w.,§·^⁻])[−-]?\d[\d,]*\.\d+(?![\w]|\.\d)")
#: Keys of long series that no sentence quotes.
SERIES = frozenset(
    {"trace", "curve", "incumbent", "best_x", "settings", "resolved", "runs", "traceback", "ratios"}
)


@dataclass(frozen=True)
class Section:
    """A part of a page under one heading: its prose without blocks, tables and code, and all of its text."""

    page: str
    title: str
    prose: str
    text: str


def sections(page: str, text: str) -> list[Section]:
    """The parts of a page, by headings of the second level and below."""
    parts = re.split(r"(?m)^(?=#{2,4} )", text)
    return [
        Section(page, part.splitlines()[0].lstrip("# ") if part.strip() else "", prose_of(part), part)
        for part in parts
    ]


def prose_of(text: str) -> str:
    """The text without marked blocks, tables, code, links' targets and versions of Python."""
    text = re.sub(r"<!-- (\S+) -->.*?<!-- /\1 -->", "", text, flags=re.S)
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    text = re.sub(r"`[^`\n]*`|\]\([^)]*\)", " ", text)
    text = re.sub(r"Python\s+3\.\d+(?:\s*(?:to|or|and|,|–|-)\s*3\.\d+)*", " ", text)
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("|"))


def numbers_in(prose: str) -> list[str]:
    """Decimal numbers of a text, as they are printed."""
    return [found.replace("−", "-").replace(",", "") for found in NUMBER.findall(prose)]


def matches(printed: str, values: Sequence[float]) -> bool:
    """Whether one of the sorted values, or its negative, is the printed number to its digits."""
    digits = len(printed.partition(".")[2])
    wanted, half = abs(float(printed)), 0.5000001 * 10.0**-digits
    return any(abs(value - wanted) <= half for value in values)


def values_of_suite(suite: Suite) -> set[float]:
    """Means, standard errors, the paper's numbers, differences from it and between methods, mean ranks."""
    from duogp.bench.verdicts import judge, ranks

    _, results, rows = read(suite.name)
    out: set[float] = set()
    for row in rows:
        out |= {abs(v) for v in (row.ours, row.paper, row.stderr) if v is not None}
        if row.ours is not None and row.paper is not None:
            out.add(abs(row.ours - row.paper))
    for one, other in itertools.combinations([row for row in rows if row.ours is not None], 2):
        if (one.data, one.metric) == (other.data, other.metric):
            out.add(abs(float(one.ours or 0.0) - float(other.ours or 0.0)))
    for metric in suite.metrics:
        out |= set(ranks(rows, metric).values())
    for verdict in judge(suite, rows):
        out |= {abs(tau) for tau in verdict.order.values()}
    for row in results.rows:
        out |= set(plain_numbers(row.get("metrics", {})))
    return out


def plain_numbers(value: Any) -> Iterator[float]:
    """Numbers of a stored object, long series of numbers left out."""
    if isinstance(value, bool):
        return
    if isinstance(value, int | float) and math.isfinite(value):
        yield abs(float(value))
    elif isinstance(value, dict):
        for key, part in value.items():
            if key not in SERIES:
                yield from plain_numbers(part)
    elif isinstance(value, list) and (len(value) <= 60 or isinstance(value[0], dict)):
        for part in value:
            yield from plain_numbers(part)


def values_of_experiment(experiment: Experiment) -> set[float]:
    """Its stored numbers, means of short lists, and means over repetitions."""
    out: set[float] = set()
    for row in stored(experiment.path):
        out |= set(plain_numbers(row))
        if isinstance(row, dict):
            lists = [v for v in row.values() if isinstance(v, list) and 0 < len(v) <= 60]
            plain = [v for v in lists if all(isinstance(x, int | float) for x in v)]
            out |= {abs(sum(v) / len(v)) for v in plain}
    return out


class Store:
    """Numbers by the name of a suite or experiment, computed when a section names it."""

    def __init__(self) -> None:
        self.suites = {suite.name: suite for suite in every_suite(EXCEPTIONS.parent / "suites")}
        self.experiments = {each.name: each for each in load_experiments()}
        self._known: dict[str, set[float]] = {}

    def names_in(self, text: str) -> list[str]:
        """Suites and experiments that a text names: by a block, a command, a script or a results file."""
        out = [name for name in self.suites if re.search(rf"\b{re.escape(name)}\b", text)]
        for name, each in self.experiments.items():
            words = {name, each.results, *re.findall(r"benchmarks/(\w+)\.py", each.command)}
            if any(re.search(rf"(?<![\w]){re.escape(word)}(?![\w])", text) for word in words):
                out.append(name)
        return out

    def values(self, name: str) -> set[float]:
        """The numbers of a suite or an experiment."""
        if name not in self._known:
            find = self.suites.get(name)
            self._known[name] = (
                values_of_suite(find) if find is not None else values_of_experiment(self.experiments[name])
            )
        return self._known[name]

    def stale(self, name: str) -> tuple[int, set[str]]:
        """How many rows of a suite or experiment are stale, and the commits (7 digits) of all its rows."""
        if (suite := self.suites.get(name)) is not None:
            rows = [each.row for each in states(suite, read(name)[1]) if each.state == "stale"]
            count, found = len(rows), [row for row in rows if row is not None]
        else:
            each = self.experiments[name]
            total, fresh = state(each)
            content = stored(each.path)
            count, found = 0 if each.speed else total - fresh, [r for r in content if isinstance(r, dict)]
        commits = (row.get("commit") or (row.get("versions") or {}).get("commit") for row in found)
        return count, {str(commit)[:7] for commit in commits if commit}

    def claims(self) -> set[float]:
        """p-values and effects of all claims."""
        if "claims" not in self._known:
            claims, sources = load_claims()
            found = [decide(claim, sources) for claim in claims]
            both = [(each.p, each.effect) for each in found]
            self._known["claims"] = {abs(v) for pair in both for v in pair if v is not None}
        return self._known["claims"]


def exceptions() -> dict[str, list[tuple[str, str]]]:
    """Page → (number, words of its sentence); every entry of the file has a reason."""
    out: dict[str, list[tuple[str, str]]] = {}
    if not EXCEPTIONS.is_file():
        return out
    for table in tomllib.loads(EXCEPTIONS.read_text("utf-8")).get("exceptions", []):
        if not table.get("reason"):
            raise ValueError(f"{EXCEPTIONS.name}: an exception needs a reason, got {table!r}")
        for number in table["numbers"]:
            out.setdefault(table["page"], []).append((number.replace("−", "-"), table.get("section", "")))
    return out


def unknown_numbers(page: str, text: str, store: Store) -> list[str]:
    """``page, section: number`` for every number of the prose that the store does not have."""
    allowed = exceptions().get(page, [])
    out = []
    for section in sections(page, text):
        printed = numbers_in(section.prose)
        if not printed:
            continue
        values: set[float] = set(store.claims())
        for name in store.names_in(section.text):
            values |= store.values(name)
        ordered = sorted(values)
        for number in printed:
            excepted = any(number == n and where in ("", section.title) for n, where in allowed)
            if not excepted and not matches(number, ordered):
                out.append(f"{page}, {section.title!r}: {number}")
    return out


def refused(page: str, text: str, store: Store) -> list[str]:
    """``page, section: why`` where stale rows stand behind a section that does not say of which commit."""
    out = []
    for section in sections(page, text):
        if not NUMBER.search(re.sub(r"```.*?```|`[^`\n]*`", "", section.text, flags=re.S)):
            continue  # it presents no result
        named = {found[:7] for found in COMMIT.findall(section.text)}
        for name in store.names_in(section.text):
            count, commits = store.stale(name)
            if count and not named & commits:
                why = f"{count} stale rows of {name}, and no commit of them is named"
                out.append(f"{page}, {section.title!r}: {why}")
    return out


def stale_lines(store: Store) -> list[str]:
    """Counts of stale, failed and missing cells, and of stale rows of experiments."""
    lines = []
    for name, suite in store.suites.items():
        _, results, _ = read(name)
        count = counts(states(suite, results))
        if count["stale"] or count["failed"]:
            lines.append(
                f"{name}: {count['stale']} stale, {count['failed']} failed, {count['missing']} missing"
            )
    for name, each in store.experiments.items():
        rows, fresh = state(each)
        if rows > fresh and not each.speed:
            lines.append(f"{name}: {rows - fresh} of {rows} rows stale")
    return lines


def main() -> int:
    store = Store()
    wrong = readme_tables.out_of_date()
    unknown = [
        line for page in PAGES for line in unknown_numbers(page, (ROOT / page).read_text("utf-8"), store)
    ]
    stale = [line for page in REFUSING for line in refused(page, (ROOT / page).read_text("utf-8"), store)]
    for line in stale_lines(store):
        print(f"stale: {line}")
    for line in stale:
        print(f"refused: {line}", file=sys.stderr)
    for name in wrong:
        print(f"out of date, run python benchmarks/readme_tables.py: {name}", file=sys.stderr)
    for line in unknown:
        print(f"not in the store: {line}", file=sys.stderr)
    print(f"{len(unknown)} numbers are not in the store; blocks {'are out of date' if wrong else 'agree'}")
    return int(bool(wrong or unknown or stale))


if __name__ == "__main__":
    sys.exit(main())
