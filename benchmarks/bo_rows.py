"""Loops of Bayesian optimisation as lines of a file: what makes two the same, how they are made and compared.

`bo_loops.py` and `bo_turbo.py` say what a loop is (`Comparison`); the command line, the list of jobs, the
file and the table are here. A finished loop is not computed again; one that fails is a line with its error
and is tried again.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_rel

from duogp.bench.measure import device_name
from duogp.bench.provenance import stamp

#: What makes two loops the same.
KEY = ("problem", "model", "seed", "evaluations")
#: The values of KEY.
Job = tuple[str, str, int, int]
#: Added before logarithms of regrets are compared: below it a loop has found the optimum.
FOUND = 1e-3


@dataclass(frozen=True)
class Comparison:
    """Loops of our model and others on the same problems, from the same seeds."""

    run: Callable[[str, str, int, int], dict[str, Any]]  # one loop, of the values of KEY; a module's function
    evaluations: Mapping[str, int]  # of every problem
    ours: str
    against: tuple[str, ...]  # with paired tests
    beside: tuple[str, ...] = ()  # without
    seeds: int = 10

    def main(self, description: str | None, output: Path) -> None:
        """The command line: compute what is missing among the loops asked for, and print the table of all."""
        options = self._parser(description, output).parse_args()
        rows = read(options.output)
        if not options.table:
            done = {tuple(row[k] for k in KEY) for row in rows}
            jobs = [job for job in self._jobs(options) if job not in done]
            rows = self._compute(jobs, options.output, options.workers)
        print(table(rows, self.ours, self.against))

    def _parser(self, description: str | None, output: Path) -> argparse.ArgumentParser:
        own = argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(description=description, formatter_class=own)
        models = " ".join((self.ours, *self.against, *self.beside))
        parser.add_argument("--problems", default=",".join(self.evaluations))
        parser.add_argument("--models", default=models, help="separated by spaces")
        parser.add_argument("--seeds", type=int, default=self.seeds)
        parser.add_argument("--first-seed", type=int, default=0)
        parser.add_argument("--evaluations", type=int, help="of every loop, in place of the problem's own")
        parser.add_argument("--workers", type=int, default=1)
        parser.add_argument("--output", type=Path, default=output)
        parser.add_argument("--table", action="store_true", help="print what is there and run nothing")
        return parser

    def _jobs(self, options: argparse.Namespace) -> list[Job]:
        return [
            (problem, model, seed, options.evaluations or self.evaluations[problem])
            for seed in range(options.first_seed, options.first_seed + options.seeds)
            for problem in options.problems.split(",")
            for model in options.models.split()
        ]

    def _compute(self, jobs: list[Job], output: Path, workers: int) -> list[dict[str, Any]]:
        """All finished loops, those of the jobs included, whose rows are written as they come."""
        known = {"device": device_name("cpu"), **stamp()}
        output.parent.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            for future in as_completed([pool.submit(_row, self.run, job) for job in jobs]):
                row = future.result() | known
                with output.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(*(row[k] for k in KEY), row.get("regret", row.get("error")), flush=True)
        return read(output)


def _row(run: Callable[[str, str, int, int], dict[str, Any]], job: Job) -> dict[str, Any]:
    """A loop as a line of the file; with its error, where it fails."""
    row = dict(zip(KEY, job, strict=True))
    try:
        return row | run(*job)
    except Exception as error:
        return row | {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def read(path: Path) -> list[dict[str, Any]]:
    """Finished loops; of two with one key the later."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return list({tuple(row[k] for k in KEY): row for row in rows if "error" not in row}.values())


def table(
    rows: list[dict[str, Any]], ours: str, against: Sequence[str], labels: Mapping[str, str] | None = None
) -> str:
    """Markdown: mean regret and standard error, with paired tests of ours against others."""
    models = sorted({row["model"] for row in rows}, key=lambda m: (m != ours, m not in against, m))
    named = {m: m for m in models} | dict(labels or {})
    against = [m for m in against if m in models and ours in models]
    head = ["problem (evaluations)", *(named[m] for m in models), *(f"p against {named[m]}" for m in against)]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    pooled: dict[str, dict[Any, float]] = {m: {} for m in models}
    for problem, evaluations in sorted({(row["problem"], row["evaluations"]) for row in rows}):
        own = [row for row in rows if (row["problem"], row["evaluations"]) == (problem, evaluations)]
        regrets = {m: {row["seed"]: row["regret"] for row in own if row["model"] == m} for m in models}
        cells = [_mean(list(regrets[m].values())) for m in models]
        tests = [_paired(regrets[ours], regrets[m]) for m in against]
        lines.append([f"{problem} ({evaluations})", *cells, *tests])
        for m in models:
            pooled[m] |= {(problem, seed): regret for seed, regret in regrets[m].items()}
    if len(lines) > 3 and against:  # pairs of all problems, each pair counts the same
        tests = [_paired(pooled[ours], pooled[m]) for m in against]
        lines.append(["all", *[f"({len(pooled[m])})" if pooled[m] else "" for m in models], *tests])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _mean(values: list[float]) -> str:
    if not values:
        return ""
    error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{np.mean(values):.3g} ± {error:.2g} ({len(values)})"


def _paired(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> str:
    """Two-sided p of a paired t test of log regrets, with the direction."""
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) < 2:
        return ""
    a, b = (np.log10(np.maximum([r[s] for s in seeds], 0.0) + FOUND) for r in (ours, theirs))
    if np.allclose(a, b):
        return "equal"
    return f"{ttest_rel(a, b).pvalue:.2g} ({'better' if a.mean() < b.mean() else 'worse'})"
