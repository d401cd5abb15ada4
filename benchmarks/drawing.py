"""What the figures of papers share: pictures of few colours, axes without frames, JSON that can be read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from duogp.disk import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "benchmarks" / "results"


def rounded(value: Any) -> Any:
    """Five significant digits of a number, or of each in a list."""
    values = [float(f"{v:.5g}") for v in np.asarray(value, dtype=np.float64).ravel()]
    return values if np.ndim(value) else values[0]


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file whole or not at all, every list of numbers on one line."""
    text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)
    text = re.sub(r"\[[-+\s\d.,eE]*\]", lambda found: " ".join(found[0].split()), text) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)


def keep_part(path: Path, part: str, content: Any) -> None:
    """Replace a part of a stored file."""
    write_json(path, read_json(path) | {part: content})


def read_json(path: Path) -> dict[str, Any]:
    """The content of a file; nothing where there is none."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return content


def tidy(ax: Axes) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=3, labelsize=8)


def common_legend(figure: Figure, axes: Sequence[Axes], columns: int | None = None) -> None:
    """One legend below all panels, every label once."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(
        list(found.values()), list(found), loc="outside lower center", frameon=False, fontsize=8.5,
        ncols=columns or len(found), columnspacing=1.4,
    )  # fmt: skip


def save(figure: Figure, path: Path) -> None:
    """A picture of 256 colours: a third of the size."""
    from matplotlib import pyplot as plt
    from PIL import Image  # comes with matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.set_dpi(120)
    figure.canvas.draw()
    pixels = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")  # type: ignore[attr-defined]
    pixels.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
    plt.close(figure)
    print(f"{path.name}: {path.stat().st_size // 1000} kB")
