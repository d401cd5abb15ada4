"""Search spaces: parameters, conditions and linear constraints, and their map to the cube that models see.

    space = Space(
        {
            "lr": Real(1e-5, 1e-1, log=True),
            "layers": Integer(1, 8),
            "optimiser": Categorical(["sgd", "adam"]),
            "momentum": Real(0, 1, when={"optimiser": "sgd"}),
        }
    )

Three forms of a point:

    point  {"lr": 0.01, "layers": 3, "optimiser": "adam"}    without parameters that are not active
    raw    [n, parameters]    values as floats, categories by their number, NaN where not active
    cube   [n, columns]       in [0, 1]: one column for a number, one for each category

Integers sit in the middle of their cell of the cube, so that uniform columns are uniform integers. Columns of
a parameter that is not active are constant: ½ for a number, 1/k for each of k categories.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from duogp.bo.candidates import Floats, latin_hypercube
from duogp.bo.spaces.parameters import Linear, Numeric, Parameter, Real, Value, condition_of
from duogp.bo.spaces.projection import nearest
from duogp.bo.spaces.text import constraint_of, parameter_of

Point: TypeAlias = dict[str, Value]
Bools: TypeAlias = NDArray[np.bool_]

#: Rounding that a constraint forgives, relative to its largest terms.
ROUNDING = 1e-6
#: Draws of a sample that constraints may reject, for each point asked for, before points are projected.
REJECTIONS = 50


class Space:
    """Parameters by name, and linear constraints on the numeric ones.

    A parameter is given as a `Parameter`, as a pair of bounds (a real one), or as text or a table, see
    `duogp.bo.spaces.text`. ``constraints``: `Linear`, or text such as ``"2*layers + width <= 10"``.
    """

    def __init__(self, parameters: Mapping[str, Any], constraints: Iterable[Linear | str] = ()) -> None:
        if not parameters:
            raise ValueError("a space needs at least one parameter")
        self.parameters: dict[str, Parameter] = {}
        for name, given in parameters.items():
            if not isinstance(name, str) or not name:
                raise TypeError(f"names of parameters must be strings, got {name!r}")
            self.parameters[name] = parameter_of(name, given)
            self.parameters[name].check(name)
        self.names = list(self.parameters)
        self._place = {name: i for i, name in enumerate(self.names)}
        ends = np.cumsum([0, *(p.width for p in self.parameters.values())])
        #: Columns of the cube that belong to each parameter.
        self.slices = [slice(a, b) for a, b in itertools.pairwise(ends)]
        self.width = int(ends[-1])
        self._conditions = self._checked_conditions()
        self.constraints = [constraint_of(given) for given in constraints]
        self._check_constraints()

    @classmethod
    def box(cls, bounds: ArrayLike) -> Space:
        """Real parameters x0, x1, … between pairs of bounds [d, 2]."""
        pairs = np.asarray(bounds, dtype=np.float64)
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise ValueError(f"bounds must be pairs (low, high), one for each input, got shape {pairs.shape}")
        return cls({f"x{i}": Real(float(low), float(high)) for i, (low, high) in enumerate(pairs)})

    # -- definition ------------------------------------------------------------------------------------------

    def _checked_conditions(self) -> list[tuple[int, dict[int, Floats]]]:
        """Conditions, parents first: the place of a parameter, and the raw values of its parents."""
        parents = {name: dict(condition_of(p) or {}) for name, p in self.parameters.items()}
        for name, needed in parents.items():
            for parent, values in needed.items():
                if parent not in self.parameters:
                    raise ValueError(f"parameter {name!r} depends on {parent!r}, which is not in the space")
                if self.parameters[parent].levels is None:
                    raise ValueError(
                        f"parameter {name!r} depends on the real parameter {parent!r}: conditions are values "
                        "of integers or categories"
                    )
                if not values:
                    raise ValueError(f"parameter {name!r} depends on no value of {parent!r}")
        try:
            order = list(TopologicalSorter(parents).static_order())
        except CycleError as error:
            circle = " → ".join(error.args[1])
            raise ValueError(f"conditions of parameters go in a circle: {circle}") from None
        out = []
        for name in order:
            if needed := parents[name]:
                raws = {
                    self._place[parent]: np.array([self.parameters[parent].raw(parent, v) for v in values])
                    for parent, values in needed.items()
                }
                out.append((self._place[name], raws))
        return out

    def _check_constraints(self) -> None:
        for constraint in self.constraints:
            if constraint.sign not in ("<=", ">=", "=="):
                raise ValueError(f"constraint {str(constraint)!r}: sign must be <=, >= or ==")
            for name in constraint.weights:
                if name not in self.parameters:
                    raise ValueError(
                        f"constraint {str(constraint)!r}: the space has no parameter {name!r}; it has "
                        f"{', '.join(self.names)}"
                    )
                if not isinstance(self.parameters[name], Numeric):
                    raise ValueError(f"constraint {str(constraint)!r}: {name!r} is not a number")
            if not all(map(math.isfinite, [constraint.bound, *constraint.weights.values()])):
                raise ValueError(f"constraint {str(constraint)!r}: weights and bound must be finite")
        middle = self._quantiles(np.full((1, len(self.names)), 0.5))
        always = ~np.isnan(self._deactivated(middle)[0])
        always[[place for place, _ in self._conditions]] = False  # conditional ones may be inactive
        fixed = [c for c in self.constraints if all(always[self._place[name]] for name in c.weights)]
        if fixed and self._projected(middle[0], fixed) is None:
            told = "; ".join(map(str, fixed))
            raise ValueError(f"no point of the space satisfies its constraints: {told}")

    @property
    def is_finite(self) -> bool:
        """Whether there is a finite number of points."""
        return self.size is not None

    @property
    def size(self) -> int | None:
        """An upper limit of the number of points; None where a parameter is real."""
        levels = [p.levels for p in self.parameters.values()]
        return None if None in levels else math.prod(n for n in levels if n is not None)

    def spec(self) -> dict[str, Any]:
        """The definition as JSON values, which `Space.of` reads."""
        parameters = {}
        for name, parameter in self.parameters.items():
            parameters[name] = parameter.spec()
            if condition := condition_of(parameter):
                parameters[name]["when"] = condition
        out: dict[str, Any] = {"parameters": parameters}
        if self.constraints:
            out["constraints"] = [
                {"weights": dict(c.weights), "sign": c.sign, "bound": c.bound} for c in self.constraints
            ]
        return out

    @classmethod
    def of(cls, given: Space | Mapping[str, Any]) -> Space:
        """A space as it is, from `spec`, or from a mapping of names to parameters."""
        if isinstance(given, Space):
            return given
        if isinstance(given.get("parameters"), Mapping):
            constraints = [
                Linear(c["weights"], c["sign"], c["bound"]) if isinstance(c, Mapping) else c
                for c in given.get("constraints", ())
            ]
            return cls(given["parameters"], constraints)
        return cls(given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and self.spec() == other.spec()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={p}" for name, p in self.parameters.items())
        return f"Space({inside}{''.join(f'; {c}' for c in self.constraints)})"

    # -- points ----------------------------------------------------------------------------------------------

    def checked(self, point: Mapping[str, Any]) -> Point:
        """A point in the types of the space; an error where it is not a point of it."""
        raw = self.raw([point])
        return self.points(raw)[0]

    def raw(self, points: Sequence[Mapping[str, Any]]) -> Floats:
        """Raw values [n, parameters] of points, checked."""
        out = np.full((len(points), len(self.names)), np.nan)
        for row, point in zip(out, points, strict=True):
            if unknown := sorted(map(str, point.keys() - self.parameters.keys())):
                raise ValueError(
                    f"the space has no parameter {', '.join(unknown)}; it has {', '.join(self.names)}"
                )
            for i, (name, parameter) in enumerate(self.parameters.items()):
                if name in point:
                    row[i] = parameter.raw(name, point[name])
            active = self.active(row[None])[0]
            for name, is_active, value in zip(self.names, active, row, strict=True):
                if is_active and math.isnan(value):
                    raise ValueError(f"the point has no value of parameter {name!r}: {dict(point)!r}")
                if not is_active and not math.isnan(value):
                    raise ValueError(f"parameter {name!r} is not active at {dict(point)!r}")
            for constraint in self.constraints:
                if not self._holds(constraint, row[None])[0]:
                    raise ValueError(f"the point {dict(point)!r} violates {str(constraint)!r}")
        return out

    def points(self, raw: Floats) -> list[Point]:
        """Points of raw values [n, parameters]."""
        parameters = list(self.parameters.items())
        return [
            {
                name: p.value(value)
                for (name, p), value in zip(parameters, row, strict=True)
                if not math.isnan(value)
            }
            for row in raw
        ]

    def active(self, raw: Floats) -> Bools:
        """Which parameters are active [n, parameters]; values of inactive ones are not looked at."""
        out = np.ones(raw.shape, dtype=bool)
        for place, needed in self._conditions:
            for parent, values in needed.items():
                out[:, place] &= out[:, parent] & np.isin(raw[:, parent], values)
        return out

    def feasible(self, raw: Floats) -> Bools:
        """Which raw points [n, parameters] satisfy all constraints."""
        out = np.ones(len(raw), dtype=bool)
        for constraint in self.constraints:
            out &= self._holds(constraint, raw)
        return out

    def _holds(self, constraint: Linear, raw: Floats) -> Bools:
        places = [self._place[name] for name in constraint.weights]
        weights = np.array(list(constraint.weights.values()))
        excess = raw[:, places] @ weights - constraint.bound
        slack = ROUNDING * self._magnitude(constraint)
        if constraint.sign == "==":
            excess = np.abs(excess)
        elif constraint.sign == ">=":
            excess = -excess
        return np.isnan(excess) | (excess <= slack)  # NaN: one of its parameters is not active

    def _magnitude(self, constraint: Linear) -> float:
        terms = [
            abs(weight) * max(abs(self._numeric(name).low), abs(self._numeric(name).high))
            for name, weight in constraint.weights.items()
        ]
        return max([*terms, abs(constraint.bound)])

    def _numeric(self, name: str) -> Numeric:
        parameter = self.parameters[name]
        assert isinstance(parameter, Numeric)
        return parameter

    # -- the cube --------------------------------------------------------------------------------------------

    def encode(self, points: Sequence[Mapping[str, Any]]) -> Floats:
        """Points as rows of the cube [n, width]."""
        return self.to_cube(self.raw(points))

    def decode(self, cube: Floats) -> list[Point]:
        """The points nearest to rows [n, width] of the cube: valid, whatever the columns are."""
        return self.points(self.from_cube(cube))

    def to_cube(self, raw: Floats) -> Floats:
        """Raw values [n, parameters] as points of the cube [n, width]."""
        columns = [p.columns(raw[:, i]) for i, p in enumerate(self.parameters.values())]
        return np.concatenate(columns, 1)

    def from_cube(self, cube: Floats, repair: bool = True) -> Floats:
        """Raw values of rows of the cube: valid ones, and with ``repair`` such that constraints hold.

        [n, width] → [n, parameters].
        """
        U = np.asarray(cube, dtype=np.float64)
        if U.ndim != 2 or U.shape[1] != self.width:
            raise ValueError(f"points of the cube must be [n, {self.width}], got shape {U.shape}")
        values = [p.read(U[:, s]) for p, s in zip(self.parameters.values(), self.slices, strict=True)]
        raw = self._deactivated(np.stack(values, 1))
        return self.repaired(raw) if repair else raw

    def snap(self, cube: Floats, repair: bool = True) -> Floats:
        """The nearest rows of the cube that are points of the space, [n, width] as the rows given."""
        return self.to_cube(self.from_cube(cube, repair))

    def repaired(self, raw: Floats) -> Floats:
        """Raw values that satisfy the constraints: others are moved by the least sum of distances.

        [n, parameters] → [n, parameters].
        """
        out = raw.copy()
        for i in np.flatnonzero(~self.feasible(raw)):
            out[i] = self._repaired(raw[i])
        return out

    def _repaired(self, raw: Floats) -> Floats:
        row = raw
        for _ in range(2 + len(self.constraints)):  # an integer that moves may activate other parameters
            active = self.active(row[None])[0]
            row = self.completed(row[None])[0]
            if self.feasible(row[None])[0]:
                return row
            moved = self._projected(row, [c for c in self.constraints if active[self._where(c)].all()])
            if moved is None:
                break
            row = moved
        raise ValueError(f"no values satisfy the constraints near {self.points(raw[None])[0]!r}")

    def _where(self, constraint: Linear) -> list[int]:
        return [self._place[name] for name in constraint.weights]

    def _projected(self, raw: Floats, binding: list[Linear]) -> Floats | None:
        """The point nearest to ``raw`` that satisfies constraints; None where there is none."""
        names = sorted({name for c in binding for name in c.weights}, key=self._place.__getitem__)
        places = [self._place[name] for name in names]
        numbers = {name: self._numeric(name) for name in names}
        values = nearest(raw[places], numbers, binding, [self._magnitude(c) for c in binding])
        if values is None:
            return None
        out = raw.copy()
        out[places] = values
        return out

    def completed(self, raw: Floats) -> Floats:
        """Raw values with NaN where a parameter is not active, and its middle where an active one is NaN.

        [n, parameters] → [n, parameters].
        """
        middle = self._quantiles(np.full((1, len(self.names)), 0.5))
        return np.where(self.active(raw), np.where(np.isnan(raw), middle, raw), np.nan)

    def _deactivated(self, raw: Floats) -> Floats:
        return np.where(self.active(raw), raw, np.nan) if self._conditions else raw

    def _quantiles(self, u: Floats) -> Floats:
        values = [p.quantile(u[:, i]) for i, p in enumerate(self.parameters.values())]
        return np.stack(values, 1)

    # -- random points ---------------------------------------------------------------------------------------

    def sample(self, n: int, rng: np.random.Generator) -> Floats:
        """n random points [n, width] of the cube that are points of the space.

        Uniform in the cube of parameters and, under constraints, in the part that satisfies them; where that
        is so small that draws are rejected many times, the rest are projected onto it.
        """
        found = np.empty((0, len(self.names)))
        draws = 0
        while len(found) < n and draws < REJECTIONS * n:
            block = self._deactivated(self._quantiles(rng.random((max(n, 32), len(self.names)))))
            found = np.concatenate([found, block[self.feasible(block)]])
            draws += len(block)
            if not self.constraints:
                break
        if len(found) < n:
            rest = self._deactivated(self._quantiles(rng.random((n - len(found), len(self.names)))))
            found = np.concatenate([found, self.repaired(rest)])
        return self.to_cube(found[:n])

    def design(self, n: int, rng: np.random.Generator) -> Floats:
        """n points [n, width] that are spread over the space: a Latin hypercube of the parameters."""
        raw = self._deactivated(self._quantiles(latin_hypercube(n, len(self.names), rng)))
        wrong = np.flatnonzero(~self.feasible(raw))
        out = self.to_cube(raw)
        if len(wrong):
            out[wrong] = self.sample(len(wrong), rng)
        return out

    def perturbed(
        self, centre: Floats, low: Floats, high: Floats, n: int, rng: np.random.Generator, moved: float
    ) -> Floats:
        """n points [n, width] near a centre [width]: each differs in ``moved`` parameters on average.

        Numbers move anywhere between the corners low and high [width] of a box, categories to another one.
        """
        count = len(self.names)
        sobol = torch.quasirandom.SobolEngine(count, scramble=True, seed=int(rng.integers(2**31)))
        u = sobol.draw(n, dtype=torch.float64).numpy()
        moves = rng.random((n, count)) <= min(moved / count, 1.0)
        idle = np.flatnonzero(~moves.any(1))
        moves[idle, rng.integers(count, size=len(idle))] = True
        out = np.repeat(centre[None], n, 0)
        for i, (parameter, columns) in enumerate(zip(self.parameters.values(), self.slices, strict=True)):
            a, b = low[columns], high[columns]
            if isinstance(parameter, Numeric):
                fresh = a + (b - a) * u[:, i : i + 1]
            else:
                fresh = parameter.columns(parameter.quantile(u[:, i]))
            out[:, columns] = np.where(moves[:, i : i + 1], fresh, out[:, columns])
        snapped = self.from_cube(out, repair=False)
        good = self.feasible(snapped)
        if not good.all() and not good.any():
            return self.to_cube(self.repaired(snapped[: max(1, min(n, 32))]))
        return self.to_cube(snapped[good])
