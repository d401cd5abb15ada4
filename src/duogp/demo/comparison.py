"""SVGP and DCSVGP on a picture and two real tables, in half a minute.

- *one-dimensional*: the example of Zhu et al. 2023, Figure 1: 100 points, 10 inducing points, RBF. Ten
  points are too few for one lengthscale to serve mean and covariance.
- *terrain*: an elevation model that ships with matplotlib (Jacksboro fault, Tennessee): height in metres of
  random pixels, from easting and northing.
- *diabetes*: scikit-learn's table of 442 patients and ten measurements.

Nothing is downloaded. Every fit uses the library's defaults but for the number of inducing points (10, 100
and 50) and, on the first, the paper's RBF kernel; it is not the best-scoring choice. The table prints what
came out, also where the simpler method wins.

`study` says how far to trust that table: five seeds in place of one (new noise or a new split, new
validation rows, new starting points), DCSVGP also without its warm start, and the one-dimensional example
also with the paper's own model (raw units, unit prior variance).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.data import dc_one_dimensional
from duogp.api import fit
from duogp.posterior.gp import GP
from duogp.posterior.prediction import Prediction

METRICS = ("rmse", "nll", "crps", "coverage")
COLUMNS = ("data", "method", *METRICS, "seconds")
STUDY_SEEDS = 5


@dataclass(frozen=True)
class Task:
    """Training rows, test rows, and the settings that all methods share."""

    name: str
    X: NDArray[np.float64]
    y: NDArray[np.float64]
    X_test: NDArray[np.float64]
    y_test: NDArray[np.float64]
    settings: dict[str, Any]


@dataclass(frozen=True)
class Contender:
    label: str
    method: str
    settings: Mapping[str, Any]


SVGP = Contender("SVGP", "svgp", {})
DCSVGP = Contender("DCSVGP", "dcsvgp", {})
COLD = Contender("DCSVGP, cold", "dcsvgp", {"warm_start": 0})


@dataclass(frozen=True)
class Outcome:
    task: Task
    method: str
    gp: GP
    prediction: Prediction
    seconds: float

    def row(self) -> dict[str, Any]:
        found = self.prediction.metrics(self.task.y_test)
        return {
            "data": self.task.name,
            "method": self.method,
            **{name: found[name] for name in METRICS},
            "seconds": self.seconds,
        }


# -- the data: seed 0 is what the demo shows ---------------------------------------------------------------


def one_dimensional(seed: int = 0) -> Task:
    """The paper's example, scored on 1000 fresh noisy observations: observations are what is predicted."""
    toy = dc_one_dimensional(n=100, noise=0.1, seed=seed)
    noise = 0.1 * np.random.default_rng(1000 + seed).standard_normal(len(toy.f_test))
    settings = {"kernel": "rbf", "num_inducing": 10, "random_state": seed}
    return Task("one-dimensional", toy.x, toy.y, toy.x_test, toy.f_test + noise, settings)


def papers_model(seed: int = 0) -> Task:
    """The same with the model of the paper's code: raw units, unit prior variance, softplus(0) everywhere."""
    task = one_dimensional(seed)
    model = {
        "standardize": False,
        "output_scale": False,
        "initial_lengthscale": 0.693,
        "initial_noise": 0.693,
    }
    name = f"{task.name}, paper's model"
    return Task(name, task.X, task.y, task.X_test, task.y_test, task.settings | model)


def terrain(seed: int = 0, n: int = 2000, n_test: int = 5000, num_inducing: int = 100) -> Task:
    """Random pixels of an elevation model: x in kilometres, y in metres."""
    from matplotlib.cbook import get_sample_data

    model: Any = get_sample_data("jacksboro_fault_dem.npz")
    height = np.asarray(model["elevation"], dtype=np.float64)
    row, column = np.indices(height.shape)
    km_north, km_east = 0.0926, 0.0744  # 3 arc seconds at 36.6° N
    X = np.stack([km_east * column.ravel(), -km_north * row.ravel()], 1)
    return _split("terrain", X, height.ravel(), n, n + n_test, num_inducing, seed)


def diabetes(seed: int = 0, n: int = 330, num_inducing: int = 50) -> Task:
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    return _split("diabetes", X, y, n, len(y), num_inducing, seed)


def _split(name: str, X: NDArray, y: NDArray, n: int, total: int, num_inducing: int, seed: int) -> Task:
    order = np.random.default_rng(seed).permutation(len(y))[:total]
    train, test = order[:n], order[n:]
    settings = {"num_inducing": num_inducing, "random_state": seed}
    return Task(name, X[train], y[train], X[test], y[test], settings)


TASKS: dict[str, Callable[..., Task]] = {
    "one-dimensional": one_dimensional,
    "terrain": terrain,
    "diabetes": diabetes,
}


# -- running and showing -----------------------------------------------------------------------------------


def run(task: Task, contender: Contender) -> Outcome:
    start = time.perf_counter()
    gp = fit(task.X, task.y, contender.method, device="cpu", **task.settings, **contender.settings)
    seconds = time.perf_counter() - start
    prediction = gp.predict(task.X_test)
    assert isinstance(prediction, Prediction)
    return Outcome(task, contender.label, gp, prediction, seconds)


def study(names: Sequence[str], seeds: int = STUDY_SEEDS) -> list[dict[str, Any]]:
    """Each task over several seeds: rows whose metrics are lists, one value a seed."""
    makers = {name: TASKS[name] for name in names}
    if "one-dimensional" in makers:
        makers = {"one-dimensional": one_dimensional, "paper's model": papers_model, **makers}
    rows: list[dict[str, Any]] = []
    for make in makers.values():
        tasks = [make(seed) for seed in range(seeds)]
        for contender in (SVGP, DCSVGP, COLD):
            found = [run(task, contender).row() for task in tasks]
            values = {name: [row[name] for row in found] for name in (*METRICS, "seconds")}
            rows.append({"data": tasks[0].name, "method": contender.label, **values})
    return rows


def lengthscales(gp: GP) -> str:
    """The lengthscale, or the two of a decoupled model, in the units of x (one input)."""
    learned, unit = gp.hyperparameters(), float(gp.x_scaler.scale[0])
    if "lengthscale_mean" in learned:
        mean, covariance = unit * learned["lengthscale_mean"], unit * learned["lengthscale_covariance"]
        return rf"$\ell_\mathrm{{mean}}$ = {mean:.2f}, $\ell_\mathrm{{covar}}$ = {covariance:.2f}"
    return rf"$\ell$ = {unit * learned['lengthscale']:.2f}"


def draw_one_dimensional(outcomes: Sequence[Outcome], path: Path) -> None:
    """One panel per method on common axes, as in Figure 1 of the paper."""
    from matplotlib import pyplot as plt

    from duogp.plots import one_dimensional_fit

    toy = dc_one_dimensional()
    figure, panels = plt.subplots(
        1, len(outcomes), figsize=(4.6 * len(outcomes), 3.5), sharey=True, layout="constrained", squeeze=False
    )
    for ax, outcome in zip(panels[0], outcomes, strict=True):
        one_dimensional_fit(
            ax,
            outcome.gp,
            outcome.task.X,
            outcome.task.y,
            toy.x_test[:, 0],
            toy.f_test,
            title=f"{outcome.method}:  {lengthscales(outcome.gp)}",
            legend=False,
        )
    for ax in panels[0][1:]:
        ax.set_ylabel("")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)
    _save(figure, path)


def draw_calibration(outcomes: Sequence[Outcome], path: Path) -> None:
    """One panel per data set, one line per method."""
    from matplotlib import pyplot as plt

    from duogp.plots import calibration_plot

    names = list(dict.fromkeys(outcome.task.name for outcome in outcomes))
    figure, panels = plt.subplots(
        1, len(names), figsize=(3.3 * len(names), 3.5), sharey=True, layout="constrained", squeeze=False
    )
    for ax, name in zip(panels[0], names, strict=True):
        for outcome in outcomes:
            if outcome.task.name == name:
                p = outcome.prediction
                calibration_plot(outcome.task.y_test, p.mean, p.std, ax, label=outcome.method)
        ax.set_title(name, fontsize=10, loc="left")
        ax.set_xticks([0, 0.5, 1])
    for ax in panels[0][1:]:
        ax.set_ylabel("")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot as plt

    figure.savefig(path, dpi=150)
    plt.close(figure)


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """With rich where it is installed, in plain columns otherwise."""
    cells = [[_text(row[name]) for name in COLUMNS] for row in rows]
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        widths = [max(len(line[i]) for line in [list(COLUMNS), *cells]) for i in range(len(COLUMNS))]
        for line in [list(COLUMNS), *cells]:
            shown = [
                c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
            ]
            print("  ".join(shown).rstrip())
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("data", "method") else "right")
    for line in cells:
        table.add_row(*line)
    console = Console()
    if not console.is_terminal:  # a pipe has no width
        console = Console(width=160)
    console.print(table)


def _text(value: Any) -> str:
    """A number to read; a list as its mean ± standard error."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        error = np.std(value, ddof=1) / len(value) ** 0.5 if len(value) > 1 else 0.0
        digits = 3 if abs(np.mean(value)) < 10 else 1
        return f"{np.mean(value):.{digits}f} ± {error:.{digits}f}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def compare(names: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """Fit both methods to the tasks, print the table, draw the figures."""
    import matplotlib

    matplotlib.use("Agg")

    outcomes = [run(task, c) for task in (TASKS[name]() for name in names) for c in (SVGP, DCSVGP)]
    rows = [outcome.row() for outcome in outcomes]
    print_table(rows)
    first = [outcome for outcome in outcomes if outcome.task.name == "one-dimensional"]
    if first:
        draw_one_dimensional(first, folder / "one_dimensional.png")
    draw_calibration(outcomes, folder / "calibration.png")
    return rows
