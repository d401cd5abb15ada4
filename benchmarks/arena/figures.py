"""Critical-difference diagrams and rank plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from arena.contestants import OURS
from arena.ranks import bootstrap, cliques, critical_difference, ranks
from arena.standings import Standing
from drawing import common_legend, tidy
from duogp.plots import INK, VERMILION

OURS_COLOUR, PEER_COLOUR = VERMILION, INK


def _colour(name: str) -> str:
    return OURS_COLOUR if name.startswith(OURS) else PEER_COLOUR


def draw_critical_difference(axis: Any, found: Standing, title: str) -> None:
    """Mean ranks on a line, names to both sides, bars over those that Nemenyi's test does not tell apart."""
    means = ranks(found.scores).mean(0)
    order = np.argsort(means)
    means, names = means[order], [found.names[i] for i in order]
    k = len(names)
    difference = critical_difference(len(found.sets), k)
    low, high = 1.0, float(k)
    bars = cliques(means, difference)
    depth = 0.35 * len(bars) + 0.5  # room for the bars below the line
    half = (k + 1) // 2
    axis.plot([low, high], [0, 0], color="black", linewidth=1)
    for tick in range(1, k + 1):
        axis.plot([tick, tick], [0, 0.15], color="black", linewidth=1)
        axis.text(tick, 0.25, str(tick), ha="center", va="bottom", fontsize=8)
    axis.plot([low, low + difference], [1.0, 1.0], color="black", linewidth=2)
    axis.text(low + difference / 2, 1.08, f"critical difference {difference:.2f}", ha="center", fontsize=8)
    for i, (mean, name) in enumerate(zip(means, names, strict=True)):
        left = i < half
        y = -depth - 0.55 * (i if left else k - 1 - i)
        end = low - 0.25 if left else high + 0.25
        axis.plot([mean, mean, end], [0, y, y], color=_colour(name), linewidth=1)
        words = f"{name}  {mean:.2f}" if left else f"{mean:.2f}  {name}"
        axis.text(end, y, words, ha="right" if left else "left", va="center", fontsize=9, color=_colour(name))
    for i, (first, last) in enumerate(bars):
        y = -0.3 - 0.35 * i
        axis.plot([means[first] - 0.04, means[last] + 0.04], [y, y], color="black", linewidth=3)
    axis.set_xlim(low - 0.42 * k, high + 0.42 * k)
    axis.set_ylim(-depth - 0.55 * half, 1.6)
    axis.set_title(title, fontsize=10, loc="left")
    axis.axis("off")


def save_critical_difference(path: Path, panels: dict[str, Standing], title: str) -> None:
    """One diagram per metric, above each other."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(panels), 1, figsize=(9, 2.9 * len(panels)), squeeze=False)
    for axis, (metric, found) in zip(axes[:, 0], panels.items(), strict=True):
        draw_critical_difference(axis, found, f"{title}, {metric}: mean ranks over {len(found.sets)} sets")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def save_ranks(path: Path, halves: dict[str, dict[str, Standing]], title: str) -> None:
    """Mean ranks with bootstrap intervals over sets: a panel per metric, a mark per half."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    metrics = list(next(iter(halves.values())))
    size = (4.2 * len(metrics), 4.6)
    figure, axes = plt.subplots(1, len(metrics), figsize=size, squeeze=False, layout="constrained")
    for axis, metric in zip(axes[0], metrics, strict=True):
        main = list(halves.values())[-1][metric]
        means = ranks(main.scores).mean(0)
        names = [main.names[i] for i in np.argsort(means)]
        shifts = np.linspace(-0.25, 0.25, len(halves)) if len(halves) > 1 else [0.0]
        for shift, marker, (half, panel) in zip(shifts, "o^sDv", halves.items(), strict=False):
            r = ranks(panel[metric].scores)
            for y, name in enumerate(names):
                if name not in panel[metric].names:
                    continue
                column = r[:, [panel[metric].names.index(name)]]
                low, high = bootstrap(column)[:, 0]
                style = {"color": _colour(name), "alpha": 0.45 if half == "choice" else 1.0}
                axis.plot([low, high], [y + shift, y + shift], linewidth=1.5, **style)
                label = half if y == 0 else None
                axis.plot(column.mean(), y + shift, marker, markersize=5, label=label, **style)
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.invert_yaxis()
        axis.set_xlabel("mean rank (1 is best)")
        axis.set_title(f"{title}, {metric}", fontsize=10, loc="left")
        axis.grid(axis="x", alpha=0.3)
        tidy(axis)
    common_legend(figure, list(axes[0]))
    figure.savefig(path, dpi=150)
    plt.close(figure)
