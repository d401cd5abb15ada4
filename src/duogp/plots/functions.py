"""Predictions along one input: the mean, and the variance in its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from duogp.plots.style import (
    BLUE,
    INK,
    PALETTE,
    PARTS,
    VERMILION,
    entitle,
    label_of,
    name_of_part,
    new_axes,
    panel_grid,
    part_of,
    parts_of,
    share_limits,
    ticks_below,
    width_of,
)
from duogp.posterior.prediction import ClassPrediction, Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from duogp.posterior.gp import GP

#: Values of an input that are ticked at most.
MOST_TICKS = 200
#: Characters of tick labels that stand side by side on an inch.
CHARACTERS = 11
#: Opacity of the bands.
ALPHAS = {"explained": 0.55, "residual": 0.5, "noise": 0.45, "disagreement": 0.5}


def one_dimensional_fit(
    ax: Axes | None,
    gp: GP,
    X: ArrayLike,
    y: ArrayLike,
    grid: ArrayLike,
    truth: ArrayLike | None = None,
    *,
    title: str | None = None,
    color: str = BLUE,
    legend: bool = True,
) -> Axes:
    """Mean and 95 % band of observations along ``grid`` [t], the data, and the inducing points as ticks."""
    ax = new_axes(ax, (5.5, 3.4))
    x, target = np.ravel(X), np.ravel(y)
    along = np.ravel(grid)
    prediction = gp.predict(along[:, None])
    if isinstance(prediction, ClassPrediction):
        raise ValueError("this picture is of numbers against one input; the model was fitted to class labels")
    low, high = prediction.interval(0.95)
    ax.fill_between(along, low, high, color=color, alpha=0.18, lw=0, label="95 % of observations")
    if truth is not None:
        ax.plot(along, np.ravel(truth), color=INK, lw=1, ls=(0, (4, 2)), label="true function")
    ax.plot(along, prediction.mean, color=color, lw=1.8, label="predictive mean")
    ax.scatter(x, target, s=9, color=INK, alpha=0.55, lw=0, zorder=3, label="data")
    ticks_below(ax, gp.inducing_points[:, 0], 0.02, VERMILION, ms=9, mew=1.6, label="inducing points")
    ax.set(xlim=(along.min(), along.max()), xlabel="x", ylabel="y")
    if title:
        entitle(ax, title)
    if legend:
        ax.legend(frameon=False, fontsize=8)
    return ax


def slice_plot(
    along: ArrayLike,
    prediction: Prediction | ClassPrediction,
    ax: Axes | None = None,
    *,
    name: str = "x",
    target: str = "y",
    data: ArrayLike | None = None,
    legend: bool = True,
) -> Axes:
    """Predictions along one input, at its values ``along`` [n], with the others fixed.

    ``along``: numbers, dates, or texts (levels of a category). The 95 % bands are nested: explained variance
    alone, plus the residual, plus the noise (the interval of a new observation). Of classes: a probability
    each. ``data``: values of the input, as ticks below.
    """
    ax = new_axes(ax, (4.6, 3.3), f"Effect of {label_of(name)}")
    values = np.asarray(along)
    texts = values.dtype.kind in "OUST"
    x = np.arange(len(values)) if texts else values
    if isinstance(prediction, ClassPrediction):
        _class_slice(ax, x, prediction, texts)
        ax.set(ylim=(-0.02, 1.02), ylabel=f"probability of {label_of(target, 24)}")
    else:
        _number_slice(ax, x, prediction, texts)
        ax.set_ylabel(label_of(target))
    if texts:
        names = [label_of(str(value), 16) for value in values]
        tilt = len(names) > 1 and sum(map(len, names)) + 2 * len(names) > CHARACTERS * width_of(ax)
        ax.set_xticks(x, names, rotation=35 if tilt else 0, ha="right" if tilt else "center")
        ax.set_xlim(-0.6, len(x) - 0.4)
    else:
        ax.set_xlim(x.min(), x.max())
        if data is not None:
            present = np.unique(np.asarray(data))
            kept = np.linspace(0, len(present) - 1, min(len(present), MOST_TICKS)).round().astype(int)
            ticks_below(ax, present[kept], 0.015, INK, ms=5, mew=0.6, alpha=0.5, zorder=4)
        if values.dtype.kind == "M":
            from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

            locator = AutoDateLocator(minticks=3, maxticks=6)
            ax.xaxis.set(major_locator=locator, major_formatter=ConciseDateFormatter(locator))
        else:
            ax.locator_params(axis="x", nbins=max(3, int(1.6 * width_of(ax))))
    ax.set_xlabel(label_of(name))
    if legend:
        ax.legend(frameon=False, fontsize=7.5)
    return ax


def bands(prediction: Prediction, level: float = 0.95) -> dict[str, NDArray[np.float64]]:
    """Half widths [n] of the nested bands by part of the variance, the inner first."""
    drawn = parts_of(prediction)
    totals = np.cumsum([part_of(prediction, part) for part in drawn], 0)
    return dict(zip(drawn, float(ndtri(0.5 + level / 2)) * np.sqrt(totals), strict=True))


def _number_slice(ax: Axes, x: NDArray, prediction: Prediction, texts: bool) -> None:
    inner: NDArray | float = 0.0
    mean = prediction.mean
    for part, half in bands(prediction).items():
        label, color = name_of_part(prediction, part), PARTS[part][1]
        label = f"+ {label}" if np.ndim(inner) else label
        look: dict[str, Any] = {"color": color, "alpha": ALPHAS[part], "lw": 0}
        for side, name in ((-1, None), (1, label)):
            low, high = mean + side * inner, mean + side * half
            if texts:
                ax.bar(x, high - low, 0.45, bottom=low, label=name, **look)
            else:
                ax.fill_between(x, low, high, label=name, **look)
        inner = half
    if texts:
        ax.hlines(mean, x - 0.3, x + 0.3, color=INK, lw=1.8, label="mean")
    else:
        ax.plot(x, mean, color=INK, lw=1.6, label="mean")


def _class_slice(ax: Axes, x: NDArray, prediction: ClassPrediction, texts: bool, most: int = 6) -> None:
    """Probabilities of the likeliest classes, at most ``most``; of two classes, of the second."""
    order = np.argsort(-prediction.probabilities.max(0))[:most]
    if len(prediction.classes) == 2:
        order = np.array([1])
    for color, c in zip(PALETTE, sorted(order.tolist()), strict=False):
        look: dict[str, Any] = {"marker": "o", "ls": "", "ms": 5} if texts else {"lw": 1.8}
        label = label_of(str(prediction.classes[c]), 20)
        ax.plot(x, prediction.probabilities[:, c], color=color, label=label, **look)


def slices(
    gp: GP,
    X: ArrayLike,
    columns: Sequence[int] | None = None,
    *,
    names: Sequence[str] | None = None,
    target: str = "y",
    points: int = 100,
) -> list[Any]:
    """Axes with the effect of each column of a matrix X [n, d], the other columns at their medians."""
    matrix = np.asarray(X, dtype=np.float64)
    if matrix.ndim != 2:
        raise ValueError(f"X must be two-dimensional [n, d], got shape {matrix.shape}")
    chosen = list(range(min(matrix.shape[1], 6)) if columns is None else columns)
    labels = list(names) if names is not None else gp.column_names
    labels = labels or [f"column {j}" for j in range(matrix.shape[1])]
    panels = panel_grid(len(chosen))
    middle = np.median(matrix, 0)
    for ax, j in zip(panels, chosen, strict=True):
        low, high = np.quantile(matrix[:, j], [0.01, 0.99])
        grid = np.linspace(low, high, points)
        rows = np.repeat(middle[None], points, 0)
        rows[:, j] = grid
        legend = ax is panels[0]
        prediction = gp.predict(rows)
        slice_plot(grid, prediction, ax, name=labels[j], target=target, data=matrix[:, j], legend=legend)
    share_limits(panels)
    return panels
