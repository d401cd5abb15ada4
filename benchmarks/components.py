"""The pictures and curves of Popescu et al., Decoupled Sparse Gaussian Processes Components (DSGPC).

    python benchmarks/components.py figures         Figures 1, 4, 7: where points go, what variance is made of
    python benchmarks/components.py convergence     Figure 3: test log-likelihood against the number of points
    python benchmarks/components.py ridge           what the ridge S of section 4.1 does as the jitter changes

``figures --only banana`` makes one of snelson, banana, bkrr; ``convergence --figure-only`` draws what is
stored; ``--quick`` trains for a moment, to see whether everything works, and stores nothing. Numbers are kept
in benchmarks/results/components.json; runs of `convergence` and `ridge` that are there are not run again, so
they may be stopped at any moment.

α are the points of the parametric part (mean and within-data variance), β those that only lower the
distributional variance. The paper does not say how many of its points are α: here half of them are.
The paper's S ("printed") is a function of the locations of α and of the noise; "contracting" is one that
never exceeds the prior; "free" is a parameter (MATH §5.3, §11 B7).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree

import duogp
from duogp.bases.exact import Exact, replicate_variance
from duogp.bench.measure import device_name
from duogp.bench.provenance import stamp
from duogp.data.benchmark import load
from duogp.data.splits import components_protocol
from duogp.errors import NumericalWarning
from duogp.fitting.table import fit_replicates
from duogp.kernels import RBF, Scale
from duogp.methods import METHODS
from duogp.plots import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, SKY, VERMILION
from duogp.posterior.gp import GP
from duogp.posterior.prediction import ClassPrediction, Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "components.json"
IMAGES = ROOT / "docs" / "images"

#: The paper's kernel (one lengthscale for each column is the default), and no prior mean.
MODEL: dict[str, Any] = {"kernel": "rbf", "mean": "zero"}


@dataclass(frozen=True)
class Variant:
    """A method as the figures call it."""

    label: str
    method: str
    color: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def two_blocks(self) -> bool:
        return METHODS[self.method].has_second_block

    @property
    def has_formula(self) -> bool:
        """Whether q(u) has a closed form; a ridge S has none, its mean is learned by gradients."""
        return METHODS[self.method].q != "ridge"

    def sizes(self, alpha: int, beta: int) -> dict[str, int]:
        if self.method in ("exact", "bkrr"):
            return {}
        return {"num_inducing": alpha} | ({"num_extra": beta} if self.two_blocks else {})


SGP = Variant("SGP", "svgp", FAINT)
SOLVE = Variant("SOLVE-GP", "solvegp", ORANGE)
FREE = Variant("DSGPC, free S", "dsgpc-free", BLUE)
PRINTED = Variant("DSGPC, S as printed", "dsgpc", VERMILION, {"ridge": "printed"})
KERNEL = Variant("DSGPC, kernel S", "dsgpc", PURPLE, {"ridge": "kernel"})
CONTRACTING = Variant("DSGPC, contracting S", "dsgpc", SKY, {"ridge": "contracting"})
EPSILON = Variant("DSGPC-ε", "dsgpc-eps", PURPLE)
EXACT = Variant("full GP", "exact", INK)
RIDGE_REGRESSION = Variant("BKRR", "bkrr", INK)


# -- what is stored ----------------------------------------------------------------------------------------


class Store:
    """The results file. Without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.content: dict[str, Any] = {}
        if path is not None and path.exists():
            self.content = json.loads(path.read_text(encoding="utf-8"))

    def save(self) -> None:
        """Whole or not at all."""
        self.content |= {"device": device_name("cpu"), **stamp()}
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_suffix(".part")
            part.write_text(as_text(self.content), encoding="utf-8")
            os.replace(part, self.path)


def as_text(content: dict[str, Any]) -> str:
    """JSON with every list of numbers on one line."""
    text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)
    return re.sub(r"\[[-+\s\d.,eE]*\]", lambda found: " ".join(found[0].split()), text) + "\n"


def rounded(value: Any) -> Any:
    """Five significant digits of a number, or of each in a list."""
    values = [float(f"{v:.5g}") for v in np.atleast_1d(np.asarray(value, dtype=np.float64))]
    return values if np.ndim(value) else values[0]


# -- fitting -----------------------------------------------------------------------------------------------


def quietly(fit: Any, *arguments: Any, **settings: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)  # more jitter was needed: the history says so
        return fit(*arguments, **(MODEL | settings))


def regression_settings(variant: Variant, epochs: int, steps: int, rate: float) -> dict[str, Any]:
    """Closed form where there is one; else a coupled model to start from, and so many steps of Adam."""
    if variant.has_formula:
        return {**variant.settings, "epochs": epochs, "learning_rate": rate}
    adam = {"learning_rate": 0.05, "schedule": "cosine", "batch_size": 512}
    return {**variant.settings, "warm_start": epochs // 2, "steps": steps, **adam}


def observations(gp: GP, X: Array) -> Prediction:
    prediction = gp.predict(X)
    assert isinstance(prediction, Prediction)
    return prediction


def classes(gp: GP, X: Array) -> ClassPrediction:
    prediction = gp.predict(X)
    assert isinstance(prediction, ClassPrediction)
    return prediction


def extra_points(gp: GP) -> Array | None:
    """β in the units of X."""
    points = getattr(gp.model.basis, "orthogonal_inducing", None)
    return None if points is None else gp.x_scaler.inverse(points[0, 0].detach().double().numpy())


def prior_variance(gp: GP) -> float:
    """Of the latent function, in scaled units."""
    kernel = gp.model.basis.kernel
    return float(kernel.variance().detach().mean()) if isinstance(kernel, Scale) else 1.0


# -- style -------------------------------------------------------------------------------------------------


def tidy(ax: Axes) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=3, labelsize=8)


def mark_points(ax: Axes, gp: GP) -> None:
    """α as ticks at the bottom, β at the top."""
    marks = [(gp.inducing_points, 0.025, VERMILION, "α"), (extra_points(gp), 0.975, GREEN, "β")]
    for points, height, color, label in marks:
        if points is not None and gp.method.basis != "exact":
            at = np.full(len(points), height)
            ax.plot(
                points[:, 0], at, "|", transform=ax.get_xaxis_transform(), color=color, ms=9, mew=1.7,
                label=f"{label} points",
            )  # fmt: skip


def draw_parts(ax: Axes, along: Array, within: Array, distributional: Array, noise: Array | None) -> None:
    """The parts of the variance on a logarithmic axis."""
    if within.any():
        ax.plot(along, within, color=BLUE, lw=1.5, label="within-data variance")
    ax.plot(along, distributional, color=ORANGE, lw=1.5, label="distributional variance")
    if noise is not None:
        ax.plot(along, noise, color=INK, lw=1, ls=(0, (4, 2)), label="noise variance")
    ax.set_yscale("log")


def common_legend(figure: Figure, axes: Sequence[Axes], rows: int = 1) -> None:
    """One legend below all panels, every label once."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(
        list(found.values()), list(found), loc="outside lower center", frameon=False, fontsize=8.5,
        ncols=-(-len(found) // rows), columnspacing=1.4,
    )  # fmt: skip


def save(figure: Figure, name: str, folder: Path) -> None:
    from matplotlib import pyplot as plt
    from PIL import Image  # comes with matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"components_{name}.png"
    figure.set_dpi(120)
    figure.canvas.draw()
    pixels = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")  # type: ignore[attr-defined]
    palette = pixels.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette.save(path, optimize=True)  # a third of the size
    plt.close(figure)
    print(f"{path.name}: {path.stat().st_size // 1000} kB")


# -- one dimension: what the variance is made of (Figure 7) --------------------------------------------------

SNELSON_POINTS = 8  # α, and as many β
SNELSON_EPOCHS, SNELSON_STEPS, SNELSON_RATE = 400, 1500, 0.05


def fit_snelson(variant: Variant, quick: bool, **settings: Any) -> tuple[GP, float]:
    """The model, and its objective per row when training ended."""
    data = load("toy/snelson")
    length = (4, 10) if quick else (SNELSON_EPOCHS, SNELSON_STEPS)
    chosen = regression_settings(variant, *length, SNELSON_RATE) | settings
    chosen |= variant.sizes(SNELSON_POINTS, SNELSON_POINTS)
    gp = quietly(duogp.fit, data.X, data.y, variant.method, **chosen)
    return gp, -gp.history[-1].loss


def snelson_row(gp: GP, objective: float) -> dict[str, Any]:
    """What was learned: variances are averages over the training rows, in the units of y."""
    data = load("toy/snelson")
    prediction = observations(gp, data.X)
    return {
        "objective_per_row": rounded(objective),
        "train_rmse": rounded(prediction.metrics(data.y)["rmse"]),
        "within_data": rounded(prediction.explained.mean()),
        "distributional": rounded(prediction.residual.mean()),
        "noise": rounded(prediction.noise.mean()),
        "lengthscale": rounded(gp.hyperparameters()["lengthscale"]),
    }


def figure_snelson(store: Store, quick: bool, folder: Path) -> None:
    from matplotlib import pyplot as plt

    data = load("toy/snelson")
    along = np.linspace(-2, 8, 301)
    variants = [SGP, SOLVE, EPSILON, PRINTED, FREE, EXACT]
    figure = plt.figure(figsize=(11, 7.6), layout="constrained")
    grid = figure.add_gridspec(4, 3, height_ratios=[2, 1.3, 2, 1.3])
    axes: list[Axes] = []
    found = {}
    for i, variant in enumerate(variants):
        gp, objective = fit_snelson(variant, quick)
        found[variant.label] = snelson_row(gp, objective)
        prediction = observations(gp, along[:, None])
        row, column = 2 * (i // 3), i % 3
        upper = figure.add_subplot(grid[row, column], sharey=axes[0] if axes else None)
        lower = figure.add_subplot(grid[row + 1, column], sharex=upper, sharey=axes[1] if axes else None)
        axes += [upper, lower]
        low, high = prediction.interval(0.95)
        upper.fill_between(along, low, high, color=BLUE, alpha=0.16, lw=0, label="95 % of observations")
        upper.plot(along, prediction.mean, color=BLUE, lw=1.7, label="predictive mean")
        upper.scatter(data.X[:, 0], data.y, s=6, color=INK, alpha=0.5, lw=0, zorder=3, label="data")
        mark_points(upper, gp)
        within = prediction.explained
        draw_parts(lower, along, within, prediction.residual, prediction.noise)
        upper.set(xlim=(along[0], along[-1]), ylim=(-3.5, 3.5))
        lower.set_ylim(1e-6, 3)
        upper.tick_params(labelbottom=False)
        upper.set_title(snelson_title(variant), fontsize=9.5, loc="left")
        for ax in (upper, lower):
            tidy(ax)
            ax.tick_params(labelleft=column == 0)
        if column == 0:
            upper.set_ylabel("y", fontsize=9)
            lower.set_ylabel("variance", fontsize=9)
        if row == 2:
            lower.set_xlabel("x", fontsize=9)
    common_legend(figure, axes[2:4])  # the first that has everything
    save(figure, "snelson", folder)
    store.content["snelson"] = {"alpha": SNELSON_POINTS, "beta": SNELSON_POINTS, "methods": found}
    store.save()
    print_table("snelson: variances are averages over the rows", found)


def snelson_title(variant: Variant) -> str:
    n = SNELSON_POINTS
    if not variant.sizes(n, n):
        return f"{variant.label}, 200 rows"
    return f"{variant.label}: {n} α" + (f" and {n} β" if variant.two_blocks else ", no β")


def print_table(title: str, rows: dict[str, dict[str, Any]]) -> None:
    """Rows of named numbers (of several, their mean), aligned."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    print(f"\n{title}\n{'':24s}" + "".join(f"{name:>19s}" for name in names))
    for label, row in rows.items():
        cells = "".join(f"{np.mean(row[name]):19.5g}" if name in row else f"{'–':>19s}" for name in names)
        print(f"{label:24s}{cells}")


# -- Bayesian kernel ridge regression beside DSGPC (Figure 4) ------------------------------------------------


def ridge_parts(gp: GP, x: Array) -> tuple[Array, Array]:
    """Within-data (eq. 16) and distributional (eq. 15) variance of kernel ridge regression, in units of y.

    The kernel of ridge regression has no scale of its own: k = (σ²/λ) K.
    """
    basis = gp.model.basis
    assert isinstance(basis, Exact) and isinstance(basis.kernel, Scale)
    learned = gp.hyperparameters()
    noise, penalty = (torch.tensor(learned[name], dtype=torch.float64) for name in ("noise", "ridge_penalty"))
    new = torch.as_tensor(gp.x_scaler.transform(x))[None, None]
    with torch.no_grad():
        K, K_x = (basis.kernel.kernel(basis.inducing, at)[0, 0] for at in (basis.inducing, new))
        within = replicate_variance(K_x, K, noise, penalty)
    return within.numpy() * float(gp.y_scaler.scale[0]) ** 2, observations(gp, x).residual


def figure_bkrr(store: Store, quick: bool, folder: Path) -> None:
    from matplotlib import pyplot as plt

    data = load("toy/snelson")
    along = np.linspace(-2, 8, 301)
    variants = [RIDGE_REGRESSION, FREE, PRINTED, CONTRACTING]
    figure, axes = plt.subplots(
        2, 4, figsize=(11, 5), layout="constrained", sharex=True, sharey="row", height_ratios=[1.5, 1]
    )
    found = {}
    for (upper, lower), variant in zip(axes.T, variants, strict=True):
        gp, _ = fit_snelson(variant, quick)
        prediction = observations(gp, along[:, None])
        if variant == RIDGE_REGRESSION:
            within, distributional = ridge_parts(gp, along[:, None])
            averages = [v.mean() for v in ridge_parts(gp, data.X)]
        else:
            within, distributional = prediction.explained, prediction.residual
            at_rows = observations(gp, data.X)
            averages = [at_rows.explained.mean(), at_rows.residual.mean()]
        names = ("within_data", "distributional", "noise")
        noise = prediction.noise.mean()
        found[variant.label] = dict(zip(names, map(rounded, (*averages, noise)), strict=True))
        for part, color, label in ((distributional, ORANGE, "distributional"), (within, BLUE, "within-data")):
            half = 1.96 * np.sqrt(part)
            upper.fill_between(
                along, prediction.mean - half, prediction.mean + half, color=color, alpha=0.3, lw=0,
                label=f"mean ± 1.96 √({label} variance)",
            )  # fmt: skip
        upper.plot(along, prediction.mean, color=INK, lw=1.4, label="predictive mean")
        upper.scatter(data.X[:, 0], data.y, s=5, color=INK, alpha=0.45, lw=0, zorder=3, label="data")
        mark_points(upper, gp)
        draw_parts(lower, along, within, distributional, None)
        upper.set(xlim=(along[0], along[-1]), ylim=(-3.5, 3.5))
        lower.set_ylim(1e-6, 3)
        lower.set_xlabel("x", fontsize=9)
        upper.set_title(variant.label, fontsize=9.5, loc="left")
        tidy(upper)
        tidy(lower)
    axes[0, 0].set_ylabel("y (no noise added)", fontsize=9)
    axes[1, 0].set_ylabel("variance", fontsize=9)
    common_legend(figure, [axes[0, 1], axes[1, 0]], rows=2)
    save(figure, "bkrr", folder)
    store.content["bkrr"] = {"alpha": SNELSON_POINTS, "beta": SNELSON_POINTS, "methods": found}
    store.save()
    print_table("ridge regression beside DSGPC: averages over the rows", found)


# -- two dimensions: where the points go (Figure 1) ----------------------------------------------------------

#: SGP has both together. With few α against β the sets separate as the paper says (free S: α are nearer to
#: the boundary than the rows are, β spread evenly); with 16 and 16 α stay about as far from it as the rows.
BANANA_ALPHA, BANANA_BETA = 8, 32
BANANA_SEEDS = 3
BANANA_TRAINING: dict[str, Any] = {"steps": 3000, "learning_rate": 1e-2, "schedule": "cosine"}
#: A piece of the curve P = ½ counts as decision boundary when a row is as near as this.
NEAR_A_ROW = 0.25
LEVELS = np.linspace(0, 1.0001, 21)  # of the shades
PROBABILITY_SHADES, VARIANCE_SHADES = ("#efb868", "#ffffff", "#7fb5dc"), ("#ffffff", "#8c8c8c")


@dataclass(frozen=True)
class Plane:
    """A grid over the plane, and what a classifier says there."""

    x: Array
    y: Array
    probability: Array  # of class 1, [y, x]
    residual: Array

    @classmethod
    def of(cls, gp: GP, X: Array, size: int) -> Plane:
        low, high = X.min(0) - 0.6, X.max(0) + 0.6
        x, y = (np.linspace(low[i], high[i], size) for i in range(2))
        prediction = classes(gp, np.stack(np.meshgrid(x, y), -1).reshape(-1, 2))
        shape = (size, size)
        return cls(x, y, prediction.probabilities[:, 1].reshape(shape), prediction.residual.reshape(shape))

    def boundary(self, rows: cKDTree) -> cKDTree:
        """Where P crosses ½ along the lines of the grid, not far from the rows."""
        above = self.probability - 0.5
        points = []
        for values, first, second in ((above, self.y, self.x), (above.T, self.x, self.y)):
            i, j = np.nonzero(values[:, :-1] * values[:, 1:] < 0)
            share = values[i, j] / (values[i, j] - values[i, j + 1])
            crossing = second[j] + share * (second[j + 1] - second[j])
            pair = (crossing, first[i]) if second is self.x else (first[i], crossing)
            points.append(np.stack(pair, -1))
        found = np.concatenate(points)
        return cKDTree(found[rows.query(found)[0] < NEAR_A_ROW])


def describe_points(gp: GP, points: Array, X: Array, boundary: cKDTree) -> dict[str, float]:
    """Certainty where the points are, their distance from the boundary, the rows' distance from them."""
    return {
        "certainty": float(np.abs(classes(gp, points).probabilities[:, 1] - 0.5).mean()),
        "boundary_distance": float(boundary.query(points)[0].mean()),
        "distance_of_rows": float(cKDTree(points).query(X)[0].mean()),
    }


def banana_models(variant: Variant, quick: bool) -> list[GP]:
    data = load("classification/banana")
    X, y = (data.X[::20], data.y[::20]) if quick else (data.X, data.y)
    alpha = BANANA_ALPHA if variant.two_blocks else BANANA_ALPHA + BANANA_BETA
    settings = BANANA_TRAINING | ({"steps": 4} if quick else {}) | variant.settings
    return quietly(
        fit_replicates, X, y, [np.arange(len(X))] * BANANA_SEEDS, variant.method,
        likelihood="bernoulli", **settings, **variant.sizes(alpha, BANANA_BETA),
    )  # fmt: skip


def figure_banana(store: Store, quick: bool, folder: Path) -> None:
    from matplotlib import pyplot as plt

    data = load("classification/banana")
    X = np.asarray(data.X, dtype=np.float64)
    rows = cKDTree(X)
    variants = [SGP, SOLVE, FREE, PRINTED]
    figure, axes = plt.subplots(
        2, 4, figsize=(11.5, 6.2), layout="constrained", sharex=True, sharey=True, squeeze=False
    )
    found: dict[str, Any] = {}
    shades: list[Any] = [None, None]
    for column, variant in zip(axes.T, variants, strict=True):
        models = banana_models(variant, quick)
        found |= banana_rows(variant, models, X, data.y, rows)
        gp = models[0]
        plane = Plane.of(gp, X, 60 if quick else 160)
        share = plane.residual / prior_variance(gp)
        for k, (values, colors) in enumerate(
            ((plane.probability, PROBABILITY_SHADES), (share, VARIANCE_SHADES))
        ):
            shades[k] = column[k].contourf(plane.x, plane.y, values, LEVELS, cmap=shades_of(colors))
        column[0].set_title(banana_title(variant), fontsize=9.5, loc="left")
        for ax in column:
            ax.contour(plane.x, plane.y, plane.probability, [0.5], colors=INK, linewidths=1.2)
            ax.scatter(*X[::4].T, s=1.5, color=INK, alpha=0.35, lw=0)
            style = {"ls": "", "mec": "white", "mew": 0.7, "ms": 7}
            ax.plot(*gp.inducing_points.T, marker="o", color=VERMILION, label="α points", **style)
            if (beta := extra_points(gp)) is not None:
                ax.plot(*beta.T, marker="^", color=GREEN, label="β points", **style)
            ax.set(xlim=(plane.x[0], plane.x[-1]), ylim=(plane.y[0], plane.y[-1]))
            tidy(ax)
    labels = ("P(y = 1)", "distributional variance\n(share of the prior's)")
    for shade, row, label in zip(shades, axes, labels, strict=True):
        bar = figure.colorbar(shade, ax=list(row), pad=0.01, aspect=28, ticks=[0, 0.25, 0.5, 0.75, 1])
        bar.set_label(label, fontsize=9)
        bar.ax.tick_params(labelsize=8, length=2)
        bar.outline.set_visible(False)
    common_legend(figure, list(axes[0, 1:]))
    save(figure, "banana", folder)
    store.content["banana"] = {
        "alpha": BANANA_ALPHA, "beta": BANANA_BETA, "seeds": BANANA_SEEDS,
        "training": BANANA_TRAINING, "points": found,
    }  # fmt: skip
    store.save()
    print_table(f"banana: averages over the points, and over {BANANA_SEEDS} starts", found)


def shades_of(colors: Sequence[str]) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("shades", list(colors))


def banana_title(variant: Variant) -> str:
    if not variant.two_blocks:
        return f"{variant.label}: {BANANA_ALPHA + BANANA_BETA} points"
    return f"{variant.label}: {BANANA_ALPHA} α and {BANANA_BETA} β"


def banana_rows(variant: Variant, models: list[GP], X: Array, y: Any, rows: cKDTree) -> dict[str, Any]:
    """One row for α, one for β, for comparison one for the data; a number for each start."""
    parts: dict[str, list[dict[str, float]]] = {}
    for gp in models:
        boundary = Plane.of(gp, X, 160).boundary(rows)
        blocks = {"α": gp.inducing_points, "β": extra_points(gp), "rows": X}
        for name, points in blocks.items():
            if points is not None:
                parts.setdefault(name, []).append(describe_points(gp, points, X, boundary))
    out = {
        f"{variant.label} {name}": {key: rounded([p[key] for p in seen]) for key in seen[0]}
        for name, seen in parts.items()
    }
    out[f"{variant.label} rows"].pop("distance_of_rows")
    scores = [classes(gp, X).metrics(y) for gp in models]
    quality = {f"train_{key}": rounded([s[key] for s in scores]) for key in ("accuracy", "nll")}
    out[f"{variant.label} rows"] |= quality
    return out


# -- how many points are enough (Figure 3) -------------------------------------------------------------------

#: Rows of each table, if not all.
TABLES = {"concrete": None, "energy": None, "airfoil": None, "kin40k": 2000, "protein": 2000}
POINTS = (10, 25, 50, 100, 200)
SPLITS = (0, 1, 2)
#: Steps of Adam for a ridge S, which is therefore shown up to so many points.
RIDGE_STEPS, RIDGE_POINTS = 500, 50
#: Closed form: the more points, the less it matters where they are.
CONVERGENCE_RATE = 0.2
MOST_EPOCHS, EPOCHS_TIMES_POINTS = 400, 20_000
#: A step of the full GP costs n³, so it starts at the kernel of SGP with so many points.
START_POINTS, EXACT_EPOCHS = 100, 20
CURVES = (SGP, SOLVE, FREE, CONTRACTING, PRINTED)


@dataclass(frozen=True)
class Run:
    """A method with so many points on a table; all splits are trained at once."""

    data: str
    variant: Variant
    alpha: int
    beta: int

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.data, self.variant.label, self.alpha, self.beta


def halves(total: int) -> tuple[int, int]:
    return total // 2, total - total // 2


def all_runs(tables: Sequence[str], points: Sequence[int]) -> Iterator[Run]:
    """What both rows of the figure need: α + β = M, and α = β = M; many a pair serves both."""
    for data in tables:
        yield Run(data, EXACT, 0, 0)
        for total in points:
            yield Run(data, SGP, total, 0)
            for variant in CURVES[1:]:
                if variant.has_formula or total <= RIDGE_POINTS:
                    yield Run(data, variant, *halves(total))
        for alpha in points:
            if alpha <= max(points) // 2 and alpha not in {total / 2 for total in points}:
                for variant in (SOLVE, FREE):
                    yield Run(data, variant, alpha, alpha)


def small_table(name: str, rows: int | None) -> tuple[Array, Array]:
    data = load(f"regression/{name}")
    X, y = np.asarray(data.X, dtype=np.float64), np.asarray(data.y, dtype=np.float64)
    if rows is None or rows >= len(X):
        return X, y
    chosen = np.random.default_rng(0).choice(len(X), rows, replace=False)
    return X[chosen], y[chosen]


def run_convergence(run: Run, quick: bool) -> dict[str, Any]:
    """Test scores in standardised units, one for each split."""
    X, y = small_table(run.data, 200 if quick else TABLES[run.data])
    splits = [components_protocol(X, y, seed) for seed in SPLITS]
    inputs, targets = splits[0].x_scaler.transform(X), splits[0].y_scaler.transform(y[:, None])[:, 0]

    def models_of(variant: Variant, alpha: int, beta: int, **own: Any) -> list[GP]:
        epochs = min(MOST_EPOCHS, EPOCHS_TIMES_POINTS // max(alpha + beta, 1))
        length = (4, 10) if quick else (epochs, RIDGE_STEPS)
        settings = regression_settings(variant, *length, CONVERGENCE_RATE) | variant.sizes(alpha, beta) | own
        rows = [s.rows.train for s in splits]
        return quietly(fit_replicates, inputs, targets, rows, variant.method, standardize=False, **settings)

    start = time.process_time()
    if run.variant == EXACT:
        (first, *_) = models_of(SGP, START_POINTS, 0)
        models = models_of(EXACT, 0, 0, epochs=2 if quick else EXACT_EPOCHS, **prior_of(first))
    else:
        models = models_of(run.variant, run.alpha, run.beta)
    seconds = time.process_time() - start
    predictions = [observations(gp, inputs[s.rows.test]) for gp, s in zip(models, splits, strict=True)]
    scores = [p.metrics(targets[s.rows.test]) for p, s in zip(predictions, splits, strict=True)]
    return {
        "data": run.data,
        "label": run.variant.label,
        "alpha": run.alpha,
        "beta": run.beta,
        "loglik": rounded([-s["nll"] for s in scores]),
        "rmse": rounded([s["rmse"] for s in scores]),
        "objective_per_row": rounded([-gp.history[-1].loss for gp in models]),
        "within_data": rounded([p.explained.mean() for p in predictions]),
        "distributional": rounded([p.residual.mean() for p in predictions]),
        "noise": rounded([p.noise.mean() for p in predictions]),
        "rollbacks": sum(gp.history.rollbacks for gp in models),
        "cpu_seconds": round(seconds, 1),
    }


def prior_of(gp: GP) -> dict[str, Any]:
    """Settings that start a fit at the kernel and the noise of another."""
    learned = gp.hyperparameters()
    lengthscale = torch.as_tensor(np.atleast_1d(learned["lengthscale"]))
    shape = RBF(len(lengthscale), ard=True)
    shape.lengthscale.set_(lengthscale)
    kernel = Scale(shape)
    kernel.variance.set_(learned["kernel"]["variance"])
    return {"kernel": kernel, "initial_noise": learned["noise"]}


def convergence(store: Store, quick: bool, workers: int, folder: Path) -> None:
    settings = {
        "rows": TABLES, "points": list(POINTS), "splits": list(SPLITS), "rate": CONVERGENCE_RATE,
        "epochs": [MOST_EPOCHS, EPOCHS_TIMES_POINTS], "exact": [START_POINTS, EXACT_EPOCHS],
        "ridge_steps": RIDGE_STEPS,
    }  # fmt: skip
    entry = store.content.setdefault("convergence", {"settings": settings, "runs": []})
    if entry["settings"] != settings:
        raise SystemExit(f"{store.path} was made with other settings: remove its part 'convergence' first")
    runs = list(all_runs(["energy"], (10, 20)) if quick else all_runs(list(TABLES), POINTS))
    done = {key_of(row) for row in entry["runs"]}
    todo = [run for run in runs if run.key not in done]
    with get_context("spawn").Pool(workers, torch.set_num_threads, (1,)) as pool:
        for row in pool.imap_unordered(partial(run_convergence, quick=quick), todo):
            entry["runs"].append(row)
            store.save()
            points = f"α = {row['alpha']}, β = {row['beta']}" if row["alpha"] else "all rows"
            score = f"log-likelihood {np.mean(row['loglik']):.3f}, {row['cpu_seconds']} s"
            print(f"{row['data']} {row['label']} ({points}): {score}", flush=True)
    order = [run.key for run in runs]
    entry["runs"].sort(key=lambda row: order.index(key_of(row)))
    store.save()
    draw_convergence(entry["runs"], folder)
    print_convergence(entry["runs"])


def key_of(row: dict[str, Any]) -> tuple[str, str, int, int]:
    return row["data"], row["label"], row["alpha"], row["beta"]


def find_run(runs: list[dict[str, Any]], run: Run) -> dict[str, Any] | None:
    return next((row for row in runs if key_of(row) == run.key), None)


def curve_of(
    runs: list[dict[str, Any]], data: str, variant: Variant, equal: str
) -> list[tuple[int, dict[str, Any]]]:
    """[M, run]: with ``equal="total"`` M counts all points, with ``equal="alpha"`` only α."""
    found = []
    for size in POINTS:
        pair = (size, 0) if variant == SGP else halves(size) if equal == "total" else (size, size)
        if (row := find_run(runs, Run(data, variant, *pair))) is not None:
            found.append((size, row))
    return found


def draw_convergence(runs: list[dict[str, Any]], folder: Path) -> None:
    from matplotlib import pyplot as plt

    tables = [name for name in TABLES if find_run(runs, Run(name, EXACT, 0, 0))]
    figure, axes = plt.subplots(
        2, len(tables), figsize=(2.75 * len(tables), 5.6), layout="constrained", squeeze=False, sharey="col",
        sharex=True,
    )  # fmt: skip
    for column, data in zip(axes.T, tables, strict=True):
        full = find_run(runs, Run(data, EXACT, 0, 0))
        assert full is not None
        for ax, equal in zip(column, ("total", "alpha"), strict=True):
            level = np.mean(full["loglik"])
            ax.axhline(level, color=EXACT.color, lw=1, ls=(0, (4, 2)), label=EXACT.label)
            for variant in CURVES:
                points = curve_of(runs, data, variant, equal)
                if len(points) < 2:
                    continue
                sizes = [size for size, _ in points]
                gaps = np.array([r["loglik"] for _, r in points]) - np.array(full["loglik"])
                error = gaps.std(1, ddof=1) / np.sqrt(gaps.shape[1])
                width, marker = (3, 6) if variant == SGP else (1.5, 3.5)  # SOLVE-GP often lies on it
                ax.errorbar(
                    sizes, level + gaps.mean(1), error, color=variant.color, lw=width, marker="o", ms=marker,
                    elinewidth=0.9, label=variant.label,
                )  # fmt: skip
            ax.set_xscale("log")
            ax.set_xticks(POINTS, [str(p) for p in POINTS])
            ax.minorticks_off()
            tidy(ax)
        rows = TABLES[data]
        column[0].set_title(data if rows is None else f"{data}, {rows:,} rows", fontsize=9.5, loc="left")
        column[0].set_xlabel("points in all, α + β", fontsize=8.5)
        column[1].set_xlabel("α points (as many β)", fontsize=8.5)
        column[0].tick_params(labelbottom=True)
    for ax in axes[:, 0]:
        ax.set_ylabel("test log-likelihood per row", fontsize=8.5)
    common_legend(figure, list(axes[0]))
    save(figure, "convergence", folder)


def print_convergence(runs: list[dict[str, Any]]) -> None:
    for data in TABLES:
        full = find_run(runs, Run(data, EXACT, 0, 0))
        if full is None:
            continue
        print(f"\n{data}: test log-likelihood per row, full GP {np.mean(full['loglik']):.3f}")
        print(f"{'':34s}" + "".join(f"{size:>9d}" for size in POINTS))
        for equal in ("total", "alpha"):
            for variant in CURVES:
                row = dict(curve_of(runs, data, variant, equal))
                if len(row) < 2 or (equal == "alpha" and variant == SGP):
                    continue
                name = variant.label if variant == SGP else f"{variant.label}, equal {equal}"
                cells = [f"{np.mean(row[s]['loglik']):9.3f}" if s in row else f"{'–':>9s}" for s in POINTS]
                print(f"{name:34s}" + "".join(cells))


# -- the ridge S and the jitter ------------------------------------------------------------------------------

JITTERS = (1e-8, 1e-6, 1e-4, 1e-2)


def ridge_study(store: Store, quick: bool) -> None:
    """Snelson with every ridge S at several jitters, everything learned."""
    found = store.content.setdefault("ridge", {})
    for variant in (PRINTED, KERNEL, CONTRACTING, FREE):
        for jitter in JITTERS:
            name = f"{variant.label} {jitter:g}"
            if name in found:
                continue
            gp, objective = fit_snelson(variant, quick, jitter=jitter)
            with torch.no_grad():
                factors = gp.model.factors()
                kl = gp.model.basis.kl(factors, gp.model.basis.q_of(factors)).sum()
            found[name] = {"kl": rounded(float(kl))} | snelson_row(gp, objective)
            store.save()
    print_table("snelson, S and jitter: the KL in nats, the rest as above", found)


# -- the command -------------------------------------------------------------------------------------------

FIGURES = {"snelson": figure_snelson, "banana": figure_banana, "bkrr": figure_bkrr}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("figures", "convergence", "ridge"))
    parser.add_argument("--only", help=f"of the figures: {', '.join(FIGURES)}")
    parser.add_argument("--figure-only", action="store_true", help="draw the convergence that is stored")
    parser.add_argument("--workers", type=int, default=2, help="processes of convergence (default: 2)")
    parser.add_argument("--quick", action="store_true", help="does everything still work?")
    parser.add_argument("--output", type=Path, help="the results file")
    parser.add_argument("--images", type=Path, help="the folder of the figures")
    options = parser.parse_args(arguments)

    store = Store(options.output or (None if options.quick else RESULTS))
    images = options.images or (Path.cwd() if options.quick else IMAGES)
    if options.what == "convergence":
        if options.figure_only:
            draw_convergence(store.content["convergence"]["runs"], images)
        else:
            convergence(store, options.quick, options.workers, images)
    elif options.what == "ridge":
        ridge_study(store, options.quick)
    else:
        names = options.only.split(",") if options.only else list(FIGURES)
        if strange := [name for name in names if name not in FIGURES]:
            parser.error(f"--only: no {', '.join(strange)}; there are {', '.join(FIGURES)}")
        for name in names:
            FIGURES[name](store, options.quick, images)
    return 0


if __name__ == "__main__":
    sys.exit(main())
