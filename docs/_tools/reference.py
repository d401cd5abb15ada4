"""The pages of the API reference: what a line ``%api MODULE`` in a page becomes.

The names are those of ``__all__``, or the public functions and classes that the module defines, so that a
page cannot miss a new one.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import duogp

ENTRY = re.compile(r"^%api (?P<module>[\w.]+)(?: (?P<names>[\w ]+))?$", re.M)
#: Members of these classes are those of torch, scikit-learn or Python, not ours.
FOREIGN = "Module,BaseEstimator,RegressorMixin,ClassifierMixin,tuple,dict,Model,Protocol,Warning"
#: Names of the root that have a page of their own.
ELSEWHERE = {"bases", "kernels", "likelihoods", "metrics", "objectives", "__version__"}


def names_of(module: str) -> list[str]:
    """The public names of a module."""
    found = importlib.import_module(module)
    if (names := getattr(found, "__all__", None)) is not None:
        return [name for name in names if module != "duogp" or name not in ELSEWHERE]
    return [
        name
        for name, value in vars(found).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module
    ]


def expand(app: Any, docname: str, source: list[str]) -> None:
    """Sphinx' event `source-read`."""
    source[0] = ENTRY.sub(lambda m: block(m["module"], (m["names"] or "").split()), source[0])


def block(module: str, names: list[str]) -> str:
    """A table of the names and an entry for each, as a block of reStructuredText."""
    names = names or names_of(module)
    found = importlib.import_module(module)
    described = [name for name in names if kind_of(getattr(found, name)) != "data"]
    lines = [f".. currentmodule:: {module}", "", ".. autosummary::", ""]
    lines += [f"   {name}" for name in described]
    for name in names:
        kind = kind_of(getattr(found, name))
        lines += ["", f".. auto{kind}:: {name}"]
        if kind == "class":
            lines += ["   :members:", f"   :inherited-members: {FOREIGN}"]
        if kind == "data":
            lines += ["   :no-value:"]
        if module != "duogp" and name in duogp.__all__:
            lines += ["   :no-index:"]  # it is described among the names of the root
    return "```{eval-rst}\n" + "\n".join(lines) + "\n```"


def kind_of(value: Any) -> str:
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if callable(value) and hasattr(value, "__name__") else "data"
