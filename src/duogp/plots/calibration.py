"""Calibration and accuracy of predictions: quantiles, z-scores, probabilities, errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from duogp.metrics import CALIBRATION_BINS, LEVELS, standardise
from duogp.plots.style import (
    BLUE,
    INK,
    ORANGE,
    label_of,
    legend_if,
    new_axes,
    next_color,
    note,
    reference,
    shades,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Most rows that are drawn as points; more are counted in hexagons.
HEXAGONS_FROM = 5000
#: Most steps of an empirical distribution that are drawn.
CDF_STEPS = 2000


def calibration_plot(
    y: ArrayLike, mean: ArrayLike, std: ArrayLike, ax: Axes | None = None, *, label: str | None = None
) -> Axes:
    """Observed share of targets y [n] below a predicted quantile, against its level; mean, std [n].

    Calibrated predictions are on the diagonal; steep in the middle: intervals too wide, flat: too narrow.
    """
    ax = new_axes(ax, (3.9, 4.0), "Calibration of quantiles")
    z = zscores(y, mean, std)
    below = np.searchsorted(z, ndtri(LEVELS), side="right") / len(z)
    reference(ax, [0, 1], [0, 1])
    ax.plot(LEVELS, below, color=next_color(ax), lw=1.8, label=label)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted quantile level", ylabel="observed share below")
    ax.set_aspect("equal")
    return legend_if(ax, label)


def zscore_cdf(
    y: ArrayLike, mean: ArrayLike, std: ArrayLike, ax: Axes | None = None, *, label: str | None = None
) -> Axes:
    """Empirical distribution of (y − mean)/std, each [n], beside the normal one of calibrated predictions."""
    ax = new_axes(ax, (4.6, 3.5), "Distribution of z-scores")
    z = zscores(y, mean, std)
    along = np.linspace(-4, 4, 201)
    reference(ax, along, ndtr(along))
    share = np.arange(1, len(z) + 1) / len(z)
    kept = np.linspace(0, len(z) - 1, min(len(z), CDF_STEPS)).round().astype(int)
    ax.step(z[kept], share[kept], where="post", color=next_color(ax), lw=1.8, label=label)
    ax.set(xlim=(-4, 4), ylim=(0, 1), xlabel="z-score", ylabel="cumulative share")
    return legend_if(ax, label)


def predicted_vs_observed(
    y: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    ax: Axes | None = None,
    *,
    max_rows: int = 500,
    color: str = BLUE,
    name: str | None = None,
    style: str = "auto",
) -> Axes:
    """Observed y [n] against mean [n] with 95 % intervals; ``name``: of the target.

    ``style="points"``: each row with its interval, of more than ``max_rows`` an even selection;
    ``"hexagons"``: counts of all rows, with the typical interval at each prediction; ``"auto"``: points up to
    5,000 rows.
    """
    if style not in ("auto", "points", "hexagons"):
        raise ValueError(f"style must be 'auto', 'points' or 'hexagons', got {style!r}")
    ax = new_axes(ax, (4.4, 4.4), "Predicted and observed")
    observed, predicted, spread = (np.asarray(v, dtype=np.float64).ravel() for v in (y, mean, std))
    what = f" {label_of(name, 28)}" if name else ""
    if style == "points" or (style == "auto" and len(observed) <= HEXAGONS_FROM):
        limits = _points(ax, observed, predicted, spread, max_rows, color)
        xlabel = f"predicted{what}" if what else "predicted (bar: 95 % interval)"
        remarks = ["bar: 95 % interval"] if what else []
        if len(observed) > max_rows:
            remarks.append(f"{max_rows:,} of {len(observed):,} rows")
    else:
        limits = _hexagons(ax, observed, predicted, spread, color)
        xlabel, remarks = f"predicted{what}", [f"{len(observed):,} rows; dashed: 95 % interval"]
    ax.set(xlim=limits, ylim=limits, xlabel=xlabel, ylabel=f"observed{what}")
    ax.set_aspect("equal")
    if remarks:
        note(ax, ", ".join(remarks))
    return ax


def _points(
    ax: Axes, observed: NDArray, predicted: NDArray, spread: NDArray, max_rows: int, color: str
) -> tuple[float, float]:
    shown = np.linspace(0, len(observed) - 1, min(max_rows, len(observed))).round().astype(int)
    limits = _limits(observed[shown], predicted[shown])
    reference(ax, list(limits), list(limits))
    x, y, half = predicted[shown], observed[shown], float(ndtri(0.975)) * spread[shown]
    ax.hlines(y, x - half, x + half, color=color, lw=0.6, alpha=0.25)
    ax.scatter(x, y, s=12, color=color, alpha=0.8, lw=0, zorder=3)
    return limits


def _hexagons(
    ax: Axes, observed: NDArray, predicted: NDArray, spread: NDArray, color: str
) -> tuple[float, float]:
    limits = _limits(*(np.quantile(v, [0.0005, 0.9995]) for v in (observed, predicted)))
    look: dict[str, Any] = {"gridsize": 48, "bins": "log", "mincnt": 1, "cmap": shades(color), "lw": 0.1}
    ax.hexbin(predicted, observed, extent=(*limits, *limits), **look)
    reference(ax, list(limits), list(limits))
    # The median interval in twenty bins of equally many rows.
    bins = [part for part in np.array_split(np.argsort(predicted), 20) if len(part)]
    centre = np.array([np.median(predicted[part]) for part in bins])
    half = float(ndtri(0.975)) * np.array([np.median(spread[part]) for part in bins])
    for side in (-1, 1):
        ax.plot(centre, centre + side * half, color=ORANGE, lw=1.5, ls=(0, (4, 2)), gid="reference")
    return limits


def _limits(*values: NDArray) -> tuple[float, float]:
    ends = np.concatenate(values)
    pad = 0.04 * float(np.ptp(ends)) or 1.0
    return float(ends.min()) - pad, float(ends.max()) + pad


def zscores(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> NDArray[np.float64]:
    """Sorted (y − mean)/std of all values, [n]."""
    return np.sort(standardise(np.ravel(y), np.ravel(mean), np.ravel(std))[0])


# -- classes -----------------------------------------------------------------------------------------------


def reliability_plot(
    codes: ArrayLike, probabilities: ArrayLike, ax: Axes | None = None, *, label: str | None = None
) -> Axes:
    """Share of rows whose likeliest class is the true one, against its probability, in bins of equal size.

    ``codes`` [n]: the true columns of ``probabilities`` [n, C]. Whiskers are Wilson's 95 % intervals, grey
    bars a histogram. Calibrated predictions are on the diagonal, overconfident ones below it.
    """
    from scipy.stats import binomtest

    ax = new_axes(ax, (3.9, 4.0), "Calibration of probabilities")
    p = np.asarray(probabilities, dtype=np.float64)
    top = p.max(1)
    hit = p.argmax(1) == np.asarray(codes)
    rows, edges = np.histogram(top, CALIBRATION_BINS, (0, 1))
    ax.bar(edges[:-1], rows / len(top), np.diff(edges), align="edge", color="#e4e4e4", lw=0, zorder=0)
    bins = np.array_split(np.argsort(top, kind="stable"), int(np.clip(len(top) // 15, 1, 10)))
    x, share = (np.array([v[part].mean() for part in bins]) for v in (top, hit))
    tests = [binomtest(int(hit[part].sum()), len(part)) for part in bins]
    low, high = np.transpose([test.proportion_ci(method="wilson") for test in tests])
    reference(ax, [0, 1], [0, 1])
    color = next_color(ax)
    ax.vlines(x, low, high, color=color, lw=1, alpha=0.5)
    ax.plot(x, share, color=color, lw=1.6, marker="o", ms=4.5, label=label, clip_on=False)
    ax.set(xlim=(0, 1), ylim=(0, 1), ylabel="how often it is true")
    ax.set_xlabel("probability of the likeliest class\n(grey: share of the rows)")
    ax.set_aspect("equal")
    return legend_if(ax, label)


def confusion_plot(
    codes: ArrayLike, predicted: ArrayLike, classes: ArrayLike, ax: Axes | None = None
) -> Axes:
    """Confusion matrix of true and predicted class numbers, each [n], shaded by shares of the true class."""
    names = [label_of(str(name), 14) for name in np.asarray(classes).tolist()]
    size = len(names)
    side = float(np.clip(1.6 + 0.55 * size, 3.4, 9.0))
    ax = new_axes(ax, (side + 0.4, side), "True and predicted classes")
    pairs = size * np.asarray(codes) + np.asarray(predicted)
    counts = np.bincount(pairs, minlength=size**2).reshape(size, size)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    ax.imshow(shares, cmap=shades(BLUE), vmin=0, vmax=1.35)
    if size <= 12:
        for (i, j), count in np.ndenumerate(counts):
            if count:
                ink = "white" if shares[i, j] > 0.45 else INK
                ax.text(j, i, f"{count:,}", ha="center", va="center", color=ink, fontsize=8)
    tilt = size > 4 and max(map(len, names)) > 5
    step = max(1, size // 20)
    turned: dict[str, Any] = {"rotation": 45, "ha": "right"} if tilt else {}
    ax.set_xticks(range(0, size, step), names[::step], **turned)
    ax.set_yticks(range(0, size, step), names[::step])
    ax.set(xlabel="predicted", ylabel="true")
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.tick_params(length=0)
    return ax
