"""Times of two source trees, interleaved: training steps and predictions through the public API.

    python benchmarks/before_after.py BEFORE/src AFTER/src --device cpu --output FILE.json

One worker process for each tree stays alive; every round asks both for the same case, one after the other, so
that slow moments of the machine meet both. A row is the median time of each tree and the median of the paired
ratios after / before, with the spread of these ratios.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

METHODS = ("svgp", "ppgpr-chol", "odsvgp", "solvegp", "dcsvgp", "orth-a", "vfitc", "coupled-nat")
STEPS_PER_EPOCH, EPOCHS, BATCH, DIMS = 10, 9, 1024, 8


def cases(device: str) -> list[dict[str, Any]]:
    sizes = (200, 500, 1000, 2000) if device == "cuda" else (200, 800)
    out = [{"what": "step", "method": m, "M": size} for m in METHODS for size in sizes]
    out += [
        {"what": "classes", "method": "svgp", "M": sizes[0]},
        {"what": "replicates", "method": "svgp", "M": sizes[0]},
    ]
    out += [{"what": "closed-form", "method": m, "M": sizes[0]} for m in ("svgp", "dcsvgp")]
    out += [{"what": what, "method": "svgp", "M": size} for what in ("predict", "mean") for size in sizes]
    return out


def worker(device: str) -> None:
    """Read cases from standard input, one JSON object a line; answer each with milliseconds."""
    import numpy as np
    import torch

    import duogp

    rng = np.random.default_rng(0)
    rows = BATCH * STEPS_PER_EPOCH
    X = rng.normal(size=(rows, DIMS))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=rows)
    fitted: dict[str, Any] = {}
    print(duogp.__file__, flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        what, M = case["what"], case["M"]
        common: dict[str, Any] = {
            "num_inducing": M,
            "inducing_init": "random",
            "device": device,
            "kernel": "rbf",
        }
        if what in ("predict", "mean"):
            key = str(M)
            if key not in fitted:
                fitted[key] = duogp.fit(X, y, "svgp", solver="stochastic", steps=2, **common)
                fitted[key].predict(X[:10], in_parts=False)
            many = np.tile(X, (100 if device == "cuda" else 4, 1))
            begun = time.perf_counter()
            if what == "predict":
                fitted[key].predict(many, in_parts=False)
            else:
                fitted[key].predict_mean(many)
            print(json.dumps(1e3 * (time.perf_counter() - begun)), flush=True)
            continue
        times: list[float] = []

        def note(_: Any, times: list[float] = times) -> None:
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter())

        given = common | {
            "solver": "stochastic",
            "epochs": EPOCHS,
            "dtype": "float32",
            "early_stopping": False,
        }
        target: Any = y
        if what == "closed-form":
            given |= {"solver": "closed-form", "dtype": "float64", "warm_start": 0}
        if what == "classes":
            target = np.digitize(y, np.quantile(y, np.arange(0.1, 1.0, 0.1)))
            given |= {"likelihood": "robust-max"}
        if case["method"].endswith("-nat"):
            given.pop("solver")
        given |= {"validation_fraction": 0.0, "callbacks": [note]}
        if what == "replicates":
            duogp.fit_replicates(X, y, [np.arange(rows)] * 10, case["method"], **given)
        else:
            duogp.fit(X, target, case["method"], **given)
        steps = 1 if what == "closed-form" else STEPS_PER_EPOCH
        laps = [b - a for a, b in itertools.pairwise(times[1:])]
        print(json.dumps(1e3 * statistics.median(laps) / steps), flush=True)


class Tree:
    """A worker process that imports duogp from one source tree."""

    def __init__(self, source: str, device: str, threads: int) -> None:
        environment = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, __file__, "--worker", "--device", device]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)
        print(self._answer(), file=sys.stderr)

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, case: dict[str, Any]) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        return float(self._answer())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "trees", nargs="*", help="the folders src/ of the version before and of the one after"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds; no case after it")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.device)
        return
    begun = time.perf_counter()
    before, after = (Tree(source, given.device, given.threads) for source in given.trees)
    rows = []
    for case in cases(given.device):
        name = f"{case['what']} {case['method']} M = {case['M']}"
        if given.only not in name or time.perf_counter() - begun > given.time_limit:
            continue
        pairs = []
        for i in range(given.rounds):
            order = (before, after) if i % 2 == 0 else (after, before)
            found = {id(tree): tree.ask(case) for tree in order}
            pairs.append((found[id(before)], found[id(after)]))
        ratios = sorted(b / a for a, b in pairs)
        row = {
            "case": name,
            "before_ms": statistics.median(a for a, _ in pairs),
            "after_ms": statistics.median(b for _, b in pairs),
            "ratio": statistics.median(ratios),
            "ratios": [round(r, 4) for r in ratios],
        }
        rows.append(row)
        times = f"{row['before_ms']:9.3f} {row['after_ms']:9.3f}"
        print(f"{name:32} {times}  × {row['ratio']:.3f}  {ratios[0]:.3f} to {ratios[-1]:.3f}", flush=True)
    if given.output is not None:
        given.output.write_text(
            json.dumps({"device": given.device, "rounds": given.rounds, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
