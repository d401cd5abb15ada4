"""Colours, axes and labels that all figures share. Colours are those of Okabe and Ito, told apart by every
kind of colour vision."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

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
#: The three parts of a variance: what they are called and drawn in, the surest first.
PARTS = {
    "explained": ("within the data", BLUE),
    "residual": ("far from the data", ORANGE),
    "noise": ("noise", "#c4c4c4"),
}

#: Last words of names that are units, beside those below.
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
    """A column's name to be read: "weight_kg" is "weight (kg)", "depth [m]" is "depth (m)"."""
    text = re.sub(r"\s*\[([^\[\]]+)\]\s*$", r" (\1)", str(name).strip())
    words = text.replace("_", " ").split()
    if len(words) > 1 and "_" in text and (words[-1].lower() in UNITS or words[-1].lower() in SIGNS):
        unit = words.pop()
        words.append(f"({SIGNS.get(unit.lower(), unit)})")
    text = " ".join(words) or "y"
    text = text.replace("$", r"\$")
    return text if len(text) <= most else text[: most - 1] + "…"


def new_axes(ax: Axes | None, size: tuple[float, float], title: str | None = None) -> Axes:
    """The axes given, or new ones with a title; without the box around them."""
    if ax is None:
        from matplotlib import pyplot as plt

        _, ax = plt.subplots(figsize=size, layout="constrained")
        if title:
            entitle(ax, title)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=3)
    return ax


def entitle(ax: Axes, title: str) -> None:
    ax.set_title(title, fontsize=10, loc="left")


def note(ax: Axes, text: str) -> None:
    """A remark in small letters in the lower right corner."""
    ax.annotate(
        text,
        (1.0, 0.0),
        xycoords="axes fraction",
        xytext=(-4, 4),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=7.5,
        color="#6f6f6f",
        bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.5},
        zorder=5,
    )


def reference(ax: Axes, x: Any, y: Any) -> None:
    """What an honest model gives, once per axes."""
    if not any(line.get_gid() == "reference" for line in ax.lines):
        ax.plot(x, y, color=FAINT, lw=1, ls=(0, (4, 3)), zorder=0, gid="reference")


def next_color(ax: Axes) -> str:
    drawn = sum(line.get_gid() != "reference" for line in ax.lines)
    return PALETTE[drawn % len(PALETTE)]


def legend_if(ax: Axes, label: str | None) -> Axes:
    if label is not None:
        ax.legend(frameon=False, fontsize=8)
    return ax


def shades(color: str) -> Colormap:
    """From nearly white to a colour, for counts."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("shades", ["#eef4f9", color, "#00263d"])
