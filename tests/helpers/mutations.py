"""Files and values with something changed, as chance or somebody else may change them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

STRANGE: list[Any] = [None, True, -1, 0, 3, 2.5, 10**30, "", "inf", "../../x", [], [1], [[1.0]], {}, {"a": 1}]


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Bytes with a few changed, a part cut off, or a part written twice."""
    out = bytearray(data)
    for _ in range(rng.integers(0, 5)):
        out[rng.integers(len(out))] = rng.integers(256)
    where = int(rng.integers(len(out)))
    how = rng.random()
    if how < 0.3:
        del out[where:]
    elif how < 0.4:
        out[where:where] = out[: int(rng.integers(1, 40))]
    return bytes(out)


def edited(value: Any, rng: np.random.Generator) -> Any:
    """A value with one of its parts taken out, or replaced by something strange."""
    value = copy.deepcopy(value)
    part = value
    while True:
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        if not keys:
            return value
        key = keys[rng.integers(len(keys))]
        if isinstance(part[key], dict | list) and part[key] and rng.random() < 0.7:
            part = part[key]
            continue
        if rng.random() < 0.2:
            del part[key]
        else:
            part[key] = copy.deepcopy(STRANGE[rng.integers(len(STRANGE))])
        return value
