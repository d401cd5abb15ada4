"""The store of results: a file of JSON lines, one row per finished or failed cell, in the order of time.

Several processes may append at once (one write per line, ``O_APPEND``), and a process may be killed at any
moment: the line it left unfinished is closed by the next append and ignored by every reader.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from duogp.bench.suite import Cell

Row = dict[str, Any]


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

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells without a successful row, in their order."""
        return [cell for cell in cells if cell.hash not in self._ok]


def append(path: str | Path, row: Row) -> None:
    """Append one row with a single write, on the disk when this returns."""
    line = json.dumps(finite(row), ensure_ascii=False, allow_nan=False).encode() + b"\n"
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = b"\n" + line  # a killed process left half a line: close it
        if os.write(handle, line) != len(line):
            raise OSError(f"{path}: the disk took only part of a row")
        os.fsync(handle)
    finally:
        os.close(handle)


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
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and "hash" in row and "status" in row else None
