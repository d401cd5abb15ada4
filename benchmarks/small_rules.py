"""What a rule of ``method="auto"`` is worth on small tables: the default before and after, on the same rows.

    python benchmarks/small_rules.py --rule rate --rows 400
    python benchmarks/small_rules.py --table

Tables of the arena's half "choice", cut to so many training rows of split 0. Scores are of at most 2,000 test
rows, in units of the standard deviation of the training targets; the clock ends nothing; one thread. Rows:
benchmarks/results/small_rules.jsonl; those that are there are skipped.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import wilcoxon

import duogp
from duogp.bench.provenance import stamp
from duogp.means import crossfit

RESULTS = Path(__file__).with_name("results") / "small_rules.jsonl"
SECONDS = 3600.0
TESTS = 2000
LEVELS = np.linspace(0.025, 0.975, 39)


@contextmanager
def rate(value: float) -> Iterator[None]:
    """The learning rate of trees of few rows."""
    before, crossfit.FEW_ROWS_RATE = crossfit.FEW_ROWS_RATE, value
    try:
        yield
    finally:
        crossfit.FEW_ROWS_RATE = before


#: Of every rule what it was and what it would be.
RULES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "rate": (lambda: rate(0.1), lambda: rate(0.15)),
}


def scores(X: Any, y: Any, X_test: Any, y_test: Any) -> dict[str, float]:
    begun = time.process_time()
    model = duogp.GPRegressor(random_state=0, device="cpu", time_budget=SECONDS).fit(X, y)
    seconds, scale = time.process_time() - begun, y.std()
    error = y_test - model.predict(X_test)
    away = y_test[:, None] - np.asarray(model.predict_quantiles(X_test, LEVELS))
    pinball = away * (LEVELS - (away < 0))
    return {
        "rmse": float(np.sqrt(np.mean(error**2)) / scale),
        "nll": float(-np.mean(model.log_density(X_test, y_test)) - np.log(scale)),
        "crps": float(2 * pinball.mean() / scale),
        "cpu": seconds,
    }


def measured(rule: str, most: int, done: set[str]) -> Iterator[dict[str, Any]]:
    from arena.tables import build, listed_entries, split

    for name, (entry, half) in listed_entries().items():
        if half != "choice" or entry.kind != "regression" or name in done:
            continue
        try:
            table = build(entry, half)
        except FileNotFoundError as error:
            print(f"{name}: {error}")
            continue
        rows = split(table, 0)
        train, test = rows.train[:most], rows.test[:TESTS]
        if len(train) < 0.6 * most:
            continue
        found = {"rule": rule, "table": name, "rows": len(train), "most": most}
        for when, variant in zip(("before", "after"), RULES[rule], strict=True):
            with variant():
                found[when] = scores(table.X.iloc[train], table.y[train], table.X.iloc[test], table.y[test])
        yield found


def print_table(rows: list[dict[str, Any]]) -> None:
    for rule, most in sorted({(r["rule"], r["most"]) for r in rows}):
        own = [r for r in rows if (r["rule"], r["most"]) == (rule, most)]
        for name in ("nll", "crps", "rmse", "cpu"):
            before, after = (np.array([r[when][name] for r in own]) for when in ("before", "after"))
            change = after - before if name == "nll" else np.log(after / before)
            p = wilcoxon(change).pvalue if len(own) > 5 and change.any() else np.nan
            print(
                f"{rule}, up to {most} rows: {name if name == 'nll' else f'log {name}'} {change.mean():+.4f} "
                f"(median {np.median(change):+.4f}) on {len(own)} tables, lower on {(change < 0).sum()}, "
                f"p = {p:.2g}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rule", choices=RULES, default="rate")
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--table", action="store_true", help="print what is there and run nothing")
    options = parser.parse_args()
    stored = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    rows = [json.loads(line) for line in stored]
    if options.table:
        print_table(rows)
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    done = {r["table"] for r in rows if (r["rule"], r["most"]) == (options.rule, options.rows)}
    for row in measured(options.rule, options.rows, done):
        line = json.dumps({**row, **stamp()})
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)


if __name__ == "__main__":
    main()
