"""Rows of results, one per finished or failed cell, and their store: a file of JSON lines in order of time.

Several processes may append at once (one write per line, ``O_APPEND``), and a process may be killed at any
moment: the line it left unfinished is closed by the next append and ignored by every reader.
"""

from __future__ import annotations

import errno
import json
import math
import os
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from duogp.bench.suite import Cell
from duogp.disk import clear_errors, write_atomically
from duogp.json_files import parse_json

Row = dict[str, Any]

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


class Results:
    """The rows of a results file, found by the configuration hash of their cell."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows = list(rows)
        self._ok = {row["hash"]: row for row in self.rows if row["status"] == "ok"}
        self._last = {row["hash"]: row for row in self.rows}

    @classmethod
    def read(cls, path: str | Path) -> Results:
        """All complete rows of a file; none when there is no file."""
        try:
            lines = Path(path).read_bytes().split(b"\n")
        except FileNotFoundError:
            return cls()
        return cls(row for line in lines if (row := _parse(line)) is not None)

    def ok(self, cell: Cell) -> Row | None:
        """The latest successful row of a cell."""
        return self._ok.get(cell.hash)

    def failure(self, cell: Cell) -> Row | None:
        """The latest row of a cell whose rows all failed."""
        return None if cell.hash in self._ok else self._last.get(cell.hash)

    def current(self) -> list[Row]:
        """The rows that count, in their order: the latest successful one of every cell, or else its last."""
        kept = {id(row) for row in (self._last | self._ok).values()}
        return [row for row in self.rows if id(row) in kept]

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells without a successful row, in their order."""
        return [cell for cell in cells if cell.hash not in self._ok]


def append(path: str | Path, row: Row) -> None:
    """Append one row with a single write, on the disk when this returns."""
    line = _line(row)
    with clear_errors(Path(path), "The rows before are safe. Make room; the same run goes on from them"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                line = b"\n" + line  # a killed process left half a line: close it
            if os.write(handle, line) != len(line):
                raise OSError(errno.ENOSPC, "the disk took only part of a row")
            os.fsync(handle)
        finally:
            os.close(handle)


def rewrite(path: str | Path, rows: Iterable[Row]) -> None:
    """A file with these rows instead of its own, whole or not at all, while no other process appends."""
    write_atomically(Path(path), b"".join(map(_line, rows)))


def _line(row: Row) -> bytes:
    """A row as strict JSON, with the end of its line."""
    return json.dumps(finite(row), ensure_ascii=False, allow_nan=False).encode() + b"\n"


def finite(value: Any) -> Any:
    """The value as plain JSON: NaN and infinities become null, arrays lists, other objects their text."""
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if hasattr(value, "tolist"):  # numpy arrays and scalars, tensors
        return finite(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def _parse(line: bytes) -> Row | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict):
        return None
    return row if isinstance(row.get("hash"), str) and isinstance(row.get("status"), str) else None
