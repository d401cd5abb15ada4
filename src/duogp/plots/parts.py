"""Which columns matter, and what the uncertainty consists of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from duogp.plots.style import BLUE, INK, PARTS, label_of, new_axes, note

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
    """Bars, the most relevant column on top; of many columns the first ``most``."""
    values = np.asarray(relevance, dtype=np.float64)
    order = np.argsort(-values, kind="stable")[:most]
    ax = new_axes(ax, (5.0, 0.9 + 0.27 * len(order)), "Most relevant columns")
    places = np.arange(len(order))[::-1]
    ax.barh(places, values[order], 0.68, color=BLUE, lw=0)
    ax.set_yticks(places, [label_of(names[j], 28) for j in order], fontsize=8.5)
    ax.set_ylim(-0.6, len(order) - 0.4)
    top = float(values[order].max()) or 1.0
    for place, j in zip(places, order, strict=True):
        ax.annotate(
            f"{values[j]:.3g}",
            (values[j], place),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            color=INK,
        )
    ax.set_xlim(0, 1.14 * top)
    ax.locator_params(axis="x", nbins=5)
    ax.set_xlabel(xlabel)
    ax.tick_params(axis="y", length=0)
    if len(values) > most:
        note(ax, f"{most} of {len(values)} columns")
    return ax


def variance_plot(
    prediction: Prediction | ClassPrediction, ax: Axes | None = None, *, target: str = "y", steps: int = 200
) -> Axes:
    """What the standard deviation of each row consists of, rows sorted from the surest to the least sure.

    The height is a standard deviation; its colours share it as the parts share the variance. Of classes it is
    that of the latent functions, which have no noise.
    """
    ax = new_axes(ax, (4.8, 3.3), "Parts of the uncertainty")
    variances = {
        part: np.asarray(getattr(prediction, part), dtype=np.float64)
        for part in PARTS
        if hasattr(prediction, part)
    }
    variances = {part: v.sum(-1) if v.ndim == 2 else v for part, v in variances.items()}
    total = np.sum(list(variances.values()), 0)
    order = np.argsort(total, kind="stable")
    steps = min(steps, len(order))
    groups = np.array_split(order, steps)
    height = np.array([np.sqrt(total[g].mean()) for g in groups])
    share = {
        part: np.array([v[g].sum() / max(total[g].sum(), 1e-300) for g in groups])
        for part, v in variances.items()
    }
    x = 100 * (np.arange(steps) + 0.5) / steps
    drawn = [part for part in reversed(PARTS) if part in share]  # the noise below, as a floor
    overall = {part: float(variances[part].sum() / total.sum()) for part in drawn}
    ax.stackplot(
        x,
        [height * share[part] for part in drawn],
        colors=[PARTS[part][1] for part in drawn],
        labels=[f"{PARTS[part][0]} ({overall[part]:.0%})" for part in drawn],
        alpha=0.85,
        lw=0,
    )
    numbers = hasattr(prediction, "noise")
    ax.set(
        xlim=(x[0], x[-1]) if steps > 1 else (0, 100),
        xlabel="rows, surest first (%)",
        ylabel=f"std of {label_of(target, 26)}" if numbers else "std of the latent functions",
    )
    ax.set_ylim(0, 1.28 * float(height.max()))
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles[::-1], labels[::-1], frameon=False, fontsize=7.5, loc="upper left")
    return ax
