"""A cross-fitted prior mean as a part of a manifest and tensors: its trees as arrays, never as pickles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.errors import SavedModelError
from duogp.io.plain import entries, entry
from duogp.means.affine import Affine
from duogp.means.crossfit import CrossFit, Goal
from duogp.means.forest import Forest, LogAverage
from duogp.posterior.learned import LearnedMean

PREFIX = "learned."
#: Of bagged trees beside the folds, and of their shares.
BAGGED, SHARE = PREFIX + "bagged.", PREFIX + "share"
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
    if mean.fit.bagged is not None and mean.fit.share is not None:
        tensors |= {
            f"{BAGGED}{p}.{name}": values.cpu()
            for p, form in enumerate(mean.fit.bagged)
            for name, values in form.arrays().items()
        }
        tensors[SHARE] = torch.as_tensor(mean.fit.share)
    if mean.unseen is not None:
        tensors[f"{PREFIX}unseen"] = torch.as_tensor(mean.unseen)
    goal = mean.fit.goal
    described: dict[str, Any] = {
        "target": goal.kind,
        "classes": goal.classes,
        "outputs": goal.outputs,
        "inputs": mean.fit.inputs,
        "depths": [[form.depth if isinstance(form, Forest) else AFFINE for form in fold] for fold in forms],
    }
    if mean.fit.bagged is not None:
        described["bagged"] = [form.depth for form in mean.fit.bagged]
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
            models[-1].append(_form(f"{PREFIX}{k}.{p}.", depth, inputs, tensors))
    if not models or len({len(fold) for fold in models}) != 1:
        raise SavedModelError("its prior mean has no folds, or folds of different sizes")
    widths = {sum(form.outputs for form in fold) for fold in models}
    if widths != {goal.columns}:
        raise SavedModelError(f"the trees of its prior mean have not {goal.columns} outputs")
    unseen = tensors.get(f"{PREFIX}unseen")
    if unseen is not None and tuple(unseen.shape) != (goal.columns,):
        raise SavedModelError("the spread of its prior mean has another number of outputs")
    values = None if unseen is None else np.asarray(unseen.double().cpu().numpy())
    bagged, share = _bagged(part, goal, inputs, tensors)
    return LearnedMean(CrossFit(models, goal, inputs, bagged=bagged, share=share), values)


def _form(prefix: str, depth: Any, inputs: int, tensors: Mapping[str, Tensor]) -> Forest | Affine:
    """The model whose tensors have this prefix; of probabilities where its leaves hold several numbers."""
    own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    try:
        if depth == AFFINE:
            return Affine.from_arrays(own, inputs)
        kind = LogAverage if "value" in own and own["value"].dim() == 2 else Forest
        return kind.from_arrays(own, int(depth), inputs)
    except (TypeError, ValueError) as error:
        raise SavedModelError(f"the trees of its prior mean are damaged: {error}") from error


def _bagged(
    part: Any, goal: Goal, inputs: int, tensors: Mapping[str, Tensor]
) -> tuple[list[Forest] | None, NDArray[np.float64] | None]:
    """Bagged trees beside the folds and their shares; None and None where there are none."""
    if "bagged" not in part:
        return None, None
    forms = [_form(f"{BAGGED}{p}.", d, inputs, tensors) for p, d in enumerate(entries(part, "bagged", int))]
    share = tensors.get(SHARE)
    good = (
        share is not None
        and tuple(share.shape) == (goal.columns,)
        and bool(((share >= 0) & (share <= 1)).all())
    )
    trees = [form for form in forms if type(form) is Forest and form.outputs == 1]
    if share is None or not good or len(trees) != len(forms) or len(trees) != goal.columns:
        raise SavedModelError("the bagged trees of its prior mean do not fit its outputs")
    return trees, np.asarray(share.double().cpu().numpy())
