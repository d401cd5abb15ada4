"""Cells drawn at random and run again: whether the library of today still computes what the store holds.

``duogp bench rerun`` draws cells of each suite that have a row, runs them as they ran then (the same splits
trained together, on a CPU with as many threads), compares their metrics and appends the comparison to
``benchmarks/results/reruns.jsonl``. Two runs on a CPU must agree to `CPU_TOLERANCE`; where either had a GPU,
within one standard error of the metric over the test rows.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from duogp.bench.provenance import staleness
from duogp.bench.results import Results, Row, append
from duogp.bench.runner import Execute, Job, run_job
from duogp.bench.status import ledger
from duogp.bench.suite import REPOSITORY, Cell, Suite
from duogp.bench.workers import run_in_processes

RERUNS = REPOSITORY / "benchmarks" / "results" / "reruns.jsonl"
#: |again − stored| that two runs on a CPU may differ by, relative to numbers above one.
CPU_TOLERANCE = 1e-6
#: Metrics of rows that are compared.
METRICS = ("rmse", "nll", "accuracy")


@dataclass(frozen=True)
class Draw:
    """A cell to run again: its stored row, and the job it was trained in."""

    cell: Cell
    stored: Row
    job: Job


def draw(
    suite: Suite,
    results: Results,
    count: int,
    seed: int,
    *,
    device: str | None = None,
    longest: float | None = None,
    fresh: bool = False,
) -> list[Draw]:
    """``count`` cells of a suite that have a row, without replacement; the same for the same seed and store.

    Only rows whose data are at hand, of one kind of device (``device``), of jobs that took at most
    ``longest`` seconds, that are not stale (``fresh``).
    """
    cells = {cell.hash: cell for cell in suite.cells()}
    here = data_at_hand()
    found = [(cell, row) for cell in cells.values() if (row := results.ok(cell)) is not None]
    found = [
        (cell, row)
        for cell, row in found
        if (cell.data in here or cell.data.startswith("sklearn/"))
        and (device is None or kind(row["device"]) == kind(device))
        and (longest is None or sum(row["seconds"].values()) * row.get("replicates", 1) <= longest)
        and not (fresh and staleness(row, ledger()))
    ]
    found.sort(key=lambda pair: pair[0].hash)
    chosen = random.Random(f"{suite.name} {seed}").sample(found, min(count, len(found)))
    return [Draw(cell, row, job_of(cell, row)) for cell, row in chosen]


def job_of(cell: Cell, row: Row) -> Job:
    """The cells that were trained together; alone where the row does not say."""
    splits = row.get("job") or [cell.split]
    return tuple(replace(cell, split=int(split)) for split in splits)


def data_at_hand() -> set[str]:
    """The names of data sets that can be loaded here, with and without their folders."""
    from duogp.data.benchmark import available

    return {part for name in available() for part in (name, name.partition("/")[2])}


def kind(device: str) -> str:
    """``cuda:1`` → ``cuda``."""
    return str(device).split(":")[0]


def rule(stored: Row, again: Row) -> str:
    """How closely two rows must agree: "digits" for two runs on a CPU, else "standard error"."""
    return "digits" if kind(stored["device"]) == kind(again["device"]) == "cpu" else "standard error"


def compare(suite: Suite, drawn: Draw, again: Row) -> dict[str, Any]:
    """The comparison: metrics of both, their differences, what was allowed, and whether they agree."""
    stored = drawn.stored
    out: dict[str, Any] = {
        "suite": suite.name, "data": drawn.cell.data, "label": drawn.cell.label, "split": drawn.cell.split,
        "hash": drawn.cell.hash, "method": drawn.cell.method, "rule": rule(stored, again),
        "stored": _about(stored) | {"stale": staleness(stored, ledger())}, "again": _about(again),
    }  # fmt: skip
    for name in ("commit", "dirty", "numerics", "versions", "device", "device_name", "resolved", "settings",
                 "seconds", "finished"):  # fmt: skip
        if name in again:
            out[name] = again[name]
    if again["status"] != "ok":
        return out | {"agrees": False, "error": again["error"], "metrics": {}}
    both = [name for name in METRICS if name in stored["metrics"] and name in again["metrics"]]
    errors = again.get("standard_errors", {})
    out["metrics"] = {}
    for name in both:
        then, now = float(stored["metrics"][name]), float(again["metrics"][name])
        allowed = CPU_TOLERANCE * max(1.0, abs(then)) if out["rule"] == "digits" else errors.get(name)
        agrees = None if allowed is None else abs(now - then) <= allowed
        out["metrics"][name] = {"stored": then, "again": now, "allowed": allowed, "agrees": agrees}
    judged = [each["agrees"] for each in out["metrics"].values() if each["agrees"] is not None]
    return out | {"agrees": bool(judged) and all(judged)}


def _about(row: Row) -> dict[str, Any]:
    names = ("commit", "numerics", "device", "device_name", "finished", "replicates")
    return {name: row.get(name) for name in names}


def rerun(
    suites: Sequence[Suite],
    *,
    count: int = 2,
    seed: int = 0,
    device: str,
    workers: int = 1,
    longest: float | None = None,
    fresh: bool = False,
    time_limit: float | None = None,
    output: Path = RERUNS,
    report: Callable[[str], None] = print,
    execute: Execute | None = None,
) -> list[dict[str, Any]]:
    """Draw cells of every suite, run them again, store and return the comparisons.

    With ``time_limit`` (seconds) no cell starts that took longer then than there is time left.
    """
    drawn: dict[Job, tuple[Suite, Draw]] = {}
    for suite in suites:
        for each in draw(suite, Results.read(suite.results), count, seed, device=device, longest=longest,
                         fresh=fresh):  # fmt: skip
            drawn[each.job] = (suite, each)
    out: list[dict[str, Any]] = []
    start = time.monotonic()

    def queue() -> Iterator[Job]:
        for job, (_, each) in drawn.items():
            took = sum(each.stored["seconds"].values()) * len(job)
            if time_limit is None or time.monotonic() - start + took < time_limit:
                yield job

    def finished(job: Job, rows: list[Row]) -> None:
        suite, each = drawn[job]
        row = next(r for r in rows if r["split"] == each.cell.split)
        comparison = compare(suite, each, row) | {"draw": seed, "job": [cell.split for cell in job]}
        append(output, comparison | {"status": row["status"]})
        out.append(comparison)
        report(describe(comparison))

    work = execute or run_as_then(drawn)
    if workers == 1:
        for job in queue():
            finished(job, work(job, device))
    else:
        run_in_processes(queue(), min(workers, max(1, len(drawn))), device, execute or run_job, finished)
    return out


def run_as_then(drawn: dict[Job, tuple[Suite, Draw]]) -> Execute:
    """`run_job` with as many threads as the stored row had: sums of more threads have other digits."""

    def work(job: Job, device: str) -> list[Row]:
        import torch

        before = torch.get_num_threads()
        named = re.search(r"\((\d+) threads\)", str(drawn[job][1].stored.get("device_name")))
        torch.set_num_threads(int(named[1]) if named and device == "cpu" else before)
        try:
            return run_job(job, device)
        finally:
            torch.set_num_threads(before)

    return work


def describe(comparison: dict[str, Any]) -> str:
    """``paper_dc pol SVGP split 1: agrees (digits): rmse 0.151 0.151``."""
    head = "{suite} {data} {label} split {split}".format(**comparison)
    if "error" in comparison:
        return f"{head}: failed, {comparison['error']['type']}: {comparison['error']['message']}"
    numbers = ", ".join(
        f"{name} {each['stored']:.6g} → {each['again']:.6g}"
        + ("" if each["allowed"] is None else f" (± {each['allowed']:.1g})")
        for name, each in comparison["metrics"].items()
    )
    return f"{head}: {'agrees' if comparison['agrees'] else 'DIFFERS'} ({comparison['rule']}): {numbers}"


def latest(path: Path = RERUNS) -> list[dict[str, Any]]:
    """The last comparison of every cell that was run again."""
    if not path.is_file():
        return []
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    return list({(each["suite"], each["hash"]): each for each in lines}.values())


def status_lines(comparisons: Sequence[dict[str, Any]]) -> list[str]:
    """``reruns of paper_dc: 2 drawn, 2 agree``, and the cells that do not."""
    lines = []
    for name in sorted({each["suite"] for each in comparisons}):
        own = [each for each in comparisons if each["suite"] == name]
        agree = sum(each["agrees"] for each in own)
        lines.append(f"reruns of {name}: {len(own)} drawn, {agree} agree")
        lines += [f"  {describe(each)}" for each in own if not each["agrees"]]
    return lines
