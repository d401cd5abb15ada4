"""`python -m duogp.demo --output demo`: SVGP and DCSVGP on a picture and on two real tables, in a minute.

- *one-dimensional*: the example of Zhu et al. 2023, Figure 1 (100 points, 10 inducing points, its model: RBF,
  unit prior variance, raw units). Ten points are too few for one lengthscale to serve mean and covariance.
- *terrain*: an elevation model that ships with matplotlib (Jacksboro fault, Tennessee): height in metres of
  random pixels, from easting and northing.
- *diabetes*: scikit-learn's table of 442 patients and ten measurements.

Nothing is downloaded. The real tables use the library's default model and one random split, with β₂ = 0
because Ω is slow on a CPU. The table prints what came out, also where the simpler method wins.

`--starts` repeats the one-dimensional example from other starting points and with the library's default
model: with ten inducing points the optimum that is found depends on both, and the figure shows one case.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from duogp import metrics
from duogp.data import dc_one_dimensional
from duogp.fitting import fit
from duogp.gp import GP
from duogp.prediction import Prediction

COLUMNS = ("data", "method", "rmse", "nll", "crps", "coverage", "seconds")


@dataclass(frozen=True)
class Task:
    """Training rows, test rows, and the settings both methods share."""

    name: str
    X: NDArray[np.float64]
    y: NDArray[np.float64]
    X_test: NDArray[np.float64]
    y_test: NDArray[np.float64]
    settings: dict[str, Any]
    decoupled: dict[str, Any] = field(default_factory=dict)  # further settings of DCSVGP alone


@dataclass(frozen=True)
class Outcome:
    task: Task
    method: str
    gp: GP
    prediction: Prediction
    seconds: float

    def row(self) -> dict[str, Any]:
        y, p = self.task.y_test, self.prediction
        return {
            "data": self.task.name,
            "method": self.method.upper(),
            "rmse": metrics.rmse(y, p.mean),
            "nll": metrics.nll(y, p.mean, p.std),
            "crps": metrics.crps(y, p.mean, p.std),
            "coverage": metrics.coverage(y, p.mean, p.std),
            "seconds": self.seconds,
        }


# -- the data ----------------------------------------------------------------------------------------------


def one_dimensional() -> Task:
    """The paper's example, scored on 1000 fresh noisy observations: observations are what is predicted."""
    toy = dc_one_dimensional(n=100, noise=0.1, seed=0)
    noise = 0.1 * np.random.default_rng(1).standard_normal(len(toy.f_test))
    model = {
        "kernel": "rbf",
        "standardize": False,
        "output_scale": False,
        "initial_lengthscale": 0.693,
        "initial_noise": 0.693,
        "num_inducing": 10,
        "inducing_init": "kmeans",
        "solver": "closed-form",
    }
    # 100 rows are all needed, and β₂Ω regularises here, so no rows are held out.
    return Task(
        "one-dimensional",
        toy.x,
        toy.y,
        toy.x_test,
        toy.f_test + noise,
        model,
        {"beta2": 1e-3, "validation_fraction": 0.0, "early_stopping": False},
    )


def starts() -> list[Task]:
    """The one-dimensional example under two models, two initialisations and three seeds."""
    base = one_dimensional()
    # what remains of the settings without the paper's model: the library's defaults, but for the kernel
    plain = {name: base.settings[name] for name in ("kernel", "num_inducing", "solver")}
    return [
        replace(
            base, name=f"{label}, {init}", settings={**model, "inducing_init": init, "random_state": seed}
        )
        for label, model in (("paper's model", base.settings), ("default model", plain))
        for init in ("kmeans", "random")
        for seed in range(3)
    ]


def terrain(n: int = 2000, n_test: int = 5000, num_inducing: int = 100) -> Task:
    """Random pixels of an elevation model: x in kilometres, y in metres."""
    from matplotlib.cbook import get_sample_data

    model: Any = get_sample_data("jacksboro_fault_dem.npz")
    height = np.asarray(model["elevation"], dtype=np.float64)
    row, column = np.indices(height.shape)
    km_north, km_east = 0.0926, 0.0744  # 3 arc seconds at 36.6° N
    X = np.stack([km_east * column.ravel(), -km_north * row.ravel()], 1)
    y = height.ravel()
    order = np.random.default_rng(0).permutation(len(y))[: n + n_test]
    settings = {"num_inducing": num_inducing, "solver": "closed-form", "epochs": 100}
    return _split("terrain", X[order], y[order], n, settings, {"beta2": 0.0})


def diabetes(n: int = 330, num_inducing: int = 50) -> Task:
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    settings = {"num_inducing": num_inducing, "solver": "closed-form", "epochs": 100}
    return _split("diabetes", X[order], y[order], n, settings, {"beta2": 0.0})


def _split(
    name: str, X: NDArray, y: NDArray, n: int, settings: dict[str, Any], decoupled: dict[str, Any]
) -> Task:
    return Task(name, X[:n], y[:n], X[n:], y[n:], settings, decoupled)


TASKS: dict[str, Callable[[], Task]] = {
    "one-dimensional": one_dimensional,
    "terrain": terrain,
    "diabetes": diabetes,
}


# -- running and showing -----------------------------------------------------------------------------------


def run(task: Task, method: str) -> Outcome:
    settings = {**task.settings, **(task.decoupled if method == "dcsvgp" else {})}
    start = time.perf_counter()
    gp = fit(task.X, task.y, method, device="cpu", **settings)
    seconds = time.perf_counter() - start
    return Outcome(task, method, gp, gp.predict(task.X_test), seconds)


def lengthscales(gp: GP) -> str:
    """The lengthscale, or the two of a decoupled model (of the inputs as the kernel sees them)."""
    learned = gp.hyperparameters()
    if "lengthscale_mean" in learned:
        mean, covariance = learned["lengthscale_mean"], learned["lengthscale_covariance"]
        return rf"$\ell_\mathrm{{mean}}$ = {mean:.2f}, $\ell_\mathrm{{covar}}$ = {covariance:.2f}"
    return rf"$\ell$ = {learned['lengthscale']:.2f}"


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
            title=f"{outcome.method.upper()}:  {lengthscales(outcome.gp)}",
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
                calibration_plot(outcome.task.y_test, p.mean, p.std, ax, label=outcome.method.upper())
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
    Console().print(table)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(prog="python -m duogp.demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", default="demo", help="folder for the figures (default: demo)")
    parser.add_argument("--only", choices=sorted(TASKS), action="append", help="only this task (repeatable)")
    parser.add_argument("--starts", action="store_true", help="the one-dimensional example from other starts")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # matrices this small lose more to waiting threads than they gain
    if options.starts:
        rows = [run(task, method).row() for task in starts() for method in ("svgp", "dcsvgp")]
        print_table(rows)
        return rows
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)

    import matplotlib

    matplotlib.use("Agg")

    chosen = [name for name in TASKS if options.only is None or name in options.only]
    outcomes = [
        run(task, method) for task in (TASKS[name]() for name in chosen) for method in ("svgp", "dcsvgp")
    ]
    rows = [outcome.row() for outcome in outcomes]
    print_table(rows)
    first = [outcome for outcome in outcomes if outcome.task.name == "one-dimensional"]
    if first:
        draw_one_dimensional(first, folder / "one_dimensional.png")
    draw_calibration(outcomes, folder / "calibration.png")
    print(f"figures in {folder}: {', '.join(sorted(p.name for p in folder.glob('*.png')))}")
    return rows


if __name__ == "__main__":
    main()
