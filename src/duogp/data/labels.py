"""Class labels of any type as class numbers 0, 1, …, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from duogp.data.validation import from_column, is_missing, require_length

MAX_CLASSES = 1000


def as_labels(y: Any, n: int, name: str = "y") -> NDArray:
    """Labels as a vector [n] of numbers, strings or booleans, none missing."""
    if y is None:
        raise ValueError(f"requires y to be passed, but the target {name} is None; expected {n} class labels")
    if isinstance(y, torch.Tensor):
        y = y.detach().cpu()
    values = np.asarray(from_column(y))
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"{name}: expected one class label per row, shape ({n},), got shape {values.shape}")
    require_length(values, n, name)
    if values.dtype.kind == "c":
        raise ValueError(f"{name}: Complex data not supported, expected class labels")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError(f"{name} contains labels that are NaN or inf: every row needs a class")
    if values.dtype.kind == "O":
        missing = [i for i, v in enumerate(values) if is_missing(v)]
        if missing:
            raise ValueError(f"{name}: row {missing[0]} has no label ({values[missing[0]]!r})")
        kinds = {str if isinstance(v, str) else float for v in values.tolist()}
        if len(kinds) > 1:
            raise ValueError(f"{name} mixes text and numbers; labels must be of one type")
        values = values.astype(str) if kinds == {str} else np.asarray(values.tolist())
    return values


def encode(labels: NDArray, name: str = "y") -> tuple[NDArray[np.float64], NDArray]:
    """Class numbers [n] and the sorted classes."""
    classes, codes = np.unique(labels, return_inverse=True)
    if classes.dtype.kind == "f" and (classes != np.round(classes)).any():
        raise ValueError(
            f"{name}: Unknown label type: continuous values ({classes[:3].tolist()}, …) are no class labels; "
            "use a regression likelihood (GPRegressor)"
        )
    if len(classes) > MAX_CLASSES:
        raise ValueError(f"{name} has {len(classes)} different labels; at most {MAX_CLASSES} are supported")
    return codes.reshape(-1).astype(np.float64), classes


def codes_of(labels: NDArray, classes: NDArray, name: str = "y") -> NDArray[np.intp]:
    """Class numbers [n] of labels [n] among classes [C]; −1 for a label that is none of them."""
    if labels.dtype.kind != classes.dtype.kind:
        kind = np.result_type(labels.dtype, classes.dtype)
        labels, classes = labels.astype(kind), classes.astype(kind)
    order = np.argsort(classes)
    place = np.searchsorted(classes[order], labels)
    found = order[np.clip(place, 0, len(classes) - 1)]
    return np.where(classes[found] == labels, found, -1)
