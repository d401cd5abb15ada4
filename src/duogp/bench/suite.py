"""Suites: TOML files of data × splits × methods × settings, with the paper's numbers beside them.

The format is described in ``docs/benchmarks.md``. A suite expands into `Cell`s, in the order they run.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

Numbers = dict[str, dict[str, dict[str, float]]]  # metric → data → method label → number

TOP_LEVEL = {
    "name", "description", "protocol", "splits", "metrics",
    "settings", "data", "methods", "paper", "tolerance", "learned", "absent",
}  # fmt: skip
#: Settings of the runner, which are not passed to the fit.
RUNNER_SETTINGS = frozenset({"random_state", "task", "trace", "use_validation"})
#: Settings that change what a row records, not the fit: no part of the hash.
SILENT_SETTINGS = frozenset({"trace"})
REPOSITORY = Path(__file__).resolve().parents[3]
#: The suites that come with an installed wheel.
INSTALLED = Path(__file__).resolve().with_name("suites")


@dataclass(frozen=True)
class Cell:
    """One fit and its evaluation: all that the result depends on, and the names it is shown under."""

    suite: str
    data: str
    method: str  # a method of duogp.fit
    label: str  # its name in tables
    protocol: str
    split: int
    settings: dict[str, Any] = field(hash=False)

    @property
    def seed(self) -> int:
        """Seed of the fit: the split's number unless the settings fix one."""
        return int(self.settings.get("random_state", self.split))

    @property
    def task(self) -> str:
        """A key of `duogp.bench.tasks.TASKS`: the setting, or by the folder of the data set."""
        folder = self.data.partition("/")[0]
        default = "classification" if folder == "classification" else "regression"
        return str(self.settings.get("task", default))

    @cached_property
    def hash(self) -> str:
        """sha256 over all that the result depends on; labels, suite names and devices are not part of it."""
        deciding = {
            "data": self.data,
            "method": self.method,
            "protocol": self.protocol,
            "seed": self.seed,
            "settings": {k: v for k, v in self.settings.items() if k not in SILENT_SETTINGS},
            "split": self.split,
        }
        return hashlib.sha256(canonical_json(deciding).encode()).hexdigest()

    @cached_property
    def family(self) -> str:
        """A key that is equal for cells which differ in their split (and seed) only."""
        return canonical_json([self.suite, self.data, self.method, self.label, self.protocol, self.settings])

    def __str__(self) -> str:
        return f"{self.data} {self.label} split {self.split}"


@dataclass(frozen=True)
class SuiteEntry:
    """A ``[[data]]`` or ``[[methods]]`` table."""

    name: str
    label: str
    method: str
    priority: int
    only: tuple[str, ...] | None  # the data sets a method runs on; None: all
    on: dict[str, dict[str, Any]]  # data set → settings of a method there
    settings: dict[str, Any]


@dataclass(frozen=True)
class Suite:
    """A parsed suite file."""

    name: str
    path: Path
    description: str
    protocol: str
    splits: tuple[int, ...]
    metrics: tuple[str, ...]
    settings: dict[str, Any]
    data: tuple[SuiteEntry, ...]
    methods: tuple[SuiteEntry, ...]
    source: str  # citation of the paper's numbers
    paper: Numbers
    paper_learned: Numbers
    paper_ranks: Numbers  # metric → table of the paper → method label → mean rank
    paper_averages: Numbers  # metric → what it is averaged over → method label → mean
    learned: dict[str, str]  # name in paper.learned → name in model.hyperparameters()
    tolerance: dict[str, float]
    absent: dict[str, str]  # part of the paper that cannot be run → reason

    @property
    def results(self) -> Path:
        """The default results file: ``benchmarks/results/NAME.jsonl``, never inside an installed package."""
        folder = self.path.parent
        own = folder.name == "suites" and folder.resolve() != INSTALLED
        base = folder.parent if own else Path("benchmarks")
        return base / "results" / f"{self.name}.jsonl"

    def cells(
        self,
        data: Iterable[str] | None = None,
        methods: Iterable[str] | None = None,
        splits: int | None = None,
    ) -> list[Cell]:
        """The cells in the order they run, optionally only some data, some methods, the first K splits.

        All cells of a split come before the next split. Within a split a cell's priority is the sum of its
        data's and its method's (lower first, 0 unless given); ties keep the order of declaration.
        """
        chosen_data = _choose("data", self.data, data)
        chosen_methods = _choose("methods", self.methods, methods)
        if splits is not None and splits < 1:
            raise ValueError(f"splits must be at least 1, got {splits}")
        cells = []
        for split in self.splits[:splits]:
            pairs = [
                (d, m) for d in chosen_data for m in chosen_methods if m.only is None or d.name in m.only
            ]
            for d, m in sorted(pairs, key=lambda pair: pair[0].priority + pair[1].priority):
                settings = {"standardize": False} | self.settings | d.settings | m.settings
                settings |= m.on.get(d.name, {})
                cells.append(Cell(self.name, d.name, m.method, m.label, self.protocol, split, settings))
        return cells


def load_suite(suite: str | Path) -> Suite:
    """Read a suite by name (``benchmarks/suites/NAME.toml``) or by path."""
    path = find_suite(suite)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"suite {path}: not valid TOML: {error}") from None
    try:
        return _parse(raw, path)
    except ValueError as error:
        raise ValueError(f"suite {path}: {error}") from None


def find_suite(suite: str | Path) -> Path:
    """The file behind a suite's name or path."""
    given = Path(suite)
    places = [given] if given.suffix == ".toml" else [
        Path("benchmarks/suites") / f"{suite}.toml",
        REPOSITORY / "benchmarks" / "suites" / f"{suite}.toml",
        INSTALLED / f"{suite}.toml",
    ]  # fmt: skip
    for place in places:
        if place.is_file():
            return place
    known = sorted({p.stem for place in places for p in place.parent.glob("*.toml")})
    hint = f"; suites here: {', '.join(known)}" if known else ""
    raise FileNotFoundError(f"no suite {str(suite)!r}: looked for {' and '.join(map(str, places))}{hint}")


def find_program(suite: str) -> Path | None:
    """The folder of a suite that is a program of its own: a package with a ``__main__`` in benchmarks."""
    for place in (Path(suite), Path("benchmarks") / suite, REPOSITORY / "benchmarks" / suite):
        if (place / "__main__.py").is_file():
            return place
    return None


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and one spelling per number (1 and 1.0 are the same setting)."""
    return json.dumps(_plain_numbers(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain_numbers(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_numbers(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _parse(raw: dict[str, Any], path: Path) -> Suite:
    if unknown := sorted(set(raw) - TOP_LEVEL):
        raise ValueError(f"unknown keys {', '.join(unknown)}; expected {', '.join(sorted(TOP_LEVEL))}")
    splits = raw.get("splits", [0])
    if not (isinstance(splits, list) and splits and all(type(s) is int for s in splits)):
        raise ValueError(f"splits must be a non-empty list of integers, got {splits!r}")
    settings = _table(raw, "settings")
    if "device" in settings:
        raise ValueError("settings.device: the device is chosen when the suite runs (--device)")
    paper = dict(_table(raw, "paper"))
    source = str(paper.pop("source", ""))
    paper_learned = _numbers(paper.pop("learned", {}), "paper.learned")
    paper_ranks = _numbers(paper.pop("ranks", {}), "paper.ranks")
    paper_averages = _numbers(paper.pop("averages", {}), "paper.averages")
    data, methods = _entries(raw, "data"), _entries(raw, "methods")
    for method in methods:
        for key, named in (("only", method.only or ()), ("on", method.on)):
            if strange := sorted(set(named) - {d.name for d in data}):
                raise ValueError(
                    f"{key} of {method.name} names data that the suite lacks: {', '.join(strange)}"
                )
    name = str(raw.get("name", path.stem))
    if not re.fullmatch(r"[\w.+-]+", name) or name.startswith("."):  # results are written under it
        raise ValueError(f"name must be letters, digits, '.', '_', '+' and '-', got {name!r}")
    return Suite(
        name=name,
        path=path,
        description=str(raw.get("description", "")),
        protocol=str(raw.get("protocol", "dc")),
        splits=tuple(splits),
        metrics=tuple(raw.get("metrics", ("rmse", "nll"))),
        settings=settings,
        data=data,
        methods=methods,
        source=source,
        paper=_numbers(paper, "paper"),
        paper_learned=paper_learned,
        paper_ranks=paper_ranks,
        paper_averages=paper_averages,
        learned={name: str(_table(raw, "learned").get(name, name)) for name in paper_learned},
        tolerance={k: float(v) for k, v in _table(raw, "tolerance").items()},
        absent={what: str(why) for what, why in _table(raw, "absent").items()},
    )


def _entries(raw: dict[str, Any], key: str) -> tuple[SuiteEntry, ...]:
    tables = raw.get(key)
    if not (isinstance(tables, list) and tables and all(isinstance(t, dict) for t in tables)):
        raise ValueError(f"at least one [[{key}]] table is needed")
    entries = []
    for table in tables:
        rest = dict(table)
        name = rest.pop("name", None)
        if not isinstance(name, str) or not name:
            raise ValueError(f"every [[{key}]] table needs a name, got {table!r}")
        label, method = str(rest.pop("label", name)), str(rest.pop("method", name))
        priority = rest.pop("priority", 0)
        if type(priority) is not int:
            raise ValueError(f"priority of {name} must be an integer, got {priority!r}")
        only = rest.pop("only", None) if key == "methods" else None
        if only is not None and not (isinstance(only, list) and all(isinstance(x, str) for x in only)):
            raise ValueError(f"only of {name} must be a list of data sets, got {only!r}")
        on = rest.pop("on", {}) if key == "methods" else {}
        if not (isinstance(on, dict) and all(isinstance(own, dict) for own in on.values())):
            raise ValueError(f"on of {name} must be data set → settings, got {on!r}")
        entries.append(
            SuiteEntry(name, label, method, priority, None if only is None else tuple(only), on, rest)
        )
    labels = [e.label for e in entries]
    if repeated := sorted({x for x in labels if labels.count(x) > 1}):
        raise ValueError(f"[[{key}]] declares {', '.join(repeated)} more than once")
    return tuple(entries)


def _table(raw: dict[str, Any], key: str) -> dict[str, Any]:
    table = raw.get(key, {})
    if not isinstance(table, dict):
        raise ValueError(f"{key} must be a table, got {table!r}")
    return table


def _numbers(raw: Any, where: str) -> Numbers:
    """metric → data → label → number, checked."""
    try:
        return {
            metric: {data: {k: float(v) for k, v in row.items()} for data, row in table.items()}
            for metric, table in raw.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"{where} must be metric → data → method label → number") from None


def _choose(what: str, entries: Sequence[SuiteEntry], names: Iterable[str] | None) -> list[SuiteEntry]:
    if names is None:
        return list(entries)
    wanted = {name.strip().lower() for name in names if name.strip()}
    chosen = [e for e in entries if wanted & {e.name.lower(), e.label.lower()}]
    found = {x.lower() for e in chosen for x in (e.name, e.label)}
    if unknown := sorted(wanted - found):
        known = ", ".join(e.name for e in entries)
        raise ValueError(f"{what}: no {', '.join(unknown)} in this suite; it has {known}")
    return chosen
