"""Functions to optimise: the three tasks of the decoupled-conditionals paper and smaller ones for tests.

task = make("rover")
task(X)  # points [n, 60] of the unit cube to values [n], larger is better
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from duogp.bo.tasks.base import Task

#: Name: module and class, imported when asked for, because some need optional packages.
_TASKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ackley": ("classics", "Ackley", {}),
    "hartmann6": ("classics", "Hartmann6", {}),
    "lunar": ("lunar", "Lunar", {}),
    "push": ("push", "Push", {}),
    "ranolazine": ("ranolazine", "RanolazineMPO", {}),
    "rover": ("rover", "Rover", {}),
    "rover-small": ("rover", "Rover", {"size": "small"}),
}

__all__ = ["Task", "make", "names"]


def names() -> list[str]:
    """Every task that `make` knows."""
    return list(_TASKS)


def make(name: str, **options: Any) -> Task:
    """The task called `name`. Options are those of its class: `seed` for all, `noise`, `terrains`, …"""
    if name not in _TASKS:
        close = difflib.get_close_matches(name, _TASKS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise ValueError(f"task: {name!r} is not one of {', '.join(_TASKS)}{hint}")
    module, kind, own = _TASKS[name]
    build: Callable[..., Task] = getattr(import_module(f"duogp.bo.tasks.{module}"), kind)
    known = [option for option in inspect.signature(build).parameters if option not in own]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise ValueError(f"task {name!r} has no option {', '.join(unknown)}; it knows {', '.join(known)}")
    return build(**own, **options)
