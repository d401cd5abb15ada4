"""Many mean points at the price of fewer coupled ones: Figures 2c and 3 of Salimbeni et al. 2018.

Orthogonally decoupled bases with |γ| = 3500, |β| = 1500 beside coupled ones with M = 2000 and the two older
decoupled bases, every one trained for the same time on the same machine (the paper's 3droad is not available:
houseelectric, two million rows). Steps are as many as fit into the time: a few are timed first, and learning
rates fall to zero along a cosine over them. Looking at the test rows is not counted as time.

    python benchmarks/orth_wallclock.py --device cuda --seconds 45
    python benchmarks/orth_wallclock.py --figure-only         draw docs/images/orth_wallclock.png
    python benchmarks/orth_wallclock.py --quick --device cpu  tiny, nothing stored
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from duogp.bench.measure import device_name, resolve_device
from duogp.bench.provenance import stamp
from duogp.data.benchmark import load
from duogp.data.splits import orth_protocol
from duogp.models.model import Model
from duogp.training import conditions, in_epochs
from duogp.training.problems import Stochastic

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from racing.ours import workshop  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "orth_wallclock.json"
FIGURE = ROOT / "docs" / "images" / "orth_wallclock.png"
BETA, GAMMA, COUPLED = 1500, 3500, 2000
TIMED_STEPS = 60
TEST_ROWS = 20_000
SETTINGS: dict[str, Any] = {
    "kernel": "matern52",
    "mean": "constant",
    "initial_noise": 0.1,
    "inducing_init": "random",
    "extra_init": "random",
    "batch_size": 1024,
    "learning_rate": 1e-2,
    "natural_rate": 0.1,
    "schedule": "cosine",
    "standardize": False,
    "validation_fraction": 0.0,
    "early_stopping": False,
    "dtype": "float32",
}


@dataclass(frozen=True)
class Curve:
    label: str
    method: str
    solver: str
    settings: dict[str, Any] = field(default_factory=dict)
    mean_points: int = 0  # beside β; 0: coupled

    def all_settings(self, scale: float) -> dict[str, Any]:
        sizes = {"num_inducing": int(scale * COUPLED)}
        if self.mean_points:
            sizes = {"num_inducing": int(scale * BETA), "num_extra": int(scale * self.mean_points)}
        return SETTINGS | {"solver": self.solver} | sizes | self.settings


CURVES = (
    Curve("COUPLED", "svgp", "stochastic"),
    Curve("COUPLEDNAT", "coupled-nat", "natural"),
    Curve("ORTH", "orth-a", "stochastic", {"mean_columns": 64}, GAMMA),
    Curve("ORTHNAT", "orth-a", "natural", {"mean_columns": 64}, GAMMA),
    Curve("HYBRID", "hybrid", "stochastic", {"mean_columns": 64}, GAMMA),
    Curve("DECOUPLED", "decoupled", "stochastic", {"mean_columns": 64}, GAMMA + BETA),  # α is both together
)


class Blocks(Stochastic):
    """An epoch is a block of steps, however long a pass over the rows is."""

    def __init__(self, of: Stochastic, steps: int) -> None:
        super().__init__(of.model, of.table, of.batches)
        self.steps_per_epoch = min(steps, of.batches.steps)
        self._pass: Tensor | None = None
        self._next = 0

    def start_epoch(self) -> None:
        if self._pass is None or self._next + self.steps_per_epoch > len(self._pass):
            self._pass, self._next = self.batches.epoch(), 0
        self._epoch = self._pass[self._next : self._next + self.steps_per_epoch]
        self._next += self.steps_per_epoch


def run(curve: Curve, options: argparse.Namespace) -> dict[str, Any]:
    """Time a few steps, plan as many as the time allows, train, look at the test rows now and then."""
    X, y, X_test, y_test = options.rows
    given = curve.all_settings(options.scale) | {"device": options.device, "epochs": 1000}
    model, shop, plan = workshop(X, y, curve.method, given)
    step_seconds = timed(model, shop, plan.training)
    block = max(1, int(options.seconds / step_seconds / options.looks))
    steps = block * options.looks
    model, shop, plan = workshop(X, y, curve.method, given)
    problem = Blocks(shop.problem(model), block)
    planned = replace(plan.training, steps=steps)
    x, target = (torch.as_tensor(part, device=options.device) for part in (X_test, y_test))
    points, clock = [], 0.0

    def record(progress: Any) -> None:
        losses.append(progress.records[0].loss)

    losses: list[float] = []
    epochs = in_epochs(model, problem, planned, callbacks=[record])
    while True:
        synchronise(options.device)
        begun = time.perf_counter()
        with conditions(model, problem):
            ended = next(epochs, "ended") == "ended"
        synchronise(options.device)
        clock += time.perf_counter() - begun
        points.append({"seconds": clock, "elbo": -losses[-1]} | scores(model, x, target))
        if ended:
            break
    last = points[-1]
    print(
        f"{curve.label}: {steps} steps of {1e3 * step_seconds:.2f} ms; ELBO {last['elbo']:.4f}, "
        f"test log-likelihood {last['loglik']:.4f}, MAE {last['mae']:.4f}",
        flush=True,
    )
    return {
        "label": curve.label,
        "settings": {name: value for name, value in given.items() if name != "device"},
        "steps": steps,
        "step_ms": 1e3 * step_seconds,
        "points": points,
    }


def timed(model: Model, shop: Any, plan: Any) -> float:
    """Median seconds of a step, the first ones left out."""
    problem = Blocks(shop.problem(model), TIMED_STEPS // 3)
    device = str(model.beta1.device)
    found = []
    epochs = in_epochs(model, problem, replace(plan, steps=6 * problem.steps_per_epoch))
    for _ in range(4):
        synchronise(device)
        begun = time.perf_counter()
        with conditions(model, problem):
            next(epochs)
        synchronise(device)
        found.append((time.perf_counter() - begun) / problem.steps_per_epoch)
    epochs.close()
    return float(np.median(found[1:]))


@torch.no_grad()
def scores(model: Model, x: Tensor, y: Tensor) -> dict[str, float]:
    """Of an observation, in scaled units."""
    form = model.frozen(torch.float64)
    noise = float(model.likelihood.noise())  # type: ignore[operator]
    means, variances = [], []
    for piece in x.double().split(4096):
        rows = piece[None, None]
        f = form.whole(rows)
        means.append((f.mean + model.mean(rows))[0, 0])
        variances.append(f.variance[0, 0].clamp_min(0.0) + noise)
    error, variance = y - torch.cat(means), torch.cat(variances)
    loglik = -0.5 * (error.square() / variance + variance.log() + math.log(2 * math.pi))
    return {"loglik": float(loglik.mean()), "mae": float(error.abs().mean())}


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def rows(options: argparse.Namespace) -> tuple[np.ndarray, ...]:
    data = load(options.data)
    split = orth_protocol(data.X, data.y, 0)
    X, y, X_test, y_test = split.X_train, split.y_train, split.X_test, split.y_test
    if options.quick:
        X, y = X[:5000], y[:5000]
    pick = np.random.default_rng(0).permutation(len(X_test))[: 500 if options.quick else TEST_ROWS]
    return X, y, X_test[pick], y_test[pick]


def figure(found: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from duogp.plots import BLUE, GREEN, ORANGE, PURPLE, STYLE, VERMILION

    plt.rcParams.update(STYLE)
    colours = {
        "COUPLED": ORANGE, "COUPLEDNAT": VERMILION, "ORTH": GREEN, "ORTHNAT": BLUE, "HYBRID": PURPLE,
        "DECOUPLED": "#6f6f6f",
    }  # fmt: skip
    drawing, axes = plt.subplots(1, 3, figsize=(12, 4.1))
    titles = {
        "elbo": "ELBO of a row (nats)",
        "loglik": "test log-likelihood of a row (nats)",
        "mae": "test MAE (scaled units)",
    }
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        shown = []  # what decides the limits: the late part of the curves that the paper's claim is about
        outside = []
        for curve in found["curves"]:
            label, values = curve["label"], [p[name] for p in curve["points"]]
            if not label.startswith(("COUPLED", "ORTH")):
                outside.append(f"{label} {values[-1]:.3g}")
                continue
            seconds = [p["seconds"] for p in curve["points"]]
            style = "-" if "NAT" in label else (0, (4, 1.5))
            axis.plot(seconds, values, ls=style, color=colours[label], lw=1.7, label=label)
            shown += values[len(values) // 3 :]
        margin = 0.1 * (max(shown) - min(shown))
        axis.set_ylim(min(shown) - margin, max(shown) + margin)
        axis.set(xlabel="seconds of training", ylabel=title)
        axis.set_title(f"off the scale: {', '.join(outside)}", fontsize=8, color="#6f6f6f")
    lines = axes[0].get_legend_handles_labels()
    drawing.legend(*lines, loc="outside lower center", ncols=4)
    drawing.suptitle(
        f"{found['data']}, {found['device']}, equal time; solid: natural gradients, dashed: Adam", fontsize=10
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=130)
    plt.close(drawing)
    print(f"wrote {path.name}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device")
    parser.add_argument("--data", default="regression/houseelectric")
    parser.add_argument("--seconds", type=float, default=45.0, help="of training, for each curve")
    parser.add_argument("--looks", type=int, default=15, help="at the test rows")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--no-figure", action="store_true")
    parser.add_argument("--figure-only", action="store_true")
    options = parser.parse_args()
    if options.figure_only:
        figure(json.loads(options.output.read_text()), FIGURE)
        return
    warnings.simplefilter("ignore")
    options.device = resolve_device(options.device)
    options.scale = 0.02 if options.quick else 1.0
    if options.quick:
        options.seconds, options.looks = min(options.seconds, 2.0), 4
    options.rows = rows(options)
    found: dict[str, Any] = {
        "data": options.data,
        "seconds": options.seconds,
        "device": device_name(options.device),
        **stamp(),
        "curves": [],
    }
    for curve in CURVES:
        try:
            found["curves"].append(run(curve, options))
        except (RuntimeError, ValueError) as error:  # the others need not suffer
            print(f"{curve.label}: {error}", flush=True)
        gc.collect()
        if not options.quick:
            options.output.write_text(json.dumps(found, indent=1) + "\n")
    if not options.no_figure and not options.quick:
        figure(found, FIGURE)


if __name__ == "__main__":
    main()
