"""Relevance of the columns, and the parts of the predictive variance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from duogp.plots.style import (
    BLUE,
    INK,
    PARTS,
    label_of,
    name_of_part,
    new_axes,
    note,
    part_of,
    parts_of,
    text_at,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from duogp.posterior.prediction import ClassPrediction, Prediction


def relevance_plot(
    names: Sequence[str],
    relevance: ArrayLike,
    ax: Axes | None = None,
    *,
    most: int = 15,
    xlabel: str = "relevance (share of 1 / lengthscale)",
) -> Axes:
    """Bars of shares [d], the largest on top; of many columns the ``most`` largest."""
    values = np.asarray(relevance, dtype=np.float64)
    order = np.argsort(-values, kind="stable")[:most]
    ax = new_axes(ax, (5.0, 0.9 + 0.27 * len(order)), "Most relevant columns")
    places = np.arange(len(order))[::-1]
    ax.barh(places, values[order], 0.68, color=BLUE, lw=0)
    ax.set_yticks(places, [label_of(names[j], 28) for j in order], fontsize=8.5)
    ax.set_ylim(-0.6, len(order) - 0.4)
    top = float(values[order].max()) or 1.0
    for place, j in zip(places, order, strict=True):
        text_at(ax, f"{values[j]:.3g}", (values[j], place), (3, 0), va="center", fontsize=7.5, color=INK)
    ax.set(xlim=(0, 1.14 * top), xlabel=xlabel)
    ax.locator_params(axis="x", nbins=5)
    ax.tick_params(axis="y", length=0)
    if len(values) > most:
        note(ax, f"{most} of {len(values)} columns")
    return ax


def variance_plot(
    prediction: Prediction | ClassPrediction, ax: Axes | None = None, *, target: str = "y", steps: int = 200
) -> Axes:
    """Standard deviations of the rows in ascending order, divided as the parts divide the variance.

    Of classes they are those of the latent functions, which have no noise. ``steps``: groups of rows.
    """
    ax = new_axes(ax, (4.8, 3.3), "Parts of the uncertainty")
    drawn = parts_of(prediction)[::-1]  # the noise below, as a floor
    variances = [part_of(prediction, part) for part in drawn]
    variances = [v.sum(-1) if v.ndim == 2 else v for v in variances]
    total = np.sum(variances[::-1], 0)
    steps = min(steps, len(total))
    groups = np.array_split(np.argsort(total, kind="stable"), steps)
    height = np.array([np.sqrt(total[g].mean()) for g in groups])
    shares = [np.array([v[g].sum() / max(total[g].sum(), 1e-300) for g in groups]) for v in variances]
    x = 100 * (np.arange(steps) + 0.5) / steps
    overall = [float(v.sum() / total.sum()) for v in variances]
    ax.stackplot(
        x,
        [height * share for share in shares],
        colors=[PARTS[part][1] for part in drawn],
        labels=[
            f"{name_of_part(prediction, part)} ({share:.0%})"
            for part, share in zip(drawn, overall, strict=True)
        ],
        alpha=0.85,
        lw=0,
    )
    ax.set(
        xlim=(x[0], x[-1]) if steps > 1 else (0, 100),
        ylim=(0, 1.28 * float(height.max())),
        xlabel="rows, surest first (%)",
        ylabel=f"std of {label_of(target, 26)}" if "noise" in drawn else "std of the latent functions",
    )
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles[::-1], labels[::-1], frameon=False, fontsize=7.5, loc="upper left")
    return ax
