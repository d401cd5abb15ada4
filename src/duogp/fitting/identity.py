"""What makes a fit this fit: data, method, settings and versions as short texts, for its checkpoints.

Two fits with one identity take the same steps. Not part of it is what changes no number: how much is printed,
and the time that training may take.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from duogp._version import __version__
from duogp.fitting.dataset import Dataset
from duogp.methods.registry import Method
from duogp.methods.settings import Settings, asdict_shallow

#: Settings that change no number.
IDLE = {"verbose", "time_budget"}
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def identity_of(data: Dataset, method: str | Method, settings: Settings) -> dict[str, str]:
    """Texts by name; where two fits differ, so does one of them."""
    out = {
        "duogp": __version__,
        "torch": torch.__version__,
        "method": _method_text(method),
        "device": settings.torch_device.type,
        "X": text_of(data.X),
        "y": text_of(data.target.values),
        "classes": text_of(data.target.classes),
        "noise": text_of(data.noise),
        "sample_weight": text_of(data.weights),
        "rows": text_of(data.rows),
        "validation rows": text_of(data.validation_rows),
        "seeds": text_of(data.seeds),
        "column names": text_of(data.names),
    }
    own = asdict_shallow(settings)
    return out | {name: text_of(own[name]) for name in sorted(own) if name not in IDLE | {"device"}}


def _method_text(method: str | Method) -> str:
    if isinstance(method, str):
        return method.lower()
    return f"{method.name} {_digest(text_of(method).encode())}"


def text_of(value: Any) -> str:
    """A text that is the same in every process; arrays and modules by the checksum of their numbers."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)} {_checksum(value)}"
    if isinstance(value, torch.Tensor):
        return text_of(value.detach().cpu().numpy())
    if isinstance(value, torch.nn.Module):
        numbers = {name: text_of(t) for name, t in value.state_dict().items()}
        return f"{ADDRESS.sub('', repr(value))} {_digest(repr(numbers).encode())}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {text_of(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return "[" + ", ".join(map(text_of, value)) + "]"
    if (code := getattr(value, "__code__", None)) is not None:
        name = f"{value.__module__}.{value.__qualname__}"
        return f"{name} {_digest(code.co_code + ADDRESS.sub('', repr(code.co_consts)).encode())}"
    return ADDRESS.sub("", repr(value))


def _checksum(array: NDArray[Any]) -> str:
    if array.dtype == object:
        return _digest("\0".join(map(repr, array.ravel().tolist())).encode())
    plain: Any = np.ascontiguousarray(array).view(np.uint8)  # no copy
    return _digest(plain.ravel() if array.size else b"")


def _digest(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
