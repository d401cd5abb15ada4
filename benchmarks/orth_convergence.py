"""How fast the bases converge when only q is learned: Figures 2a and 2b of Salimbeni et al. 2018.

Hyperparameters and inducing points are fixed, every step sees all rows, |γ| = |β| = 500. All decoupled bases
then have one optimum; with a Gaussian likelihood it is known (MATH §3.1). Regression is kin40k (the paper's
3droad is not available), classification ringnorm with a probit link; kernels and noise are the paper's
initial values (appendix E), β are k-means centres, γ random rows, α of DECOUPLED both together.

Every method is tuned alike: each learning rate of one grid for what Adam moves, each step size of another for
what natural gradients move. All runs are stored; the best final value stands for the method, and among runs
that end within 1e-3 nats of it the one that came near the optimum first.

    python benchmarks/orth_convergence.py                 run what is missing, then draw docs/images/...
    python benchmarks/orth_convergence.py --no-figure     where there is no matplotlib
    python benchmarks/orth_convergence.py --figure-only   draw what is stored
    python benchmarks/orth_convergence.py --confirm FILES compare runs made again with the stored ones
    python benchmarks/orth_convergence.py --quick         tiny tables, few iterations, nothing stored

Features of fixed points do not change, so they are computed once; a step is what depends on q.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from duogp.bases.inducing import select_inducing
from duogp.bench.measure import device_name
from duogp.bench.provenance import stamp
from duogp.data.benchmark import load
from duogp.data.splits import orth_protocol
from duogp.disk import write_atomically
from duogp.errors import NumericalWarning
from duogp.fitting.build import build_model
from duogp.inference.closed_form import CollapsedObjective
from duogp.kernels import Kernel
from duogp.methods import METHODS
from duogp.methods.settings import Settings
from duogp.models.model import Batch, Model
from duogp.training import Problem, Progression, TrainingPlan, train

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "orth_convergence.json"
FIGURE = ROOT / "docs" / "images" / "orth_convergence.png"

Rates = tuple[float | None, float | None]  # of Adam and of natural gradients

LEARNING_RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
NATURAL_RATES = (1e-1, 1.0)
NEAR = 1e-2  # nats per datum: near enough to the optimum to be counted
TIE = 1e-3  # nats per datum: final values that are as good as each other
LEVELS = 21  # values at which a run's first iteration is stored, over a range of NEAR
POINTS = 100  # of a stored curve
BLOCK = 100  # iterations between two looks at the device
# A run ends early when its best value rises by less than this (nats per datum) over so many iterations.
FLAT, FLAT_ITERATIONS = 1e-7, 2000


@dataclass(frozen=True)
class Curve:
    """A method as the figure shows it. ``natural``: its q(u) moves by natural gradients."""

    label: str
    method: str
    natural: bool = False
    mean_rule: str = "adam"  # of the mean of γ beside natural gradients

    @property
    def has_adam(self) -> bool:
        """Whether anything is left for Adam."""
        return not self.natural or (self.method != "coupled-nat" and self.mean_rule != "joint")

    def grid(self, experiment: Experiment) -> Iterator[Rates]:
        """(learning rate, natural step) of every run; None where there is nothing to step."""
        return itertools.product(
            experiment.learning_rates if self.has_adam else (None,),
            experiment.natural_rates if self.natural else (None,),
        )


# "plain": the coefficients a of γ as they are, as in the paper; otherwise they are whitened.
CURVES = (
    Curve("ORTH", "odsvgp"),
    Curve("ORTHNAT", "orthnat", natural=True),
    Curve("COUPLED", "svgp"),
    Curve("COUPLEDNAT", "coupled-nat", natural=True),
    Curve("ORTHNAT (joint)", "orthnat", natural=True, mean_rule="joint"),
    Curve("HYBRID", "hybrid"),
    Curve("HYBRIDNAT", "hybrid-nat", natural=True),
    Curve("DECOUPLED", "decoupled"),
    Curve("DECOUPLED-S", "decoupled-s"),
    Curve("ORTH (plain)", "orth-a"),
    Curve("ORTHNAT (plain)", "orth-a", natural=True),
)


@dataclass(frozen=True)
class Experiment:
    """A table, and what is fixed."""

    name: str
    data: str
    likelihood: str
    scale: float  # prior variance of both kernels together
    noise: float | None
    size: int  # |γ| and |β|
    iterations: int
    learning_rates: tuple[float, ...] = LEARNING_RATES
    natural_rates: tuple[float, ...] = NATURAL_RATES
    rows: int | None = None  # of a made-up table; None: all training rows of the data set


def experiments(iterations: int) -> list[Experiment]:
    return [
        Experiment("regression", "kin40k", "gaussian", 2.0, 0.1, 500, iterations),
        Experiment("classification", "ringnorm", "bernoulli", 10.0, None, 500, iterations),
    ]


def small(experiment: Experiment) -> Experiment:
    """A made-up table and little tuning, to see whether everything works."""
    rates = {"learning_rates": LEARNING_RATES[-2:], "natural_rates": NATURAL_RATES[-1:]}
    return replace(experiment, data="toy", rows=100, size=10, **rates)  # type: ignore[arg-type]


# -- the problem -------------------------------------------------------------------------------------------


class Table:
    """Rows on the device, and the points of all methods."""

    def __init__(self, experiment: Experiment, device: str) -> None:
        X, y = toy_rows(experiment) if experiment.rows else training_rows(experiment)
        x = torch.as_tensor(X, dtype=torch.float64)
        generator = torch.Generator().manual_seed(0)
        beta = select_inducing("kmeans", x, experiment.size, generator=generator)
        gamma = x[torch.randperm(len(x), generator=generator)[: experiment.size]]
        self.beta, self.gamma = (z[None, None].to(device) for z in (beta, gamma))
        target = torch.as_tensor(y, dtype=torch.float64)
        self.batch = Batch(x[None].to(device), target[None, None].to(device))
        self.device = device

    @property
    def rows(self) -> int:
        return self.batch.x.shape[-2]

    @property
    def dims(self) -> int:
        return self.batch.x.shape[-1]

    def pieces(self, size: int = 8192) -> list[Callable[[], Batch]]:
        """All rows in pieces, for the closed form."""
        x, y = self.batch.x, self.batch.y
        return [
            lambda i=i: Batch(x[:, i : i + size], y[..., i : i + size])  # type: ignore[misc]
            for i in range(0, self.rows, size)
        ]


def training_rows(experiment: Experiment) -> tuple[np.ndarray, np.ndarray]:
    data = load(experiment.data)
    split = orth_protocol(data.X, data.y, 0, scale_target=experiment.likelihood == "gaussian")
    return split.X_train, split.y_train


def toy_rows(experiment: Experiment) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(experiment.rows or 0, 2))
    f = np.sin(2 * X[:, 0]) + X[:, 1]
    noise = 0.3 * rng.normal(size=len(f))
    return X, f + noise if experiment.likelihood == "gaussian" else (f + noise > 0).astype(np.float64)


def make_model(experiment: Experiment, table: Table, method: str) -> Model:
    """A method of the registry at the prior, with nothing to learn but q."""
    recipe = METHODS[method]
    root = math.sqrt(table.dims)
    settings = Settings.of(
        {
            "kernel": "matern52+rbf",
            "ard": False,
            "initial_lengthscale": [0.1 * root, root],
            "initial_scale": experiment.scale,
            "initial_noise": experiment.noise or 0.1,
            "mean": "zero",
            "likelihood": experiment.likelihood,
            "mean_columns": 2 * experiment.size,  # all of them
            "device": table.device,
            "dtype": "float64",
        }
    )
    alpha = torch.cat([table.gamma, table.beta], -2)
    one = torch.ones(1, dtype=torch.float64)
    model = build_model(
        recipe,
        settings,
        inducing=table.beta.clone(),
        extra=(table.gamma if recipe.has_second_block else alpha).clone(),
        outputs=1,
        num_data=table.rows,
        beta1=one,
        beta2=torch.zeros_like(one),
        omega="batch",
        fixed_noise=False,
        spread=torch.ones(1, 1, table.dims),
        generators=[torch.Generator().manual_seed(1)],
        classes=None if experiment.likelihood == "gaussian" else 2,
    )
    model.requires_grad_(False)
    for parameter in variational_parameters(model):
        parameter.requires_grad_(True)
    return model


def variational_parameters(model: Model) -> list[nn.Parameter]:
    plain = getattr(model.basis, "a", None)
    return [*model.basis.q.parameters(), *([plain] if isinstance(plain, nn.Parameter) else [])]


class Remembered(Kernel):
    """A kernel whose inputs never change: each matrix is computed once, and found by where its inputs lie."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel
        self._known: dict[Any, tuple[Tensor, Any]] = {}

    def _once(self, compute: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        key = (compute.__name__, *((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in inputs))
        if key not in self._known:
            self._known[key] = (
                compute(*inputs),
                inputs,
            )  # inputs are held, so that no other takes their place
        return self._known[key][0]

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return self._once(self.kernel.forward, x1, x2)

    def diag(self, x: Tensor) -> Tensor:
        return self._once(self.kernel.diag, x)

    @property
    def batch_shape(self) -> torch.Size:
        return self.kernel.batch_shape


def hold_constants(model: Model, batch: Batch) -> None:
    """Compute once what no variational parameter enters: kernels, and where possible factors and features."""
    basis = model.basis
    basis.kernel = Remembered(basis.kernel)
    factors = model.factors()
    features = basis.features(batch.x.unsqueeze(-3), factors)
    if bool(model.numerics.failed.any()):
        raise FloatingPointError("a kernel matrix could not be factorised at the given jitter")
    if not any(t.requires_grad for t in tensors(factors)):
        basis.factors = lambda numerics: factors  # type: ignore[method-assign]
    if not any(t.requires_grad for t in tensors(features)):
        basis.features = lambda x, factors: features  # type: ignore[method-assign]


def tensors(nested: Any) -> list[Tensor]:
    if isinstance(nested, Tensor):
        return [nested]
    return [] if nested is None else [t for part in nested for t in tensors(part)]


class FullBatch(Problem):
    """All rows in every step; the objective at every iteration stays on the device until the end."""

    def __init__(self, model: Model, batch: Batch, iterations: int) -> None:
        self.model, self.batch = model, batch
        self.steps_per_epoch = min(BLOCK, iterations)
        self.done = 0
        self.elbo = torch.full((iterations + 1,), torch.nan, dtype=torch.float64, device=batch.x.device)
        self._loss: Tensor | None = None

    def select(self, step: int) -> None:
        self._note()
        self.done += 1

    def backward(self) -> Tensor:
        loss = self.model.loss(self.batch)
        loss.sum().backward()
        self._loss = loss.detach()  # in a captured step always the same tensor, with the newest value
        return self._loss

    @torch.no_grad()
    def finish(self, factors: Any | None = None) -> None:
        self._note()
        self.model.basis.keep_record = False  # of a step: there is none left
        self.elbo[self.done] = -self.model.loss(self.batch)[0]

    def _note(self) -> None:
        """elbo[i] is the objective after i steps: what the step after them reported."""
        if self._loss is not None:
            self.elbo[self.done - 1].copy_(-self._loss[0])


# -- running -----------------------------------------------------------------------------------------------


class Deadline:
    """Seconds that are left, and what a run of a method takes."""

    def __init__(self, limit: float | None) -> None:
        self.end = time.monotonic() + (math.inf if limit is None else limit)
        self.longest: dict[str, float] = {}

    @property
    def passed(self) -> bool:
        return time.monotonic() > self.end

    def allows(self, label: str) -> bool:
        return time.monotonic() + self.longest.get(label, 0.0) < self.end

    def learn(self, label: str, seconds: float) -> None:
        self.longest[label] = max(seconds, self.longest.get(label, 0.0))


def run_curve(
    experiment: Experiment,
    table: Table,
    curve: Curve,
    rates: Rates,
    deadline: Deadline,
    stop_after: int,
) -> dict[str, Any] | None:
    """One run of a method; None when the time was up before its end."""
    learning_rate, natural_rate = rates
    last = min(stop_after, experiment.iterations)
    model = make_model(experiment, table, curve.method)
    hold_constants(model, table.batch)
    problem = FullBatch(model, table.batch, experiment.iterations)
    flat = False

    def look(seen: Progression) -> bool:
        nonlocal flat
        known = problem.done - 1  # the last step's value comes with the next one
        if known - FLAT_ITERATIONS > experiment.iterations // 20:  # natural steps have risen to their size
            seen_values = problem.elbo[:known].nan_to_num(nan=-torch.inf)
            before, after = seen_values[:-FLAT_ITERATIONS].max(), seen_values[-FLAT_ITERATIONS:].max()
            flat = bool(after - before < FLAT)
        return flat or deadline.passed or problem.done >= last

    plan = TrainingPlan(
        epochs=experiment.iterations // problem.steps_per_epoch,
        learning_rate=learning_rate or LEARNING_RATES[0],
        natural_rate=natural_rate,
        mean_rule=curve.mean_rule,
    )
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)  # rollbacks are counted
        (history,) = train(model, problem, plan, callbacks=[look])
    values = problem.elbo.cpu().numpy()
    seconds = time.perf_counter() - start
    done = problem.done
    if done < last and deadline.passed and not flat:
        return None
    best = np.fmax.accumulate(np.where(np.isfinite(values[: done + 1]), values[: done + 1], -np.inf))
    return {
        "label": curve.label,
        "learning_rate": learning_rate,
        "natural_rate": natural_rate,
        "final": number(values[done]),
        "best": number(best[-1]),
        "iterations": done,
        "flat": flat,
        "rollbacks": history.rollbacks,
        "jitter": history.jitter,
        "milliseconds_per_iteration": round(1e3 * seconds / done, 3),
        "levels": levels(best),
        "points": thinned(values[: done + 1]),
    }


def levels(best: np.ndarray) -> list[list[Any]]:
    """[value, first iteration there] for values from NEAR below the best to the best.

    No optimum lies below a run's best value, so this says when the run came near it, whatever it turns out
    to be.
    """
    values = best[-1] - NEAR * np.linspace(1, 0, LEVELS)
    return [[number(v), int(np.searchsorted(best, v - 1e-12))] for v in values if np.isfinite(v)]


def iterations_to(run: dict[str, Any], value: float) -> int | None:
    """The first iteration at which a run was at a value or above it, to the resolution of its levels."""
    return next((int(i) for level, i in run["levels"] if level >= value), None)


def thinned(values: np.ndarray) -> list[list[Any]]:
    """[iteration, value] at evenly spaced logarithms of the iteration."""
    last = len(values) - 1
    chosen = np.unique(np.concatenate([[0], np.geomspace(1, max(last, 1), POINTS).round()]).astype(int))
    return [[int(i), number(values[i])] for i in chosen if np.isfinite(values[i])]


def number(value: Any) -> float | None:
    """Seven significant digits are enough for nats per datum; None for what is not finite."""
    return float(f"{float(value):.7g}") if math.isfinite(value) else None


@torch.no_grad()
def analytic_optimum(experiment: Experiment, table: Table, method: str) -> float | None:
    """The ELBO per datum at the closed-form q."""
    model = make_model(experiment, table, method)
    best = CollapsedObjective(model, table.pieces()).solve()
    model.basis.q.set_(best.mean, best.root)
    return number(-model.loss(table.batch)[0])


def wanted(names: str | None) -> list[Curve]:
    if names is None:
        return list(CURVES)
    asked = [name.strip().lower() for name in names.split(",")]
    known = {curve.label.lower(): curve for curve in CURVES}
    if strange := [name for name in asked if name not in known]:
        raise SystemExit(
            f"--methods: no {', '.join(strange)}; there are {', '.join(c.label for c in CURVES)}"
        )
    return [known[name] for name in asked]


def run_experiment(
    experiment: Experiment,
    curves: Sequence[Curve],
    stored: Store,
    device: str,
    deadline: Deadline,
    stop_after: int,
) -> bool:
    """Run what is missing; False when the time was up before the end."""
    entry = stored.experiment(experiment)
    todo = [
        (c, rates) for c in curves for rates in c.grid(experiment) if not stored.has(entry, c.label, rates)
    ]
    if not todo:
        return True
    table = Table(experiment, device)
    entry |= {"rows": table.rows, "dims": table.dims}
    if experiment.likelihood == "gaussian" and "optimum" not in entry:
        entry["optimum"] = analytic_optimum(experiment, table, "odsvgp")
        entry["optimum_coupled"] = analytic_optimum(experiment, table, "svgp")
    for run in entry["runs"]:
        deadline.learn(run["label"], 1e-3 * run["milliseconds_per_iteration"] * run["iterations"])
    for curve, rates in todo:
        if not deadline.allows(curve.label):
            return False
        start = time.perf_counter()
        run = run_curve(experiment, table, curve, rates, deadline, stop_after)
        if run is None:
            return False
        gc.collect()
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
        entry["runs"].append(run)
        stored.save()
        deadline.learn(curve.label, time.perf_counter() - start)
        print(line(experiment.name, run), flush=True)
    return True


def line(experiment: str, run: dict[str, Any]) -> str:
    """One run in words."""
    rates = ", ".join(f"{run[k]:g}" for k in ("learning_rate", "natural_rate") if run[k] is not None)
    notes = [f"{run['milliseconds_per_iteration']:.2f} ms each"]
    notes += ["flat"] if run["flat"] else []
    notes += [f"{run['rollbacks']} rollbacks"] if run["rollbacks"] else []
    value = "diverged" if run["final"] is None else f"{run['final']:.5f}"
    ended = f"{value} after {run['iterations']} iterations"
    return f"{experiment} {run['label']} ({rates}): {ended}, {', '.join(notes)}"


# -- what is stored ----------------------------------------------------------------------------------------


class Store:
    """The results file: one entry for each experiment, one run for each method and pair of rates."""

    def __init__(self, path: Path | None, device: str) -> None:
        self.path = path
        self.content: dict[str, Any] = {}
        if path is not None and path.exists():
            self.content = json.loads(path.read_text(encoding="utf-8"))
        self.content.setdefault("experiments", {})
        self.content["near"] = NEAR
        self._device = device

    def experiment(self, experiment: Experiment) -> dict[str, Any]:
        settings = json.loads(json.dumps(asdict(experiment)))  # as it will be read again
        entry = self.content["experiments"].setdefault(experiment.name, {"settings": settings, "runs": []})
        if entry["settings"] != settings:
            raise SystemExit(f"{self.path} was made with other settings of {experiment.name}: use --output")
        return entry

    def has(self, entry: dict[str, Any], label: str, rates: Rates) -> bool:
        return any(rates_of(run) == (label, *rates) for run in entry["runs"])

    def save(self) -> None:
        """Whole or not at all: a run may be killed at any moment."""
        self.content["device"] = device_name(self._device)
        self.content |= stamp()
        self.content["summary"] = {
            name: summary(entry) for name, entry in self.content["experiments"].items() if entry["runs"]
        }
        self.content.pop("confirmed", None)
        self.write()

    def write(self) -> None:
        """The content, written as it stands."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, as_text(self.content))


def confirm(content: dict[str, Any], again: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How far runs that were made again are from the stored ones, and the stamp of the oldest of them.

    A pair is compared at the last iteration that both have, in nats per datum. A run that is further away
    than `NEAR` confirms nothing, and is an error.
    """
    distances: list[float] = []
    shares: list[float] = []  # of the stored run's iterations that a run made again has
    for other in again:
        for name, entry in other["experiments"].items():
            runs = {rates_of(run): run for run in content["experiments"][name]["runs"]}
            for run in entry["runs"]:
                if (known := runs.get(rates_of(run))) is None:
                    raise SystemExit(f"{name}, {rates_of(run)} is not stored: it confirms nothing")
                here, there = dict(known["points"]), dict(run["points"])
                last = max(here.keys() & there.keys())
                shares.append(last / known["iterations"])
                distances.append(abs(here[last] - there[last]))
                if not distances[-1] <= NEAR:
                    raise SystemExit(
                        f"{name}, {rates_of(run)} differs by {distances[-1]:.2g}: run it all again"
                    )
    if not distances:
        raise SystemExit("there are no runs to compare with")
    first = min(again, key=lambda other: str(other["finished"]))
    provenance = ("commit", "dirty", "numerics", "versions", "finished", "device")
    return {
        "to_the_end": sum(share == 1 for share in shares),
        "runs": len(distances),
        "of": sum(len(entry["runs"]) for entry in content["experiments"].values()),
        "within": {f"{limit:g}": sum(d <= limit for d in distances) for limit in (1e-5, 1e-3)},
        "worst": number(max(distances)),
        **{key: first[key] for key in provenance},
    }


def rates_of(run: dict[str, Any]) -> tuple[Any, ...]:
    """What tells one run of an experiment from another."""
    return run["label"], run["learning_rate"], run["natural_rate"]


def as_text(content: dict[str, Any]) -> str:
    """JSON with every list of numbers on one line."""
    text = json.dumps(content, indent=1, allow_nan=False)
    return re.sub(r"\[[-+\s\d.,eE\[\]]*\]", lambda found: " ".join(found[0].split()), text) + "\n"


def summary(entry: dict[str, Any]) -> dict[str, Any]:
    """The optimum, and for each method its best run: rates, final value, gap, iterations to come near.

    ``iterations_to_near`` is of the run that stands for the method, ``fastest_to_near`` of any of its runs.
    """
    optimum = entry.get("optimum")
    known = optimum is not None
    if optimum is None:  # of a likelihood without a formula: the best that any run has seen
        optimum = max(run["best"] for run in entry["runs"] if run["best"] is not None)
    methods = {}
    for label in dict.fromkeys(run["label"] for run in entry["runs"]):
        runs = [run for run in entry["runs"] if run["label"] == label]
        runs = [run for run in runs if run["final"] is not None]
        if not runs:  # every one of them diverged
            continue
        best = max(run["final"] for run in runs)
        # Runs that end in the same place are told apart by when they came near it.
        equal = [run for run in runs if run["final"] >= best - TIE]
        kept = min(equal, key=lambda run: iterations_to(run, optimum - NEAR) or math.inf)
        near = [i for run in runs if (i := iterations_to(run, optimum - NEAR)) is not None]
        methods[label] = {
            "learning_rate": kept["learning_rate"],
            "natural_rate": kept["natural_rate"],
            "final": kept["final"],
            "gap": number(optimum - kept["final"]),
            "iterations_to_near": iterations_to(kept, optimum - NEAR),
            "fastest_to_near": min(near, default=None),
            "milliseconds_per_iteration": kept["milliseconds_per_iteration"],
            "runs": len(runs),
        }
    return {"optimum": optimum, "optimum_is_analytic": known, "methods": methods}


def report(content: dict[str, Any]) -> str:
    lines = []
    for name, found in content.get("summary", {}).items():
        what = "analytic" if found["optimum_is_analytic"] else "best seen"
        lines.append(f"\n{name}: optimum {found['optimum']:.5f} nats per datum ({what})")
        head = f"{'method':17s} {'final':>9s} {'gap':>9s} {'near after':>10s} {'fastest':>8s} {'Adam':>6s} "
        lines.append(head + f"{'natural':>7s} {'runs':>4s}")
        for label, row in found["methods"].items():
            rates = [f"{r:g}" if r is not None else "–" for r in (row["learning_rate"], row["natural_rate"])]
            counts = [
                "–" if row[k] is None else str(row[k]) for k in ("iterations_to_near", "fastest_to_near")
            ]
            lines.append(
                f"{label:17s} {row['final']:9.5f} {row['gap']:9.2e} {counts[0]:>10s} {counts[1]:>8s} "
                f"{rates[0]:>6s} {rates[1]:>7s} {row['runs']:4d}"
            )
    return "\n".join(lines)


# -- the figure --------------------------------------------------------------------------------------------


def draw(content: dict[str, Any], path: Path) -> None:
    """The objective against iterations, and how far it is from the optimum."""
    from matplotlib import pyplot as plt

    from duogp.plots import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, STYLE, VERMILION

    colours = {
        "COUPLED": FAINT, "ORTH": BLUE, "HYBRID": ORANGE, "DECOUPLED": VERMILION, "DECOUPLED-S": PURPLE,
        "ORTH (plain)": INK, "ORTHNAT (joint)": GREEN,
    }  # fmt: skip
    plt.rcParams.update(STYLE)
    found = {name: part for name, part in content["summary"].items() if part["methods"]}
    figure, axes = plt.subplots(
        2, len(found), figsize=(5.2 * len(found), 7.2), layout="constrained", squeeze=False, sharex="col"
    )
    for column, (name, part) in zip(axes.T, found.items(), strict=True):
        entry = content["experiments"][name]
        optimum = part["optimum"]
        above, below = column
        floor = 1e-6
        for label, row in part["methods"].items():
            runs = [r for r in entry["runs"] if r["label"] == label]
            kept = next(
                r for r in runs if all(r[k] == row[k] for k in ("learning_rate", "natural_rate", "final"))
            )
            points = kept["points"]
            if kept["flat"]:
                points = [*points, [entry["settings"]["iterations"], kept["final"]]]
            iterations, values = np.array(points, dtype=float).T
            natural = "NAT" in label
            style = {
                "color": colours.get(label) or colours[label.replace("NAT", "")],
                "ls": "-" if natural else (0, (4, 1.5)),
                "lw": 1.2 if "plain" in label else 2.0 if natural else 1.6,
            }
            iterations = np.maximum(iterations, 0.8)  # the start has a place on a logarithmic axis
            above.plot(iterations, values, label=label, **style)
            below.plot(iterations, np.maximum(optimum - values, floor), **style)
        what = "analytic optimum" if part["optimum_is_analytic"] else "best value seen"
        above.axhline(optimum, color=INK, lw=0.9, ls=":", zorder=0)
        above.annotate(what, (1.0, optimum), xycoords=("axes fraction", "data"), xytext=(0, 3),
                       textcoords="offset points", ha="right", fontsize=8, color=INK)  # fmt: skip
        below.axhline(content["near"], color=INK, lw=0.9, ls=":", zorder=0)
        finals = [row["final"] for row in part["methods"].values()]
        span = max(optimum - min(finals), 0.05)
        above.set_ylim(optimum - 2.5 * span, optimum + 0.25 * span)
        above.set_xscale("log")
        below.set_yscale("log")
        below.set_ylim(bottom=floor)
        settings = entry["settings"]
        title = f"{settings['data']}, {settings['likelihood']}, |β| = |γ| = {settings['size']}"
        above.set_title(title, fontsize=10, loc="left")
        above.set_ylabel("ELBO per datum (nats)")
        below.set_ylabel("distance from the optimum (nats)")
        below.set_xlabel("iterations (full batch)")
        for ax in column:
            for side in ("top", "right"):
                ax.spines[side].set_visible(False)
            ax.tick_params(length=3)
    lines = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        *lines,
        frameon=False,
        fontsize=8,
        loc="outside lower center",
        ncols=4,
        title="solid: natural gradients, dashed: Adam",
        title_fontsize=8.5,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


# -- the command -------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--iterations", type=int, help="of every run, a multiple of 100 (default: 20000)")
    parser.add_argument("--stop-after", type=int, metavar="N", help="end every run after N of its iterations")
    parser.add_argument("--experiments", default="regression,classification", help="one of them, or both")
    parser.add_argument("--methods", help="labels, separated by commas (default: all)")
    parser.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="start no run that would end later"
    )
    parser.add_argument("--output", type=Path, help="the results file")
    parser.add_argument("--figure", type=Path, default=FIGURE)
    parser.add_argument("--quick", action="store_true", help="does everything still work?")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--no-figure", action="store_true")
    what.add_argument("--figure-only", action="store_true")
    what.add_argument(
        "--confirm", type=Path, nargs="+", metavar="FILE", help="runs made again, of this command's --output"
    )
    options = parser.parse_args(arguments)

    iterations = options.iterations or (40 if options.quick else 20_000)
    if iterations < 1 or (iterations > BLOCK and iterations % BLOCK):
        parser.error(f"--iterations must be at most {BLOCK} or a multiple of it, got {iterations}")
    output = options.output or (None if options.quick else RESULTS)
    stored = Store(output, options.device)
    if options.figure_only:
        draw(stored.content, options.figure)
        return 0
    if options.confirm:
        again = [json.loads(path.read_text(encoding="utf-8")) for path in options.confirm]
        stored.content["confirmed"] = found = confirm(stored.content, again)
        stored.write()
        print(f"{found['runs']} of {found['of']} runs again: the worst is {found['worst']:.1e} away")
        return 0
    deadline = Deadline(options.time_limit)
    asked = options.experiments.split(",")
    chosen = [e for e in experiments(iterations) if e.name in asked]
    if len(chosen) < len(asked):
        parser.error(f"--experiments must be regression, classification or both, got {options.experiments}")
    if options.quick:
        chosen = [small(experiment) for experiment in chosen]
    curves = wanted(options.methods)
    stop_after = options.stop_after or iterations
    finished = True
    for experiment in chosen:
        finished &= run_experiment(experiment, curves, stored, options.device, deadline, stop_after)
    print(report(stored.content))
    if not finished:
        print("\nthe time was up: run it again for the rest", file=sys.stderr)
    if not (options.no_figure or options.quick) and stored.content.get("summary"):
        draw(stored.content, options.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
