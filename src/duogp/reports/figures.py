"""Figures as images inside a page. Matplotlib is imported where a figure is drawn."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

from duogp.reports.html import text


def figure(draw: Callable[[Any], Any], size: tuple[float, float], about: str) -> str:
    """What ``draw`` puts on axes, as an SVG image in the page; ``about``: its content in words.

    An image rather than inline SVG: it cannot run scripts, and its ids cannot meet those of another one.
    """
    return images([draw], size, about)


def images(
    draws: list[Callable[[Any], Any]],
    size: tuple[float, float],
    about: str,
    after: Callable[[list[Any]], Any] | None = None,
) -> str:
    """One image for each of ``draws``, that of ``size`` inches; ``after`` is given all their axes.

    Images of one group flow into as many columns as the screen has room for.
    """
    import matplotlib
    from matplotlib.figure import Figure

    axes: list[Any] = []
    for draw in draws:
        ax = Figure(figsize=size, layout="constrained").subplots()
        draw(ax)
        axes.append(ax)
    if after is not None:
        after(axes)
    parts = []
    with matplotlib.rc_context({"svg.hashsalt": "duogp", "svg.fonttype": "path"}):
        for ax in axes:
            buffer = io.BytesIO()
            ax.figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
            data = base64.b64encode(buffer.getvalue()).decode()
            width = round(96 * size[0])
            about_this = about if len(axes) == 1 else f"{about}: {ax.get_xlabel()}"
            parts.append(
                f'<figure><img width="{width}" height="{round(96 * size[1])}" alt="{text(about_this)}" '
                f'src="data:image/svg+xml;base64,{data}"></figure>'
            )
    joined = "".join(parts)
    return f'<div class="figures">{joined}</div>'
