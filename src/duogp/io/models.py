"""A fitted model, a GP or a baseline, as a part of a manifest and tensors, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from duogp.baselines import NeuralPredictor
from duogp.errors import SavedModelError
from duogp.io.baselines import neural_from_state, neural_state
from duogp.io.common import method_from_state
from duogp.io.gaussian import gaussian_from_state, gaussian_state
from duogp.io.modules import count_numbers
from duogp.io.plain import entry
from duogp.io.specs import Reader
from duogp.posterior.gp import GP


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
    classes: Iterable[Any] | None = None,
) -> GP | NeuralPredictor:
    """The inverse of `gp_state`; a `SavedModelError` where the two do not describe a model."""
    kind = entry(part, "kind", str)
    if kind not in ("gp", "neural"):
        raise SavedModelError(f"its model is of the kind {kind!r}, expected 'gp' or 'neural'")
    reader = Reader(part, count_numbers(tensors), objects=objects, classes=classes)
    method = method_from_state(part, reader)
    read = gaussian_from_state if kind == "gp" else neural_from_state
    return read(part, tensors, method, reader, device)
