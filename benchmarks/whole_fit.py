"""A whole `fit` of two million rows, from a table in memory and from Parquet files, one after the other.

houseelectric (2,049,258 rows × 11), SVGP in closed form with M = 500 to its own end, everything else by
default; 10,000 rows are held out for the scores. Every fit runs in a process of its own, after a small fit
that loads libraries and starts the device; the clock covers `duogp.fit` alone.

    export DUOGP_DATA=<folder with regression/houseelectric.npz>
    python benchmarks/whole_fit.py --device cuda --repeats 2
    python benchmarks/whole_fit.py --device cpu --threads 2
    python benchmarks/whole_fit.py --device cuda --ways memory --tolerance 5e-4  # far longer
    python benchmarks/whole_fit.py --table

Results: benchmarks/results/whole_fit.jsonl (--results: another file).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
RESULTS = HERE.parent / "results" / "whole_fit.jsonl"
TEST_ROWS = 10_000
WAYS = ("memory", "streamed")


def table(options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training inputs and targets, those held out after them."""
    from duogp.data.benchmark import load

    data = load(options["data"])
    order = np.random.default_rng(0).permutation(len(data.y))
    if options["rows"]:
        order = order[: options["rows"] + TEST_ROWS]
    train, test = np.sort(order[:-TEST_ROWS]), order[-TEST_ROWS:]
    return data.X[train], data.y[train], data.X[test], data.y[test]


def write(options: dict[str, Any]) -> None:
    """The training rows as one Parquet file."""
    import pyarrow.parquet as parquet

    X, y, _, _ = table(options)
    parquet.write_table(as_arrow(X, y), options["file"], row_group_size=131_072)


def as_arrow(X: np.ndarray, y: np.ndarray) -> Any:
    import pyarrow as pa

    return pa.table({f"x{i}": X[:, i] for i in range(X.shape[1])} | {"y": y})


def child(options: dict[str, Any]) -> None:
    """One fit; its row is printed."""
    import torch

    torch.set_num_threads(options["threads"])
    import duogp
    from duogp.bench.measure import Stopwatch, device_name, peak_memory, resolve_device, versions
    from duogp.bench.provenance import stamp

    device = resolve_device(options["device"])
    settings: dict[str, Any] = {
        "num_inducing": options["points"],
        "solver": "closed-form",
        "device": device,
        "dtype": options["dtype"],
    }
    if options["tolerance"] is not None:
        settings["tolerance"] = options["tolerance"]
    X, y, X_test, y_test = table(options)
    first = {**settings, "num_inducing": 20, "epochs": 2}
    duogp.fit(X[:2000], y[:2000], "svgp", **first).predict(X[:10])
    busy = time.process_time()
    if options["way"] == "streamed":
        import pyarrow.dataset

        duogp.fit(pyarrow.dataset.dataset(as_arrow(X[:2000], y[:2000])), target="y", method="svgp", **first)
        rows = len(y)
        del X, y
        files = pyarrow.dataset.dataset(options["file"])
        busy = time.process_time()
        with Stopwatch(device) as clock:
            gp = duogp.fit(files, target="y", method="svgp", **settings)
    else:
        rows = len(y)
        with Stopwatch(device) as clock:
            gp = duogp.fit(X, y, "svgp", **settings)
    busy = time.process_time() - busy
    scores = gp.predict(X_test).metrics(y_test)
    found = {
        **{k: options[k] for k in ("data", "way", "points", "dtype", "threads", "repeat", "tolerance")},
        "rows": rows,
        "seconds": round(clock.seconds, 2),
        "cpu_seconds": round(busy, 2),
        "evaluations": gp.history[-1].epoch,
        "loss": gp.history[-1].loss,
        **{key: scores[key] for key in ("nll", "rmse")},
        "notes": list(gp.history.notes),
        "peak_mb": round((peak_memory("cpu") or 0) / 1e6, 1),
        "device_mb": round((peak_memory(device) or 0) / 1e6, 1) if device.startswith("cuda") else None,
        "device": device_name(device),
        **versions(),
        **stamp(),
    }
    print(json.dumps(found))


def measure(options: dict[str, Any], limit: float | None) -> None:
    """A fit in a process of its own; its row is stored. One that fails or lasts too long is said to."""
    environment = os.environ | {"OMP_NUM_THREADS": str(options["threads"])}
    command = [sys.executable, str(HERE), "--child", json.dumps(options)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=limit)
    except subprocess.TimeoutExpired:
        print(f"{options['way']:<9} ended after {limit:.0f} s, before it was done", flush=True)
        return
    if run.returncode:
        print(f"{options['way']:<9} failed:\n{run.stderr}", flush=True)
        return
    row = json.loads(run.stdout.splitlines()[-1])
    with Path(options["results"]).open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(
        f"{row['way']:<9} {row['rows']:,} rows {row['seconds']:>8.1f} s, {row['evaluations']} evaluations, "
        f"NLL {row['nll']:.4f}, RMSE {row['rmse']:.4f}, {row['peak_mb']:,.0f} MB",
        flush=True,
    )


def print_table(results: Path) -> None:
    """Medians over the repeats."""
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = tuple(str(row[k]) for k in ("device", "dtype", "data", "rows", "points", "way"))
        if row.get("tolerance") is not None:
            key = (*key[:-1], f"{key[-1]}, tolerance {row['tolerance']:g}")
        groups.setdefault(key, []).append(row)
    print("| device | | data | rows | M | rows from | seconds | evaluations | NLL | RMSE |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for key, group in sorted(groups.items()):
        seconds, evaluations, nll, rmse = (
            statistics.median(row[name] for row in group)
            for name in ("seconds", "evaluations", "nll", "rmse")
        )
        print(f"| {' | '.join(key)} | {seconds:.1f} | {evaluations:.0f} | {nll:.4f} | {rmse:.4f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="regression/houseelectric")
    parser.add_argument("--rows", type=int, default=None, help="of all, drawn at random; all by default")
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--device", default=None)
    parser.add_argument("--tolerance", type=float, default=None, help="that of fit; its default by default")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--within", type=float, default=None, help="seconds for all fits")
    parser.add_argument("--each", type=float, default=None, help="seconds for one fit, at most")
    parser.add_argument("--results", default=str(RESULTS))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(json.loads(given.child))
        return
    if given.table:
        print_table(Path(given.results))
        return
    end = None if given.within is None else time.monotonic() + given.within
    names = ("data", "rows", "points", "dtype", "device", "threads", "results", "tolerance")
    options = {name: getattr(given, name) for name in names}
    with tempfile.TemporaryDirectory(prefix="duogp_rows_") as folder:
        options["file"] = f"{folder}/rows.parquet"
        write(options)
        for repeat in range(given.repeats):
            for way in given.ways:
                limits = [given.each, None if end is None else max(end - time.monotonic(), 1.0)]
                limit = min((each for each in limits if each is not None), default=None)
                measure({**options, "way": way, "repeat": repeat}, limit)


if __name__ == "__main__":
    main()
