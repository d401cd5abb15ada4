"""`save` and `load`: fitted models and estimators as folders, by kind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from duogp.baselines import NeuralPredictor
from duogp.errors import SavedModelError
from duogp.io.folder import OWN_FILES, read_folder, write_folder
from duogp.io.models import gp_from_state, gp_state
from duogp.io.specs import by_name
from duogp.methods.settings import Settings
from duogp.posterior.gp import GP
from duogp.posterior.stack import Stack

#: The file that `duogp fit` writes beside a model: the columns of its table.
(TABLE,) = OWN_FILES


class Loader(Protocol):
    """From a manifest and tensors to the saved object; the keyword ``classes`` comes where `load` has it."""

    def __call__(
        self,
        manifest: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        /,
        *,
        device: str | torch.device | None = None,
        objects: Mapping[str, Any] | None = None,
    ) -> Any: ...


def _estimator_from_state(manifest: Mapping[str, Any], tensors: Mapping[str, Tensor], /, **given: Any) -> Any:
    from duogp.io.estimators import estimator_from_state  # scikit-learn, for its estimators alone

    return estimator_from_state(manifest, tensors, **given)


KINDS: dict[str, Loader] = {
    "gp": gp_from_state,
    "stack": gp_from_state,
    "neural": gp_from_state,
    "estimator": _estimator_from_state,
}
OURS = tuple(KINDS)


def register_kind(name: str, loader: Loader) -> None:
    """Have `load` read folders of another kind with a function of yours."""
    if name in OURS:
        raise ValueError(f"the kind {name!r} is taken")
    KINDS[name] = loader


def save(model: Any, folder: str | os.PathLike[str], files: Mapping[str, bytes] | None = None) -> Path:
    """Save a fitted model or estimator as a folder; `duogp.load` brings it back.

    Kernels, likelihoods and prior means of your own are written by the name of the class and the arguments of
    its constructor: attributes of the same names, or what a method ``config()`` returns. ``files``: others
    that belong to the model, written with it.

        duogp.save(model, "model")
        again = duogp.load("model")
    """
    if isinstance(model, GP | Stack | NeuralPredictor):
        return write_folder(folder, *gp_state(model), files)
    from duogp.io.estimators import estimator_state

    return write_folder(folder, *estimator_state(model), files)


def load(
    folder: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    objects: Mapping[str, Any] | None = None,
    classes: Iterable[Any] | None = None,
) -> Any:
    """A saved model, which predicts as the one that was saved.

    ``device``: where it shall be; None: where it was, if available. A model of the command line takes tables
    like that of its fit (``schema_``). A folder that is damaged, was changed or is no saved model raises
    `SavedModelError`.

    Nothing in a folder is executed, so what you wrote yourself must be given. ``classes``: classes (kernels,
    likelihoods, prior means, bases) and functions (objectives) that were part of the fit; an object is made
    anew from the arguments that the folder has. ``objects``: instead of a class, an object of the same shape,
    by its place in the manifest, such as "kernel" or "extractor"; the error without it names the place.
    Learned numbers come from the folder in both cases.

        model = duogp.load("model", classes=[MyKernel, my_objective])
        model = duogp.load("model", objects={"extractor": MyNetwork(width=64)})
    """
    if device is not None:
        _ = Settings(device=str(device)).torch_device  # the caller's mistake, not the folder's
    if objects is not None and not isinstance(objects, Mapping):
        raise TypeError(f"objects must be a mapping from names to objects, got {type(objects).__name__}")
    given: dict[str, Any] = {"device": device, "objects": objects}
    if classes is not None:
        given["classes"] = list(by_name(classes).values())
    manifest, tensors = read_folder(folder)
    try:
        kind = manifest["kind"]
        if kind not in KINDS:
            raise SavedModelError(f"it is of the unknown kind {kind!r}")
        model = KINDS[kind](manifest, tensors, **given)
        if kind == "estimator" and getattr(model, "schema_", None) is None:
            model.schema_ = _schema_beside(Path(folder))
        return model
    except SavedModelError as error:
        raise SavedModelError(f"{folder}: {error}") from error
    except Exception as error:
        message = f"{folder}: it is not what a saved model must be ({type(error).__name__}: {error})"
        raise SavedModelError(message) from error


def _schema_beside(folder: Path) -> Any:
    """The schema of the table that `duogp fit` learned from; None where there is none that can be read."""
    from duogp.tables import Schema

    try:
        return Schema.from_dict(json.loads((folder / TABLE).read_text(encoding="utf-8"))["schema"])
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ):  # the model is whole without it
        return None
