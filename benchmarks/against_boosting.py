"""`method="auto"` against gradient boosting with uncertainty: CatBoost's RMSEWithUncertainty.

Both get the same split and scaling (MATH §2.4: X in [−1, 1], y standardised; 75 % train, 10 % validation,
15 % test) and use the validation rows as they like: CatBoost to stop (at most 3,000 trees), duogp to choose
and to stop. Everything else is the default of either. Test NLL and CRPS are of Gaussian predictions.
Results are kept in benchmarks/results/against_boosting.jsonl, and not computed again.

    export DUOGP_DATA=<folder with regression/*.npz>
    pip install catboost
    python benchmarks/against_boosting.py
    python benchmarks/against_boosting.py --table
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import duogp
from duogp.bench.measure import device_name, versions
from duogp.data.benchmark import load
from duogp.data.splits import Split, dc_protocol
from duogp.metrics import coverage, crps, nll, rmse

RESULTS = Path(__file__).parent / "results" / "against_boosting.jsonl"
DATA = ("pol", "elevators", "bike", "kin40k", "protein", "keggdirected", "keggundirected")
TREES = 3000
Answer = tuple[NDArray, NDArray, dict[str, Any]]  # mean, standard deviation, what is worth noting


def automatic(split: Split, seed: int, threads: int) -> Answer:
    torch.set_num_threads(threads)
    model = duogp.GPRegressor(random_state=seed, device="cpu")
    model.fit(split.X_train, split.y_train, validation=(split.X_val, split.y_val))
    mean, std = model.predict(split.X_test, return_std=True)
    return mean, std, {"method": model.method_, "reasons": model.reasons_}


def boosting(split: Split, seed: int, threads: int) -> Answer:
    from catboost import CatBoostRegressor

    model = CatBoostRegressor(
        iterations=TREES,
        loss_function="RMSEWithUncertainty",
        early_stopping_rounds=100,
        random_seed=seed,
        thread_count=threads,
        verbose=False,
        allow_writing_files=False,
    )
    model.fit(split.X_train, split.y_train, eval_set=(split.X_val, split.y_val), use_best_model=True)
    found = model.predict(split.X_test)
    return found[:, 0], np.sqrt(found[:, 1]), {"trees": int(model.tree_count_)}


CONTESTANTS: dict[str, Callable[[Split, int, int], Answer]] = {"auto": automatic, "catboost": boosting}


def compete(name: str, contestant: str, seed: int, threads: int) -> dict[str, Any]:
    data = load(f"regression/{name}")
    split = dc_protocol(np.asarray(data.X, np.float64), np.asarray(data.y, np.float64), seed)
    start = time.perf_counter()
    mean, std, notes = CONTESTANTS[contestant](split, seed, threads)
    seconds = time.perf_counter() - start
    y = split.y_test
    return {
        "data": name,
        "contestant": contestant,
        "seed": seed,
        "nll": nll(y, mean, std),
        "crps": crps(y, mean, std),
        "rmse": rmse(y, mean),
        "coverage": coverage(y, mean, std),
        "seconds": round(seconds, 1),
        **notes,
        "threads": threads,
        "device": device_name("cpu"),
        "versions": versions(),
    }


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(rows: list[dict[str, Any]]) -> None:
    print(f"{'':16s}" + "".join(f"{head:>22s}" for head in ("NLL", "CRPS", "RMSE", "seconds")))
    print(f"{'':16s}" + f"{'auto':>12s}{'catboost':>10s}" * 4)
    wins = {"nll": 0, "crps": 0, "rmse": 0}
    for name in dict.fromkeys(row["data"] for row in rows):
        found = {row["contestant"]: row for row in rows if row["data"] == name}
        if len(found) < 2:
            continue
        cells = ""
        for what in ("nll", "crps", "rmse", "seconds"):
            a, b = (found[contestant][what] for contestant in CONTESTANTS)
            cells += f"{a:12.4g}{b:10.4g}"
            if what in wins:
                wins[what] += a < b
        print(f"{name:16s}{cells}  {found['auto']['method']}")
    print("auto is better on: " + ", ".join(f"{what} {count}" for what, count in wins.items()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default=",".join(DATA))
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print what is stored and stop")
    options = parser.parse_args()
    rows = read(options.output)
    if not options.table:
        for name in options.data.split(","):
            for contestant in options.contestants.split(","):
                key = {"data": name, "contestant": contestant, "seed": options.seed}
                if any(all(row[k] == v for k, v in key.items()) for row in rows):
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    row = compete(name, contestant, options.seed, options.threads)
                rows.append(row)
                options.output.parent.mkdir(parents=True, exist_ok=True)
                with options.output.open("a") as file:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                print(
                    f"{name} {contestant}: NLL {row['nll']:.4f}, CRPS {row['crps']:.4f}, "
                    f"RMSE {row['rmse']:.4f}, {row['seconds']:.0f} s",
                    flush=True,
                )
    table(rows)


if __name__ == "__main__":
    main()
