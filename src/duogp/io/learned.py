"""A cross-fitted prior mean as a part of a manifest and tensors: its trees as arrays, never as pickles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from duogp.errors import SavedModelError
from duogp.io.plain import entries, entry
from duogp.means.affine import Affine
from duogp.means.crossfit import CrossFit, Goal
from duogp.means.forest import Forest
from duogp.posterior.learned import LearnedMean

PREFIX = "learned."
#: Stands for the depth of a model that is an affine map.
AFFINE = -1


def learned_state(mean: LearnedMean | None) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """An entry of a manifest (None without such a mean) and its tensors."""
    if mean is None:
        return None, {}
    forms = mean.fit.arrays()
    if forms is None:
        kind = type(mean.fit.models[0][0]).__name__
        raise SavedModelError(
            f"the prior mean was learned by {kind}, which has no form that can be read without running code "
            "from the file: use mean='trees' or a HistGradientBoosting model without categorical_features, "
            "or keep the whole estimator in a format of your own"
        )
    tensors = {
        f"{PREFIX}{k}.{p}.{name}": values.cpu()
        for k, fold in enumerate(forms)
        for p, form in enumerate(fold)
        for name, values in form.arrays().items()
    }
    if mean.unseen is not None:
        tensors[f"{PREFIX}unseen"] = torch.as_tensor(mean.unseen)
    goal = mean.fit.goal
    described = {
        "target": goal.kind,
        "classes": goal.classes,
        "outputs": goal.outputs,
        "inputs": mean.fit.inputs,
        "depths": [[form.depth if isinstance(form, Forest) else AFFINE for form in fold] for fold in forms],
    }
    return described, tensors


def learned_from_state(part: Any, tensors: Mapping[str, Tensor]) -> LearnedMean | None:
    """The inverse of `learned_state`; ``tensors`` are all those of the folder."""
    if part is None:
        return None
    classes = entry(part, "classes", int, type(None))
    goal = Goal(entry(part, "target", str), classes, entry(part, "outputs", int))
    inputs, depths = entry(part, "inputs", int), entries(part, "depths", list)
    models: list[list[Any]] = []
    for k, fold in enumerate(depths):
        models.append([])
        for p, depth in enumerate(fold):
            prefix = f"{PREFIX}{k}.{p}."
            own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            try:
                if depth == AFFINE:
                    models[-1].append(Affine.from_arrays(own, inputs))
                else:
                    models[-1].append(Forest.from_arrays(own, int(depth), inputs))
            except (TypeError, ValueError) as error:
                raise SavedModelError(f"the trees of its prior mean are damaged: {error}") from error
    if not models or len({len(fold) for fold in models}) != 1:
        raise SavedModelError("its prior mean has no folds, or folds of different sizes")
    widths = {sum(form.outputs for form in fold) for fold in models}
    if widths != {goal.columns}:
        raise SavedModelError(f"the trees of its prior mean have not {goal.columns} outputs")
    unseen = tensors.get(f"{PREFIX}unseen")
    if unseen is not None and tuple(unseen.shape) != (goal.columns,):
        raise SavedModelError("the spread of its prior mean has another number of outputs")
    values = None if unseen is None else np.asarray(unseen.double().cpu().numpy())
    return LearnedMean(CrossFit(models, goal, inputs), values)
