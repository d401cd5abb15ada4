"""`Goals`: what a study optimises: objectives with their directions, and outcomes that must keep a limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from duogp.bo.candidates import Floats

MAXIMISE, MINIMISE = "maximise", "minimise"
_WORDS = {
    **dict.fromkeys(("maximise", "maximize", "max"), MAXIMISE),
    **dict.fromkeys(("minimise", "minimize", "min"), MINIMISE),
}
#: Name of the objective where none was given.
ONLY = "value"


def direction_of(word: Any) -> str:
    """The word "minimise" or "maximise", from any spelling of them."""
    try:
        return _WORDS[word.lower()]
    except (KeyError, AttributeError):
        raise ValueError(f"direction must be 'minimise' or 'maximise', got {word!r}") from None


@dataclass(frozen=True)
class Limit:
    """An outcome that must be at most ("<=") or at least (">=") a number."""

    sign: str
    bound: float

    @classmethod
    def of(cls, name: str, given: Any) -> Limit:
        """From itself or from text such as "<= 8"."""
        if isinstance(given, Limit):
            return given
        text = str(given).strip()
        try:
            found = cls(text[:2], float(text[2:]))
        except ValueError:
            found = cls("", math.nan)
        if found.sign not in ("<=", ">=") or not math.isfinite(found.bound):
            raise ValueError(f"constraint {name!r} must be text such as '<= 8' or '>= 0.5', got {given!r}")
        return found

    def excess(self, value: float) -> float:
        """How far a value is on the wrong side; feasible where it is at most 0."""
        return value - self.bound if self.sign == "<=" else self.bound - value

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}"


@dataclass(frozen=True)
class Goals:
    """Directions of the objectives by name, and limits of other outcomes by name."""

    directions: dict[str, str]
    limits: dict[str, Limit] = field(default_factory=dict)

    @classmethod
    def of(cls, direction: str | Mapping[str, str], constraints: Mapping[str, Any] | None = None) -> Goals:
        """From a word, or from words by the names of objectives; limits as text by the names of outcomes."""
        given = dict(direction) if isinstance(direction, Mapping) else {ONLY: direction}
        if not given:
            raise ValueError("direction must name at least one objective")
        directions = {name: direction_of(word) for name, word in given.items()}
        limits = {name: Limit.of(name, text) for name, text in (constraints or {}).items()}
        if both := sorted(directions.keys() & limits.keys()):
            raise ValueError(f"{', '.join(both)}: an outcome is an objective or a constraint, not both")
        return cls(directions, limits)

    @property
    def names(self) -> list[str]:
        """Outcomes in the order of a sequence of values: objectives, then constraints."""
        return [*self.directions, *self.limits]

    @property
    def signs(self) -> Floats:
        """Of each objective, [m]: 1 where larger is better, −1 where smaller is."""
        return np.array([1.0 if word == MAXIMISE else -1.0 for word in self.directions.values()])

    def values(self, told: Any) -> dict[str, float]:
        """Values by name, from a number, a sequence in the order of `names` or a mapping."""
        if isinstance(told, Mapping):
            if wrong := sorted(map(str, told.keys() ^ set(self.names))):
                raise ValueError(
                    f"values must be those of {', '.join(self.names)}; missing or unknown: {', '.join(wrong)}"
                )
            return {name: _number(name, told[name]) for name in self.names}
        several = isinstance(told, (Sequence, np.ndarray)) and not isinstance(told, str) and np.ndim(told) > 0
        values = list(told) if several else [told]
        if len(values) != len(self.names):
            raise ValueError(
                f"{len(self.names)} values are needed ({', '.join(self.names)}), got {len(values)}: {told!r}"
            )
        return {name: _number(name, value) for name, value in zip(self.names, values, strict=True)}

    def objectives(self, values: Mapping[str, float]) -> list[float]:
        """Objectives, larger being better."""
        return [float(s * values[name]) for s, name in zip(self.signs, self.directions, strict=True)]

    def excesses(self, values: Mapping[str, float]) -> list[float]:
        """Constraints: at most 0 where they hold."""
        return [limit.excess(values[name]) for name, limit in self.limits.items()]

    def is_feasible(self, values: Mapping[str, float]) -> bool:
        """Whether the values of a trial keep every limit."""
        return all(excess <= 0 for excess in self.excesses(values))

    def spec(self) -> dict[str, Any]:
        """The goals as JSON values."""
        return {
            "direction": dict(self.directions),
            "constraints": {name: f"{limit.sign} {limit.bound!r}" for name, limit in self.limits.items()},
        }


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"the value of {name!r} must be a number, got {value!r}") from None
