"""Sets of the data folder (``DUOGP_DATA``) and of scikit-learn: arrays of numbers.

Left out: `mnist-10k` and `fashion-mnist-10k` (784 columns; `digits` stands for images), `hl_boston`,
`hl_concrete`, `hl_energy` and `yacht` (the same rows as `housing`, `concrete`, `energy` and `hl_yacht`),
`snelson` (no test targets). `bike` is without the two columns that sum to its target.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from arena.tables import Entry
from duogp.data.benchmark import load

REGRESSION = (
    "airfoil", "bike", "concrete", "elevators", "energy", "hl_wine", "hl_yacht", "houseelectric", "housing",
    "keggdirected", "keggundirected", "kin40k", "nycflights", "pol", "protein",
)  # fmt: skip
CLASSIFICATION = (
    "adult", "avila", "banana", "chess-krvk", "connect-4", "letter", "magic", "mushroom", "nursery",
    "page-blocks", "pendigits", "ringnorm", "statlog-landsat", "statlog-shuttle", "thyroid", "twonorm",
    "wall-following", "waveform", "waveform-noise", "wine-quality-white",
)  # fmt: skip
#: Sets that share their origin share their half.
FAMILIES = {
    "bike": "bike", "nycflights": "flights", "keggdirected": "kegg", "keggundirected": "kegg",
    "ringnorm": "norm", "twonorm": "norm", "waveform": "waveform", "waveform-noise": "waveform",
    "hl_wine": "wine-quality", "wine-quality-white": "wine-quality",
}  # fmt: skip
LEAKS: dict[str, tuple[int, ...]] = {"bike": (15, 16)}  # casual and registered: they sum to the count
Loaded = tuple[pd.DataFrame, Any]


def _frame(X: Any) -> pd.DataFrame:
    X = np.asarray(X)
    return pd.DataFrame({f"x{i}": X[:, i] for i in range(X.shape[1])})


def _arrays(path: str, leaks: tuple[int, ...] = ()) -> Loaded:
    data = load(path)
    return _frame(np.delete(data.X, leaks, axis=1)), data.y


def _torque(name: str) -> Loaded:
    """The first torque of a robot's inverse dynamics."""
    data = load(f"robot/{name}")
    return _frame(data.X), data.y[:, 0]


def _lwr() -> Loaded:
    """Inverse dynamics of the LWR: (q, qd, next qd) → the first torque."""
    data = load("robot/kuka_lwr_forward")
    return _frame(np.hstack([data.X[:, :14], data.y[:, 7:14]])), data.X[:, 14]


def _sklearn(name: str) -> Loaded:
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")()
    return _frame(found.data), found.target


def _friedman() -> Loaded:
    from sklearn.datasets import make_friedman1

    X, y = make_friedman1(4000, n_features=10, noise=1.0, random_state=0)
    return _frame(X), y


def folder_entries() -> list[Entry]:
    """Entries of the data folder and of scikit-learn; their loaders fail where the folder is not there."""

    def entry(name: str, kind: str, source: str, how: Callable[[], Loaded]) -> Entry:
        return Entry(name, kind, source, how, FAMILIES.get(name, name))

    def filed(name: str, kind: str) -> Entry:
        path = f"{kind}/{name}"
        return entry(name, kind, f"data folder, {path}", partial(_arrays, path, LEAKS.get(name, ())))

    found = [filed(name, "regression") for name in REGRESSION]
    for robot in ("kuka_iiwa14_inverse", "sarcos_test", "ur10_picknplace"):
        found.append(
            entry(robot, "regression", f"data folder, robot/{robot}, first torque", partial(_torque, robot))
        )
    found += [
        entry("kuka_lwr_inverse", "regression", "data folder, robot/kuka_lwr_forward, first torque", _lwr),
        entry("motorcycle", "regression", "data folder, toy/motorcycle", partial(_arrays, "toy/motorcycle")),
        entry("diabetes", "regression", "scikit-learn", partial(_sklearn, "diabetes")),
        entry("friedman1", "regression", "scikit-learn, make_friedman1", _friedman),
    ]
    found += [filed(name, "classification") for name in CLASSIFICATION]
    found += [
        entry(n.replace("_", "-"), "classification", "scikit-learn", partial(_sklearn, n))
        for n in ("breast_cancer", "digits", "wine")
    ]
    return found
