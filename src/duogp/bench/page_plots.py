"""Plots of the report as SVG text: learning curves, mean ranks, calibration."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from html import escape

#: Colours of methods that can be told apart on light and dark grounds and by most colour-blind readers.
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b",
    "#56b4e9", "#8a5fb5", "#7f7f7f", "#a0522d", "#2f8f8f",
)  # fmt: skip
WIDTH, HEIGHT = 340, 190
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 8, 24

Curve = Sequence[tuple[float, float]]


def colours(methods: Sequence[str]) -> dict[str, str]:
    """A colour for every method, the same in all plots of a suite."""
    return {method: COLOURS[i % len(COLOURS)] for i, method in enumerate(methods)}


def legend(shown: Mapping[str, str]) -> str:
    """Names and colours below a plot."""
    parts = [f'<span><i style="background:{c}"></i>{escape(name)}</span>' for name, c in shown.items()]
    return f'<div class="legend">{"".join(parts)}</div>'


def figure(title: str, picture: str, below: str = "") -> str:
    """A picture with its title above and what belongs below."""
    return f"<figure><figcaption>{escape(title)}</figcaption>{picture}{below}</figure>"


def curves(title: str, lines: Mapping[str, Curve], palette: Mapping[str, str], axis: str) -> str:
    """Lines against iterations. The first fall is cut off: the scale is that of the rest of the curves."""
    kept = {name: [(x, y) for x, y in line if math.isfinite(y)] for name, line in lines.items()}
    kept = {name: line for name, line in kept.items() if len(line) > 1}
    if not kept:
        return ""
    right = max(line[-1][0] for line in kept.values())
    low = min(y for line in kept.values() for _, y in line)
    late = [y for line in kept.values() for x, y in line if x >= 0.1 * line[-1][0]]
    high = max(late) if max(late) > low else low + 1.0
    paths = []
    for name, line in kept.items():
        points = " ".join(
            f"{_x(x, 0.0, right):.1f},{_y(min(y, high), low, high):.1f}" for x, y in line if x >= 0.01 * right
        )
        paths.append(
            f'<polyline class="curve" stroke="{palette[name]}" points="{points}">'
            f"<title>{escape(name)}</title></polyline>"
        )
    picture = _svg(
        f"{axis} against iterations, {title}", _axes((0.0, right), (low, high), "iterations"), paths
    )
    return figure(title, picture, legend({name: palette[name] for name in kept}))


def dots(title: str, values: Mapping[str, float], palette: Mapping[str, str], low: float, high: float) -> str:
    """One dot per name on a common scale, the name and the number beside it; the smallest first."""
    names = sorted(values, key=lambda name: values[name])
    height, left, right = 22 * len(names) + 26, 128, 46
    span = (high - low) or 1.0
    parts = []
    for i, name in enumerate(names):
        y = 16 + 22 * i
        x = left + (values[name] - low) / span * (WIDTH - left - right)
        parts.append(
            f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{escape(name)}</text>'
            f'<line class="axis" x1="{left}" x2="{WIDTH - right}" y1="{y}" y2="{y}"/>'
            f'<circle cx="{x:.1f}" cy="{y}" r="4.5" fill="{palette.get(name, COLOURS[7])}"/>'
            f'<text x="{WIDTH - right + 8}" y="{y + 4}">{number(values[name], 2)}</text>'
        )
    parts.append(f'<text class="small" x="{left}" y="{height - 4}">{low:g}</text>')
    ends = f'<text class="small" x="{WIDTH - right}" y="{height - 4}" text-anchor="end">{high:g}</text>'
    return figure(title, _svg(title, [ends], parts, height))


def quantiles(title: str, lines: Mapping[str, Sequence[float]], palette: Mapping[str, str]) -> str:
    """Quantiles of z-scores against those of N(0, 1): the diagonal is perfect calibration."""
    normal = statistics.NormalDist()
    kept = {name: line for name, line in lines.items() if len(line) > 1}
    if not kept:
        return ""
    edge = 3.0
    paths = [
        f'<line class="axis" x1="{_x(-edge, -edge, edge)}" y1="{_y(-edge, -edge, edge)}" '
        f'x2="{_x(edge, -edge, edge)}" y2="{_y(edge, -edge, edge)}"/>'
    ]
    for name, line in kept.items():
        theory = [normal.inv_cdf((i + 0.5) / len(line)) for i in range(len(line))]
        points = " ".join(
            f"{_x(t, -edge, edge):.1f},{_y(max(-edge, min(z, edge)), -edge, edge):.1f}"
            for t, z in zip(theory, line, strict=True)
        )
        paths.append(
            f'<polyline class="curve" stroke="{palette[name]}" points="{points}">'
            f"<title>{escape(name)}</title></polyline>"
        )
    axes = _axes((-edge, edge), (-edge, edge), "quantile of N(0, 1)")
    picture = _svg(f"quantiles of z-scores, {title}", axes, paths)
    return figure(title, picture, legend({name: palette[name] for name in kept}))


def number(value: float, digits: int) -> str:
    """A number with a true minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")


def _x(value: float, low: float, high: float) -> float:
    return LEFT + (value - low) / ((high - low) or 1.0) * (WIDTH - LEFT - RIGHT)


def _y(value: float, low: float, high: float) -> float:
    return HEIGHT - BOTTOM - (value - low) / ((high - low) or 1.0) * (HEIGHT - TOP - BOTTOM)


def _axes(xs: tuple[float, float], ys: tuple[float, float], label: str) -> list[str]:
    """A frame with the ends of both scales."""
    digits = 2 if ys[1] - ys[0] < 10 else 0
    bottom = HEIGHT - BOTTOM
    return [
        f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}"/>',
        f'<text class="small" x="{LEFT - 5}" y="{TOP + 8}" text-anchor="end">{number(ys[1], digits)}</text>',
        f'<text class="small" x="{LEFT - 5}" y="{bottom}" text-anchor="end">{number(ys[0], digits)}</text>',
        f'<text class="small" x="{LEFT}" y="{HEIGHT - 8}">{number(xs[0], 0)}</text>',
        f'<text class="small" x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{label}</text>',
        f'<text class="small" x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">'
        f"{f'{xs[1]:,.0f}'}</text>",
    ]


def _svg(label: str, axes: Sequence[str], parts: Sequence[str], height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label, quote=True)}">'
        f"{''.join(axes)}{''.join(parts)}</svg>"
    )
