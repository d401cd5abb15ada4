"""Every public name has a docstring, its own or that of the method it overrides.

Modules, classes and functions are ruff's part (D100, D101, D103 in pyproject.toml). Here are the methods and
properties of the classes that users meet, and inheritance counts: `Kernel.forward` describes `RBF.forward`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import duogp

#: Packages and modules whose names are public.
PUBLIC = [
    *("duogp", "duogp.sklearn", "duogp.kernels", "duogp.likelihoods", "duogp.means", "duogp.bases"),
    *(
        "duogp.variational",
        "duogp.objectives",
        "duogp.metrics",
        "duogp.methods",
        "duogp.data",
        "duogp.tables",
    ),
    *("duogp.training", "duogp.online", "duogp.baselines", "duogp.plots", "duogp.io", "duogp.export"),
    *("duogp.serving", "duogp.reports", "duogp.bench", "duogp.bo", "duogp.bo.spaces", "duogp.bo.studies"),
    "duogp.bo.tasks",
]


def public_names(module: Any) -> list[str]:
    """Of ``__all__``, else of what the module defines itself."""
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__]
    return list(getattr(module, "__all__", [n for n in own if not n.startswith("_")]))


def has_docstring(cls: type, name: str) -> bool:
    for home in cls.__mro__:
        raw = vars(home).get(name)
        inner = getattr(raw, "fget", None) or getattr(raw, "__func__", None) or getattr(raw, "func", None)
        if getattr(inner or raw, "__doc__", None):
            return True
    return False


def methods_of(cls: type) -> Iterator[str]:
    """Public methods and properties that this library defines."""
    kinds = (property, classmethod, staticmethod, functools.cached_property)
    for name in dir(cls):
        home = next((c for c in cls.__mro__ if name in vars(c)), None)
        if name.startswith("_") or home is None or not home.__module__.startswith("duogp"):
            continue
        if inspect.isfunction(vars(home)[name]) or isinstance(vars(home)[name], kinds):
            yield name


@pytest.mark.parametrize("place", PUBLIC)
def test_public_names_have_docstrings(place):
    module = importlib.import_module(place)
    assert module.__doc__
    missing = []
    for name in public_names(module):
        value = getattr(module, name)
        if inspect.isclass(value):
            own = value.__dict__.get("__doc__") or ""
            if not own or own.startswith(f"{value.__name__}("):  # what a dataclass or a NamedTuple makes up
                missing.append(name)
            missing += [
                f"{name}.{method}" for method in methods_of(value) if not has_docstring(value, method)
            ]
        elif inspect.isroutine(value) and not inspect.getdoc(value):
            missing.append(name)
    assert not missing


#: Objects whose docstrings have an example, indented by four beyond the text.
EXAMPLES = [
    *("duogp.fit", "duogp.GPRegressor", "duogp.GPClassifier", "duogp.OnlineGP", "duogp.save", "duogp.report"),
    "duogp.kernels",
]


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    package, _, last = name.rpartition(".")
    found = getattr(importlib.import_module(package), last)
    lines = inspect.getdoc(found).splitlines()
    code = "\n".join(line[4:] for line in lines if line.startswith("    "))
    assert code
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    labels = np.where(X[:, 0] > 0, "a", "b")
    given = {
        "X": X,
        "y": X[:, 0],
        "labels": labels,
        "X_new": X[:5],
        "y_new": X[:5, 0],
        "x": torch.zeros(4, 3),
    }
    given |= {
        "duogp": duogp,
        **{each: getattr(duogp, each) for each in ("GPRegressor", "GPClassifier", "OnlineGP")},
    }
    given |= {each: getattr(duogp.kernels, each) for each in ("Scale", "RBF", "Linear")}
    if "model." in code or "(model," in code:
        given["model"] = duogp.GPRegressor("svgp", num_inducing=10, epochs=2, random_state=0).fit(X, X[:, 0])
    exec(code, given)
