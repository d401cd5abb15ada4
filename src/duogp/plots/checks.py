"""Calibration from predicted quantiles of any distribution, and partial dependence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duogp.plots.style import BLUE, INK, label_of, new_axes, reference

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def quantile_reliability_plot(
    y: ArrayLike, quantiles: ArrayLike, levels: ArrayLike, ax: Axes | None = None
) -> Axes:
    """Observed share of the targets ``y`` [n] below each predicted quantile [n, levels], against its level.

    The grey band holds 95 % of the curves of calibrated predictions of n independent rows, at each level.
    """
    ax = new_axes(ax, (3.9, 4.0), "Calibration of quantiles")
    target, p = np.asarray(y, dtype=np.float64), np.asarray(levels, dtype=np.float64)
    below = (target[:, None] <= np.asarray(quantiles)).mean(0)
    grid = np.linspace(0, 1, 101)
    half = 1.96 * np.sqrt(grid * (1 - grid) / len(target))
    ax.fill_between(grid, grid - half, grid + half, color="#dddddd", lw=0, zorder=0)
    reference(ax, [0, 1], [0, 1])
    ax.plot(p, below, color=BLUE, lw=1.6, marker="o", ms=3.5)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted quantile level", ylabel="observed share below")
    ax.set_aspect("equal")
    return ax


def pit_histogram(y: ArrayLike, quantiles: ArrayLike, ax: Axes | None = None) -> Axes:
    """Shares of the targets ``y`` [n] between neighbouring quantiles [n, K] of evenly spaced levels.

    The probability integral transform in K + 1 bins: flat if calibrated, a hill where intervals are too wide,
    a valley where they are too narrow, a slope where predictions are off to one side. The grey band holds
    95 % of the bins of calibrated predictions.
    """
    ax = new_axes(ax, (4.6, 3.5), "Where the targets fall")
    target, q = np.asarray(y, dtype=np.float64), np.asarray(quantiles, dtype=np.float64)
    bins = q.shape[1] + 1
    counts = np.bincount((target[:, None] > q).sum(1), minlength=bins)
    share, expected = counts / len(target), 1 / bins
    half = 1.96 * np.sqrt(expected * (1 - expected) / len(target))
    ax.axhspan(max(expected - half, 0), expected + half, color="#dddddd", lw=0, zorder=0)
    reference(ax, [0, 1], [expected, expected])
    ax.bar((np.arange(bins) + 0.5) / bins, share, 0.92 / bins, color=BLUE, alpha=0.75, lw=0)
    ax.set(xlim=(0, 1), xlabel="predicted probability of a smaller value", ylabel="share of the rows")
    return ax


def dependence_plot(
    along: ArrayLike,
    curves: ArrayLike,
    half: ArrayLike | None = None,
    ax: Axes | None = None,
    *,
    name: str = "x",
    target: str = "y",
) -> Axes:
    """Partial dependence: the average of ``curves`` [t, rows] along ``along`` [t], numbers, dates or texts.

    Blue: the average ± ``half`` [t], its uncertainty. Grey: the central 80 % of the curves of single rows,
    whose spread says how much the effect depends on other columns.
    """
    ax = new_axes(ax, (3.9, 3.1), f"Dependence on {label_of(name)}")
    values, each = np.asarray(along), np.asarray(curves, dtype=np.float64)
    texts = values.dtype.kind in "OUST"
    x = np.arange(len(values)) if texts else values
    low, high = np.quantile(each, [0.1, 0.9], axis=1)
    mean = each.mean(1)
    _band(ax, x, low, high, texts, color="#c8c8c8", alpha=0.6, label="80 % of the rows")
    if half is not None:
        width = np.asarray(half, dtype=np.float64)
        _band(
            ax, x, mean - width, mean + width, texts, color=BLUE, alpha=0.35, label="95 % band of the average"
        )
    if texts:
        ax.hlines(mean, x - 0.3, x + 0.3, color=INK, lw=1.8, label="average")
        names = [label_of(str(value), 14) for value in values]
        shown = np.unique(np.linspace(0, len(x) - 1, min(len(x), 12)).round().astype(int))
        tilt = len(names) > 3 and sum(map(len, names)) > 24
        ax.set_xticks(shown, [names[j] for j in shown], rotation=40 if tilt else 0)
        for tick in ax.get_xticklabels():
            tick.set(ha="right" if tilt else "center", fontsize=8)
        ax.set_xlim(-0.6, len(x) - 0.4)
    else:
        ax.plot(x, mean, color=INK, lw=1.6, label="average")
        ax.set_xlim(x.min(), x.max())
        if values.dtype.kind == "M":
            from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

            locator = AutoDateLocator(minticks=3, maxticks=6)
            ax.xaxis.set(major_locator=locator, major_formatter=ConciseDateFormatter(locator))
        else:
            ax.locator_params(axis="x", nbins=6)
    ax.set(xlabel=label_of(name), ylabel=label_of(target))
    return ax


def _band(ax: Axes, x: NDArray, low: NDArray, high: NDArray, texts: bool, **look: Any) -> None:
    if texts:
        ax.bar(x, high - low, 0.5, bottom=low, lw=0, **look)
    else:
        ax.fill_between(x, low, high, lw=0, **look)
