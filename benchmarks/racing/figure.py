"""The race as a picture: step time against the number of inducing points, ours, the peers' and the roof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from duogp.plots import BLUE, FAINT, GREEN, ORANGE, STYLE, VERMILION
from racing.tables import ROOT, stored

OUTPUT = ROOT / "docs" / "images" / "race.png"
COLOURS = {"duogp": BLUE, "gpytorch": VERMILION, "gpflow": ORANGE, "gpjax": GREEN}

ROOF = "matrix products alone"


def draw(output: Path = OUTPUT) -> Path:
    """One panel for each device and precision that has step times."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(STYLE)
    panels = []
    for found in stored():
        steps = [row for row in found["rows"] if row["what"] == "svgp step"]
        for dtype in sorted({row["dtype"] for row in steps}):
            panels.append((found["device_name"], dtype, [row for row in steps if row["dtype"] == dtype]))
    if not panels:
        raise SystemExit("there are no stored step times to draw: run benchmarks/race.py first")
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.9 * len(panels), 3.9), squeeze=False, constrained_layout=True
    )
    for axis, (device, dtype, rows) in zip(axes[0], panels, strict=True):
        _panel(axis, rows)
        axis.set_title(f"{device}, {dtype}")
    axes[0][0].set_ylabel("one SVGP step (ms)")
    named: dict[str, Any] = {}
    for axis in axes[0]:
        named |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    names = sorted(named, key=lambda name: (name != "duogp", name == ROOF, name))
    figure.legend([named[name] for name in names], names, loc="outside lower center", ncols=4)
    figure.savefig(output, dpi=150)
    plt.close(figure)
    return output


def _panel(axis: Any, rows: list[dict[str, Any]]) -> None:
    def line(values: dict[int, float], **style: Any) -> None:
        sizes = sorted(values)
        axis.plot(sizes, [values[m] for m in sizes], **style)

    for peer in dict.fromkeys(row["peer"] for row in rows):
        library = peer.split()[0]
        style = "-" if peer.endswith((" VariationalStrategy", library)) else "--"
        if "linalg" in peer:
            style = ":"
        mine = {row["M"]: row["peer_ms"] for row in rows if row["peer"] == peer}
        line(mine, color=COLOURS.get(library, "grey"), linestyle=style, marker="o", markersize=3, label=peer)
    line(
        {row["M"]: row["ms"] for row in rows}, color=COLOURS["duogp"], marker="o", linewidth=2, label="duogp"
    )
    roof = {row["M"]: row["roofline_ms"] for row in rows}
    line(roof, color="black", linestyle=":", linewidth=1, label=ROOF)
    axis.set_xscale("log")
    axis.set_yscale("log")
    sizes = sorted({row["M"] for row in rows})
    axis.set_xticks(sizes, [str(m) for m in sizes])
    axis.minorticks_off()
    axis.set_xlabel("inducing points")
    axis.grid(color=FAINT, alpha=0.25)
