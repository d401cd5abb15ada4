"""The tensors of a module, and the properties of its parameters that are no tensors.

A module with two parents (the noise of a ridge q(u) is the likelihood's) is stored once, under its first
name. Stored are the tensors of a state dict and fixed draws, which are not part of it: predictions depend on
them, and another version of torch may draw others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from duogp.errors import SavedModelError
from duogp.io.plain import entries, entry
from duogp.numerics.parameters import Positive

#: Buffers that are stored although they are no part of a state dict.
FIXED = ("fixed_draws",)


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, every one once."""
    seen: set[int] = set()
    for prefix, part in module.named_modules():
        left_out = part._non_persistent_buffers_set - set(FIXED)
        for name, value in (*part._parameters.items(), *part._buffers.items()):
            if value is not None and name not in left_out and id(value) not in seen:
                seen.add(id(value))
                yield f"{prefix}.{name}" if prefix else name, value


def module_state(module: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Entries of a manifest, and the tensors."""
    tensors = dict(named_tensors(module))
    parameters = {name for name, value in tensors.items() if isinstance(value, nn.Parameter)}
    infinite = [name for name, value in tensors.items() if not _is_finite(value)]
    if bad := [name for name in infinite if name in parameters]:
        raise SavedModelError(f"parameters that are not finite are not saved: {', '.join(bad[:5])}")
    described = {
        "positive": {
            name: {"transform": part.transform, "floor": part.floor}
            for name, part in module.named_modules()
            if isinstance(part, Positive)
        },
        "frozen": [name for name in tensors if name in parameters and not tensors[name].requires_grad],
        "infinite": infinite,  # bounds of constraints in a user's module
    }
    return described, {name: value.detach() for name, value in tensors.items()}


@torch.no_grad()
def restore_module(module: nn.Module, described: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write saved tensors into a module of the same structure; an error where anything does not fit."""
    own = dict(named_tensors(module))
    if missing := sorted(own.keys() - tensors.keys()):
        raise SavedModelError(f"the model has parts that were not saved: {', '.join(missing[:5])}")
    if strange := sorted(tensors.keys() - own.keys()):
        raise SavedModelError(f"what was saved has no place in the model: {', '.join(strange[:5])}")
    infinite = entries(described, "infinite", str)
    for name, target in own.items():
        value = tensors[name]
        if (value.shape, value.dtype) != (target.shape, target.dtype):
            raise SavedModelError(
                f"{name!r} was saved as {value.dtype} {list(value.shape)}, and the model has "
                f"{target.dtype} {list(target.shape)} there"
            )
        if not _is_finite(value) and (isinstance(target, nn.Parameter) or name not in infinite):
            raise SavedModelError(f"{name!r} holds values that are not finite")
    for name, target in own.items():
        target.copy_(tensors[name])
    frozen = set(entries(described, "frozen", str))
    for name, target in own.items():
        if isinstance(target, nn.Parameter):
            target.requires_grad_(name not in frozen)
    _restore_positive(module, entry(described, "positive", dict))


def _restore_positive(module: nn.Module, described: Mapping[str, Any]) -> None:
    """Floors and transforms as they were saved, whatever today's defaults are."""
    for name, part in module.named_modules():
        if isinstance(part, Positive) and name in described:
            transform = entry(described[name], "transform", str)
            floor = entry(described[name], "floor", int, float)
            if transform not in ("softplus", "exp") or not 0 <= floor < math.inf:
                raise SavedModelError(f"its manifest has an impossible transform or floor of {name!r}")
            part.transform, part.floor = transform, float(floor)


def _is_finite(value: Tensor) -> bool:
    return not value.is_floating_point() or bool(value.isfinite().all())


def layer_weights(tensors: Mapping[str, Tensor], name: str) -> list[Tensor]:
    """The weights of the layers of a network of ours, in order."""
    out: list[Tensor] = []
    while (weight := tensors.get(f"{name}.layers.{len(out)}.weight")) is not None:
        out.append(weight)
    return out


def count_numbers(tensors: Mapping[str, Tensor]) -> int:
    """How many numbers tensors hold together."""
    return sum(value.numel() for value in tensors.values())
