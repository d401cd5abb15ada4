"""The course of training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duogp.plots.style import BLUE, FAINT, INK, VERMILION, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from duogp.training.history import History


def history_plot(history: History, ax: Axes | None = None) -> Axes:
    """Loss against epochs; where rows were held out, their NLL on a second axis, the best epoch marked."""
    ax = new_axes(ax, (5.5, 3.4), "Training")
    one = len(history) == 1  # a line through one point is not seen
    ax.plot(
        history.series("epoch"),
        history.series("loss"),
        color=BLUE,
        lw=1.6,
        label="loss",
        marker="o" if one else None,
    )
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
            marker="o" if len(seen) == 1 else None,
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
            xytext=(-3, -3),
            textcoords="offset points",
            ha="right",
            va="top",
            rotation=90,
            color=INK,
            fontsize=8,
        )
    return ax
