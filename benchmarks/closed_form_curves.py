"""The collapsed bound of SVGP against seconds: how closed-form training gets to its end.

    before    200 steps of Adam at 0.05 along half a cosine, the default until L-BFGS
    adam      Adam at a constant 0.1
    lbfgs     L-BFGS on all rows
    sample    L-BFGS on 2,000 of the rows first: the default from 4,000 rows on

The gap is to the best loss that any of them reached. Curves are stored in
benchmarks/results/closed_form_curves.json and drawn beside it. Seconds mean something on a quiet machine;
steps, each one evaluation of the bound and its gradient, always do.

    export DUOGP_DATA=<folder with regression/*.npz>
    python benchmarks/closed_form_curves.py --threads 2
    python benchmarks/closed_form_curves.py --table
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from duogp.data.benchmark import load
from duogp.fitting.builder import Builder
from duogp.fitting.dataset import Dataset, with_seed
from duogp.fitting.plan import make_plan
from duogp.fitting.training_plan import SAMPLE_ROWS
from duogp.methods.registry import METHODS
from duogp.methods.settings import Settings
from duogp.training import TrainingPlan, make_schedule, train

RESULTS = Path(__file__).parent / "results" / "closed_form_curves.json"
DATA = ("energy", "concrete", "airfoil", "pol", "elevators", "bike", "kin40k", "protein")
WAYS = ("before", "adam", "lbfgs", "sample")
Curve = list[tuple[int, float, float]]  # steps, seconds, loss


def curve(name: str, way: str, rows: int, points: int, limit: float) -> Curve:
    """The loss of all rows after every step; steps on a sample count, and have no loss of all rows."""
    data = load(name)
    order = np.random.default_rng(0).permutation(np.flatnonzero(~data.test_mask[:, 0]))[:rows]
    given = with_seed({"num_inducing": min(points, len(order)), "device": "cpu"})
    settings = Settings.of(given)
    table = Dataset.of_table(data.X[order], data.y[order], settings)
    plan = make_plan(table, METHODS["svgp"], settings)
    builder = Builder(table, plan)
    model = builder.model()
    training = replace(plan.training, seconds=limit)
    if way == "before":
        training = TrainingPlan(200, 0.05, schedule=make_schedule("cosine"), check_every=10)
    elif way == "adam":
        training = TrainingPlan(100_000, 0.1, check_every=10, seconds=limit)
    steps, seconds = 0, 0.0
    if way == "sample" and plan.sample_start is not None:
        (first,) = train(model, builder.closed_form(model, sample=SAMPLE_ROWS), plan.sample_start)
        steps, seconds = first[-1].epoch, first.seconds
    (history,) = train(model, builder.closed_form(model), training, callbacks=[lambda _: None])
    return [(steps + r.epoch, round(seconds + r.seconds, 3), round(r.loss, 5)) for r in history]


def show(found: dict[str, dict[str, Curve]]) -> None:
    """Steps and seconds to within 0.01 nats a row of the best, and the gap at the end."""
    print("| data | " + " | ".join(WAYS) + " |\n|---" + "|---" * len(WAYS) + "|")
    for name, ways in found.items():
        best = min(loss for ways_curve in ways.values() for _, _, loss in ways_curve)
        cells = []
        for way in WAYS:
            near = [(steps, s) for steps, s, loss in ways.get(way, []) if loss <= best + 0.01]
            gap = ways[way][-1][2] - best if ways.get(way) else float("nan")
            reached = f"{near[0][0]} steps, {near[0][1]:.1f} s" if near else "not reached"
            cells.append(f"{reached}; {gap:.3f} at {ways[way][-1][1]:.1f} s" if ways.get(way) else "")
        print(f"| {name} | " + " | ".join(cells) + " |")


def draw(found: dict[str, dict[str, Curve]]) -> None:
    import matplotlib.pyplot as plt

    columns = min(4, len(found))
    figure, axes = plt.subplots(
        -(-len(found) // columns),
        columns,
        figsize=(3.4 * columns, 2.8 * -(-len(found) // columns)),
        squeeze=False,
    )
    for ax, (name, ways) in zip(axes.flat, found.items(), strict=False):
        best = min(loss for ways_curve in ways.values() for _, _, loss in ways_curve)
        for way, points in ways.items():
            ax.plot([s for _, s, _ in points], [max(loss - best, 1e-4) for *_, loss in points], label=way)
        ax.axhline(0.01, color="0.7", lw=0.8)
        ax.set(title=name, yscale="log", xscale="log", xlabel="seconds")
    axes[0, 0].set_ylabel("gap of the bound, nats a row")
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(RESULTS.with_suffix(".png"), dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="*", default=DATA)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not given.table:
        torch.set_num_threads(given.threads)
        warnings.simplefilter("ignore")
        for name in given.data:
            for way in WAYS:
                whole = curve(name, way, given.rows, given.points, given.seconds)
                kept = whole if len(whole) < 200 else [*whole[:40], *whole[40:-1:5], whole[-1]]
                found.setdefault(name, {})[way] = kept
                RESULTS.write_text(json.dumps(found))
        draw(found)
    show(found)


if __name__ == "__main__":
    main()
