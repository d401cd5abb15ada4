"""`Journal`: a run on disk, with its options, its evaluations and the models of its last proposal.

    run.json          the options of the run; a resumed run must have the same
    evaluations.csv   one line for each evaluation, appended batch by batch; it is the state of the run
    models/000012/    the models behind batch 12, from which the fit before batch 13 starts
    incumbent.png     the best value so far, redrawn while the run goes on
    lock              held while a process works on the run; the system lets go of it when the process ends

A strategy is restored by telling it the batches again. A batch is complete when its last line is on disk:
lines of an incomplete batch are dropped, and it is evaluated once more. Models of a batch are written before
its lines and removed after those of the next one; a folder is renamed into place when it is complete.
An evaluation that failed is a line with "nan": it is not evaluated again.
Coordinates are those of the cube [0, 1]^d; the bounds of the task are in run.json.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from duogp.bo.strategies import Floats, Proposal, Strategy
from duogp.disk import TEMPORARY, append_whole, clear_errors, lock, remove_leftovers, write_atomically
from duogp.json_files import read_object

OPTIONS, EVALUATIONS, MODELS, FIGURE = "run.json", "evaluations.csv", "models", "incumbent.png"
LOCK = "lock"
ANOTHER = "Choose a folder that can be written to"
#: Columns before the coordinates; `size` is the number of lines of the batch.
LEADING = ("batch", "size", "region", "y", "best")


class Evaluated(NamedTuple):
    """A batch and its values."""

    proposal: Proposal
    y: Floats


class Journal:
    """The folder of one run."""

    def __init__(self, folder: str | os.PathLike[str], options: Mapping[str, Any], dims: int) -> None:
        self.folder, self.dims = Path(folder).expanduser(), dims
        self.best = -np.inf
        with clear_errors(self.folder, ANOTHER):
            self.folder.mkdir(parents=True, exist_ok=True)
        if others(self.folder) and not (self.folder / OPTIONS).exists():
            raise FileExistsError(f"{str(self.folder)!r} holds other things: choose another folder")
        self._lock = locked(self.folder)
        try:
            self._check_options(dict(options))
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Release the run for another process."""
        self._lock.close()

    def _check_options(self, options: dict[str, Any]) -> None:
        path = self.folder / OPTIONS
        given = json.loads(json.dumps(options))  # as it will be read back
        if not path.exists():
            with clear_errors(path, ANOTHER):
                write_atomically(path, json.dumps(given, indent=2) + "\n")
            return
        known = read_object(path)
        if known != given:
            names = sorted(n for n in known.keys() | given.keys() if known.get(n) != given.get(n))
            told = "; ".join(f"{n} was {known.get(n)!r} and is {given.get(n)!r}" for n in names)
            raise ValueError(f"{str(self.folder)!r} holds another run: {told}; choose another folder")

    # -- evaluations -----------------------------------------------------------------------------------------

    def batches(self) -> list[Evaluated]:
        """All complete batches; lines of an incomplete one are removed from the file."""
        path = self.folder / EVALUATIONS
        found, whole = read_batches(self.folder, self.dims)
        if not whole:
            write_atomically(path, _line([*LEADING, *(f"x{i}" for i in range(self.dims))]))
        elif len(whole) < path.stat().st_size:
            write_atomically(path, whole)
        self.best = max((y for batch in found for y in batch.y.tolist() if np.isfinite(y)), default=-np.inf)
        return found

    def append(self, number: int, proposal: Proposal, y: Floats) -> None:
        """Write a batch with its values y [q], all of it or nothing; it is on disk when this returns."""
        lines, best = [], self.best
        for x, region, value in zip(proposal.X, proposal.regions, y, strict=True):
            best = max(best, float(value)) if np.isfinite(value) else best
            lines.append(_line([number, len(y), int(region), float(value), best, *x.tolist()]))
        path = self.folder / EVALUATIONS
        with clear_errors(path, "The batches before are safe. Make room; the same call goes on with the run"):
            append_whole(path, "".join(lines).encode())
        self.best = best

    # -- models ----------------------------------------------------------------------------------------------

    def save_models(self, number: int, strategy: Strategy) -> None:
        """Write the state of the strategy behind batch ``number``, before that is evaluated."""
        target = self.folder / MODELS / f"{number:06d}"
        fresh = target.with_suffix(".new")
        for leftover in (fresh, target):
            shutil.rmtree(leftover, ignore_errors=True)
        fresh.mkdir(parents=True)
        strategy.save(fresh)
        os.rename(fresh, target)

    def load_models(self, number: int, strategy: Strategy) -> None:
        if (folder := self.folder / MODELS / f"{number:06d}").is_dir():
            strategy.load(folder)

    def drop_models_before(self, number: int) -> None:
        for folder in (self.folder / MODELS).iterdir():
            if folder.name.partition(".")[0] < f"{number:06d}":
                shutil.rmtree(folder, ignore_errors=True)


def locked(folder: Path) -> IO[bytes]:
    """The lock of a run's folder; leftovers of a process that was killed while it wrote are removed."""
    with clear_errors(folder, ANOTHER):
        file = lock(folder / LOCK)
    if file is None:
        told = f"another process is working on the run in {str(folder)!r}: wait for it, or end it"
        raise RuntimeError(told)
    remove_leftovers(folder)
    return file


def others(folder: Path) -> list[str]:
    """Names in a folder that are neither its lock nor left by a process that was killed while it wrote."""
    names = [path.name for path in folder.iterdir()]
    return [name for name in names if name != LOCK and not name.startswith(TEMPORARY)]


def read_options(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The options of the run in a folder; None where there is no run."""
    path = Path(folder).expanduser() / OPTIONS
    return read_object(path) if path.is_file() else None


def read_batches(folder: str | os.PathLike[str], dims: int) -> tuple[list[Evaluated], bytes]:
    """The complete batches of a run, and the part of the file that holds them, without changing it."""
    path = Path(folder).expanduser() / EVALUATIONS
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    found: list[Evaluated] = []
    kept = 1  # the header
    while (batch := _batch(lines[kept:], len(found), dims)) is not None:
        found.append(batch)
        kept += len(batch.y)
    return found, b"".join(lines[:kept])


def _batch(lines: list[bytes], number: int, dims: int) -> Evaluated | None:
    """The batch in the first lines; None where it is incomplete."""
    try:
        size = int(lines[0].split(b",")[1])
        if len(lines) < size or not lines[size - 1].endswith(b"\n"):
            return None
        rows = np.array([[float(value) for value in line.split(b",")] for line in lines[:size]])
    except (ValueError, IndexError):
        return None
    if rows.shape != (size, len(LEADING) + dims) or (rows[:, 0] != number).any():
        return None
    X, regions = rows[:, len(LEADING) :], rows[:, 2]
    if not (np.isfinite(X).all() and (np.abs(regions) < 2**31).all() and (regions == regions.round()).all()):
        return None
    return Evaluated(Proposal(X, regions.astype(np.int64)), rows[:, 3])


def _line(values: Sequence[object]) -> str:
    """A line of numbers, in full: they are read back to the last bit."""
    return ",".join(map(str, values)) + "\n"
