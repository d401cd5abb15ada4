"""A fitted model, a GP or a baseline, as a part of a manifest and tensors, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from duogp.baselines import NeuralPredictor
from duogp.errors import SavedModelError
from duogp.io.baselines import neural_from_state, neural_state
from duogp.io.common import method_from_state
from duogp.io.gaussian import gaussian_from_state, gaussian_state
from duogp.io.learned import learned_from_state, learned_state
from duogp.io.modules import count_numbers
from duogp.io.plain import entries, entry, history_from_plain, history_to_plain
from duogp.io.specs import Reader
from duogp.numerics.lognormal import LogScale
from duogp.numerics.rounding import Rounding
from duogp.posterior.gp import GP
from duogp.posterior.laws import LADDER, ClassLaw, MixtureLaw
from duogp.posterior.learned import LearnedMean, LearnedOnly
from duogp.posterior.stack import Stack

STACK = "stack"
#: Arrays of a mixture law.
MIXTURE = ("weights", "log_scale", "power", "mean_weights", "shared")
#: In the place of the shift of a log scale, where there is none.
NOT_ON_LOGS = -1.0


def gp_state(gp: GP | Stack | NeuralPredictor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A fitted model as a part of a manifest (JSON values) and tensors."""
    if isinstance(gp, NeuralPredictor):
        return neural_state(gp)
    if isinstance(gp, Stack):
        return stack_state(gp)
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
) -> GP | Stack | NeuralPredictor:
    """The inverse of `gp_state`; a `SavedModelError` where the two do not describe a model."""
    kind = entry(part, "kind", str)
    if kind == STACK:
        return stack_from_state(part, tensors, device=device, objects=objects, classes=classes)
    if kind not in ("gp", "neural"):
        raise SavedModelError(f"its model is of the kind {kind!r}, expected 'gp' or 'neural'")
    reader = Reader(part, count_numbers(tensors), objects=objects, classes=classes)
    method = method_from_state(part, reader)
    read = gaussian_from_state if kind == "gp" else neural_from_state
    return read(part, tensors, method, reader, device)


# -- stacks --------------------------------------------------------------------------------------------------


def stack_state(stack: Stack) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Its members one after the other, each with its own tensors, and its law as tensors."""
    parts: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    for k, member in enumerate(stack.members):
        if isinstance(member, LearnedOnly):
            described, own = learned_state(member.learned)
            part: dict[str, Any] = {"kind": "learned", "learned_mean": described}
        else:
            part, own = gp_state(member)
        parts.append(part)
        tensors |= {f"member.{k}.{name}": value for name, value in own.items()}
    tensors |= {f"law.{name}": torch.as_tensor(np.array(value)) for name, value in _law_arrays(stack).items()}
    excess = None
    if stack.excess is not None:
        excess, own = learned_state(LearnedMean(stack.excess))
        tensors |= {f"excess.{name}": value for name, value in own.items()}
    return {
        "kind": STACK,
        "labels": list(stack.labels),
        "members": parts,
        "law": _kind_of(stack.law),
        "excess": excess,
        "history": history_to_plain(stack.history),
    }, tensors


def _kind_of(law: Any) -> str:
    return "classes" if isinstance(law, ClassLaw) else "mixture" if isinstance(law, list) else "density"


def _law_arrays(stack: Stack) -> dict[str, Any]:
    law = stack.law
    if isinstance(law, ClassLaw):
        return {n: getattr(law, n) for n in ("weights", "temperature", "frequencies")}
    if isinstance(law, list):
        logs = np.array([NOT_ON_LOGS if own.logs is None else own.logs.shift for own in law])
        found = {n: np.stack([getattr(own, n) for own in law]) for n in MIXTURE} | {"logs": logs}
        return found | _grid_arrays([own.rounding for own in law])
    return {"weights": law}


def _grid_arrays(roundings: list[Rounding | None]) -> dict[str, Any]:
    """The grids of all outputs, one after the other; an output without one has no values."""
    if not any(roundings):
        return {}
    return {
        "grid_sizes": np.array([0 if own is None else len(own.values) for own in roundings]),
        "grid_values": np.concatenate([np.empty(0) if own is None else own.values for own in roundings]),
        "grid_off": np.array([0.0 if own is None else own.off for own in roundings]),
    }


def _roundings(arrays: dict[str, Any], outputs: int) -> list[Rounding | None]:
    """The inverse of `_grid_arrays`, which takes its entries out of ``arrays``."""
    names = ("grid_sizes", "grid_values", "grid_off")
    if not arrays.keys() & set(names):  # also models saved before there were any
        return [None] * outputs
    sizes, values, off = (arrays.pop(name, np.empty(0)) for name in names)
    if not (
        sizes.shape == off.shape == (outputs,)
        and values.ndim == 1
        and np.isfinite(values).all()
        and ((sizes == 0) | (sizes >= 2)).all()
        and sizes.sum() == len(values)
        and ((sizes == 0) | ((off > 0) & (off < 1))).all()
    ):
        raise SavedModelError("the law of its stack has an impossible grid of targets")
    grids = np.split(values, np.cumsum(sizes.astype(int))[:-1])
    if any((np.diff(grid) <= 0).any() for grid in grids):
        raise SavedModelError("the law of its stack has an impossible grid of targets")
    return [Rounding(grid, float(p)) if len(grid) else None for grid, p in zip(grids, off, strict=True)]


def stack_from_state(
    part: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    device: str | torch.device | None = None,
    objects: Mapping[str, Any] | None = None,
    classes: Iterable[Any] | None = None,
) -> Stack:
    """The inverse of `stack_state`."""
    labels, parts = entries(part, "labels", str), entries(part, "members", dict)
    if not parts or len(labels) != len(parts):
        raise SavedModelError("its stack has no members, or not a label for each")
    members: list[Any] = []
    given: dict[str, Any] = {"device": device, "objects": objects, "classes": classes}
    for k, own in enumerate(parts):
        found = _under(tensors, f"member.{k}.")
        if entry(own, "kind", str) == "gp":
            members.append(gp_from_state(own, found, **given))
        elif own["kind"] == "learned":
            mean = learned_from_state(own.get("learned_mean"), found)
            if mean is None:
                raise SavedModelError("a member of its stack has no model")
            members.append(mean)
        else:
            raise SavedModelError(f"a member of its stack is of the unknown kind {own['kind']!r}")
    first = next((m for m in members if isinstance(m, GP)), None)
    if first is None:
        raise SavedModelError("its stack has no GP")
    whole = [m if isinstance(m, GP) else LearnedOnly(first, m) for m in members]
    law = _law(entry(part, "law", str), _under(tensors, "law."), len(members), first)
    mean = learned_from_state(part.get("excess"), _under(tensors, "excess."))
    history = history_from_plain(entry(part, "history", dict))
    if history.validation_nll_y is None:  # once the one number of a stack was in the units of y
        history.validation_nll_y, history.validation_nll = history.validation_nll, None
    excess = None if mean is None else mean.fit
    return Stack(whole, law, labels=labels, settings=first.settings, history=history, excess=excess)


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _law(kind: str, tensors: Mapping[str, Tensor], members: int, gp: GP) -> Any:
    """A law whose arrays have the sizes of the members, and are weights and positive numbers."""
    arrays = {name: value.double().cpu().numpy() for name, value in tensors.items()}
    if kind == "mixture" and "shared" in arrays:  # models saved before there was a log scale have none
        arrays.setdefault("logs", np.full(arrays["shared"].shape, NOT_ON_LOGS))
    outputs, labels = len(gp.y_scaler.scale), 0 if gp.classes is None else len(gp.classes)
    roundings = _roundings(arrays, outputs) if kind == "mixture" else []
    shapes = {
        "mixture": {
            "weights": (outputs, members, len(LADDER)),
            "log_scale": (outputs, members),
            "power": (outputs, members),
            "mean_weights": (outputs, members),
            "shared": (outputs,),
            "logs": (outputs,),
        },
        "classes": {"weights": (members + 1,), "temperature": (members,), "frequencies": (labels,)},
        "density": {"weights": (members,)},
    }.get(kind)
    if shapes is None or {name: a.shape for name, a in arrays.items()} != shapes:
        raise SavedModelError("the law of its stack does not fit its members")
    if not all(np.isfinite(a).all() for a in arrays.values()) or (arrays["weights"] < 0).any():
        raise SavedModelError("the law of its stack has impossible weights")
    if kind == "classes":
        if not (arrays["temperature"] > 0).all():
            raise SavedModelError("the law of its stack has impossible temperatures")
        return ClassLaw(**arrays)
    if kind == "density":
        return arrays["weights"]
    scales = [None if shift < 0 else LogScale(float(shift)) for shift in arrays["logs"]]
    return [
        MixtureLaw(**{n: arrays[n][p] for n in MIXTURE}, logs=scale, rounding=roundings[p])
        for p, scale in enumerate(scales)
    ]
