"""Saving and loading by kind: which function reads which folder."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from duogp.baselines import NeuralPredictor
from duogp.io.errors import SavedModelError
from duogp.io.folder import read_folder, write_folder
from duogp.io.gaussian import gaussian_from_state, gaussian_state
from duogp.io.neural import neural_from_state, neural_state
from duogp.io.plain import entry
from duogp.methods.settings import Settings
from duogp.posterior.gp import GP

#: What `duogp fit` writes beside a model: the columns of its table.
TABLE = "table.json"


class Loader(Protocol):
    """From a manifest and tensors to what was saved."""

    def __call__(
        self,
        manifest: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        /,
        *,
        device: str | torch.device | None = None,
        objects: Mapping[str, Any] | None = None,
    ) -> Any: ...


_LOADERS: dict[str, Loader] = {"gp": gaussian_from_state, "neural": neural_from_state}
#: Modules of this library that register a kind when they are imported.
HOMES = {"estimator": "duogp.sklearn"}


def register_kind(name: str, loader: Loader) -> None:
    """Have `load` read folders of that kind with a function of yours."""
    if name in ("gp", "neural") and _LOADERS[name] is not loader:
        raise ValueError(f"the kind {name!r} is taken")
    _LOADERS[name] = loader


def gp_state(gp: GP | NeuralPredictor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A fitted model as a part of a manifest (JSON values) and tensors."""
    if isinstance(gp, NeuralPredictor):
        return neural_state(gp)
    if not isinstance(gp, GP):
        hint = "; save its .gp" if isinstance(getattr(gp, "gp", None), GP) else ""
        raise TypeError(f"a fitted model is needed, got {type(gp).__name__}{hint}")
    return gaussian_state(gp)


def gp_from_state(
    part: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    device: str | torch.device | None = None,
    objects: Mapping[str, Any] | None = None,
) -> GP | NeuralPredictor:
    """The inverse of `gp_state`; a `SavedModelError` where the two do not describe a model."""
    kind = entry(part, "kind", str)
    if kind not in ("gp", "neural"):
        raise SavedModelError(f"its model is of the kind {kind!r}, expected 'gp' or 'neural'")
    return _LOADERS[kind](part, tensors, device=device, objects=objects)


def _is_estimator(model: Any) -> bool:
    from duogp.sklearn.base import BaseGP

    return isinstance(model, BaseGP)


def save(model: Any, folder: str | os.PathLike[str]) -> Path:
    """Save a fitted model or estimator as a folder; `duogp.load` brings it back."""
    if _is_estimator(model):
        return Path(model.save(folder))
    part, tensors = gp_state(model)
    return write_folder(folder, part, tensors)


def load(
    folder: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    objects: Mapping[str, Any] | None = None,
) -> Any:
    """Load a saved model; its predictions are those of the one that was saved.

    ``device``: where it shall live; None: where it lived, if that is here. ``objects``: modules of yours that
    were part of the fit, by the names in the manifest, e.g. ``{"extractor": MyNet()}``; their weights come
    from the folder. A model of the command line takes tables as the one it was fitted on (``schema_``). A
    folder that is damaged, changed or not one of ours raises `SavedModelError`.
    """
    if device is not None:
        _ = Settings(device=str(device)).torch_device  # the user's mistake, not the folder's
    if objects is not None and not isinstance(objects, Mapping):
        raise TypeError(f"objects must be a mapping from names to objects, got {type(objects).__name__}")
    manifest, tensors = read_folder(folder)
    try:
        model = _loader_of(manifest["kind"])(manifest, tensors, device=device, objects=objects)
        if _is_estimator(model):
            model.schema_ = _schema_beside(Path(folder))
        return model
    except SavedModelError as error:
        raise SavedModelError(f"{folder}: {error}") from error
    except Exception as error:
        message = f"{folder}: it is not what a saved model must be ({type(error).__name__}: {error})"
        raise SavedModelError(message) from error


def _schema_beside(folder: Path) -> Any:
    """Of the table that `duogp fit` learned from; None where there is none that can be read."""
    from duogp.tables import Schema

    try:
        return Schema.from_dict(json.loads((folder / TABLE).read_text(encoding="utf-8"))["schema"])
    except (OSError, ValueError, KeyError, TypeError):  # the model is whole without it
        return None


def _loader_of(kind: str) -> Loader:
    if kind not in _LOADERS and kind in HOMES:
        importlib.import_module(HOMES[kind])  # a name of our table, never of the file
    if kind not in _LOADERS:
        raise SavedModelError(f"it is of the unknown kind {kind!r}")
    return _LOADERS[kind]
