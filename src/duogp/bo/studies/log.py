"""`Log`: the events of a study on disk, one JSON object for each line.

    study.jsonl    line 1: space, goals, version; then {"ask": 0, …}, {"tell": 0, …}, {"fail": 0, …}
    lock           held while a process works on the study; the system releases it when the process ends

Events are appended and forced to disk (fsync) before `append` returns, so what was acknowledged survives the
end of the process at any instant. A line that was cut off is removed when the study is opened again: its
`append` did not return. Where a write fails (a full disk), the file is cut back to its last
complete line and the error says so.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from duogp.bo.journal import locked, others
from duogp.disk import clear_errors, write_atomically
from duogp.json_files import parse_json

EVENTS = "study.jsonl"
VERSION = 1
NOT_RECORDED = "What was told before is safe; this was not recorded. Make room and tell it again"


class Log:
    """The file of a study, opened for this process alone. ``header`` None: the study must be there."""

    def __init__(self, folder: str | os.PathLike[str], header: Mapping[str, Any] | None) -> None:
        self.folder = Path(folder).expanduser()
        self.path = self.folder / EVENTS
        if header is None and not self.path.exists():
            raise FileNotFoundError(f"{str(self.folder)!r} is not the folder of a study: it has no {EVENTS}")
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.path.exists() and others(self.folder):
            raise FileExistsError(f"{str(self.folder)!r} holds other things: choose another folder")
        self._lock = locked(self.folder)
        try:
            if not self.path.exists():
                with clear_errors(self.path, NOT_RECORDED):
                    write_atomically(self.path, _lines([{"version": VERSION, **(header or {})}]))
            self.header, self.events, self._end = read_events(self.path)
            self._check(header)
            self._file = open(self.path, "r+b", buffering=0)  # noqa: SIM115
            self._file.truncate(self._end)
        except BaseException:
            self._lock.close()
            raise

    def _check(self, header: Mapping[str, Any] | None) -> None:
        if self.header.get("version") != VERSION:
            raise ValueError(f"{self.path}: version {self.header.get('version')!r} is not known here")
        given = json.loads(json.dumps(header)) if header is not None else {}
        if wrong := [name for name in given if given[name] != self.header.get(name)]:
            told = "; ".join(f"{n} was {self.header.get(n)!r} and is {given[n]!r}" for n in wrong)
            raise ValueError(f"{str(self.folder)!r} holds another study: {told}; choose another folder")

    def append(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Write events, all or none; they are on disk when this returns."""
        data = _lines(events)
        with clear_errors(self.path, NOT_RECORDED):
            try:
                self._file.truncate(self._end)  # what an earlier failure could not remove
                self._file.seek(self._end)
                rest = memoryview(data)
                while rest:
                    rest = rest[self._file.write(rest) :]
                os.fsync(self._file.fileno())
            except BaseException:
                with contextlib.suppress(OSError):
                    self._file.truncate(self._end)
                raise
        self._end += len(data)

    def close(self) -> None:
        """Release the study for another process."""
        self._file.close()
        self._lock.close()


def read_events(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """The header, the events, and the length of the part of the file that holds them."""
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1  # behind it a line that was cut off
    found = []
    for number, line in enumerate(data[:end].splitlines(), 1):
        try:
            found.append(parse_json(line))
        except ValueError:
            if number == data[:end].count(b"\n"):  # the last line, of a system that went down while writing
                end -= len(line) + 1
                break
            raise ValueError(f"{path}: line {number} is no JSON: the file was changed or damaged") from None
    if not found or not isinstance(found[0], dict):
        raise ValueError(f"{path}: the file has no header")
    return found[0], found[1:], end


def _lines(events: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(event, allow_nan=False).encode() + b"\n" for event in events)
