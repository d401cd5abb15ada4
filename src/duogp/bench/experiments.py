"""Experiments: scripts beside the suites, listed in ``benchmarks/experiments.toml`` with their results files.

An experiment is a command that writes one file of ``benchmarks/results``; its rows are stamped by
`duogp.bench.provenance.stamp`. The list says what every results file is, how it is made and what it needs.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duogp.bench.provenance import resolved, staleness
from duogp.bench.status import ledger
from duogp.bench.suite import REPOSITORY

EXPERIMENTS = REPOSITORY / "benchmarks" / "experiments.toml"


@dataclass(frozen=True)
class Experiment:
    """A command and the file of its results.

    ``needs``: what it depends on beside the core (data, a GPU, a peer library). ``speed``: whether it
    measures times, which belong to a machine and a commit and do not become stale with the numerics.
    ``contestant``: the entry of a row that names who was measured, of whom ``peers`` run none of this code.
    ``method``: what its rows fit, where they do not say it; their rooms are those of that method.
    """

    name: str
    command: str
    results: str  # a file in benchmarks/results
    asks: str
    needs: str = ""
    paper: str = ""
    speed: bool = False
    contestant: str = ""
    peers: tuple[str, ...] = ()
    method: str = ""

    @property
    def path(self) -> Path:
        return REPOSITORY / "benchmarks" / "results" / self.results

    def staleness(self, row: Mapping[str, Any]) -> list[str]:
        """The reasons why a row may not be what would be measured today; none for a fresh row.

        A row of many runs of which a sample was made again, and agreed, is judged by those: ``confirmed`` is
        their stamp, beside how many they were and how near.
        """
        from duogp.methods import METHODS  # here, because it imports torch

        if self.contestant and row.get(self.contestant) in self.peers:
            return []
        row = row.get("confirmed", row)
        method = str(row.get("method") or self.method)
        if "resolved" not in row and method in METHODS:
            row = {**row, "method": method, "resolved": resolved(method, {})}
        return staleness(row, ledger())


def load_experiments(path: Path = EXPERIMENTS) -> list[Experiment]:
    """The experiments of a file."""
    raw = tomllib.loads(path.read_text("utf-8"))
    try:
        tables = raw.get("experiments", [])
        return [Experiment(**{**table, "peers": tuple(table.get("peers", ()))}) for table in tables]
    except TypeError as error:
        raise ValueError(f"{path.name}: {error}") from None


def stamps(value: Any) -> Iterator[dict[str, Any]]:
    """The stamped objects of a results file: those with versions, a commit or a numerics version."""
    if isinstance(value, dict):
        if {"versions", "numerics", "commit"} & value.keys():
            yield value
        else:
            for part in value.values():
                yield from stamps(part)
    elif isinstance(value, list):
        for part in value:
            yield from stamps(part)


def stored(path: Path) -> list[Any]:
    """The content of a results file: its lines, or the one object of a JSON file."""
    if not path.is_file():
        return []
    text = path.read_text("utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return [json.loads(text)]


def state(experiment: Experiment) -> tuple[int, int]:
    """How many rows (of one JSON object: stamps) its file has, and how many of them are fresh."""
    content = stored(experiment.path)
    rows = content if experiment.path.suffix == ".jsonl" else list(stamps(content)) or content
    return len(rows), sum(not experiment.staleness(row) for row in rows)


def status_line(experiment: Experiment) -> str:
    """``experiment online_robot: 127 rows, 0 done, 127 stale``."""
    count, fresh = state(experiment)
    if not count:
        return f"experiment {experiment.name}: no results ({experiment.command})"
    what = "of another numerics version or none (times)" if experiment.speed else "stale"
    return f"experiment {experiment.name}: {count} rows, {fresh} done, {count - fresh} {what}"
