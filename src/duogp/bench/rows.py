"""The fields of a row that need no fit: the cell and, where it failed, the error."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

from duogp.bench.results import Row
from duogp.bench.suite import Cell

#: Innermost frames of a traceback that a row keeps.
TRACEBACK_FRAMES = 6


def begin_row(cell: Cell, device: str) -> Row:
    """The fields of a row that are known before the fit."""
    names = ("suite", "data", "label", "method", "protocol", "split", "seed", "settings", "hash")
    return {
        **{name: getattr(cell, name) for name in names},
        "device": device,
        "dtype": str(cell.settings.get("dtype", "default")),
        "status": "ok",
    }


def failure(error: BaseException) -> Row:
    """Status, type, message and the end of the traceback, without the paths of this machine."""
    frames = traceback.extract_tb(error.__traceback__)[-TRACEBACK_FRAMES:]
    return {
        "status": "failed",
        "error": {
            "type": type(error).__name__,
            "message": _portable(str(error)),
            "traceback": [f"{_short(f.filename)}:{f.lineno} {f.name}: {f.line}" for f in frames],
        },
    }


def _short(filename: str) -> str:
    """The path of a source file from its package on: ``duogp/bench/runner.py``, ``torch/linalg.py``."""
    parts = Path(filename).parts
    for root in ("site-packages", "src"):
        if root in parts:
            return "/".join(parts[len(parts) - parts[::-1].index(root) :])
    return Path(filename).name


def _portable(message: str) -> str:
    """A message without the paths of the data folder and of the current one."""
    for place, name in ((os.environ.get("DUOGP_DATA"), "$DUOGP_DATA"), (str(Path.cwd()), ".")):
        if place and len(place) > 1:
            message = message.replace(place, name)
    return message
