"""The learning curve of a training history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from duogp.plots.style import BLUE, FAINT, INK, VERMILION, new_axes, text_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from duogp.training.history import History


def history_plot(history: History, ax: Axes | None = None) -> Axes:
    """Loss against epochs; where rows were held out, their NLL on a second axis, the best epoch marked."""
    ax = new_axes(ax, (5.5, 3.4), "Training")
    _line(ax, history.series("epoch"), history.series("loss"), BLUE, label="loss")
    ax.set(xlabel="epoch", ylabel="loss per row")
    seen = [r for r in history if r.validation_nll is not None and np.isfinite(r.validation_nll)]
    if seen:
        twin = ax.twinx()
        twin.set_label("validation")
        _line(twin, [r.epoch for r in seen], [r.validation_nll for r in seen], VERMILION)
        twin.set_ylabel("validation NLL", color=VERMILION)
        twin.tick_params(axis="y", colors=VERMILION, length=3)
        twin.spines["top"].set_visible(False)
        twin.spines["right"].set_color(VERMILION)
        ax.yaxis.label.set_color(BLUE)
        ax.tick_params(axis="y", colors=BLUE)
    if best := history.best_epoch:
        ax.axvline(best, color=FAINT, lw=1, ls=(0, (4, 3)), zorder=0)
        look = {"ha": "right", "va": "top", "rotation": 90, "color": INK, "fontsize": 8}
        text_at(ax, f"best: {best}", (best, 1.0), (-3, -3), xycoords=("data", "axes fraction"), **look)
    return ax


def _line(ax: Axes, x: Any, y: Any, color: str, **options: Any) -> None:
    """A line, or a marker where it has one point only."""
    ax.plot(x, y, color=color, lw=1.6, marker="o" if len(x) == 1 else None, **options)
