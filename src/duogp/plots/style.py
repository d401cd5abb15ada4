"""Colours, axes and labels that all figures share.

The colours are those of Okabe and Ito, which can be distinguished with every kind of colour vision.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
VERMILION, PURPLE, SKY = "#D55E00", "#CC79A7", "#56B4E9"
#: Colours of several lines in one figure, in this order.
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
INK, FAINT = "#333333", "#9a9a9a"
#: Matplotlib's settings of figures that are drawn by hand: ``plt.rcParams.update(STYLE)``.
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.constrained_layout.use": True,
}
#: The parts of a variance, from the inner band to the outer: label and colour.
PARTS = {
    "explained": ("within the data", BLUE),
    "residual": ("far from the data", ORANGE),
    "disagreement": ("between models", GREEN),
    "noise": ("noise", "#c4c4c4"),
}


def part_of(prediction: Any, part: str) -> NDArray[np.float64]:
    """A part of the variance of a prediction, shaped as its mean (of classes, of the latent functions)."""
    like = prediction.residual
    return np.broadcast_to(np.asarray(getattr(prediction, part), dtype=np.float64), like.shape)


def parts_of(prediction: Any) -> list[str]:
    """The parts that a prediction has.

    There is no disagreement without a learned mean or a stack, and no explained variance in an exact GP.
    """
    have = [part for part in PARTS if hasattr(prediction, part)]
    optional = ("disagreement", "explained")
    return [part for part in have if part not in optional or np.any(part_of(prediction, part))]


def name_of_part(prediction: Any, part: str) -> str:
    """The label of a part of the variance.

    Exact GPs, and q(u) without a covariance, have no variance of the first kind: the other one is then all
    the uncertainty of the function, within the data too.
    """
    if part == "residual" and not np.any(part_of(prediction, "explained")):
        return "the function"
    return PARTS[part][0]


#: Last words of column names that are units, and those that are written in another way.
UNITS = {
    "mm", "cm", "m", "km", "kg", "g", "mg", "t", "s", "ms", "min", "h", "hours", "hour", "days", "day",
    "weeks", "months", "years", "year", "bar", "mol", "mph",
}  # fmt: skip
SIGNS = {
    "pct": "%", "percent": "%", "c": "°C", "f": "°F", "k": "K", "deg": "°", "degrees": "°", "m2": "m²",
    "m3": "m³", "km2": "km²", "kmh": "km/h", "usd": "USD", "eur": "EUR", "gbp": "GBP", "hz": "Hz",
    "khz": "kHz", "mhz": "MHz", "ghz": "GHz", "w": "W", "kw": "kW", "mw": "MW", "kwh": "kWh", "mwh": "MWh",
    "v": "V", "a": "A", "pa": "Pa", "hpa": "hPa", "l": "l", "ml": "ml",
}  # fmt: skip


def label_of(name: str, most: int = 40) -> str:
    """The axis label of a column: "weight_kg" is "weight (kg)", "depth [m]" is "depth (m)"."""
    text = re.sub(r"\s*\[([^\[\]]+)\]\s*$", r" (\1)", str(name).strip())
    words = text.replace("_", " ").split()
    if len(words) > 1 and "_" in text and (words[-1].lower() in UNITS or words[-1].lower() in SIGNS):
        unit = words.pop()
        words.append(f"({SIGNS.get(unit.lower(), unit)})")
    text = (" ".join(words) or "y").replace("$", r"\$")
    return text if len(text) <= most else text[: most - 1] + "…"


def new_axes(ax: Axes | None, size: tuple[float, float], title: str | None = None) -> Axes:
    """The axes given, or new ones with a title, without the frame above and to the right."""
    if ax is None:
        from matplotlib import pyplot as plt

        _, ax = plt.subplots(figsize=size, layout="constrained")
        if title:
            entitle(ax, title)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=3)
    return ax


def width_of(ax: Axes) -> float:
    """The width of axes in inches, as far as it is known before the figure is drawn."""
    return float(ax.get_figure(root=True).get_figwidth() * ax.get_position().width)  # type: ignore[union-attr]


def entitle(ax: Axes, title: str) -> None:
    """Put a title above axes, on the left."""
    ax.set_title(title, fontsize=10, loc="left")


def note(ax: Axes, text: str) -> None:
    """A remark in small letters in the lower right corner."""
    box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.5}
    look = {"ha": "right", "va": "bottom", "fontsize": 7.5, "color": "#6f6f6f", "bbox": box, "zorder": 5}
    text_at(ax, text, (1.0, 0.0), (-4, 4), xycoords="axes fraction", **look)


def text_at(ax: Axes, text: str, point: tuple[Any, Any], offset: tuple[float, float], **look: Any) -> None:
    """Text at an offset in points from a point."""
    ax.annotate(text, point, xytext=offset, textcoords="offset points", **look)


def ticks_below(ax: Axes, x: ArrayLike, height: float, color: str, **look: Any) -> None:
    """Vertical ticks at values of x [n], at a height that is a fraction of the axes."""
    y = np.full(len(np.asarray(x)), height)
    ax.plot(x, y, "|", transform=ax.get_xaxis_transform(), color=color, **look)


def reference(ax: Axes, x: Any, y: Any) -> None:
    """The dashed line of a perfectly calibrated model, once per axes."""
    if not any(line.get_gid() == "reference" for line in ax.lines):
        ax.plot(x, y, color=FAINT, lw=1, ls=(0, (4, 3)), zorder=0, gid="reference")


def next_color(ax: Axes) -> str:
    """The colour of the next line on these axes."""
    drawn = sum(line.get_gid() != "reference" for line in ax.lines)
    return PALETTE[drawn % len(PALETTE)]


def legend_if(ax: Axes, label: str | None) -> Axes:
    """The axes, with a legend where there is a label."""
    if label is not None:
        ax.legend(frameon=False, fontsize=8)
    return ax


def shades(color: str) -> Colormap:
    """A colour map from nearly white over a colour to nearly black, for counts."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("shades", ["#eef4f9", color, "#00263d"])


def panel_grid(count: int, size: tuple[float, float] = (3.6, 2.9), most: int = 3) -> list[Any]:
    """Axes for ``count`` panels in rows of at most ``most``."""
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


def share_limits(panels: Sequence[Any]) -> None:
    """One scale for the vertical axes of panels, so that effects can be compared."""
    limits = [ax.get_ylim() for ax in panels]
    for ax in panels:
        ax.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
