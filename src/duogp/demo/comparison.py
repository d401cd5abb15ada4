"""SVGP and DCSVGP compared on a one-dimensional example and two real tables, in half a minute.

- *one-dimensional*: the example of Zhu et al. 2023, Figure 1: 100 points, 10 inducing points, RBF. Ten
  points are too few for one lengthscale to serve mean and covariance.
- *terrain*: an elevation model that ships with matplotlib (Jacksboro fault, Tennessee): height in metres of
  random pixels, from easting and northing.
- *diabetes*: scikit-learn's table of 442 patients and ten measurements.

Nothing is downloaded. Every fit uses the library's defaults but for the number of inducing points (10, 100
and 50) and, on the first, the paper's RBF kernel; the settings are not tuned, and the simpler method may win.

`study` measures the spread of those results: five seeds in place of one (new noise or a new split, new
validation rows, new starting points), DCSVGP also without its warm start, and the one-dimensional example
also with the paper's own model (raw units, unit prior variance).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.api import fit
from duogp.bench.report import text_table
from duogp.data import dc_one_dimensional
from duogp.posterior.gp import GP
from duogp.posterior.prediction import Prediction

METRICS = ("rmse", "nll", "crps", "coverage")
COLUMNS = ("data", "method", *METRICS, "seconds")
STUDY_SEEDS = 5


@dataclass(frozen=True)
class Example:
    """Training rows, test rows, and the settings that all methods share."""

    name: str
    X: NDArray[np.float64]
    y: NDArray[np.float64]
    X_test: NDArray[np.float64]
    y_test: NDArray[np.float64]
    settings: dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """A method with settings, and its name in tables."""

    label: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)


SVGP = Variant("SVGP", "svgp")
DCSVGP = Variant("DCSVGP", "dcsvgp")
COLD = Variant("DCSVGP, cold", "dcsvgp", {"warm_start": 0})


@dataclass(frozen=True)
class Outcome:
    """A fitted variant and its predictions of the test rows."""

    example: Example
    method: str
    gp: GP
    prediction: Prediction
    seconds: float

    def row(self) -> dict[str, Any]:
        """The values of `COLUMNS`."""
        found = self.prediction.metrics(self.example.y_test)
        metrics = {name: found[name] for name in METRICS}
        return {"data": self.example.name, "method": self.method, **metrics, "seconds": self.seconds}


# -- the data: the demo has seed 0 -------------------------------------------------------------------------


def one_dimensional(seed: int = 0) -> Example:
    """The paper's example, scored on 1000 new observations with noise."""
    toy = dc_one_dimensional(n=100, noise=0.1, seed=seed)
    noise = 0.1 * np.random.default_rng(1000 + seed).standard_normal(len(toy.f_test))
    settings = {"kernel": "rbf", "num_inducing": 10, "random_state": seed}
    return Example("one-dimensional", toy.x, toy.y, toy.x_test, toy.f_test + noise, settings)


def papers_model(seed: int = 0) -> Example:
    """The same with the model of the paper's code: raw units, unit prior variance, softplus(0) everywhere."""
    example = one_dimensional(seed)
    model = {
        "standardize": False,
        "output_scale": False,
        "initial_lengthscale": 0.693,
        "initial_noise": 0.693,
    }
    return replace(example, name=f"{example.name}, paper's model", settings=example.settings | model)


def terrain(seed: int = 0, n: int = 2000, n_test: int = 5000, num_inducing: int = 100) -> Example:
    """Random pixels of an elevation model: x in kilometres, y in metres."""
    from matplotlib.cbook import get_sample_data

    model: Any = get_sample_data("jacksboro_fault_dem.npz")
    height = np.asarray(model["elevation"], dtype=np.float64)
    row, column = np.indices(height.shape)
    km_north, km_east = 0.0926, 0.0744  # 3 arc seconds at 36.6° N
    X = np.stack([km_east * column.ravel(), -km_north * row.ravel()], 1)
    return _split("terrain", X, height.ravel(), n, n + n_test, num_inducing, seed)


def diabetes(seed: int = 0, n: int = 330, num_inducing: int = 50) -> Example:
    """Disease progression of patients from ten measurements."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    return _split("diabetes", X, y, n, len(y), num_inducing, seed)


def _split(name: str, X: NDArray, y: NDArray, n: int, total: int, num_inducing: int, seed: int) -> Example:
    order = np.random.default_rng(seed).permutation(len(y))[:total]
    train, test = order[:n], order[n:]
    settings = {"num_inducing": num_inducing, "random_state": seed}
    return Example(name, X[train], y[train], X[test], y[test], settings)


EXAMPLES: dict[str, Callable[..., Example]] = {
    "one-dimensional": one_dimensional,
    "terrain": terrain,
    "diabetes": diabetes,
}


# -- running and showing -----------------------------------------------------------------------------------


def run(example: Example, variant: Variant) -> Outcome:
    """Fit and predict, on the CPU."""
    start = time.perf_counter()
    gp = fit(example.X, example.y, variant.method, device="cpu", **example.settings, **variant.settings)
    seconds = time.perf_counter() - start
    prediction = gp.predict(example.X_test)
    assert isinstance(prediction, Prediction) and isinstance(gp, GP)
    return Outcome(example, variant.label, gp, prediction, seconds)


def study(names: Sequence[str], seeds: int = STUDY_SEEDS) -> list[dict[str, Any]]:
    """Rows of each example and variant over several seeds; metrics are lists, one value per seed."""
    makers = [EXAMPLES[name] for name in names]
    if one_dimensional in makers:
        makers = [one_dimensional, papers_model, *(make for make in makers if make is not one_dimensional)]
    rows: list[dict[str, Any]] = []
    for make in makers:
        examples = [make(seed) for seed in range(seeds)]
        for variant in (SVGP, DCSVGP, COLD):
            found = [run(example, variant).row() for example in examples]
            values = {name: [row[name] for row in found] for name in (*METRICS, "seconds")}
            rows.append({"data": examples[0].name, "method": variant.label, **values})
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
    from duogp.plots import one_dimensional_fit

    toy = dc_one_dimensional()
    truth = (toy.x_test[:, 0], toy.f_test)
    with _panels(len(outcomes), 4.6, path) as (figure, panels):
        for ax, outcome in zip(panels, outcomes, strict=True):
            title = f"{outcome.method}:  {lengthscales(outcome.gp)}"
            data = (outcome.example.X, outcome.example.y)
            one_dimensional_fit(ax, outcome.gp, *data, *truth, title=title, legend=False)
        handles, labels = panels[0].get_legend_handles_labels()
        look = {"ncols": len(labels), "frameon": False, "fontsize": 8}
        figure.legend(handles, labels, loc="outside lower center", **look)


def draw_calibration(outcomes: Sequence[Outcome], path: Path) -> None:
    """One panel per data set, one line per method."""
    from duogp.plots import calibration_plot, entitle

    names = list(dict.fromkeys(outcome.example.name for outcome in outcomes))
    with _panels(len(names), 3.3, path) as (_, panels):
        for ax, name in zip(panels, names, strict=True):
            for outcome in outcomes:
                if outcome.example.name == name:
                    p = outcome.prediction
                    calibration_plot(outcome.example.y_test, p.mean, p.std, ax, label=outcome.method)
            entitle(ax, name)
            ax.set_xticks([0, 0.5, 1])


@contextmanager
def _panels(count: int, width: float, path: Path) -> Iterator[tuple[Any, Any]]:
    """A figure with panels in a row, of which the first has a vertical label; saved and closed at the end."""
    from matplotlib import pyplot as plt

    size = (width * count, 3.5)
    figure, grid = plt.subplots(1, count, figsize=size, sharey=True, layout="constrained", squeeze=False)
    yield figure, grid[0]
    for ax in grid[0][1:]:
        ax.set_ylabel("")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows in aligned columns."""
    print(text_table(COLUMNS, [[_text(row[name]) for name in COLUMNS] for row in rows]))


def _text(value: Any) -> str:
    """A number with three digits or one; a list as its mean ± standard error."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        error = np.std(value, ddof=1) / len(value) ** 0.5 if len(value) > 1 else 0.0
        digits = 3 if abs(np.mean(value)) < 10 else 1
        return f"{np.mean(value):.{digits}f} ± {error:.{digits}f}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def compare(names: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """Rows of both methods on the examples, printed, with their figures in a folder."""
    import matplotlib

    matplotlib.use("Agg")
    examples = [EXAMPLES[name]() for name in names]
    outcomes = [run(example, variant) for example in examples for variant in (SVGP, DCSVGP)]
    rows = [outcome.row() for outcome in outcomes]
    print_table(rows)
    if first := [outcome for outcome in outcomes if outcome.example.name == "one-dimensional"]:
        draw_one_dimensional(first, folder / "one_dimensional.png")
    draw_calibration(outcomes, folder / "calibration.png")
    return rows
