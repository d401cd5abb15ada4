"""The collapsed bound of SVGP against CPU seconds: how closed-form training gets to its end, by commits.

A curve is the default, `duogp.fit(X, y, "svgp", num_inducing=300)`: steps, seconds of CPU time of one thread,
and the loss of all rows. Steps on a sample of the rows count, and have no loss of all rows. Curves are stored
under a label in benchmarks/results/closed_form_curves.json and drawn beside it; to compare with another
commit, run this file with that commit's `src` on PYTHONPATH and a label of its own. CPU time depends on what
else the machine does; steps, each one evaluation of the bound and its gradient, do not.

    export DUOGP_DATA=<folder with regression/*.npz>
    python benchmarks/closed_form_curves.py --label after
    PYTHONPATH=<another commit>/src python benchmarks/closed_form_curves.py --label before
    python benchmarks/closed_form_curves.py --table
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from duogp.data.benchmark import load
from duogp.fitting.builder import Builder
from duogp.fitting.dataset import Dataset, with_seed
from duogp.fitting.plan import make_plan
from duogp.fitting.table import start
from duogp.methods.registry import METHODS
from duogp.methods.settings import Settings
from duogp.training import Progression, train

RESULTS = Path(__file__).parent / "results" / "closed_form_curves.json"
ROWS = {"elevators": 5000, "pol": 5000, "kin40k": 10_000, "protein": 10_000}
POINTS = 300
NEAR = 0.005  # nats a row
Curve = list[tuple[int, float, float]]  # steps, CPU seconds, loss


def curve(name: str, rows: int, points: int) -> Curve:
    data = load(name)
    order = np.random.default_rng(0).permutation(np.flatnonzero(~data.test_mask[:, 0]))[:rows]
    settings = Settings.of(with_seed({"num_inducing": min(points, len(order)), "device": "cpu"}))
    table = Dataset.of_table(data.X[order], data.y[order], settings)
    plan = make_plan(table, METHODS["svgp"], settings)
    builder = Builder(table, plan)
    begun = time.process_time()
    model = builder.model()
    starts, _ = start(builder, model, plan)
    before = starts[0][-1].epoch if starts else 0
    out: Curve = []

    def note(seen: Progression) -> None:
        loss = seen.records[0].loss
        out.append((before + seen.epoch, round(time.process_time() - begun, 2), round(loss, 5)))

    train(model, builder.problem(model), plan.training, callbacks=[note])
    return out


def show(found: dict[str, dict[str, Curve]]) -> None:
    """Steps and seconds to within 0.005 nats a row of the best end, and the end itself."""
    labels = list(dict.fromkeys(label for curves in found.values() for label in curves))
    print("| data | " + " | ".join(labels) + " |\n|---" + "|---" * len(labels) + "|")
    for name, curves in found.items():
        best = min(own[-1][2] for own in curves.values())
        cells = []
        for label in labels:
            if label not in curves:
                cells.append("")
                continue
            steps, seconds, loss = curves[label][-1]
            near = [(k, s) for k, s, value in curves[label] if value <= best + NEAR]
            reached = f"{near[0][0]} steps, {near[0][1]:.0f} s" if near else "not reached"
            cells.append(f"{reached}; ends at {loss:.4f}, {steps} steps, {seconds:.0f} s")
        print(f"| {name}, {ROWS[name]:,} rows | " + " | ".join(cells) + " |")


def draw(found: dict[str, dict[str, Curve]]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(found), figsize=(3.4 * len(found), 2.8), squeeze=False)
    for ax, (name, curves) in zip(axes.flat, found.items(), strict=True):
        best = min(own[-1][2] for own in curves.values())
        for label, own in curves.items():
            ax.plot([s for _, s, _ in own], [max(loss - best, 1e-4) for *_, loss in own], label=label)
        ax.axhline(NEAR, color="0.7", lw=0.8)
        ax.set(title=name, yscale="log", xscale="log", xlabel="seconds of CPU time")
    axes[0, 0].set_ylabel("gap of the bound, nats a row")
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(RESULTS.with_suffix(".png"), dpi=120)


def stored() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="*", default=list(ROWS))
    parser.add_argument("--label", default="after")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if not given.table:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        for name in given.data:
            whole = curve(name, ROWS[name], POINTS)
            kept = whole if len(whole) < 100 else [*whole[:40], *whole[40:-1:5], whole[-1]]
            found = stored()
            found.setdefault(name, {})[given.label] = kept
            RESULTS.write_text(json.dumps(found))
        draw(stored())
    show(stored())


if __name__ == "__main__":
    main()
