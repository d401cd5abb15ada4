"""Files that a training goes on from after the process was ended.

A checkpoint is one file: a line that names the format, the SHA-256 of the rest, and the rest in the
safetensors format, whose metadata hold the numbers that are no tensors and the identity of the fit. It is
written under a temporary name, flushed to the disk and renamed; the two newest of every training are kept, so
that a damaged file leaves one to fall back to. Nothing in it is executed or unpickled.

A folder belongs to one fit. Its identity (data, settings, method, versions) stands in every file; a
checkpoint of another fit is refused with an error that names the difference.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import struct
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from duogp.disk import TEMPORARY, lock, remove_leftovers, write_atomically
from duogp.errors import CheckpointError, CheckpointWarning

#: First line of every file; the number is that of the format.
MAGIC = b"duogp checkpoint 1\n"
#: The folder of checkpoints within that of a saved estimator.
FOLDER = "checkpoints"
SUFFIX, LOCK, SEED = ".checkpoint", "lock", "seed.json"
#: Files of one training that are kept.
KEPT = 2
#: Seconds between checkpoints unless something else is asked for.
EVERY = 60.0


class Snapshot(NamedTuple):
    """A training at one moment."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]  # plain: what JSON holds


@dataclass(frozen=True)
class CheckpointOptions:
    """Where and how often; a checkpoint is due after so many seconds or steps, whichever come first."""

    folder: Path
    every: float = EVERY
    steps: int | None = None

    @classmethod
    def of(
        cls, folder: str | os.PathLike[str] | None, every: float = EVERY, steps: int | None = None
    ) -> CheckpointOptions | None:
        """Checked options; None without a folder."""
        if isinstance(every, bool) or not isinstance(every, int | float) or not every >= 0:
            raise ValueError(f"checkpoint_every must be a number of seconds ≥ 0, got {every!r}")
        if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
            raise ValueError(f"checkpoint_steps must be a positive integer, got {steps!r}")
        if folder is None:
            return None
        if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
            raise TypeError(f"checkpoint_dir must be the path of a folder, got {folder!r}")
        return cls(Path(folder).expanduser(), float(every), steps)


class Checkpoints:
    """The checkpoints of one fit in one folder. ``identity``: what another fit would differ in."""

    def __init__(self, options: CheckpointOptions, identity: Mapping[str, str]) -> None:
        self.options, self.identity = options, dict(identity)
        self.folder = options.folder
        self._warned = False
        self._names: set[str] = set()

    def slot(self, name: str) -> Slot:
        """The place of one training of the fit; each has a name of its own."""
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        if plain in self._names:
            raise ValueError(f"there is a training {plain!r} already")
        self._names.add(plain)
        return Slot(self, plain)

    def write(self, path: Path, snapshot: Snapshot) -> bool:
        """Whether the file was written; a disk that is full or gone is a warning, and training goes on."""
        data = encode(snapshot, self.identity)
        try:
            write_atomically(path, data)
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"a checkpoint could not be written to {self.folder} ({error.strerror or error}); "
                    "training goes on, and the checkpoints from before stay",
                    CheckpointWarning,
                    stacklevel=2,
                )
            return False
        self._warned = False
        return True

    def read(self, path: Path) -> Snapshot:
        """The snapshot of a file; `CheckpointError` for a damaged file or one of another fit."""
        snapshot, identity = decode(path.read_bytes())
        difference = differences(identity, self.identity)
        if difference:
            raise OtherFitError(
                f"{self.folder} has the checkpoint of another fit: {'; '.join(difference[:3])}. Give another "
                "checkpoint_dir, or delete this one to begin anew"
            )
        return snapshot


class OtherFitError(CheckpointError):
    """A checkpoint that is sound and not of this fit."""


class Slot:
    """The checkpoints of one training."""

    def __init__(self, owner: Checkpoints, name: str) -> None:
        self.owner, self.name = owner, name
        self.step = 0  # of the newest checkpoint
        self.at = time.perf_counter()

    def due(self, step: int) -> bool:
        options = self.owner.options
        if options.steps is not None and step - self.step >= options.steps:
            return True
        return time.perf_counter() - self.at >= options.every

    def save(self, step: int, snapshot: Snapshot) -> None:
        """Write a checkpoint and remove those that are no longer needed."""
        path = self.owner.folder / f"{self.name}.{step:012d}{SUFFIX}"
        self.step, self.at = step, time.perf_counter()  # also after a failure: not again at every step
        if self.owner.write(path, snapshot):
            for old in self.files()[KEPT:]:
                with contextlib.suppress(OSError):
                    old.unlink()

    def load(self) -> Snapshot | None:
        """The newest sound checkpoint; None where there is none yet, an error where all are damaged."""
        damaged: list[str] = []
        for path in self.files():
            try:
                found = self.owner.read(path)
            except OtherFitError:
                raise
            except (CheckpointError, OSError) as error:
                damaged.append(f"{path.name}: {error}")
                continue
            if damaged:
                warnings.warn(
                    f"a damaged checkpoint was passed over ({damaged[0]}); training goes on from the one "
                    "before",
                    CheckpointWarning,
                    stacklevel=2,
                )
            self.step, self.at = found.values["step"], time.perf_counter()
            return found
        if damaged:
            raise CheckpointError(
                f"no checkpoint in {self.owner.folder} can be read ({damaged[0]}): delete them to begin anew"
            )
        return None

    def files(self) -> list[Path]:
        """The files of this training, the newest first."""
        pattern = re.compile(re.escape(self.name) + r"\.\d{12}" + re.escape(SUFFIX))
        found = [p for p in self.owner.folder.iterdir() if pattern.fullmatch(p.name) and p.is_file()]
        return sorted(found, reverse=True)


@contextlib.contextmanager
def opened(options: CheckpointOptions, identity: Mapping[str, str]) -> Iterator[Checkpoints]:
    """The checkpoints of a fit, locked against a second process; leftovers of a write are removed."""
    with locked(options.folder):
        remove_leftovers(options.folder)
        yield Checkpoints(options, identity)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A folder that can be written to, for one process at a time; a process that dies gives it back."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = lock(folder / LOCK)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint_dir: {folder} cannot be written to: {error.strerror or error}"
        ) from error
    if file is None:
        raise CheckpointError(
            f"checkpoint_dir: another fit is writing to {folder}; every fit needs a folder of its own"
        )
    with file:
        yield


def remembered_seed(options: CheckpointOptions, fresh: int) -> int:
    """The seed that the folder's fit began with; the fresh one, kept from now on, where there is none."""
    path = options.folder / SEED
    with locked(options.folder):
        try:
            found = json.loads(path.read_text())
            if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 2**63:
                return found
            raise ValueError("it is no seed")
        except FileNotFoundError:
            pass
        except (ValueError, OSError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error}): delete {options.folder} to begin anew"
            ) from error
        try:
            write_atomically(path, json.dumps(fresh).encode())
        except OSError as error:
            raise CheckpointError(
                f"checkpoint_dir: {options.folder} cannot be written to: {error.strerror or error}"
            ) from error
    return fresh


def remove(options: CheckpointOptions) -> None:
    """Delete the checkpoints of a fit that is over, and their folder if nothing else is in it."""
    with contextlib.suppress(FileNotFoundError):
        for path in options.folder.iterdir():
            own = path.name.endswith(SUFFIX) or path.name in (LOCK, SEED) or path.name.startswith(TEMPORARY)
            if own and path.is_file():
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            options.folder.rmdir()


# -- bytes ---------------------------------------------------------------------------------------------------


def encode(snapshot: Snapshot, identity: Mapping[str, str]) -> bytes:
    """A snapshot as the bytes of a file, with a checksum."""
    layout = torch.contiguous_format
    # A copy each: safetensors takes no tensors that share memory.
    own = {name: t.detach().clone(memory_format=layout).cpu() for name, t in snapshot.tensors.items()}
    body = _safetensors().save(
        own, metadata={"identity": json.dumps(dict(identity)), "values": json.dumps(snapshot.values)}
    )
    return MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def decode(data: bytes) -> tuple[Snapshot, dict[str, str]]:
    """The snapshot and the identity in a file's bytes."""
    start = len(MAGIC) + 65
    if not data.startswith(MAGIC):
        line = data[:40].partition(b"\n")[0]
        if line.startswith(b"duogp checkpoint ") and line != MAGIC.strip():
            raise CheckpointError(f"it was written in another format ({line.decode(errors='replace')})")
        raise CheckpointError("it is no checkpoint, or not complete")
    body = data[start:]
    if data[len(MAGIC) : start] != hashlib.sha256(body).hexdigest().encode() + b"\n":
        raise CheckpointError("it is damaged or not complete (wrong checksum)")
    try:
        tensors = _load(body)
        (length,) = struct.unpack("<Q", body[:8])
        metadata = json.loads(body[8 : 8 + length])["__metadata__"]
        identity, values = json.loads(metadata["identity"]), json.loads(metadata["values"])
    except (ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
        raise CheckpointError(f"it is damaged: {error}") from error
    if not isinstance(identity, dict) or not isinstance(values, dict):
        raise CheckpointError("it is damaged: its values are none")
    if type(values.get("step")) is not int or type(values.get("finished")) is not bool:
        raise CheckpointError("it is damaged: it does not say how far training was")
    return Snapshot(tensors, values), identity


def _load(body: bytes) -> dict[str, Tensor]:
    try:
        found: dict[str, Tensor] = _safetensors().load(body)
        return found
    except ImportError:
        raise
    except Exception as error:  # safetensors documents no class of error
        raise ValueError(str(error)) from error


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        message = "checkpoints need the package safetensors: pip install 'safetensors>=0.4.3'"
        raise ImportError(message) from error
    return safetensors.torch


def differences(then: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """What differs between two fits, in words."""
    out = []
    for name in {**now, **then}:
        before, after = then.get(name, "nothing"), now.get(name, "nothing")
        if before != after:
            out.append(f"{name} was {_short(before)}, now {_short(after)}")
    return out


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
