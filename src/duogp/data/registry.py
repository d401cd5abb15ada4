"""The benchmark files: where each comes from, its arrays, and a checksum of their content.

`registry.json` beside this module has an entry for every file of a data folder, written by
``benchmarks/data_registry.py``. The checksum is of the arrays, not of the file: an archive that was
compressed in another way, or converted anew from the origin, has the same one.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).with_name("registry.json")
#: Packages of sets that belong to this library's benchmarks and come with scikit-learn.
WITH_SKLEARN = ("sklearn/diabetes", "sklearn/breast_cancer")


@dataclass(frozen=True)
class Entry:
    """One file of the data folder."""

    name: str  # "regression/pol"; of a text file with its ending, "molecules/zinc250k.smi.gz"
    path: str  # below the data folder
    arrays: Mapping[str, tuple[str, tuple[int, ...]]]  # dtype and shape by key; empty for text
    sha256: str  # of the arrays, or of the text
    size: int  # bytes of the file
    origin: str  # the repository or package that it was taken from
    url: str
    citation: str
    converted: str  # how the file was made from its origin
    notes: str
    classes: int | None = None

    @property
    def rows(self) -> int | None:
        """Rows of X; None for text and lists."""
        return self.arrays["X"][1][0] if "X" in self.arrays else None

    @property
    def short_origin(self) -> str:
        """The repository or package alone: "github treforevans/uci_datasets"."""
        return re.split(r" @|,| \(", self.origin)[0]

    @property
    def dims(self) -> int | None:
        """Columns of X."""
        return self.arrays["X"][1][1] if "X" in self.arrays else None


@cache
def registry() -> dict[str, Entry]:
    """All entries by name."""
    found = {}
    for name, raw in json.loads(FILE.read_text(encoding="utf-8")).items():
        arrays = {key: (dtype, tuple(shape)) for key, (dtype, shape) in raw.pop("arrays").items()}
        found[name] = Entry(name=name, arrays=arrays, **raw)
    return found


def entry_of(name: str) -> Entry:
    """The entry called ``name``: "regression/pol", or "pol" where only one folder has that name."""
    known = registry()
    matches = [full for full in known if name in (full, full.partition("/")[2])]
    if len(matches) == 1:
        return known[matches[0]]
    if matches:
        raise ValueError(f"data set {name!r} is ambiguous: say one of {', '.join(matches)}")
    if name in WITH_SKLEARN or f"sklearn/{name}" in WITH_SKLEARN:
        raise ValueError(f"data set {name!r} comes with scikit-learn: there is nothing to fetch or to check")
    import difflib

    near = difflib.get_close_matches(name, [*known, *(full.partition("/")[2] for full in known)], n=3)
    hint = f"; did you mean {', '.join(near)}?" if near else "; duogp data list has the names"
    raise ValueError(f"data set {name!r} is not one of the benchmarks{hint}")


def array_digest(arrays: Mapping[str, NDArray]) -> str:
    """sha256 over names, dtypes, shapes and values of arrays, in the order of their names."""
    found = hashlib.sha256()
    for key in sorted(arrays):
        value = np.ascontiguousarray(arrays[key])
        value = value.astype(value.dtype.newbyteorder("<"), copy=False)
        found.update(f"{key} {value.dtype.str} {value.shape}\n".encode())
        found.update(value.tobytes())
    return found.hexdigest()


def text_digest(content: bytes, compressed: bool) -> str:
    """sha256 of a text, that of its content where it is gzipped."""
    return hashlib.sha256(gzip.decompress(content) if compressed else content).hexdigest()


def problem(path: Path, entry: Entry) -> str | None:
    """What is wrong with a file, in words; None where it is what the entry says.

    The words tell a file that is not there from one that is no archive, from other keys, from other shapes
    and from other values.
    """
    if not path.is_file():
        return "missing"
    if not entry.arrays:
        try:
            same = text_digest(path.read_bytes(), path.suffix == ".gz") == entry.sha256
        except (OSError, EOFError) as error:
            return f"cannot be read: {error}"
        return None if same else "its text is another one (sha256 differs)"
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        return f"is no .npz archive that can be read: {error}"
    if set(arrays) != set(entry.arrays):
        there, wanted = ", ".join(sorted(arrays)) or "nothing", ", ".join(sorted(entry.arrays))
        return f"has the keys {there}; expected {wanted}"
    for key, (dtype, shape) in entry.arrays.items():
        found: Any = arrays[key]
        if found.shape != shape or found.dtype != np.dtype(dtype):
            return f"{key} is {found.dtype} {found.shape}; expected {dtype} {shape}"
    return None if array_digest(arrays) == entry.sha256 else "its values are other ones (sha256 differs)"
