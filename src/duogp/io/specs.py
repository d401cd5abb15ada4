"""Objects among the settings as nested JSON, and back.

    {"class": "Scale", "kernel": {"class": "RBF", "dims": 2, "ard": true, "lengthscale": [0.7, 0.7]}, ...}

A class of this library stands in `CLASSES` under its saved name, with the arguments of its constructor. Every
other object (a user's kernel, a torch module, a function) is a place with a name, and with those arguments
where they are known:

    {"object": "kernel.0.kernel", "class": "MyKernel", "arguments": {"width": 2.0}}

`load` fills it by ``objects={"kernel.0.kernel": ...}``, or makes the object anew by ``classes=[MyKernel]``. A
name from a file is looked up in `CLASSES` and in ``classes``, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from duogp.errors import SavedModelError
from duogp.io.classes import CLASSES, NAMES, check_types, cost, parameters_of, variadic
from duogp.io.plain import entry
from duogp.numerics.parameters import Positive, Prior

PLAIN = (str, int, float, bool, type(None))
#: Numbers that the objects of a manifest may hold beside those in the file of tensors, and for each of those.
FREE_NUMBERS, NUMBERS_EACH = 2**22, 64
#: Numbers of an array among the arguments of a user's class.
LONGEST_ARGUMENT = 10_000


def constructor_arguments(thing: Any) -> dict[str, Any]:
    """The arguments, by name, with which an object is made again; a ``*argument`` as a list.

    ``thing.config()`` where the class has such a method; otherwise the attributes with the names of the
    constructor's arguments (scikit-learn's convention). A constructor of a subclass, newer than the
    ``config`` that it inherits, may have arguments of both kinds. A ValueError names an unknown argument.
    """
    cls = type(thing)
    known, out = {}, {}
    if callable(getattr(cls, "config", None)):
        known = dict(thing.config())
        if issubclass(_definer(cls, "config"), _definer(cls, "__init__")):
            return known
    for name, parameter in parameters_of(cls).items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_KEYWORD):
            raise ValueError(f"the constructor of {cls.__name__} takes {parameter}")
        if name not in known and not hasattr(thing, name):
            raise ValueError(f"{cls.__name__} has no attribute {name!r}, an argument of its constructor")
        value = known[name] if name in known else getattr(thing, name)
        out[name] = list(value) if name in variadic(cls) else value
    return out


def _definer(cls: type, name: str) -> type:
    return next(base for base in cls.__mro__ if name in vars(base))


def require_writable(cls: type, arguments: Mapping[str, Any]) -> None:
    """A ValueError for arguments of a user's class that JSON cannot hold."""
    for name, value in arguments.items():
        if not _is_writable(value):
            raise ValueError(
                f"argument {name!r} of {cls.__name__} is {type(value).__name__}, no value for JSON"
            )


def _is_writable(value: Any) -> bool:
    """Whether an argument of a user's class is plain, an array of moderate size, or an object to nest."""
    value = value() if isinstance(value, Positive) else value
    if isinstance(value, Tensor | np.ndarray):
        return math.prod(value.shape) <= LONGEST_ARGUMENT and _is_writable(value.tolist())
    if isinstance(value, list | tuple):
        return all(map(_is_writable, value))
    if isinstance(value, float | np.floating):
        return math.isfinite(value)
    return isinstance(value, (nn.Module, Prior, np.generic, *PLAIN))


def by_name(classes: Iterable[Any] | None) -> dict[str, Any]:
    """The ``classes`` of `load`, classes and functions, by name."""
    found: dict[str, Any] = {}
    if isinstance(classes, str | Mapping) or not isinstance(classes, Iterable | None):
        raise TypeError(f"classes must be a list of classes and functions, got {type(classes).__name__}")
    for item in classes or ():
        if not callable(item) or not hasattr(item, "__name__"):
            raise TypeError(f"classes must hold classes and functions, got {item!r}")
        if found.setdefault(item.__name__, item) is not item:
            raise ValueError(f"classes holds two different things named {item.__name__!r}")
    return found


class Writer:
    """Values as JSON; ``objects`` lists the places of objects that are not this library's."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self._named: dict[str, Any] = {}

    def write(self, value: Any, place: str) -> Any:
        if isinstance(value, Positive):
            value = value().detach()
        if isinstance(value, Tensor | np.ndarray | np.generic):
            value = value.tolist()
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, list | tuple):
            return [self.write(part, f"{place}.{i}") for i, part in enumerate(value)]
        name = NAMES.get(type(value))
        if name is None:
            return self._write_other(value, place)
        return {"class": name, **self._arguments(value, constructor_arguments(value), place)} | _frozen(value)

    def _arguments(self, value: Any, arguments: Mapping[str, Any], place: str) -> dict[str, Any]:
        star = variadic(type(value))
        return {n: self.write(v, place if n in star else f"{place}.{n}") for n, v in arguments.items()}

    def named(self, value: Any) -> dict[str, str]:
        """A user's class or function by its name, under which `load` finds it in ``classes``."""
        name = getattr(value, "__name__", "<lambda>")
        if not name.isidentifier():
            raise SavedModelError(f"{value!r} has no name to be saved by: make it a def or a class")
        if self._named.setdefault(name, value) is not value:
            raise SavedModelError(f"two parts of the model are named {name!r}, and saved by name: rename one")
        return {"named": name}

    def _write_other(self, value: Any, place: str) -> dict[str, Any]:
        # Priors and schedules are needed by training alone.
        needed = isinstance(value, nn.Module)
        listed = {"type": f"{type(value).__module__}.{type(value).__qualname__}", "required": needed}
        self.objects[place] = listed | {"repr": repr(value)[:500]}
        if not needed and not isinstance(value, Prior):
            return {"object": place}
        try:
            arguments = constructor_arguments(value)
            require_writable(type(value), arguments)
        except ValueError as error:
            if hasattr(value, "config"):
                raise SavedModelError(f"{type(value).__name__}.config() cannot be saved: {error}") from error
            self.objects[place]["no_class"] = str(error)
            return {"object": place}
        name = self.named(type(value))["named"]
        written = self._arguments(value, arguments, place)
        return {"object": place, "class": name, "arguments": written} | _frozen(value)


def _frozen(value: Any) -> dict[str, list[str]]:
    """The parameters of a module itself, or of its `Positive` parts, that are not learned."""
    if not isinstance(value, nn.Module):
        return {}
    own = [value, *(child for child in value.children() if isinstance(child, Positive))]
    wanted = {id(p) for part in own for p in part.parameters(recurse=False)}
    names = [name for name, p in value.named_parameters() if id(p) in wanted and not p.requires_grad]
    return {"frozen": names} if names else {}


class Reader:
    """The inverse of `Writer` for one part of a manifest.

    ``numbers``: how many the file of tensors holds. An object of this library may not be far larger; a kernel
    counts for each of the latent ``functions``.
    """

    def __init__(
        self,
        part: Mapping[str, Any],
        numbers: int,
        *,
        objects: Mapping[str, Any] | None = None,
        classes: Iterable[Any] | None = None,
    ) -> None:
        self.listed, self.given, self.functions = entry(part, "objects", dict), objects or {}, 1
        self.classes, self.budget = by_name(classes), FREE_NUMBERS + NUMBERS_EACH * numbers
        if unknown := [name for name in self.given if name not in self.listed]:
            needs = f"it has places for {', '.join(self.listed)}" if self.listed else "it needs none"
            raise SavedModelError(
                f"objects has {', '.join(map(repr, unknown))}, unknown to this model: {needs}"
            )
        if missing := dict(self._missing([part.get("method"), part.get("settings")])):
            raise SavedModelError(self._request(missing))

    def read(self, value: Any, place: str) -> Any:
        if isinstance(value, list):
            return [self.read(part, place) for part in value]
        if not isinstance(value, Mapping):
            return value
        if "named" in value:
            return self.classes[value["named"]]
        name: Any = value.get("class")
        if "object" in value:
            where = value["object"]
            if not isinstance(where, str) or where not in self.listed:
                raise SavedModelError(f"its manifest has an object in {place!r} that it does not list")
            if where in self.given or not self._has(name):
                return self.given.get(where)
            stored = entry(value, "arguments", dict)
            arguments = {a: self.read(v, f"{place}.{a}") for a, v in stored.items()}
            return self._make(self.classes[name], arguments, value, place)
        known = CLASSES.get(name) if isinstance(name, str) else None
        if known is None:
            raise SavedModelError(f"its manifest has the unknown class {name!r} in {place!r}")
        # An argument that is not there (an older version had none) is left to the constructor.
        arguments = {a: self.read(value[a], f"{place}.{a}") for a in parameters_of(known) if a in value}
        check_types(known, arguments, place)
        self.budget -= cost(known, arguments, self.functions)
        if self.budget < 0:
            raise SavedModelError(
                f"its manifest has a {name} in {place!r} far larger than the file of tensors"
            )
        return self._make(known, arguments, value, place)

    def _make(self, make: Any, arguments: dict[str, Any], value: Mapping[str, Any], place: str) -> Any:
        try:
            star = [n for n in variadic(make) if n in arguments]
            parts = [part for name in star for part in arguments.pop(name)]
            with torch.random.fork_rng(devices=()):  # the random numbers of the process stay as they are
                torch.default_generator.manual_seed(0)
                out = make(*parts, **arguments)
            for frozen in value.get("frozen", ()):
                out.get_parameter(frozen).requires_grad_(False)
        except Exception as error:
            name = value["class"]
            raise SavedModelError(f"its manifest has an impossible {name} in {place!r}: {error}") from error
        return out

    def _has(self, name: Any) -> bool:
        return isinstance(name, str) and name in self.classes

    def _missing(self, stored: Any) -> Iterator[tuple[str, str | None]]:
        """Places and names for which nothing was given, each with its class (None: not to be made anew)."""
        if isinstance(stored, list):
            for part in stored:
                yield from self._missing(part)
        if not isinstance(stored, Mapping) or stored.get("object") in [*self.given]:
            return
        name = stored.get("named", stored.get("class"))
        if ("object" in stored or "named" in stored) and not self._has(name):
            about = self.listed.get(str(stored.get("object")))
            if "named" in stored or (isinstance(about, Mapping) and about.get("required") is not False):
                yield str(stored.get("object", name)), None if name is None else str(name)
            return
        for part in stored.get("arguments", stored).values():
            yield from self._missing(part)

    def _request(self, missing: Mapping[str, str | None]) -> str:
        about = {place: self.listed.get(place, {}) for place in missing}
        shown = [f"{p!r} (it was a {a['type']})" if "type" in a else repr(p) for p, a in about.items()]
        classes = dict.fromkeys(name for name in missing.values() if name is not None)
        places = [f"{place!r}: ..." for place, name in missing.items() if name is None]
        keywords = [f"classes=[{', '.join(classes)}]"] if classes else []
        keywords += [f"objects={{{', '.join(places)}}}"] if places else []
        reasons = "; ".join(dict.fromkeys(a["no_class"] for a in about.values() if "no_class" in a))
        return (
            f"parts of the model are not duogp's own and must be handed over again: {', '.join(shown)}; pass "
            f"them to duogp.load(folder, {', '.join(keywords)}), objects made as they were for the fit"
            + (f" (not by classes: {reasons}; config() on a class returns its arguments)" if reasons else "")
        )
