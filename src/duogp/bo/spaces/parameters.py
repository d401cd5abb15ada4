"""Parameters of a search space: real, integer and categorical ones, and linear constraints between them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from duogp.bo.candidates import Floats

Value: TypeAlias = float | int | str | bool | None
#: Values of other parameters for which a parameter is active: one value or several for each.
When: TypeAlias = Mapping[str, "Value | Sequence[Value]"]

#: Integers beyond this have no exact float.
LARGEST_INTEGER = 2**53


@dataclass(frozen=True)
class Parameter(ABC):
    """One coordinate of a search space."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Columns of the cube."""

    @property
    @abstractmethod
    def levels(self) -> int | None:
        """Number of values; None for a real parameter."""

    @abstractmethod
    def quantile(self, u: Floats) -> Floats:
        """Raw values of uniform numbers u [n] in [0, 1]."""

    @abstractmethod
    def columns(self, raw: Floats) -> Floats:
        """Columns [n, width] of raw values [n], NaN (not active) included."""

    @abstractmethod
    def read(self, columns: Floats) -> Floats:
        """Raw values [n], always valid, of columns [n, width]."""

    @abstractmethod
    def raw(self, name: str, value: Any) -> float:
        """A value as a raw one; an error where it is not a value of this parameter."""

    @abstractmethod
    def value(self, raw: float) -> Value:
        """A raw value as the user's."""

    @abstractmethod
    def check(self, name: str) -> None:
        """An error that names the parameter where its definition is impossible."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """The definition as JSON values, without the condition."""


@dataclass(frozen=True)
class Numeric(Parameter):
    """A number between two bounds, both included; uniform, or with ``log`` uniform in its logarithm."""

    low: float
    high: float
    log: bool = False
    when: When | None = None

    @property
    def width(self) -> int:
        return 1

    @property
    def edges(self) -> tuple[float, float]:
        """The ends of the cube's column, in the user's units."""
        return self.low, self.high

    def quantile(self, u: Floats) -> Floats:
        low, high = self._scaled(np.array(self.edges))
        return self._valid(self._unscaled(low + (high - low) * np.clip(u, 0.0, 1.0)))

    def columns(self, raw: Floats) -> Floats:
        low, high = self._scaled(np.array(self.edges))
        u = (self._scaled(raw) - low) / (high - low)
        return np.where(np.isnan(raw), 0.5, np.clip(u, 0.0, 1.0))[:, None]

    def read(self, columns: Floats) -> Floats:
        return self.quantile(columns[:, 0])

    def check(self, name: str) -> None:
        for side in (self.low, self.high):
            if isinstance(side, bool) or not isinstance(side, (int, float, np.integer, np.floating)):
                raise TypeError(f"parameter {name!r}: bounds must be numbers, got {side!r}")
            if not math.isfinite(side):
                raise ValueError(f"parameter {name!r}: bounds must be finite, got {side!r}")
        if not self.low < self.high:
            hint = "; leave a parameter with one value out of the space" if self.low == self.high else ""
            raise ValueError(
                f"parameter {name!r}: the lower bound must be below the upper one, got {self.low!r} and "
                f"{self.high!r}{hint}"
            )
        if self.log and self.low <= 0:
            raise ValueError(f"parameter {name!r}: a log scale needs positive bounds, got {self.low!r}")
        low, high = self._scaled(np.array(self.edges))
        if not (math.isfinite(float(high) - float(low)) and high > low):
            raise ValueError(
                f"parameter {name!r}: the bounds {self.low!r} and {self.high!r} are too close or "
                "too far apart for double precision"
            )

    def spec(self) -> dict[str, Any]:
        return {"type": self.kind, "low": self.low, "high": self.high} | ({"log": True} if self.log else {})

    @property
    @abstractmethod
    def kind(self) -> str:
        """Name of the type in text."""

    @abstractmethod
    def _valid(self, values: Floats) -> Floats:
        """The nearest valid values."""

    def _scaled(self, values: Floats) -> Floats:
        return np.log(values) if self.log else values.astype(np.float64)

    def _unscaled(self, values: Floats) -> Floats:
        return np.exp(values) if self.log else values

    def _number(self, name: str, value: Any) -> float:
        is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
        if not is_number:
            raise TypeError(f"parameter {name!r} must be a number, got {value!r}")
        if not self.low <= value <= self.high:
            raise ValueError(
                f"parameter {name!r} must lie between {self.low!r} and {self.high!r}, got {value!r}"
            )
        return float(value)


@dataclass(frozen=True)
class Real(Numeric):
    """A real number in [low, high]."""

    kind = "real"

    @property
    def levels(self) -> int | None:
        return None

    def raw(self, name: str, value: Any) -> float:
        return self._number(name, value)

    def value(self, raw: float) -> Value:
        return float(raw)

    def _valid(self, values: Floats) -> Floats:
        return np.clip(values, self.low, self.high)


@dataclass(frozen=True)
class Integer(Numeric):
    """An integer in {low, …, high}."""

    kind = "int"

    @property
    def levels(self) -> int | None:
        return int(self.high) - int(self.low) + 1

    @property
    def edges(self) -> tuple[float, float]:
        return self.low - 0.5, self.high + 0.5

    def check(self, name: str) -> None:
        for side in (self.low, self.high):
            if isinstance(side, float) and not side.is_integer():
                raise ValueError(f"parameter {name!r}: bounds of an integer must be integers, got {side!r}")
        super().check(name)
        if max(abs(self.low), abs(self.high)) > LARGEST_INTEGER:
            raise ValueError(f"parameter {name!r}: integers beyond 2^53 are not exact, got {self.spec()}")

    def raw(self, name: str, value: Any) -> float:
        number = self._number(name, value)
        if not number.is_integer():
            raise ValueError(f"parameter {name!r} must be an integer, got {value!r}")
        return number

    def value(self, raw: float) -> Value:
        return int(raw)

    def spec(self) -> dict[str, Any]:
        return super().spec() | {"low": int(self.low), "high": int(self.high)}

    def _valid(self, values: Floats) -> Floats:
        return np.clip(np.rint(values), self.low, self.high)


@dataclass(frozen=True)
class Categorical(Parameter):
    """One of several values without an order: strings, or any other JSON scalars."""

    categories: Sequence[Value]
    when: When | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.categories, str):
            object.__setattr__(self, "categories", tuple(self.categories))

    @property
    def width(self) -> int:
        return len(self.categories)

    @property
    def levels(self) -> int | None:
        return len(self.categories)

    def quantile(self, u: Floats) -> Floats:
        k = len(self.categories)
        return np.clip(np.floor(k * np.asarray(u)), 0, k - 1)

    def columns(self, raw: Floats) -> Floats:
        k = len(self.categories)
        out = (raw[:, None] == np.arange(k)).astype(np.float64)
        out[np.isnan(raw)] = 1.0 / k
        return out

    def read(self, columns: Floats) -> Floats:
        return columns.argmax(1).astype(np.float64)

    def raw(self, name: str, value: Any) -> float:
        for i, category in enumerate(self.categories):
            if same(category, value):
                return float(i)
        raise ValueError(f"parameter {name!r} must be one of {list(self.categories)!r}, got {value!r}")

    def value(self, raw: float) -> Value:
        return self.categories[int(raw)]

    def check(self, name: str) -> None:
        if isinstance(self.categories, str):
            raise TypeError(f"parameter {name!r}: categories must be a list, got {self.categories!r}")
        for category in self.categories:
            if category is not None and not isinstance(category, (str, bool, int, float)):
                raise TypeError(f"parameter {name!r}: categories must be strings, got {category!r}")
            if isinstance(category, float) and not math.isfinite(category):
                raise ValueError(f"parameter {name!r}: categories must be finite, got {category!r}")
        for i, category in enumerate(self.categories):
            if any(same(category, other) for other in self.categories[:i]):
                raise ValueError(f"parameter {name!r}: category {category!r} occurs twice")
        if len(self.categories) < 2:
            raise ValueError(
                f"parameter {name!r}: at least two categories are needed, got {list(self.categories)!r}; "
                "leave a parameter with one value out of the space"
            )

    def spec(self) -> dict[str, Any]:
        return {"type": "cat", "categories": list(self.categories)}


def same(a: Any, b: Any) -> bool:
    """Equality that tells True from 1 and 1 from 1.0."""
    return type(a) is type(b) and bool(a == b)


@dataclass(frozen=True)
class Linear:
    """Σ weights · parameters `sign` bound, in the user's units, wherever all its parameters are active."""

    weights: Mapping[str, float]
    sign: str  # "<=", ">=" or "=="
    bound: float

    def __str__(self) -> str:
        terms = " + ".join(f"{weight:g}*{name}" for name, weight in self.weights.items())
        return f"{terms} {self.sign} {self.bound:g}"


def condition_of(parameter: Parameter) -> dict[str, list[Value]] | None:
    """The condition of a parameter, with a list of values for each parent."""
    when: When | None = getattr(parameter, "when", None)
    return {name: several(values) for name, values in when.items()} if when else None


def several(values: Any) -> list[Any]:
    """One value or several, as a list."""
    return list(values) if isinstance(values, (list, tuple, set, frozenset)) else [values]
