"""Do the defaults train to the end? Every method at its default against itself with ten times the steps.

The second fit takes ten times the steps that the first took after its start, ends for nothing but its steps,
and anneals its rate over all of them, along one half of a cosine. Validation rows, where a method has them,
still choose the state that it leaves with. Large tables are cut to 2,000 training rows; of the first split's
test rows at most 5,000 count. A row of benchmarks/results/to_the_end.jsonl is one method on one table; what
is there is not computed again, but for longer runs that ``--only-default`` left out. Workers that share a GPU
take turns on it unless CUDA's multi-process service runs (``nvidia-cuda-mps-control -d``): eight deep GPs
then take three minutes.

    export DUOGP_DATA=<folder with regression/*.npz>
    python benchmarks/to_the_end.py --workers 8 --threads 2
    python benchmarks/to_the_end.py --methods svgp odsvgp --data energy concrete
    python benchmarks/to_the_end.py --methods dgp --device cuda --workers 8
    python benchmarks/to_the_end.py --methods dgp --only-default
    python benchmarks/to_the_end.py --table
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

import duogp
from duogp.bench.provenance import stamp
from duogp.data.benchmark import load
from duogp.training.adam import QUICK_BETAS
from suite_tables import markdown

RESULTS = Path(__file__).parent / "results" / "to_the_end.jsonl"
METHODS = ("svgp", "dcsvgp", "odsvgp", "solvegp", "orthnat", "coupled-nat", "vfitc", "ppgpr-chol", "dgp")
DATA = ("energy", "concrete", "airfoil", "pol", "elevators", "bike", "kin40k", "protein")
ROWS, TEST_ROWS, POINTS = 2000, 5000, 100
TIMES, ALLOWED = 10, 0.02  # the steps, and test NLL that they may gain


def rows_of(name: str) -> tuple[np.ndarray, ...]:
    """Training and test rows of the first split, scaled to one standard deviation of the training target."""
    data = load(name)
    test = data.test_mask[:, 0]
    order = np.random.default_rng(0).permutation(np.flatnonzero(~test))[:ROWS]
    y = (data.y - data.y[order].mean()) / data.y[order].std()
    held_out = np.flatnonzero(test)[:TEST_ROWS]
    return data.X[order], y[order], data.X[held_out], y[held_out]


def steps_of(gp: Any, n: int) -> tuple[int, int]:
    """Optimiser steps of a fit, and of its start."""
    history = gp.history
    per_epoch = 1 if history.solver == "closed-form" else -(-n // min(gp.settings.batch_size, n))
    start = [int(k) for note in history.notes for k in re.findall(r"started from (\d+) ", note)]
    return history[-1].epoch * per_epoch, sum(start)


def measured(task: tuple[str, str, int, str, bool]) -> dict[str, Any]:
    """One method on one table: the default and, if asked for, ten times as long."""
    method, name, threads, device, also_longer = task
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    X, y, X_test, y_test = rows_of(name)
    fixed: dict[str, Any] = {"num_inducing": min(POINTS, len(X)), "device": device}

    def fit(**settings: Any) -> tuple[Any, dict[str, Any]]:
        start = time.perf_counter()
        gp = duogp.fit(X, y, method, **fixed, **settings)
        steps, before = steps_of(gp, len(X))
        found = {
            "nll": float(-gp.log_density(X_test, y_test).mean()),
            "loss": gp.history[-1].loss,
            "steps": steps,
            "start": before,
            "seconds": round(time.perf_counter() - start, 1),
            "converged": gp.history.converged,
        }
        return gp, found

    gp, default = fit()
    longer: dict[str, Any] | None = None
    more: dict[str, Any] = {"tolerance": 0.0, "steps": TIMES * default["steps"]}
    if gp.history.solver != "closed-form":
        more |= {"schedule": "cosine", "learning_rate": gp.history[0].learning_rate}
        more["adam_betas"] = QUICK_BETAS  # given steps are a protocol's
        more["warm_start"] = default["start"]  # given steps would go without
    if gp.history.best_epoch is not None:
        more["patience"] = 10**6
    if also_longer:
        _, longer = fit(**more)
    return {
        "method": method,
        "data": name,
        "rows": len(X),
        "points": fixed["num_inducing"],
        "settings": fixed,
        "threads": threads,
        "default": default,
        "longer": longer,
        **stamp(device, method=method, settings=fixed),
    }


def stored() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def table() -> str:
    """Markdown: test NLL of the default, what ten times the steps gain, and whether that is allowed."""
    found = {(row["method"], row["data"]): row for row in stored()}
    names = [name for name in DATA if any(name == data for _, data in found)]
    lines: list[list[str]] = []
    judged = kept = unfinished = 0
    for method in METHODS:
        cells = []
        for name in names:
            row = found.get((method, name))
            if row is None:
                cells.append("")
                continue
            if row["longer"] is None:
                cells.append(f"{row['default']['nll']:.3f} (–)")
                continue
            judged += 1
            gain = row["default"]["nll"] - row["longer"]["nll"]
            kept += gain <= ALLOWED
            unfinished += gain > ALLOWED and row["default"]["converged"] is False
            cells.append(f"{row['default']['nll']:.3f} ({gain:+.3f}{'' if gain <= ALLOWED else ' †'})")
        if any(cells):
            lines.append([method, *cells])
    rows = markdown(["method", *names], lines)
    others = judged - kept
    told = f"{kept} of {judged} gain at most {ALLOWED}; † marks the others"
    return f"{rows}\n\n{told}" + (
        f", of which {unfinished} say themselves that they did not converge." if others else "."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--data", nargs="*", default=DATA)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="deep GPs take hours on a CPU, minutes on a GPU")
    parser.add_argument("--only-default", action="store_true", help="leave the longer run for another time")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        print(table())
        return
    enough = [row for row in stored() if given.only_default or row["longer"] is not None]
    done = {(row["method"], row["data"]) for row in enough}
    pairs = [(m, d) for d in given.data for m in given.methods if (m, d) not in done]
    tasks = [(m, d, given.threads, given.device, not given.only_default) for m, d in pairs]
    with multiprocessing.get_context("spawn").Pool(given.workers, maxtasksperchild=1) as pool:
        for row in pool.imap_unordered(measured, tasks):
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            nll, longer = row["default"]["nll"], row["longer"]
            gains = "" if longer is None else f" gains {nll - longer['nll']:+.3f}"
            print(f"{row['method']:12s} {row['data']:10s} {nll:8.3f}{gains}")
    print(table())


if __name__ == "__main__":
    main()
