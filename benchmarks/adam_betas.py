"""How soon Adam should forget: PPGPR by its betas and rate, on tables of the half "choice".

PPGPR with a full q(u) starts from SVGP in closed form and takes 3,200 steps along half a cosine. Small tables
have 2,000 training rows, two batches; large ones are samples of 100,000, whose gradients are noisy. A default
is chosen by the loss, which no test row has touched; the NLL of at most 5,000 test rows of the first split
stands beside it. What is in the file is not computed again.

    export DUOGP_DATA=<folder with regression/*.npz>
    python benchmarks/adam_betas.py --workers 2
    python benchmarks/adam_betas.py --table
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import duogp
from duogp.bench.provenance import stamp
from duogp.data.benchmark import load
from suite_tables import markdown

RESULTS = Path(__file__).parent / "results" / "adam_betas.jsonl"
SMALL = ("energy", "pol", "kin40k", "elevators", "housing", "keggdirected")
LARGE = ("houseelectric",)
ROWS, LARGE_ROWS, TEST_ROWS, POINTS, STEPS, WARM_ROWS = 2000, 100_000, 5000, 100, 3200, 5000
BETAS = (0.9, 0.999), (0.9, 0.95), (0.95, 0.95)
RATES = 0.03, 0.1
Task = tuple[str, tuple[float, float], float]
Arrays = tuple[NDArray[np.float64], ...]


def rows_of(name: str) -> Arrays:
    """Training and test rows, scaled to one standard deviation of the training target."""
    data, rng = load(name), np.random.default_rng(0)
    test = rng.random(len(data.y)) < 0.1 if data.test_mask is None else data.test_mask[:, 0]
    order = rng.permutation(np.flatnonzero(~test))[: LARGE_ROWS if name in LARGE else ROWS]
    held_out = np.flatnonzero(test)[:TEST_ROWS]
    y = (data.y - data.y[order].mean()) / data.y[order].std()
    return data.X[order], y[order], data.X[held_out], y[held_out]


def measured(task: Task) -> dict[str, Any]:
    """One fit: the loss that it ends with, and test NLL."""
    name, betas, rate = task
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    X, y, X_test, y_test = rows_of(name)
    settings: dict[str, Any] = {
        "num_inducing": POINTS,
        "device": "cpu",
        "steps": STEPS,
        "schedule": "cosine",
        "warm_start": 3000,
        "warm_start_rows": min(len(X), WARM_ROWS),
        "learning_rate": rate,
        "adam_betas": betas,
    }
    gp = duogp.fit(X, y, "ppgpr-chol", **settings)
    last = gp.history.series("loss")[-1]
    return {
        "method": "ppgpr-chol",
        "data": name,
        "rows": len(X),
        "betas": list(betas),
        "rate": rate,
        "loss": last,
        "nll": float(-gp.log_density(X_test, y_test).mean()),
        "seconds": gp.history.seconds,
        "settings": settings,
        **stamp("cpu", method="ppgpr-chol", settings=settings),
    }


def stored() -> dict[Task, dict[str, Any]]:
    """Rows by table, betas and rate."""
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    return {(row["data"], (row["betas"][0], row["betas"][1]), row["rate"]): row for row in rows}


def table() -> str:
    """Markdown: the loss of every table by betas and rate, the lowest in bold, and test NLL in brackets."""
    found = stored()
    names = [name for name in (*SMALL, *LARGE) if any(name == data for data, _, _ in found)]
    ways = [(betas, rate) for rate in RATES for betas in BETAS]
    lowest = {name: min(row["loss"] for (data, _, _), row in found.items() if data == name) for name in names}
    lines = []
    for betas, rate in ways:
        cells = []
        for name in names:
            row = found.get((name, betas, rate))
            if row is None:
                cells.append("")
                continue
            loss = f"{row['loss']:.3f}"
            cells.append(f"{f'**{loss}**' if row['loss'] == lowest[name] else loss} ({row['nll']:.3f})")
        lines.append([f"{betas[0]}, {betas[1]}", f"{rate}", *cells])
    return markdown(["betas", "rate", *names], lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="*", default=(*SMALL, *LARGE))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        print(table())
        return
    done = stored()
    tasks = [
        task
        for name in given.data
        for rate in RATES
        for betas in BETAS
        if (task := (name, betas, rate)) not in done
    ]
    with multiprocessing.get_context("spawn").Pool(given.workers, maxtasksperchild=1) as pool:
        for row in pool.imap_unordered(measured, tasks):
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
    print(table())


if __name__ == "__main__":
    main()
