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
from duogp.tables import Schema

CLASSES: dict[str, type[BaseGP]] = {"GPRegressor": GPRegressor, "GPClassifier": GPClassifier}
#: Tensors of the estimator: scores of the calibration, and training rows by which columns are weighed.
SCORES, SAMPLE = "calibration.scores", "importances.rows"
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
        "table": _table_state(estimator),
    }
    sample = getattr(estimator, "_sample", None)
    if sample is not None:
        tensors = {**tensors, SAMPLE: torch.as_tensor(sample)}
    return {"kind": "estimator", "estimator": own, "model": part}, tensors


def estimator_from_state(
    manifest: Mapping[str, Any], tensors: Mapping[str, Tensor], /, *, device: Any = None, **given: Any
) -> BaseGP:
    """The inverse of `estimator_state`; keywords as of `gp_from_state`."""
    own = entry(manifest, "estimator", dict)
    name = entry(own, "class", str)
    if name not in CLASSES:
        raise SavedModelError(f"it is of the unknown estimator {name!r}")
    scores, sample = tensors.get(SCORES), tensors.get(SAMPLE)
    rest = {key: value for key, value in tensors.items() if key not in (SCORES, SAMPLE)}
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
    estimator._sample = None if sample is None else _sample(sample, gp)
    _read_table_state(estimator, own.get("table"), gp)
    if gp.classes is not None:
        assert isinstance(estimator, GPClassifier)
        estimator._object_labels = entry(own, "object_labels", bool)
        estimator._name_classes(gp.classes)
    estimator.calibration_ = None if scores is None else _calibration(scores, gp)
    return estimator


def _table_state(estimator: BaseGP) -> dict[str, Any] | None:
    """The columns of the frame that an estimator was fitted to; None for an array."""
    schema, names = getattr(estimator, "schema_", None), getattr(estimator, "_table_names", None)
    if schema is None or names is None:
        return None
    named = hasattr(estimator, "feature_names_in_")
    return {"schema": schema.to_dict(), "names": list(names), "named": named}


def _read_table_state(estimator: BaseGP, state: Mapping[str, Any] | None, gp: Any) -> None:
    """Names and number of the columns of the table, and the schema where it was a frame."""
    if state is None:
        estimator.schema_, estimator._table_names = None, None
        estimator.n_features_in_ = len(gp.columns)
        if gp.column_names is not None:
            estimator.feature_names_in_ = np.array(gp.column_names, dtype=object)
        return
    names, schema = entries(state, "names", str), Schema.from_dict(entry(state, "schema", dict))
    if len(schema.names) != len(gp.columns) or not {c.name for c in schema.columns} <= set(names):
        raise SavedModelError(f"its table has {len(schema.names)} inputs, its model {len(gp.columns)}")
    estimator.schema_, estimator._table_names = schema, names
    estimator.n_features_in_ = len(names)
    if entry(state, "named", bool):
        estimator.feature_names_in_ = np.array(names, dtype=object)


def _sample(rows: Tensor, gp: Any) -> np.ndarray:
    values = rows.cpu().numpy()
    if values.dtype != np.float64 or values.ndim != 2 or values.shape[1] != len(gp.columns):
        raise SavedModelError(f"its sample of training rows has the shape {values.shape}")
    return values


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
