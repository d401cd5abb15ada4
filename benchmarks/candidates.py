"""What a candidate of ``method="auto"`` is worth: stacks with it and without, from the same trained members.

    cd benchmarks && python -m arena.tables --export SETS && cd ..
    python benchmarks/candidates.py SETS --candidate ridge --most-rows 2000 --splits 2
    python benchmarks/candidates.py --table

Every race is run once; the law of the stack is then found twice, with all candidates and without those whose
label names the candidate. Scores are of test rows, in units of the standard deviation of the training
targets. The clock ends nothing. Rows: benchmarks/results/candidates.jsonl; those that are there are skipped.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import wilcoxon

import duogp
from arena.tables import Collection, Table, split
from duogp.bench.provenance import stamp
from duogp.fitting import auto
from duogp.fitting import table as fitting_table
from duogp.posterior.stack import Stack

RESULTS = Path(__file__).with_name("results") / "candidates.jsonl"
SECONDS = 3600.0


class Captured:
    """Stands in for `duogp.fitting.auto.stack` and keeps the stacks with and without a candidate."""

    def __init__(self, candidate: str) -> None:
        self.candidate = candidate
        self.stacks: dict[str, Stack] = {}

    def __call__(self, data: Any, given: Any, settings: Any, callbacks: Any = (), _: Any = None) -> Stack:
        race = auto.make_race(data, given, settings, callbacks)
        found = race.candidates()
        others = [c for c in found if self.candidate not in c.label]
        for name, some in {"without": others, "with": found}.items():
            law, score, shares = race.verdict(some)
            kept = auto.worth_it(some, shares, race.rules.least_share)
            self.stacks[name] = auto._stacked(race, [some[k] for k in kept], auto._without(law, kept), score)
        return self.stacks["with"]


def measure(table: Table, number: int, captured: Captured) -> dict[str, Any]:
    """Scores of both stacks on the test rows of one split."""
    rows = split(table, number)
    X, y = table.X.iloc[rows.train], table.y[rows.train]
    X_test, y_test = table.X.iloc[rows.test], table.y[rows.test]
    model = duogp.GPRegressor(random_state=0, device="cpu", time_budget=SECONDS).fit(X, y)
    found: dict[str, Any] = {"table": table.name, "half": table.half, "split": number, "rows": len(y)}
    scale = y.std()
    for name, own in captured.stacks.items():
        model._gp = own
        error = model.predict(X_test) - y_test
        found[name] = {
            "rmse": float(np.sqrt(np.mean(error**2)) / scale),
            "nll": float(-np.mean(model.log_density(X_test, y_test)) - np.log(scale)),
        }
    return found


def print_table(candidate: str) -> None:
    """Means over splits of every table, and Wilcoxon's signed-rank test over tables."""
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["candidate"] == candidate]
    for name, change in {
        "log RMSE": lambda r: np.log(r["with"]["rmse"] / r["without"]["rmse"]),
        "NLL": lambda r: r["with"]["nll"] - r["without"]["nll"],
    }.items():
        tables = sorted({row["table"] for row in rows})
        means = np.array([np.mean([change(r) for r in rows if r["table"] == t]) for t in tables])
        print(
            f"{candidate}, {name}: {means.mean():+.4f} on average, {len(tables)} tables, {len(rows)} fits; "
            f"better on {(means < 0).sum()}, p = {wilcoxon(means).pvalue:.2g}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="*", help="exported sets")
    parser.add_argument("--candidate", default="ridge")
    parser.add_argument("--most-rows", type=int, default=2000, help="of training")
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="print what is there and run nothing")
    options = parser.parse_args()
    if options.table:
        print_table(options.candidate)
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    captured = Captured(options.candidate)
    fitting_table.stack = captured  # type: ignore[assignment]
    stored = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    done = {(r["candidate"], r["table"], r["split"]) for r in map(json.loads, stored)}
    sets = [Collection(folder) for folder in options.folders]
    tables = [own.load(name) for own in sets for name in own.heads if own.heads[name]["kind"] == "regression"]
    for number in range(options.splits):
        for table in sorted(tables, key=lambda own: own.X.size):
            small = len(split(table, number).train) <= options.most_rows
            if not small or (options.candidate, table.name, number) in done:
                continue
            row = {
                "candidate": options.candidate,
                **measure(table, number, captured),
                "method": "auto",
                **stamp("cpu", method="auto"),
            }
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
