"""Targets by kind: real numbers, counts, positive numbers, shares of one, or class labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.data.labels import as_labels, codes_of, encode
from duogp.data.validation import as_matrix, as_target

#: The variance of larger targets would overflow in their units.
LARGEST = 1e100
#: Kinds of targets that are not all real numbers: in words, and as a test of each value.
SUPPORTS: dict[str, tuple[str, Callable[[NDArray], NDArray]]] = {
    "count": ("whole numbers from 0", lambda v: (v >= 0) & (v == np.round(v))),
    "positive": ("numbers above 0", lambda v: v > 0),
    "unit": ("numbers strictly between 0 and 1", lambda v: (v > 0) & (v < 1)),
}


@dataclass(frozen=True, eq=False)
class Target:
    """Targets as numbers [n, outputs]; `classes`: the labels of class numbers."""

    values: NDArray[np.float64]
    single_output: bool
    kind: str  # "real", "count", "positive", "unit" or "classes"
    classes: NDArray | None = None

    @property
    def outputs(self) -> int:
        return self.values.shape[1]


def raw_target(y: Any, n: int, kind: str, name: str = "y") -> NDArray:
    """y as an array of n rows without missing values, [n] or [n, outputs]."""
    return as_labels(y, n, name) if kind == "classes" else require_moderate(as_target(y, n, name), name)


def require_moderate(values: NDArray, name: str = "y") -> NDArray:
    """The targets, [n] or [n, outputs], or an error where their variance would overflow."""
    largest = float(np.abs(values).max(initial=0.0))
    if largest > LARGEST:
        raise ValueError(
            f"{name} holds numbers as large as {largest:.3g}, whose squares are no floats: use other units"
        )
    return values


def with_validation(X: NDArray, y: NDArray, validation: Any, kind: str) -> tuple[NDArray, NDArray]:
    """The training rows followed by those of a pair (X, y) for validation, checked to be of the same kind."""
    if not (isinstance(validation, tuple | list) and len(validation) == 2):
        raise TypeError(f"validation must be a pair (X, y), got {type(validation).__name__}")
    X_val = as_matrix(validation[0], "validation X", min_rows=1)
    y_val = raw_target(validation[1], len(X_val), kind, "validation y")
    if X_val.shape[1] != X.shape[1]:
        raise ValueError(f"validation X has {X_val.shape[1]} columns, X has {X.shape[1]}")
    if y_val.shape[1:] != y.shape[1:]:
        raise ValueError(f"validation y has shape {y_val.shape}, y has {y.shape}")
    if kind == "classes" and (new := codes_of(y_val, encode(y, "y")[1]) < 0).any():
        raise ValueError(f"validation y holds the label {y_val[new].tolist()[0]!r}, which y does not")
    return np.concatenate([X, X_val]), np.concatenate([y, y_val])


def read_target(y: Any, n: int, kind: str, name: str = "y") -> Target:
    """y as a `Target` of the given kind, checked against what that kind may be."""
    values = raw_target(y, n, kind, name)
    if kind == "classes":
        codes, classes = encode(values, name)
        if len(classes) < 2:
            raise ValueError(f"{name} has only one class ({classes[0]!r}): there is nothing to tell apart")
        return Target(codes[:, None], True, kind, classes)
    single = values.ndim == 1
    values = values.reshape(n, -1).astype(np.float64)
    require_support(values, kind, name)
    return Target(values, single, kind)


def require_support(values: NDArray, kind: str, name: str = "y") -> None:
    """An error where values [n, ...] are not possible under targets of the given kind."""
    if kind not in SUPPORTS:
        return
    wanted, inside = SUPPORTS[kind]
    bad = ~inside(values)
    if bad.any():
        where = np.argwhere(bad)[0]
        raise ValueError(
            f"{name} must hold {wanted} for this likelihood: {int(bad.sum())} of {bad.size} are not, the "
            f"first ({values[tuple(where)]:g}) in row {where[0]}"
        )
