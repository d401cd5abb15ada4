"""Benchmark sets in files ``<DUOGP_DATA>/<task>/<name>.npz``, unscaled, with their official splits."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ENVIRONMENT = "DUOGP_DATA"


@dataclass(frozen=True, eq=False)
class Dataset:
    """One benchmark set, unscaled."""

    name: str  # "regression/pol"
    X: NDArray  # [n, d]; images in [0, 1]
    y: NDArray  # [n], or [n, P] for several outputs; class numbers from 0 are int64
    test_mask: NDArray[np.bool_] | None = None  # [n, splits], True = test
    is_test: NDArray[np.bool_] | None = None  # [n], the official test set
    extra: dict[str, NDArray] = field(default_factory=dict)  # other arrays of the file

    @property
    def task(self) -> str:
        """The folder: "regression", "classification", "robot", "toy"."""
        return self.name.split("/")[0]


def data_root() -> Path | None:
    """The folder in the environment variable DUOGP_DATA; None when it is not set."""
    folder = os.environ.get(ENVIRONMENT)
    return Path(folder) if folder else None


def available() -> list[str]:
    """Names of all sets found, such as "regression/pol"; empty without DUOGP_DATA."""
    root = data_root()
    if root is None or not root.is_dir():
        return []
    return sorted(f"{path.parent.name}/{path.stem}" for path in root.glob("*/*.npz") if _is_dataset(path))


def load(name: str) -> Dataset:
    """The set called `name`: "regression/pol", or "pol" where only one folder has that name."""
    full = _resolve(name)
    root = data_root()
    assert root is not None  # _resolve found the file there
    with np.load(root / f"{full}.npz", allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    X = arrays.pop("X")
    if X.dtype == np.uint8:  # images
        X = X.astype(np.float32) / np.float32(255)
    y = arrays.pop("y") if "y" in arrays else arrays.pop("Y")
    if y.dtype.kind in "iu":
        y = y.astype(np.int64)
    return Dataset(full, X, y, arrays.pop("test_mask", None), arrays.pop("is_test", None), arrays)


def _resolve(name: str) -> str:
    root = data_root()
    if root is None:
        raise FileNotFoundError(
            f"data set {name!r}: the environment variable {ENVIRONMENT} is not set. Point it at the "
            f"folder that holds regression/, classification/, …: export {ENVIRONMENT}=<folder>"
        )
    names = available()
    matches = [full for full in names if name in (full, full.split("/")[1])]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ValueError(f"data set {name!r} is ambiguous: say one of {', '.join(matches)}")
    if not root.is_dir():
        raise FileNotFoundError(f"data set {name!r}: {ENVIRONMENT}={root} is no folder, so it holds no data")
    _require_keys(root, name)
    if not names:
        flat = ": files stand in a folder by their task" if any(root.glob("*.npz")) else ""
        raise FileNotFoundError(
            f"data set {name!r}: {ENVIRONMENT}={root} holds no <task>/<name>.npz files{flat} (duogp data "
            "fetch)"
        )
    close = difflib.get_close_matches(name, names + [full.split("/")[1] for full in names], n=3)
    hint = f" (did you mean {', '.join(close)}?)" if close else ""
    raise FileNotFoundError(
        f"data set {name!r} is not in {ENVIRONMENT}={root}{hint}; duogp.data.available() lists the names"
    )


def _require_keys(root: Path, name: str) -> None:
    """An error where the file of a set is there, but its arrays have other keys."""
    for path in sorted(root.glob("*/*.npz")):
        if name in (f"{path.parent.name}/{path.stem}", path.stem) and not _is_dataset(path):
            with np.load(path, allow_pickle=False) as archive:
                keys = ", ".join(archive.files) or "none"
            raise ValueError(
                f"data set {name!r}: {path} has the keys {keys}; expected X and y (or Y), and where there "
                "are splits test_mask or is_test (docs/data.md)"
            )


def _is_dataset(path: Path) -> bool:
    with np.load(path, allow_pickle=False) as archive:  # reads only the table of contents
        return "X" in archive.files and ("y" in archive.files or "Y" in archive.files)
