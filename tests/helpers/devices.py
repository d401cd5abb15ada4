"""The device that a test runs on: the CPU, unless the test takes the fixture `device`.

Random numbers are drawn on the CPU and then placed, so that a test sees the same ones on every device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

Placeable = TypeVar("Placeable", Tensor, nn.Module)

_current = torch.device("cpu")


def current() -> torch.device:
    return _current


@contextmanager
def use(device: torch.device) -> Iterator[None]:
    global _current
    before, _current = _current, device
    try:
        yield
    finally:
        _current = before


def placed(what: Placeable) -> Placeable:
    """The tensor or module on the current device."""
    return what.to(_current)


def eye(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64, device=_current)


def environment_without_gpu() -> dict[str, str]:
    """Variables of a child process that sees no CUDA device: its fits go to the CPU, as those here do."""
    return os.environ | {"CUDA_VISIBLE_DEVICES": ""}
