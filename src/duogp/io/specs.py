"""Objects among the settings as nested JSON, and back.

    {"class": "Scale", "kernel": {"class": "RBF", "dims": 2, "ard": true, "lengthscale": [0.7, 0.7]}, ...}

A class of this library stands in `CLASSES` under its saved name. Every other object (a user's kernel, a torch
module, a function) is a place with a name, and with its constructor's arguments where they are known:

    {"object": "kernel.0.kernel", "class": "MyKernel", "arguments": {"width": 2.0}}

`load` fills it by ``objects={"kernel.0.kernel": ...}``, or makes the object anew by ``classes=[MyKernel]``. A
name from a file is looked up in `CLASSES` and in ``classes``, and nowhere else.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from duogp.errors import SavedModelError
from duogp.io.classes import CLASSES, CONSTRUCTORS, NAMES, TYPES
from duogp.io.plain import entry
from duogp.numerics.parameters import Positive, Prior

PLAIN = (str, int, float, bool, type(None))
#: Numbers that the objects of a manifest may hold beside those in the file of tensors, and for each of those.
FREE_NUMBERS, NUMBERS_EACH = 2**22, 64
#: Numbers of an array among the arguments of a user's class.
LONGEST_ARGUMENT = 10_000


def constructor_arguments(thing: Any) -> dict[str, Any]:
    """The arguments, by name, with which an object of a user's class is made again.

    ``thing.config()`` where the class has such a method; those of a constructor inherited from a class of
    ours; otherwise the attributes with the names of the constructor's arguments (scikit-learn's convention).
    A ValueError says which argument is unknown or no value for JSON.
    """
    cls = type(thing)
    makers: list[Any] = [getattr(base, "__init__") for base in cls.__mro__]  # noqa: B009
    own, inherited = makers[0], next(CONSTRUCTORS[maker] for maker in makers if maker in CONSTRUCTORS)
    if callable(getattr(cls, "config", None)):
        out = dict(thing.config())
    elif own in CONSTRUCTORS:
        out = {name: CONSTRUCTORS[own].argument(thing, name) for name in CONSTRUCTORS[own].types}
    else:
        out = {}
        for name, parameter in itertools.islice(inspect.signature(own).parameters.items(), 1, None):
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ValueError(f"the constructor of {cls.__name__} takes {parameter}")
            if name in inherited.read:
                out[name] = inherited.read[name](thing)
            elif hasattr(thing, name):
                out[name] = getattr(thing, name)
            else:
                raise ValueError(f"{cls.__name__} has no attribute {name!r}, an argument of its constructor")
    for name, value in out.items():
        if not _is_writable(value):
            raise ValueError(
                f"argument {name!r} of {cls.__name__} is {type(value).__name__}, no value for JSON"
            )
    return out


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
        known, out = CLASSES[name], {"class": name}
        for argument, kind in known.types.items():
            inner = place if kind == "kernels" else f"{place}.{argument}"
            out[argument] = self.write(known.argument(value, argument), inner)
        return out | _frozen(value)

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
        except ValueError as error:
            if hasattr(value, "config"):
                raise SavedModelError(f"{type(value).__name__}.config() cannot be saved: {error}") from error
            self.objects[place]["no_class"] = str(error)
            return {"object": place}
        name = self.named(type(value))["named"]
        written = {argument: self.write(v, f"{place}.{argument}") for argument, v in arguments.items()}
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
        arguments = {a: self.read(value[a], f"{place}.{a}") for a in known.types if a in value}
        for argument, found in arguments.items():
            kind = known.types[argument]
            if not TYPES[kind][0](found):
                raise SavedModelError(f"its manifest has a value for '{place}.{argument}' that is no {kind}")

        def make(**arguments: Any) -> Any:
            self.budget -= known.cost(arguments) * (self.functions if "dims" in arguments else 1)
            if self.budget < 0:
                raise ValueError("it would be far larger than the file of tensors")
            return (known.make or known.cls)(**arguments)

        return self._make(make, arguments, value, place)

    def _make(
        self, make: Callable[..., Any], arguments: dict[str, Any], value: Mapping[str, Any], place: str
    ) -> Any:
        try:
            out = make(**arguments)
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
