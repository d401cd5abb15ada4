"""Encodings of one column of a table as numbers, learned from the training rows and fixed from then on.

| column | becomes |
|---|---|
| number, boolean, duration | itself; a gap becomes the median, marked by an indicator |
| category | one indicator per level; rare levels share one; a gap is a level of its own |
| category of many levels | the same, and the log of the level's frequency; with a target, its mean there |
| date, timestamp | days since 1970, and sine and cosine of each cycle that the rows span |
| time of day | sine and cosine |

There is an indicator of gaps where the training rows had gaps. A level or a gap that no training row had is
*unknown*: it is encoded as none of the levels or as the median, and `Column.candidates` are the encoded
values that such a row may have in truth. Predictions average over these, which widens their intervals as much
as the column matters (`Schema.completions`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from duogp.tables.arrow import arrow
from duogp.tables.texts import parse_dates, parse_numbers
from duogp.tables.values import Floats, days, example, kind_of, numbers, parse_times, require_finite, texts

#: Cycles of a date and their length in days.
CYCLES = {"time of day": 1.0, "day of week": 7.0, "time of year": 365.2425}
#: Measures of a level of a category.
FREQUENCY, EFFECT = "log frequency", "mean target"
#: Kinds of values in messages.
WORDS = {
    "number": "numbers",
    "boolean": "true and false",
    "category": "text",
    "moment": "dates",
    "clock": "times of day",
    "nothing": "no values",
}


class Column(ABC):
    """One column: its name in the table, the features it becomes, and the encoding."""

    kind: ClassVar[str]
    csv: ClassVar[str] = "string"  # the arrow type as which the cells of a CSV file are read
    name: str

    @property
    @abstractmethod
    def features(self) -> list[str]:
        """Names of the encoded columns."""

    @abstractmethod
    def encode(self, values: Any) -> Floats:
        """An arrow column as ``[n, len(features)]``, finite."""

    @abstractmethod
    def gaps(self, values: Any) -> NDArray[np.bool_]:
        """Mask [n] of the rows without a value."""

    @abstractmethod
    def unknown(self, values: Any) -> NDArray[np.bool_]:
        """Mask [n] of rows that the training rows say nothing of: with a level, or a gap, that none had."""

    @abstractmethod
    def candidates(self) -> Floats:
        """Encoded values, equally likely, of a row whose value is unknown: [k, len(features)]."""

    @property
    def num_levels(self) -> int | None:
        """The number of levels that an unknown one is like; None for what is no category."""
        return None

    def csv_type(self) -> Any:
        """The arrow type as which a CSV file is read."""
        return arrow().type_for_alias(self.csv)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        state = {name: list(v) if isinstance(v, tuple) else v for name, v in self.__dict__.items()}
        return {"kind": self.kind, **state}

    def _refuse(self, values: Any, was: str) -> TypeError:
        now = WORDS.get(kind_of(values.type), str(values.type))
        return TypeError(
            f"column {self.name!r} held {was} when the model was fitted, now it holds {now} "
            f"(such as {example(values)}): convert it first"
        )


class Quantity(Column):
    """A column with one number per row, NaN where there is a gap, from which it is encoded."""

    fill: float  # the median
    value: bool  # it varied
    indicator: bool  # it had gaps
    quantiles: tuple[float, ...]  # evenly spaced, of the training rows; none where these had gaps
    cycles: tuple[str, ...] = ()

    @abstractmethod
    def numbers(self, values: Any) -> Floats:
        """An arrow column as numbers [n]."""

    @property
    def features(self) -> list[str]:
        circles = [f"{self.name} ({cycle}, {side})" for cycle in self.cycles for side in ("sine", "cosine")]
        return self.value * [self.name] + circles + self.indicator * [f"{self.name} (missing)"]

    def encode_numbers(self, x: Floats) -> Floats:
        """Numbers [n] as ``[n, len(features)]``; a gap is at the centre of the circle of a cycle."""
        gaps = np.isnan(x)
        x = np.where(gaps, self.fill, x)
        parts = self.value * [x]
        for cycle in self.cycles:
            angle = 2 * np.pi * phase(x, cycle)
            parts += [np.where(gaps, 0.0, np.sin(angle)), np.where(gaps, 0.0, np.cos(angle))]
        return np.stack(parts + self.indicator * [gaps.astype(np.float64)], 1)

    def gaps(self, values: Any) -> NDArray[np.bool_]:
        return np.isnan(self.numbers(values))

    def unknown(self, values: Any) -> NDArray[np.bool_]:
        known = self.indicator or not self.quantiles
        return np.zeros(len(values), dtype=bool) if known else self.gaps(values)

    def candidates(self) -> Floats:
        return self.encode_numbers(np.array(self.quantiles))

    def encode(self, values: Any) -> Floats:
        return self.encode_numbers(self.numbers(values))


@dataclass(frozen=True)
class Number(Quantity):
    """A number, or a duration in seconds."""

    kind: ClassVar[str] = "number"
    csv: ClassVar[str] = "float64"
    name: str
    fill: float
    value: bool = True
    indicator: bool = False
    quantiles: tuple[float, ...] = ()
    decimal: str | None = None  # of numbers that are written as text: their decimal mark

    def numbers(self, values: Any) -> Floats:
        kind = kind_of(values.type)
        if self.decimal is not None and kind == "category":
            return parse_numbers(values, self.decimal)
        if kind not in ("number", "boolean", "nothing"):
            raise self._refuse(values, WORDS[self.kind])
        require_finite(values, self.name)
        return numbers(values)

    def csv_type(self) -> Any:
        return super().csv_type() if self.decimal is None else arrow().string()


@dataclass(frozen=True)
class Boolean(Number):
    """True is 1, false is 0."""

    kind: ClassVar[str] = "boolean"
    csv: ClassVar[str] = "bool"

    def numbers(self, values: Any) -> Floats:
        x = super().numbers(values)
        if not np.isin(x[~np.isnan(x)], (0, 1)).all():
            raise self._refuse(values, WORDS[self.kind])
        return x


@dataclass(frozen=True)
class Category(Column):
    """Text of a few levels. ``other``: some levels were rare; ``indicator``: there were gaps.

    ``rare``: the rare levels, unless they are too many to list. ``counts`` and ``effects`` are of the levels
    and of the rare ones after them: the rows that had each, and their mean target as deviation from that of
    all rows, in units of its spread, as if a few rows without any had been there too. ``outcomes``: numbers
    of a target, of which each level has a mean (of several classes their frequencies), one after the other.
    """

    kind: ClassVar[str] = "category"
    name: str
    levels: tuple[str, ...]
    other: bool = False
    indicator: bool = False
    numeric: bool = False  # the levels were written as numbers
    rare: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    effects: tuple[float, ...] = ()
    outcomes: int = 1

    def __post_init__(self) -> None:
        known = len(self.levels) + len(self.rare)
        if self.outcomes < 1 or len(self.effects) not in (0, known * self.outcomes):
            raise ValueError(f"the category {self.name!r} has {len(self.effects)} means for {known} levels")

    @property
    def features(self) -> list[str]:
        names = [f"{self.name}={level}" for level in self.levels]
        names += self.other * [f"{self.name} (other)"] + self.indicator * [f"{self.name} (missing)"]
        return names + [f"{self.name} ({what})" for what in self.measures]

    @property
    def measures(self) -> list[str]:
        """Numbers of each level beside its indicator."""
        names = [EFFECT] if self.outcomes == 1 else [f"{EFFECT} {k}" for k in range(self.outcomes)]
        return bool(self.counts) * [FREQUENCY] + bool(self.effects) * names

    @property
    def num_levels(self) -> int | None:
        return len(self.levels) + len(self.rare)

    def texts(self, values: Any) -> Any:
        """An arrow column as text; an error where it is of another kind than in the fit."""
        allowed = ("category", "nothing") + (("number", "boolean") if self.numeric else ())
        if kind_of(values.type) not in allowed:
            raise self._refuse(values, "categories" if self.numeric else WORDS["category"])
        return texts(values)

    def gaps(self, values: Any) -> NDArray[np.bool_]:
        return self.texts(values).is_null().to_numpy()

    def places(self, values: Any) -> NDArray[np.intp]:
        """The index [n] of each row's level among the levels and the rare ones after them; −1: neither."""
        known = arrow().array(self.levels + self.rare, arrow().large_string())
        found = arrow("compute").index_in(self.texts(values), value_set=known)
        return found.fill_null(-1).to_numpy().astype(np.intp)

    def codes(self, values: Any) -> NDArray[np.intp]:
        """The index [n] of each row's level; the number of levels for one that is not among them."""
        return self._codes(self.places(values))

    def unknown(self, values: Any) -> NDArray[np.bool_]:
        gaps = self.gaps(values)
        if self.other and not self.rare:  # too many rare levels: a new one counts as one of them
            return gaps & (not self.indicator)
        return (self.places(values) < 0) & ~(gaps & self.indicator)

    def candidates(self) -> Floats:
        return self.encode_codes(np.arange(len(self.levels) + self.other))

    def encode(self, values: Any) -> Floats:
        places = self.places(values)
        codes = self._codes(places)
        if self.indicator:
            codes = np.where(self.gaps(values), len(self.levels) + 1, codes)
        encoded = self.encode_codes(codes)
        if self.measures:
            rare = np.flatnonzero(places >= len(self.levels))
            encoded[rare, -len(self.measures) :] = self._measured()[places[rare]]
        return encoded

    def encode_codes(self, codes: NDArray[np.intp]) -> Floats:
        """Features [n, d] of codes [n]: of levels, of other levels (the next code), of gaps (the last)."""
        levels = len(self.levels)
        kept = [*range(levels), *self.other * [-2], *self.indicator * [-1]]
        encoded = np.eye(levels + 2)[codes][:, kept]
        if not self.measures:
            return encoded
        measured = self._measured()
        nothing = np.zeros((1, measured.shape[1]))
        others = measured[levels:].mean(0, keepdims=True) if len(self.rare) else nothing
        return np.hstack([encoded, np.concatenate([measured[:levels], others, nothing])[codes]])

    def _codes(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        levels = len(self.levels)
        return np.where((places < 0) | (places >= levels), levels, places)

    def _measured(self) -> Floats:
        """The measures of every level, rare ones included."""
        columns = bool(self.counts) * [np.log1p(self.counts)[:, None]]
        columns += bool(self.effects) * [np.array(self.effects).reshape(-1, self.outcomes)]
        return np.concatenate(columns, 1)


@dataclass(frozen=True)
class DateTime(Quantity):
    """A date, a timestamp or a time of day as days since 1970, in the time zone ``zone``.

    A CSV file is read as text and parsed here, since dates with and without a time may mix.
    """

    kind: ClassVar[str] = "moment"
    name: str
    fill: float
    value: bool = True
    cycles: tuple[str, ...] = ()
    indicator: bool = False
    zone: str | None = None
    clock: bool = False  # a time of day without a date
    quantiles: tuple[float, ...] = ()
    format: str | None = None  # of dates that are written as text in another way than 2024-05-31

    def numbers(self, values: Any) -> Floats:
        wanted = "clock" if self.clock else "moment"
        kind = kind_of(values.type)
        if kind in ("category", "number") and self.format is not None:
            values = parse_dates(texts(values), self.format)  # numbers such as 20240531
        elif kind == "category":
            try:
                values = parse_times(values, self.zone, self.clock)
            except arrow().ArrowException:
                raise self._refuse(values, WORDS[wanted]) from None
        elif kind == "nothing":
            return np.full(len(values), np.nan)
        elif kind != wanted:
            raise self._refuse(values, WORDS[wanted])
        zone = getattr(values.type, "tz", None)
        if (zone is None) != (self.zone is None) and not self.clock:
            was, now = ("a", "none") if zone is None else ("no", "one")
            raise TypeError(
                f"column {self.name!r} had {was} time zone when the model was fitted, now it has {now}: "
                "convert it first"
            )
        return days(values, self.zone)


def phase(x: Floats, cycle: str) -> Floats:
    """The position of days since 1970 in a cycle, in [0, 1); of the week, that of the whole day."""
    if cycle == "time of day":
        return x - np.floor(x)
    if cycle == "day of week":
        return np.mod(np.floor(x) + 3, 7) / 7  # 1970 began on a Thursday; Monday is 0
    day = np.floor(x).astype(np.int64).astype("datetime64[D]")
    year = day.astype("datetime64[Y]")
    start, end = year.astype("datetime64[D]"), (year + 1).astype("datetime64[D]")
    elapsed = (day - start).astype(np.float64) + (x - np.floor(x))
    return elapsed / (end - start).astype(np.float64)


KINDS: dict[str, type[Any]] = {kind.kind: kind for kind in (Number, Boolean, Category, DateTime)}


def column_from_dict(state: dict[str, Any]) -> Column:
    """The inverse of `Column.to_dict`."""
    state = dict(state)
    kind = state.pop("kind", None)
    if kind not in KINDS:
        raise ValueError(f"unknown kind of column {kind!r}; this duogp knows {', '.join(KINDS)}")
    lists = {name: tuple(value) for name, value in state.items() if isinstance(value, list)}
    try:
        return KINDS[kind](**state | lists)
    except TypeError as error:
        raise ValueError(f"the {kind} column {state.get('name')!r} is damaged: {error}") from None
