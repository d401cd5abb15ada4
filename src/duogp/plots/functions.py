"""What a model has learned along one input: its mean, and its variance in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from duogp.plots.style import BLUE, INK, PALETTE, PARTS, VERMILION, entitle, label_of, new_axes
from duogp.posterior.prediction import ClassPrediction, Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from duogp.posterior.gp import GP


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
    points = gp.inducing_points[:, 0]
    ax.plot(
        points,
        np.full(len(points), 0.02),
        "|",
        transform=ax.get_xaxis_transform(),
        color=VERMILION,
        ms=9,
        mew=1.6,
        label="inducing points",
    )
    ax.set_xlim(along.min(), along.max())
    ax.set_xlabel("x")
    ax.set_ylabel("y")
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
    """Predictions along one input, everything else held still.

    ``along``: numbers, dates, or texts (levels of a category). The bands nest: 95 % by the uncertainty within
    the data alone, with that far from the data added, and with the noise added: where a new observation is
    expected. Of classes: a probability each. ``data``: values of the input, ticked below.
    """
    ax = new_axes(ax, (4.6, 3.3), f"Effect of {label_of(name)}")
    values = np.asarray(along)
    texts = values.dtype.kind in "OUST"
    x = np.arange(len(values)) if texts else values
    if isinstance(prediction, ClassPrediction):
        _class_slice(ax, x, prediction, texts)
        ax.set_ylim(-0.02, 1.02)
        ax.set_ylabel(f"probability of {label_of(target, 24)}")
    else:
        _number_slice(ax, x, prediction, texts)
        ax.set_ylabel(label_of(target))
    if texts:
        names = [label_of(str(value), 16) for value in values]
        tilt = len(names) > 3 and sum(map(len, names)) > 30
        ax.set_xticks(x, names, rotation=35 if tilt else 0, ha="right" if tilt else "center")
        ax.set_xlim(-0.6, len(x) - 0.4)
    else:
        ax.set_xlim(x.min(), x.max())
        if data is not None:
            _rug(ax, np.asarray(data))
        if values.dtype.kind == "M":
            _date_axis(ax)
    ax.set_xlabel(label_of(name))
    if legend:
        ax.legend(frameon=False, fontsize=7.5)
    return ax


def bands(prediction: Prediction, level: float = 0.95) -> dict[str, NDArray[np.float64]]:
    """Half widths of the nested bands, the inner first."""
    width = float(ndtri(0.5 + level / 2))
    total = np.zeros_like(prediction.mean)
    out = {}
    for part in PARTS:
        total = total + getattr(prediction, part)
        out[part] = width * np.sqrt(total)
    return out


def _number_slice(ax: Axes, x: NDArray, prediction: Prediction, texts: bool) -> None:
    inner: NDArray | float = 0.0
    mean = prediction.mean
    for part, half in bands(prediction).items():
        label, color = PARTS[part]
        label = label if part == "explained" else f"+ {label}"
        alpha = {"explained": 0.55, "residual": 0.5, "noise": 0.45}[part]
        for side in (-1, 1):
            ends = mean + side * inner, mean + side * half
            once = label if side > 0 else None
            if texts:
                ax.bar(x, ends[1] - ends[0], 0.45, bottom=ends[0], color=color, alpha=alpha, lw=0, label=once)
            else:
                ax.fill_between(x, *ends, color=color, alpha=alpha, lw=0, label=once)
        inner = half
    if texts:
        ax.hlines(mean, x - 0.3, x + 0.3, color=INK, lw=1.8, label="mean")
    else:
        ax.plot(x, mean, color=INK, lw=1.6, label="mean")


def _class_slice(ax: Axes, x: NDArray, prediction: ClassPrediction, texts: bool, most: int = 6) -> None:
    """The likeliest classes, at most as many as there are colours."""
    order = np.argsort(-prediction.probabilities.max(0))[:most]
    if len(prediction.classes) == 2:
        order = np.array([1])
    for color, c in zip(PALETTE, sorted(order.tolist()), strict=False):
        label = label_of(str(prediction.classes[c]), 20)
        p = prediction.probabilities[:, c]
        if texts:
            ax.plot(x, p, "o", color=color, ms=5, label=label)
        else:
            ax.plot(x, p, color=color, lw=1.8, label=label)


def _rug(ax: Axes, values: NDArray, most: int = 200) -> None:
    shown = np.unique(values)
    if len(shown) > most:
        shown = shown[np.linspace(0, len(shown) - 1, most).round().astype(int)]
    ax.plot(
        shown,
        np.full(len(shown), 0.015),
        "|",
        transform=ax.get_xaxis_transform(),
        color=INK,
        ms=5,
        mew=0.6,
        alpha=0.5,
        zorder=4,
    )


def _date_axis(ax: Axes) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=3, maxticks=8)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def slices(
    gp: GP,
    X: ArrayLike,
    columns: Sequence[int] | None = None,
    *,
    names: Sequence[str] | None = None,
    target: str = "y",
    points: int = 100,
) -> list[Any]:
    """A panel per column of a matrix X: its effect with the other columns at their medians."""
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


def share_limits(panels: Sequence[Any]) -> None:
    """One scale for the vertical axes of panels, so that effects can be compared."""
    limits = [ax.get_ylim() for ax in panels]
    for ax in panels:
        ax.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def panel_grid(count: int, size: tuple[float, float] = (3.6, 2.9), most: int = 3) -> list[Any]:
    """Axes for some panels in rows of at most three."""
    from matplotlib import pyplot as plt

    across = min(count, most)
    down = -(-count // across)
    figure, grid = plt.subplots(
        down, across, figsize=(size[0] * across, size[1] * down), layout="constrained", squeeze=False
    )
    panels = list(grid.ravel())
    for spare in panels[count:]:
        figure.delaxes(spare)
    return panels[:count]
