"""A fitted baseline (deep ensemble, MC dropout) as a part of a manifest and tensors, and back."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from duogp.baselines import KINDS, NeuralPredictor, NeuralSettings
from duogp.baselines.fit import make_network
from duogp.data.targets import Target
from duogp.errors import SavedModelError
from duogp.io.common import common_from_state, common_state, settings_from_state
from duogp.io.modules import layer_weights, module_state, restore_module
from duogp.io.plain import entry
from duogp.io.specs import Reader
from duogp.methods import Method


def neural_state(predictor: NeuralPredictor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A network baseline as a manifest and tensors."""
    described, tensors = module_state(predictor.network)
    model = {"class": type(predictor).__name__, "network": predictor.kind, **described}
    return {"kind": "neural", **common_state(predictor), "model": model}, tensors


def neural_from_state(
    part: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    method: Method | None,
    reader: Reader,
    device: str | torch.device | None,
) -> NeuralPredictor:
    """The inverse of `neural_state`."""
    settings = settings_from_state(NeuralSettings, part, reader, device)
    common = common_from_state(part)
    described = entry(part, "model", dict)
    kind = entry(described, "network", str)
    if kind not in KINDS or (method is not None and method.name != kind):
        raise SavedModelError(f"its network is {kind!r}, expected one of {', '.join(KINDS)}")
    labels, outputs = common["classes"], len(common["y_scaler"].scale)
    target = Target(np.zeros((0, outputs)), common["single_output"], settings.target, labels)
    if (settings.target == "classes") != (labels is not None):
        raise SavedModelError("its manifest has class labels without a likelihood of classes, or the reverse")
    inputs = int(common["columns"].sum())
    seen = outputs if labels is None else len(labels)
    members, widths = _sizes(kind, settings, tensors, inputs, seen)
    try:
        network = make_network(kind, replace(settings, widths=widths), inputs, 0, target, [0] * members)
    except Exception as error:  # settings and tensors of different models
        raise SavedModelError(f"the networks cannot be built as they were: {error}") from error
    for parameter in network.parameters():
        parameter.data = parameter.data.to(settings.torch_dtype)
    network.to(settings.torch_device)
    restore_module(network, described, tensors)
    return NeuralPredictor(network, kind=kind, settings=settings, method=method, **common)


def _sizes(
    kind: str, settings: NeuralSettings, tensors: Mapping[str, Tensor], inputs: int, outputs: int
) -> tuple[int, list[int]]:
    """Members and hidden widths, read from the tensors."""
    weights = layer_weights(tensors, "net")
    chain = itertools.pairwise(weights)
    if (
        len(weights) < 2
        or any(weight.dim() != 3 for weight in weights)
        or any(a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1] for a, b in chain)
        or weights[0].shape[1] != inputs
        or not outputs <= weights[-1].shape[2] <= 2 * outputs
    ):
        raise SavedModelError("its tensors hold no networks of the inputs and outputs of its manifest")
    members, widths = weights[0].shape[0], [weight.shape[2] for weight in weights[:-1]]
    if kind == "deep-ensemble":
        fits = members == settings.members
    else:
        masks = [tensors.get(f"mask{i}") for i in range(len(widths))]
        shapes = [None if mask is None else tuple(mask.shape) for mask in masks]
        fits = members == 1 and shapes == [(settings.passes, 1, width) for width in widths]
    if not fits:
        raise SavedModelError("its manifest and its tensors have different numbers of networks")
    return members, widths
