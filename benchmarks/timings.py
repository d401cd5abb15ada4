"""Seconds of whole fits on a quiet machine: closed-form SVGP with 300 points, and the untouched default.

    python benchmarks/timings.py            appends to benchmarks/results/timings.jsonl
    python benchmarks/timings.py --table    prints the rows that are there

svgp        5,000 to 10,000 rows of four tables of the data folder (``DUOGP_DATA``)
auto        made-up tables of eight columns: numbers, positive numbers (`exp` of them) and three classes, with
            the time they take by themselves and with budgets
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import duogp
from duogp.bench.provenance import stamp
from duogp.data.benchmark import load

RESULTS = Path(__file__).with_name("results") / "timings.jsonl"
SVGP = (("elevators", 5_000), ("kin40k", 10_000), ("protein", 10_000), ("pol", 5_000))
#: Rows, seconds allowed (None: as many as it takes) and kind of target.
AUTO = (
    (300, None, "numbers"), (300, None, "positive"), (800, None, "numbers"), (1500, None, "numbers"),
    (2000, None, "numbers"), (2000, None, "positive"), (300, None, "classes"), (800, None, "classes"),
    (1500, None, "classes"), (1500, 4, "numbers"), (2500, 10, "numbers"), (20_000, 20, "numbers"),
    (20_000, 20, "positive"), (5000, 8, "classes"), (3_000_000, 30, "numbers"),
)  # fmt: skip
Row = dict[str, Any]


def table(n: int, kind: str, seed: int = 0) -> tuple[NDArray, NDArray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 8))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=n)
    if kind == "classes":
        return X, (y > 0).astype(int) + (y > 1)
    return X, np.exp(y) if kind == "positive" else y


def measured() -> Iterator[Row]:
    for name, n in SVGP:
        data = load(name)
        y = (data.y - data.y.mean()) / data.y.std()
        begun = time.perf_counter()
        gp: Any = duogp.fit(data.X[:n], y[:n], "svgp", num_inducing=300, device="cpu", random_state=0)
        seconds = time.perf_counter() - begun
        yield {"what": "svgp", "table": name, "rows": n, "seconds": seconds, "loss": gp.history[-1].loss}
    for n, budget, kind in AUTO:
        X, y = table(n, kind)
        estimator = duogp.GPClassifier if kind == "classes" else duogp.GPRegressor
        begun = time.perf_counter()
        estimator(time_budget=budget, device="cpu", random_state=0).fit(X, y)
        seconds = time.perf_counter() - begun
        yield {"what": "auto", "table": kind, "rows": n, "budget": budget, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="print what is there and run nothing")
    options = parser.parse_args()
    if options.table:
        print(RESULTS.read_text(encoding="utf-8"), end="")
        return
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    for row in measured():
        line = json.dumps({**row, "threads": options.threads, **stamp()})
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)


if __name__ == "__main__":
    main()
