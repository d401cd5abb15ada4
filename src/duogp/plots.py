"""Figures that look right unedited. Matplotlib is imported where a figure is drawn, never before.

Every function draws on the axes it is given (or makes its own) and returns them. Colours are those of Okabe
and Ito, told apart by every kind of colour vision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from duogp.metrics import LEVELS
from duogp.prediction import ClassPrediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from duogp.gp import GP
    from duogp.training.history import History

BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
)
#: Colours of several lines in one figure, in this order.
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
INK, FAINT = "#333333", "#9a9a9a"


def history_plot(history: History, ax: Axes | None = None) -> Axes:
    """Loss against epochs; where rows were held out, their NLL on a second axis, the best epoch marked."""
    ax = _axes(ax, (5.5, 3.4))
    ax.plot(history.series("epoch"), history.series("loss"), color=BLUE, lw=1.6, label="loss")
    ax.set_xlabel("epoch")
    ax.set_ylabel("loss per row")
    seen = [r for r in history if r.validation_nll is not None and np.isfinite(r.validation_nll)]
    if seen:
        twin = ax.twinx()
        twin.set_label("validation")
        twin.plot(
            [r.epoch for r in seen],
            [float(r.validation_nll or 0.0) for r in seen],
            color=VERMILION,
            lw=1.6,
        )
        twin.set_ylabel("validation NLL", color=VERMILION)
        twin.tick_params(axis="y", colors=VERMILION, length=3)
        twin.spines["top"].set_visible(False)
        twin.spines["right"].set_color(VERMILION)
        ax.yaxis.label.set_color(BLUE)
        ax.tick_params(axis="y", colors=BLUE)
    if history.best_epoch:
        ax.axvline(history.best_epoch, color=FAINT, lw=1, ls=(0, (4, 3)), zorder=0)
        ax.annotate(
            f"best: {history.best_epoch}",
            (history.best_epoch, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            color=INK,
            fontsize=8,
        )
    return ax


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
    ax = _axes(ax, (5.5, 3.4))
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
        ax.set_title(title, fontsize=10, loc="left")
    if legend:
        ax.legend(frameon=False, fontsize=8)
    return ax


def calibration_plot(
    y: ArrayLike, mean: ArrayLike, std: ArrayLike, ax: Axes | None = None, *, label: str | None = None
) -> Axes:
    """How often a predicted quantile is not exceeded, against how often it should not be.

    On the diagonal is honest. Steep in the middle: intervals are too wide. Flat in the middle: too narrow.
    """
    ax = _axes(ax, (3.8, 3.8))
    z = _zscores(y, mean, std)
    below = np.searchsorted(z, ndtri(LEVELS), side="right") / len(z)
    _reference(ax, [0, 1], [0, 1])
    ax.plot(LEVELS, below, color=_next_color(ax), lw=1.8, label=label)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted quantile level", ylabel="observed share below")
    ax.set_aspect("equal")
    return _legend_if(ax, label)


def zscore_cdf(
    y: ArrayLike, mean: ArrayLike, std: ArrayLike, ax: Axes | None = None, *, label: str | None = None
) -> Axes:
    """The distribution of (y − mean)/std beside the standard normal that it should be."""
    ax = _axes(ax, (4.6, 3.4))
    z = _zscores(y, mean, std)
    along = np.linspace(-4, 4, 201)
    _reference(ax, along, ndtr(along))
    ax.step(z, np.arange(1, len(z) + 1) / len(z), where="post", color=_next_color(ax), lw=1.8, label=label)
    ax.set(xlim=(-4, 4), ylim=(0, 1), xlabel="z-score", ylabel="cumulative share")
    return _legend_if(ax, label)


def predicted_vs_observed(
    y: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    ax: Axes | None = None,
    *,
    max_rows: int = 500,
    color: str = BLUE,
) -> Axes:
    """Observed against predicted with 95 % bars; of more than ``max_rows`` rows an even selection."""
    ax = _axes(ax, (4.2, 4.2))
    observed, predicted, spread = (np.asarray(v, dtype=np.float64).ravel() for v in (y, mean, std))
    shown = np.linspace(0, len(observed) - 1, min(max_rows, len(observed))).round().astype(int)
    ends = np.concatenate([observed[shown], predicted[shown]])
    pad = 0.04 * float(np.ptp(ends)) or 1.0
    limits = (float(ends.min()) - pad, float(ends.max()) + pad)
    _reference(ax, list(limits), list(limits))
    half = float(ndtri(0.975)) * spread[shown]
    ax.hlines(
        observed[shown], predicted[shown] - half, predicted[shown] + half, color=color, lw=0.6, alpha=0.25
    )
    ax.scatter(predicted[shown], observed[shown], s=12, color=color, alpha=0.8, lw=0, zorder=3)
    ax.set(xlim=limits, ylim=limits, xlabel="predicted (bar: 95 % interval)", ylabel="observed")
    ax.set_aspect("equal")
    return ax


# -- style -------------------------------------------------------------------------------------------------


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is None:
        from matplotlib import pyplot as plt

        _, ax = plt.subplots(figsize=size, layout="constrained")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=3)
    return ax


def _zscores(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> NDArray[np.float64]:
    target, centre, spread = (np.asarray(v, dtype=np.float64).ravel() for v in (y, mean, std))
    if not (len(target) == len(centre) == len(spread) > 0):
        raise ValueError(
            f"y, mean and std must have one length above 0, got {len(target)}, {len(centre)}, {len(spread)}"
        )
    if not (spread > 0).all():
        raise ValueError(f"std must be positive, got a minimum of {spread.min()}")
    return np.sort((target - centre) / spread)


def _reference(ax: Axes, x: Any, y: Any) -> None:
    """What an honest model gives, once per axes."""
    if not any(line.get_gid() == "reference" for line in ax.lines):
        ax.plot(x, y, color=FAINT, lw=1, ls=(0, (4, 3)), zorder=0, gid="reference")


def _next_color(ax: Axes) -> str:
    drawn = sum(line.get_gid() != "reference" for line in ax.lines)
    return PALETTE[drawn % len(PALETTE)]


def _legend_if(ax: Axes, label: str | None) -> Axes:
    if label is not None:
        ax.legend(frameon=False, fontsize=8)
    return ax
