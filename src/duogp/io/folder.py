"""The folder of a saved model: ``manifest.json``, readable, and ``tensors.safetensors``, its numbers.

Nothing in either is executed, imported or unpickled. The manifest lists every tensor with its type and shape
and has the checksum of their file and its own: a folder is read whole and unchanged, or not at all. It is
written beside the target, and then takes its place in one operation of the file system, where that has one
(Linux), so that a reader finds the old model or the new one, and of two writers the later stays.

Versions are "major.minor". A newer minor version only adds entries, which an older reader ignores; a newer
major version is refused; older ones are brought up to date by `UPGRADES`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from duogp._version import __version__
from duogp.disk import clear_errors
from duogp.errors import SavedModelError
from duogp.io.plain import entries, entry
from duogp.io.swap import beside, put, write_through
from duogp.training.checkpoint import FOLDER as CHECKPOINTS

FORMAT = "duogp-model"
VERSION = (1, 1)
MANIFEST, TENSORS = "manifest.json", "tensors.safetensors"
#: Entries that `write_folder` adds.
HEADER = ("format", "format_version", "written_by", "tensors", "files", "checksum")
#: Bytes; a manifest lists columns and epochs, not data.
LARGEST_MANIFEST = 2**28
#: Times that a folder is read while others write it.
READS = 20
#: Files that belong to a model where it has them, beside those of every folder; see `file_of`.
OWN_FILES = ("table.json",)
#: Letters of an entry that may stand on one line.
SHORT = 80

T = TypeVar("T")
Contents = tuple[dict[str, Any], dict[str, Tensor]]
Upgrade = Callable[[dict[str, Any], dict[str, Tensor]], Contents]
#: Version → the next one, and the function from contents to contents. None has been needed so far.
UPGRADES: dict[tuple[int, int], tuple[tuple[int, int], Upgrade]] = {}


# -- writing -------------------------------------------------------------------------------------------------


def write_folder(
    path: str | os.PathLike[str],
    manifest: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a folder that `read_folder` reads; ``manifest`` needs a ``kind`` and holds JSON values only.

    ``files``: others that belong to the model, which `file_of` reads; the manifest has their checksums.

    A folder that is there already is replaced if it is a saved model (files beside the model stay) or empty.
    """
    if not isinstance(manifest.get("kind"), str):
        raise ValueError("a manifest needs a kind")
    if taken := [name for name in HEADER if name in manifest]:
        raise ValueError(f"entries of the manifest that are written for every folder: {', '.join(taken)}")
    target = folder_path(path).resolve()
    _require_free(target)
    data = _serialise(tensors)
    full = {
        "format": FORMAT,
        "format_version": ".".join(map(str, VERSION)),
        "kind": manifest["kind"],
        "written_by": {
            "duogp": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        **{name: value for name, value in manifest.items() if name != "kind"},
        "tensors": {
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "entries": {name: _entry_of(value) for name, value in tensors.items()},
        },
    }
    files = files or {}
    if files:
        full["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    full["checksum"] = checksum(full)
    fresh = beside(target, "new")
    with clear_errors(target, "A model that was there is as it was"):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            fresh.mkdir()
            write_through(fresh / TENSORS, data)
            for name, content in files.items():
                write_through(fresh / name, content)
            write_through(fresh / MANIFEST, (readable(full) + "\n").encode())
            put(fresh, target, {MANIFEST, TENSORS, *OWN_FILES})
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return target


def folder_path(path: Any) -> Path:
    """The path of a folder, or an error for what is none."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"expected the path of a model's folder, got {path!r}")
    return Path(path).expanduser()


def checksum(manifest: Mapping[str, Any]) -> str:
    """The checksum of a manifest's content, independent of its layout."""
    content = {name: value for name, value in manifest.items() if name != "checksum"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def readable(value: Any, indent: str = "") -> str:
    """JSON with a line for each entry; lists of plain values and short entries on one line."""
    deeper = indent + "  "
    if isinstance(value, Mapping) and (not indent or len(json.dumps(value, allow_nan=False)) > SHORT):
        lines = [f"{deeper}{json.dumps(str(k))}: {readable(v, deeper)}" for k, v in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and any(isinstance(v, Mapping | list | tuple) for v in value):
        lines = [deeper + readable(v, deeper) for v in value]
        return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


def is_saved_model(path: str | os.PathLike[str]) -> bool:
    """Whether a folder has a manifest of this format, valid or not."""
    try:
        return _manifest_of(Path(path)).get("format") == FORMAT
    except SavedModelError:
        return False


def _require_free(target: Path) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise SavedModelError(f"{target} is a file: a model is saved as a folder")
    others = [path for path in target.iterdir() if path.name != CHECKPOINTS]  # of the fit that is saved
    if others and not is_saved_model(target):
        raise SavedModelError(f"{target} exists and is not a saved model: it will not be overwritten")


def _serialise(tensors: Mapping[str, Tensor]) -> bytes:
    # One copy each: safetensors wants contiguous tensors that do not share memory.
    layout = torch.contiguous_format
    own = {name: value.detach().clone(memory_format=layout).cpu() for name, value in tensors.items()}
    return _safetensors().save(own, metadata={"format": "pt"})


def _entry_of(value: Tensor) -> dict[str, Any]:
    return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        message = "saved models need the package safetensors: pip install 'safetensors>=0.4.3'"
        raise ImportError(message) from error
    return safetensors.torch


# -- reading -------------------------------------------------------------------------------------------------


def read_folder(path: str | os.PathLike[str]) -> Contents:
    """The manifest and the tensors (on the CPU) of a folder, checked against each other and up to date."""
    folder = folder_path(path)
    return undisturbed(folder, lambda: _read(folder))


def undisturbed(folder: Path, read: Callable[[], T]) -> T:
    """The result of a function that reads a folder; if the folder was replaced meanwhile, it reads again."""
    for _ in range(READS):
        before = _identity(folder)
        try:
            found = read()
        except (SavedModelError, OSError, ValueError):
            if _identity(folder) == before:
                raise
            continue
        if _identity(folder) == before:
            return found
    raise SavedModelError(f"{folder}: it is being written again and again")


def _identity(folder: Path) -> tuple[int, ...] | None:
    """What tells a folder from one that replaces it: a number is used again, but not with its times."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns, found.st_mtime_ns


def file_of(path: str | os.PathLike[str], name: str) -> bytes:
    """A file that was written with a model; one that was changed since is an error."""
    folder = Path(path).expanduser()
    with _named_errors(folder):
        manifest = _manifest_of(folder)
        _require_inside(folder / name)
        if (folder / name).stat().st_size > LARGEST_MANIFEST:
            raise SavedModelError(f"its file {name} is too large")
        data = (folder / name).read_bytes()
        listed = manifest.get("files")
        known = listed.get(name) if isinstance(listed, dict) else None
        if known is not None and hashlib.sha256(data).hexdigest() != known:
            raise SavedModelError(f"its file {name} was changed after it was written (wrong checksum)")
        return data


def _read(folder: Path) -> Contents:
    with _named_errors(folder):
        manifest = _manifest_of(folder)
        if manifest.get("format") != FORMAT:
            raise SavedModelError(f"not a saved duogp model: its {MANIFEST} was written by something else")
        version = _version_of(manifest)
        if entry(manifest, "checksum", str) != checksum(manifest):
            raise SavedModelError(f"its {MANIFEST} was changed after it was written (wrong checksum)")
        entry(manifest, "kind", str)
        tensors = _tensors_of(folder, entry(manifest, "tensors", dict))
        while version in UPGRADES:
            version, upgrade = UPGRADES[version]
            manifest, tensors = upgrade(manifest, tensors)
        if version[0] < VERSION[0]:
            raise SavedModelError(f"written in format {version[0]}.{version[1]}, which is no longer read")
        return manifest, tensors


def _manifest_of(folder: Path) -> dict[str, Any]:
    if not folder.exists():
        raise SavedModelError("there is no such folder")
    if not folder.is_dir():
        raise SavedModelError("not a saved duogp model, which is a folder")
    path = folder / MANIFEST
    if not path.is_file():
        raise SavedModelError(f"not a saved duogp model: it has no {MANIFEST}")
    _require_inside(path)
    try:
        if path.stat().st_size > LARGEST_MANIFEST:
            raise SavedModelError(f"its {MANIFEST} is too large to be one")
        found = json.loads(path.read_bytes(), parse_constant=_finite, parse_float=_finite)
    except OSError as error:
        raise SavedModelError(f"its {MANIFEST} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, SavedModelError):
            raise
        raise SavedModelError(f"its {MANIFEST} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise SavedModelError(f"not a saved duogp model: its {MANIFEST} is no manifest")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number")
    return value


def _version_of(manifest: Mapping[str, Any]) -> tuple[int, int]:
    text = entry(manifest, "format_version", str)
    if not re.fullmatch(r"[0-9]{1,6}\.[0-9]{1,6}", text):
        raise SavedModelError(f"its format version is {text!r}, expected two numbers such as '1.0'")
    major, minor = map(int, text.split("."))
    if major > VERSION[0]:
        writer = manifest.get("written_by")
        by = f" by duogp {writer['duogp']}" if isinstance(writer, dict) and "duogp" in writer else ""
        raise SavedModelError(
            f"written{by} in format {text}; duogp {__version__} reads up to format {VERSION[0]}: "
            "install a newer duogp"
        )
    return major, minor


def _tensors_of(folder: Path, described: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors, checked against the manifest; the size of their file is compared before it is read."""
    safetensors, path = _safetensors(), folder / TENSORS
    if not path.is_file():
        raise SavedModelError(f"its file {TENSORS} is missing")
    _require_inside(path)
    size, expected = path.stat().st_size, entry(described, "bytes", int)
    if size != expected:
        raise SavedModelError(f"its file {TENSORS} has {size} bytes, expected {expected}: it is not complete")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != entry(described, "sha256", str):
        raise SavedModelError(f"its file {TENSORS} is damaged (wrong checksum)")
    try:
        found: dict[str, Tensor] = safetensors.load(data)
    except Exception as error:  # safetensors documents no class of error
        raise SavedModelError(f"its file {TENSORS} is damaged: {error}") from error
    listed = entry(described, "entries", dict)
    if listed.keys() != found.keys():
        names = ", ".join(sorted(listed.keys() ^ found.keys())[:5])
        raise SavedModelError(f"its manifest and its file {TENSORS} list different tensors: {names}")
    for name, value in found.items():
        kind, shape = entry(listed[name], "dtype", str), entries(listed[name], "shape", int)
        own = _entry_of(value)
        if {"dtype": kind, "shape": shape} != own:
            found_as = f"{own['dtype']} {own['shape']}"
            raise SavedModelError(f"its tensor {name!r} is {found_as}, but its manifest says {kind} {shape}")
    return found


def _require_inside(path: Path) -> None:
    """An error for a link to a file outside the folder: a folder is read, and nothing else."""
    folder = path.parent.resolve()
    if path.resolve().parent != folder:
        raise SavedModelError(f"its file {path.name} is a link to a file outside the folder")


@contextlib.contextmanager
def _named_errors(folder: Path) -> Iterator[None]:
    """Errors as `SavedModelError`, with the folder's name in front."""
    try:
        yield
    except SavedModelError as error:
        raise SavedModelError(f"{folder}: {error}") from error
    except OSError as error:
        raise SavedModelError(f"{folder}: it cannot be read: {error}") from error
