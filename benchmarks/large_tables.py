"""The default, with more time and a GPU, on the five tables that papers compare scalable GPs on.

Each table is split as in Zhu et al. (2023): 75 % of the rows to train, 10 % to validate, 15 % to test, y
standardised. The validation rows are given back to the default as training rows: it holds out its own. What
is stored for every run: NLL of the predictive mixture, CRPS, RMSE, coverage, the weights of the members, and
how long it took.

    export DUOGP_DATA=<folder with regression/*.npz>
    python benchmarks/large_tables.py --seconds 90 --device cuda
    python benchmarks/large_tables.py --table
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
import warnings
from pathlib import Path

import numpy as np

import duogp
from duogp.bench.measure import device_name
from duogp.bench.provenance import stamp
from duogp.data.benchmark import load
from duogp.data.splits import dc_protocol
from suite_tables import markdown

RESULTS = Path(__file__).parent / "results" / "large_tables.jsonl"
DATA = ("protein", "kin40k", "bike", "pol", "elevators")


def measure(name: str, split: int, seconds: float, device: str) -> dict[str, object]:
    data = load(name)
    rows = dc_protocol(data.X, data.y, split)
    X_train = np.concatenate([rows.X_train, rows.X_val])
    y_train = np.concatenate([rows.y_train, rows.y_val])
    start = time.perf_counter()
    model = duogp.fit(X_train, y_train, "auto", device=device, time_budget=seconds, random_state=split)
    fitted = time.perf_counter() - start
    prediction = model.predict(rows.X_test)
    scores = prediction.metrics(rows.y_test)
    return {
        "data": name,
        "split": split,
        "budget": seconds,
        "seconds": round(fitted, 1),
        "n": len(y_train),
        **{key: scores[key] for key in ("nll", "crps", "rmse", "coverage")},
        "weights": model.weights,
        "notes": model.history.notes,
        "device": device_name(device),
        **stamp(),
    }


def table(path: Path = RESULTS) -> str:
    """Markdown of the latest row of every table and split."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    latest = {(row["data"], row["split"]): row for row in rows}
    head = ["table", "split", "training rows", "NLL", "CRPS", "RMSE", "95 % interval holds", "seconds"]
    lines = []
    for name, split in sorted(latest, key=lambda key: (DATA.index(key[0]), key[1])):
        row = latest[name, split]
        scores = [f"{row['nll']:.2f}", *(f"{row[key]:.4f}" for key in ("crps", "rmse"))]
        rest = [f"{row['coverage']:.3f}", f"{row['seconds']:.0f}", str(row.get("commit") or "")]
        lines.append([name, str(split), f"{row['n']:,}", *scores, *rest])
    return markdown([*head, "commit"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="*", default=DATA)
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        print(table(given.results))
        return
    warnings.simplefilter("ignore")
    for split in range(given.splits):
        for name in given.data:
            try:
                row = measure(name, split, given.seconds, given.device)
            except Exception:  # the next table may be well
                traceback.print_exc()
                continue
            print(
                name,
                split,
                row["seconds"],
                round(row["nll"], 3),
                round(row["rmse"], 4),
                row["notes"],
                flush=True,
            )
            with given.results.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
