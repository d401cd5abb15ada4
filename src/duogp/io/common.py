"""What every fitted model has, whatever stands inside: settings, scales, columns, labels, a history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from duogp.baselines.options import NeuralSettings
from duogp.data.scaling import Scaler
from duogp.io.errors import SavedModelError
from duogp.io.plain import (
    entries,
    entry,
    history_from_plain,
    history_to_plain,
    labels_from_plain,
    labels_to_plain,
    scaler_of,
)
from duogp.io.specs import Reader, Writer
from duogp.methods import METHODS, Method
from duogp.methods.settings import Settings
from duogp.training.history import History

SettingsT = TypeVar("SettingsT", Settings, NeuralSettings)


class Fitted(Protocol):
    """A `GP` or a `NeuralPredictor`."""

    method: Any
    settings: Any
    columns: NDArray[np.bool_]
    x_scaler: Scaler
    y_scaler: Scaler
    single_output: bool
    history: History
    column_names: list[str] | None
    classes: NDArray | None


def common_state(model: Fitted) -> dict[str, Any]:
    """The readable part of a manifest."""
    writer = Writer()
    chosen = {f.name: writer.write(getattr(model.settings, f.name), f.name) for f in fields(model.settings)}
    return {
        "method": None if model.method is None else _registered(model.method).name,
        "settings": chosen,
        "objects": writer.objects,
        "inputs": {
            "names": model.column_names,
            "used": [bool(used) for used in model.columns],
            "scaler": model.x_scaler.to_dict(),
        },
        "outputs": {
            "single": bool(model.single_output),
            "scaler": model.y_scaler.to_dict(),
            "classes": labels_to_plain(model.classes),
        },
        "history": history_to_plain(model.history),
    }


def common_from_state(part: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that every fitted model is made with, but for its settings and its method."""
    inputs, outputs = entry(part, "inputs", dict), entry(part, "outputs", dict)
    used = np.array(entries(inputs, "used", bool), dtype=bool)
    names = entry(inputs, "names", list, type(None))
    if names is not None and (len(names) != len(used) or not all(isinstance(n, str) for n in names)):
        raise SavedModelError(
            f"its manifest must have a name for each of {len(used)} columns, or none at all"
        )
    x_scaler, y_scaler = scaler_of(inputs, "scaler"), scaler_of(outputs, "scaler")
    if len(x_scaler.scale) != used.sum() or not used.any():
        raise SavedModelError(f"its manifest scales {len(x_scaler.scale)} columns and uses {used.sum()}")
    classes = labels_from_plain(entry(outputs, "classes", dict, type(None)))
    single = entry(outputs, "single", bool)
    count = len(y_scaler.scale)
    if count < 1 or (count > 1 and (single or classes is not None)):
        raise SavedModelError(f"its manifest has {count} outputs where there must be one")
    return {
        "columns": used,
        "x_scaler": x_scaler,
        "y_scaler": y_scaler,
        "single_output": single,
        "history": history_from_plain(entry(part, "history", dict)),
        "column_names": names,
        "classes": classes,
    }


def settings_from_state(
    kind: type[SettingsT],
    part: Mapping[str, Any],
    given: Mapping[str, Any] | None,
    numbers: int,
    functions: int = 1,
) -> SettingsT:
    """The settings of a fit; names that this version does not know are left out.

    ``numbers`` in the tensors and latent ``functions``: how large objects among the settings may be.
    """
    reader = Reader(entry(part, "objects", dict), given or {}, numbers, functions)
    saved = entry(part, "settings", dict)
    known = {f.name: reader.read(saved[f.name], f.name) for f in fields(kind) if f.name in saved}
    for name, value in saved.items():  # a function that nobody handed over: the default will do
        if isinstance(value, Mapping) and "object" in value and known.get(name) is None:
            known.pop(name, None)
    try:
        return kind(**known)
    except (TypeError, ValueError) as error:
        raise SavedModelError(f"its manifest has settings that are not possible: {error}") from error


def on_device(settings: SettingsT, device: str | torch.device | None) -> SettingsT:
    """The settings on the device asked for; otherwise on theirs, or where that is not there, as in a fit."""
    if device is not None:
        settings = replace(settings, device=str(device))
        _ = settings.torch_device  # an impossible one speaks up here
        return settings
    try:
        _ = settings.torch_device
    except ValueError:
        return replace(settings, device=None)
    return settings


def method_from_state(part: Mapping[str, Any]) -> Method | None:
    name = entry(part, "method", str, type(None))
    if name is None:
        return None
    if name not in METHODS:
        raise SavedModelError(f"its method {name!r} is unknown to this version of duogp")
    return METHODS[name]


def _registered(method: Method) -> Method:
    if method.name not in METHODS or METHODS[method.name] != method:
        raise SavedModelError(f"the method {method.name!r} is not in the registry: its model cannot be saved")
    return method
