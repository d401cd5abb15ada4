"""Figures of optimisations: the best value so far, its regret, and a comparison of methods."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from duogp.bo.candidates import Floats
from duogp.disk import write_atomically
from duogp.plots.style import BLUE, FAINT, PALETTE, entitle, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from duogp.bo.results import Result


def incumbent_plot(run: Result, ax: Axes | None = None) -> Axes:
    """The best value after each evaluation, over the values themselves."""
    ax = new_axes(ax, (5.5, 3.4), f"{run.task}: {run.method}")
    number = np.arange(1, len(run) + 1)
    ax.plot(number, run.y, ".", ms=3, color=FAINT, alpha=0.6, label="evaluations")
    ax.plot(number, run.incumbent, color=BLUE, lw=1.8, drawstyle="steps-post", label="best so far")
    upwards = run.direction == "maximise"
    # without the very worst, which would compress the rest
    worst = np.nanquantile(run.y, 0.02 if upwards else 0.98)
    low, high = sorted((float(worst), run.best_y))
    margin = 0.05 * (high - low) or 1.0
    ax.set_ylim(low - margin, high + margin)
    return _labelled(ax, "value", legend="lower right" if upwards else "upper right")


def regret_plot(run: Result, ax: Axes | None = None) -> Axes:
    """The distance of the best value from the task's optimum, on a logarithmic scale."""
    if run.optimum is None:
        raise ValueError(f"the optimum of task {run.task!r} is not known: see incumbent_plot")
    ax = new_axes(ax, (5.5, 3.4), f"{run.task}: {run.method}")
    regret = np.maximum(run.optimum - run.incumbent, 1e-12)
    ax.plot(np.arange(1, len(run) + 1), regret, color=BLUE, lw=1.8, drawstyle="steps-post")
    ax.set_yscale("log")
    return _labelled(ax, "simple regret")


def comparison_plot(
    runs: Mapping[str, Sequence[Result | Floats]], ax: Axes | None = None, *, title: str | None = None
) -> Axes:
    """Mean and standard error over runs of the best value so far, for several methods.

    ``runs``: for each label results of `optimise`, or vectors of values in the order of evaluation. Runs of
    one label are compared up to the shortest of them.
    """
    ax = new_axes(ax, (4.6, 3.4))
    if title:
        entitle(ax, title)
    looks = [(color, style) for style in ("-", "--", ":", "-.") for color in PALETTE]
    for (color, style), (label, several) in zip(cycle(looks), runs.items(), strict=False):
        mean, error = mean_and_error([_values(run) for run in several])
        number = np.arange(1, len(mean) + 1)
        ax.plot(number, mean, style, color=color, lw=1.6, label=label)
        ax.fill_between(number, mean - error, mean + error, color=color, alpha=0.15, lw=0)
    return _labelled(ax, "best value", legend="lower right")


def mean_and_error(runs: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Mean and standard error, [n] of the shortest, over runs of the best value after each evaluation."""
    length = min(len(y) for y in runs)
    best = np.stack([np.maximum.accumulate(y[:length]) for y in runs])
    spread = best.std(0, ddof=1) if len(best) > 1 else np.zeros(length)
    return best.mean(0), spread / np.sqrt(len(best))


def save_incumbent(path: Path, run: Result) -> None:
    """Write the figure of the incumbent and, where the optimum is known, of the regret."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return
    panels: list[Any] = [incumbent_plot] if run.optimum is None else [incumbent_plot, regret_plot]
    figure = Figure(figsize=(5.5 * len(panels), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    for draw, ax in zip(panels, np.atleast_1d(figure.subplots(1, len(panels))), strict=True):
        draw(run, ax)
    entitle(figure.axes[0], f"{run.task}: {run.method}")
    picture = io.BytesIO()
    figure.savefig(picture, dpi=120, format=path.suffix.lstrip("."))
    write_atomically(path, picture.getvalue())


def _labelled(ax: Axes, value: str, *, legend: Any = None) -> Axes:
    ax.set_xlabel("evaluations")
    ax.set_ylabel(value)
    if legend is not None:
        ax.legend(frameon=False, fontsize=8, loc=legend)
    return ax


def _values(run: Result | Floats) -> Floats:
    return np.asarray(run if isinstance(run, np.ndarray) else run.y, dtype=np.float64)
