"""The part of a manifest that all fitted models share: method, settings, scales, columns, labels, history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
import torch

from duogp.baselines import NeuralPredictor, NeuralSettings
from duogp.errors import SavedModelError
from duogp.io import plain
from duogp.io.plain import entries, entry
from duogp.io.specs import Reader, Writer
from duogp.methods import METHODS, Method
from duogp.methods.settings import Settings
from duogp.posterior.gp import GP

SettingsT = TypeVar("SettingsT", Settings, NeuralSettings)


def common_state(model: GP | NeuralPredictor) -> dict[str, Any]:
    """The shared part of a manifest."""
    writer = Writer()
    return {
        "method": _method_state(model.method, writer),
        "settings": {
            f.name: writer.write(getattr(model.settings, f.name), f.name) for f in fields(model.settings)
        },
        "objects": writer.objects,
        "inputs": {
            "names": model.column_names,
            "used": [bool(used) for used in model.columns],
            "scaler": model.x_scaler.to_dict(),
        },
        "outputs": {
            "single": bool(model.single_output),
            "scaler": model.y_scaler.to_dict(),
            "classes": plain.labels_to_plain(model.classes),
        },
        "history": plain.history_to_plain(model.history),
    }


def common_from_state(part: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of the constructor of every fitted model, all but its method and settings."""
    inputs, outputs = entry(part, "inputs", dict), entry(part, "outputs", dict)
    used = np.array(entries(inputs, "used", bool), dtype=bool)
    names = entry(inputs, "names", list, type(None))
    if names is not None and (len(names) != len(used) or not all(isinstance(n, str) for n in names)):
        raise SavedModelError(f"its manifest must have a name for each of {len(used)} columns, or none")
    x_scaler, y_scaler = plain.scaler_of(inputs, "scaler"), plain.scaler_of(outputs, "scaler")
    if len(x_scaler.scale) != used.sum() or not used.any():
        raise SavedModelError(f"its manifest scales {len(x_scaler.scale)} columns and uses {used.sum()}")
    classes = plain.labels_from_plain(entry(outputs, "classes", dict, type(None)))
    single = entry(outputs, "single", bool)
    count = len(y_scaler.scale)
    if count < 1 or (count > 1 and (single or classes is not None)):
        raise SavedModelError(f"its manifest has {count} outputs where there must be one")
    return {
        "columns": used,
        "x_scaler": x_scaler,
        "y_scaler": y_scaler,
        "single_output": single,
        "history": plain.history_from_plain(entry(part, "history", dict)),
        "column_names": names,
        "classes": classes,
    }


def settings_from_state(
    kind: type[SettingsT], part: Mapping[str, Any], reader: Reader, device: str | torch.device | None
) -> SettingsT:
    """The settings of a fit with the device asked for; names that this version does not know are left out.

    ``device`` None: its own, or the default where that is not available.
    """
    saved = entry(part, "settings", dict)
    known = {f.name: reader.read(saved[f.name], f.name) for f in fields(kind) if f.name in saved}
    for name, value in saved.items():  # a function that was not given again: the default
        if isinstance(value, Mapping) and "object" in value and known.get(name) is None:
            known.pop(name, None)
    try:
        settings = kind(**known)
    except (TypeError, ValueError) as error:
        raise SavedModelError(f"its manifest has settings that are not possible: {error}") from error
    if device is not None:
        return replace(settings, device=str(device))
    try:
        _ = settings.torch_device
    except ValueError:
        return replace(settings, device=None)
    return settings


def _method_state(method: Method | None, writer: Writer) -> Any:
    """A method of the registry by its name, any other by its fields, classes and functions by theirs."""
    if method is None or (method.name in METHODS and METHODS[method.name] == method):
        return None if method is None else method.name
    values = {f.name: getattr(method, f.name) for f in fields(method)}
    return {n: writer.named(v) if callable(v) else writer.write(v, f"method.{n}") for n, v in values.items()}


def method_from_state(part: Mapping[str, Any], reader: Reader) -> Method | None:
    """The method of a manifest, by name or, of one's own, by its fields; None for a stack."""
    stored = entry(part, "method", str, dict, type(None))
    if isinstance(stored, dict):
        known = {f.name: stored[f.name] for f in fields(Method) if f.name in stored}
        try:
            return Method(**{n: _tuples(reader.read(v, f"method.{n}")) for n, v in known.items()})
        except (TypeError, ValueError) as error:
            raise SavedModelError(f"its manifest has an impossible method: {error}") from error
    if stored is not None and stored not in METHODS:
        raise SavedModelError(f"its method {stored!r} is unknown to this version of duogp")
    return None if stored is None else METHODS[stored]


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
