"""Fitted scikit-learn estimators: the model inside, and the estimator's own entries around it.

A kernel or a likelihood object among the parameters is part of the model's settings and comes back from
there; a RandomState becomes None. Of a stream the present model is written: `partial_fit` after loading goes
on from its posterior, with a fresh optimiser.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from duogp.errors import SavedModelError
from duogp.io.models import gp_from_state, gp_state
from duogp.io.plain import entries, entry
from duogp.sklearn.base import BaseGP
from duogp.sklearn.classifier import GPClassifier
from duogp.sklearn.conformal import Calibration
from duogp.sklearn.regressor import GPRegressor

CLASSES: dict[str, type[BaseGP]] = {"GPRegressor": GPRegressor, "GPClassifier": GPClassifier}
SCORES = "calibration.scores"
#: The place of an object among the parameters that the model has: a kernel, a likelihood, a method.
OF_MODEL = {"of_model": True}


def estimator_state(estimator: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A manifest and tensors; a TypeError for what is no fitted model at all."""
    if not isinstance(estimator, BaseGP):
        return gp_state(estimator)
    part, tensors = gp_state(estimator.gp_)
    if estimator.calibration_ is not None:
        tensors = {**tensors, SCORES: torch.as_tensor(estimator.calibration_.scores.copy())}
    own = {
        "class": type(estimator).__name__,
        "params": {name: _plain(value) for name, value in estimator.get_params(deep=False).items()},
        "method": estimator.method_,
        "reasons": list(estimator.reasons_),
        "n_iter": int(estimator.n_iter_),
        "object_labels": bool(getattr(estimator, "_object_labels", False)),
    }
    return {"kind": "estimator", "estimator": own, "model": part}, tensors


def estimator_from_state(
    manifest: Mapping[str, Any], tensors: Mapping[str, Tensor], /, *, device: Any = None, **given: Any
) -> BaseGP:
    """The inverse of `estimator_state`; keywords as of `gp_from_state`."""
    own = entry(manifest, "estimator", dict)
    name = entry(own, "class", str)
    if name not in CLASSES:
        raise SavedModelError(f"it is of the unknown estimator {name!r}")
    scores = tensors.get(SCORES)
    rest = {key: value for key, value in tensors.items() if key != SCORES}
    gp = gp_from_state(entry(manifest, "model", dict), rest, device=device, **given)
    if (gp.classes is not None) != (name == "GPClassifier"):
        raise SavedModelError(f"its model is not that of a {name}")
    estimator = CLASSES[name]()
    saved = entry(own, "params", dict)
    known = {key: saved[key] for key in estimator.get_params(deep=False) if key in saved}
    estimator.set_params(**{key: _from_plain(value, key, gp) for key, value in known.items()})
    if device is not None:
        estimator.set_params(device=str(device))
    estimator._gp, estimator._learner = gp, None
    estimator.method_, estimator.reasons_ = entry(own, "method", str), entries(own, "reasons", str)
    estimator.n_iter_ = entry(own, "n_iter", int)
    estimator.n_features_in_ = len(gp.columns)
    if gp.column_names is not None:
        estimator.feature_names_in_ = np.array(gp.column_names, dtype=object)
    if gp.classes is not None:
        assert isinstance(estimator, GPClassifier)
        estimator._object_labels = entry(own, "object_labels", bool)
        estimator._name_classes(gp.classes)
    estimator.calibration_ = None if scores is None else _calibration(scores, gp)
    return estimator


def _calibration(scores: Tensor, gp: Any) -> Calibration:
    values = scores.cpu().numpy()
    if values.dtype != np.float64 or values.ndim != 2 or values.shape[1] != len(gp.y_scaler.scale):
        raise SavedModelError(f"its calibration scores have the shape {values.shape}")
    if np.isnan(values).any():
        raise SavedModelError("its calibration scores are not numbers")
    return Calibration.of(values)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, str | bool | int | float | None):
        return value
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {"dict": {str(name): _plain(part) for name, part in value.items()}}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, type | np.dtype):  # np.float32
        return np.dtype(value).name
    if isinstance(value, np.random.RandomState):
        return None
    return OF_MODEL


def _from_plain(value: Any, name: str, gp: Any) -> Any:
    if value == OF_MODEL:
        return gp.method if name == "method" else getattr(gp.settings, name, None)
    if isinstance(value, Mapping):
        return {key: _from_plain(part, key, gp) for key, part in entry(value, "dict", dict).items()}
    return value
