"""Keywords of `duogp.fit` from the constructor parameters of an estimator, checked when `fit` is called."""

from __future__ import annotations

import difflib
import functools
import inspect
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, ParamSpec

import numpy as np

from duogp.methods.settings import Settings
from duogp.tables.learning import Reading

#: Settings that have a constructor parameter of another name or meaning.
TRANSLATED = {"backend": "compile", "random_state": "random_state", "verbose": "verbose"}
#: Every random state fits into this many bits, as scikit-learn's do.
SEED_BITS = 31

P = ParamSpec("P")

DEFAULTS = Settings()


def fit_keywords(params: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Parameters that differ from the defaults of `Settings`; methods warn of settings that they ignore."""
    default = DEFAULTS
    shared = [f.name for f in fields(Settings) if f.name in params and f.name not in TRANSLATED]
    # A mean that is asked for, "constant" too, is the only one that "auto" tries.
    chosen = {
        name: params[name]
        for name in shared
        if (name == "mean" and params[name] is not None)
        or (name != "mean" and not _same(params[name], getattr(default, name)))
    }
    chosen["random_state"] = seed
    if params["verbose"]:
        chosen["verbose"] = True
    backend = _backend(params["compile"], params["device"])
    if backend != default.backend:
        chosen["backend"] = backend
    others = params["settings"]
    if not isinstance(others, Mapping | None):
        raise TypeError(f"settings must be a dict of duogp.Settings, got {type(others).__name__}")
    for name in others or ():
        own = name if name in shared else TRANSLATED.get(name)
        if own is not None:
            raise ValueError(f"settings holds {name!r}, for which there is the parameter {own!r}")
    return {**chosen, **(others or {})}


def naming_settings(init: Callable[P, None]) -> Callable[P, None]:
    """A constructor that says, of a keyword that it does not have, where such a setting goes."""
    known = inspect.signature(init).parameters

    @functools.wraps(init)
    def checked(*args: P.args, **given: P.kwargs) -> None:
        for name in given:
            if name not in known:
                raise misplaced(name, list(known))
        init(*args, **given)

    return checked


def misplaced(name: str, known: Sequence[str]) -> TypeError:
    """The error for a keyword that an estimator does not have."""
    own = TRANSLATED.get(name)
    if own is not None:
        return TypeError(f"{name!r} is a setting of duogp.fit; here it is the parameter {own!r}")
    if name in {f.name for f in fields(Reading)}:
        return TypeError(f"{name!r} says how cells are read: reading={{{name!r}: ...}}")
    names = [f.name for f in fields(Settings)]
    if name in names:
        return TypeError(
            f"{name!r} is no parameter of its own: settings={{{name!r}: ...}} hands it to duogp.fit"
        )
    near = difflib.get_close_matches(name, [*known, *names], 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    if near and near[0] not in known:
        hint = f"; did you mean settings={{{near[0]!r}: ...}}?"
    return TypeError(f"unknown parameter {name!r}{hint}")


def time_left(budget: Any, spent: float) -> Any:
    """What reading the rows leaves of a budget, at least a tenth of it; what is no time is left alone.

    Scales, inducing points and a last look at the rows take about as long again as reading did.
    """
    if isinstance(budget, Real) and not isinstance(budget, bool) and float(budget) > 0:
        return max(float(budget) - 2 * spent, 0.1 * float(budget))
    return budget


def seed_of(random_state: Any) -> int:
    """As in scikit-learn: None is a new seed each time, an integer itself, a RandomState is drawn from."""
    if random_state is None:
        return secrets.randbits(SEED_BITS)
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**SEED_BITS - 1))
    if isinstance(random_state, Integral) and not isinstance(random_state, bool | np.bool_):
        seed = int(random_state)
        if not 0 <= seed < 2**63:
            raise ValueError(f"random_state must be from 0 to 2**63 - 1, got {seed}")
        return seed
    raise ValueError(
        f"random_state must be None, an integer or a numpy RandomState, got {type(random_state).__name__}"
    )


def _same(value: Any, default: Any) -> bool:
    """Equal and of one type; a kernel, a list or an array is never a default."""
    return value is default or (type(value) is type(default) and bool(value == default))


def _backend(compiled: Any, device: Any) -> str:
    if isinstance(compiled, str) and compiled == "auto":
        return "auto"
    if compiled is False:
        return "eager"
    if compiled is True:  # without a GPU there are no graphs to capture, and steps stay eager
        return "graph" if Settings(device=device).torch_device.type == "cuda" else "auto"
    raise ValueError(f"compile must be 'auto', True or False, got {compiled!r}")
