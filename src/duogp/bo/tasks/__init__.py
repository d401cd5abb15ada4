"""Functions to optimise, by name.

    task = make("hartmann6")
    task(X)  # points [n, 6] of the unit cube to values [n], larger is better

Three small ones are part of this package. Others come from installed distributions, by the entry point group
``duogp.tasks``: a name, and the class or function that returns the `Task`. The three tasks of the
decoupled-conditionals paper are such a distribution, duogp-tasks.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from duogp.bo.tasks.base import Floats, Task, at_least, box
from duogp.bo.tasks.small import Ackley, Hartmann6, Push

__all__ = ["Floats", "Task", "at_least", "box", "make", "names"]

_OWN: dict[str, Callable[..., Task]] = {"ackley": Ackley, "hartmann6": Hartmann6, "push": Push}
#: Tasks of duogp-tasks, and what to install for each.
_PAPER = {
    "lunar": "duogp-tasks[lunar]",
    "ranolazine": "duogp-tasks[molecules]",
    "rover": "duogp-tasks",
    "rover-small": "duogp-tasks",
}


def names() -> list[str]:
    """Names of the installed tasks, in alphabetical order."""
    return sorted({*_OWN, *_installed()})


def make(name: str, **options: Any) -> Task:
    """The task called `name`. Options are those of its class, such as `seed`, `noise` and `terrains`."""
    others = _installed()
    known = sorted({*_OWN, *_PAPER, *others})
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise ValueError(f"task: {name!r} is not one of {', '.join(known)}{hint}")
    if name not in _OWN and name not in others:
        raise ModuleNotFoundError(f"the task {name!r} is not installed: pip install '{_PAPER[name]}'")
    build: Callable[..., Task] = _OWN[name] if name in _OWN else others[name].load()
    accepted = inspect.signature(build).parameters
    if unknown := sorted(options.keys() - accepted.keys()):
        raise ValueError(f"task {name!r} has no option {', '.join(unknown)}; it knows {', '.join(accepted)}")
    return build(**options)


def _installed() -> dict[str, EntryPoint]:
    """Tasks of other distributions."""
    return {point.name: point for point in entry_points(group="duogp.tasks")}
