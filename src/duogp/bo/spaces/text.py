"""Search spaces as text: parameters of the command line, tables of TOML files, linear constraints.

real(0, 1)    log(1e-5, 1e-1)    int(1, 8)    logint(1, 1024)    cat(sgd, adam)
real(0, 1) if optimiser = sgd            active only then; several values: sgd | adam, and: … & …
2*layers + width <= 10                   a constraint
"""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Mapping
from typing import Any

from duogp.bo.spaces.parameters import Categorical, Integer, Linear, Parameter, Real, Value, When, several

FORMS = "real(low, high), log(low, high), int(low, high), logint(low, high) or cat(a, b, …)"
_CALL = re.compile(r"^\s*(\w+)\s*\((.*?)\)\s*(?:if\s+(.+))?$", re.DOTALL)
#: Types by name, and whether they are on a log scale.
_NUMERIC: dict[str, tuple[type[Real] | type[Integer], bool]] = {
    "real": (Real, False),
    "log": (Real, True),
    "int": (Integer, False),
    "logint": (Integer, True),
}
_SIGNS: dict[type[ast.cmpop], str] = {ast.LtE: "<=", ast.GtE: ">=", ast.Eq: "==", ast.Lt: "<=", ast.Gt: ">="}


def parameter_of(name: str, given: Any) -> Parameter:
    """A parameter from itself, a pair of bounds, text or a table."""
    if isinstance(given, Parameter):
        return given
    if isinstance(given, str):
        return _of_text(name, given)
    if isinstance(given, Mapping):
        return _of_table(name, dict(given))
    if isinstance(given, (tuple, list)) and len(given) == 2 and all(map(_is_number, given)):
        return Real(*given)
    raise TypeError(
        f"parameter {name!r} must be Real, Integer, Categorical, a pair of bounds or {FORMS}, got {given!r}"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _of_text(name: str, text: str) -> Parameter:
    match = _CALL.match(text)
    kind = match.group(1).lower() if match else ""
    if match is None or (kind not in _NUMERIC and kind != "cat"):
        raise ValueError(f"parameter {name!r} must be {FORMS}, got {text!r}")
    inside = [part.strip() for part in next(csv.reader([match.group(2)], skipinitialspace=True), [])]
    when = _when_of_text(name, match.group(3)) if match.group(3) else None
    if kind == "cat":
        return Categorical(inside, when=when)
    if len(inside) != 2:
        raise ValueError(f"parameter {name!r}: {kind} takes a lower and an upper bound, got {text!r}")
    return _numeric(name, kind, inside, when)


def _numeric(name: str, kind: str, bounds: list[str], when: When | None) -> Parameter:
    cls, log = _NUMERIC[kind]
    try:
        low, high = (float(side) for side in bounds)
    except ValueError:
        raise ValueError(f"parameter {name!r}: bounds must be numbers, got {', '.join(bounds)}") from None
    if cls is Integer:
        low, high = (int(side) if side.is_integer() else side for side in (low, high))
    return cls(low, high, log, when)


def _when_of_text(name: str, text: str) -> dict[str, list[Value]]:
    out: dict[str, list[Value]] = {}
    for clause in text.split("&"):
        parent, sign, values = clause.partition("=")
        if not sign or not parent.strip() or not values.strip("= "):
            raise ValueError(f"parameter {name!r}: a condition is name = value, got {clause.strip()!r}")
        out[parent.strip()] = [value.strip() for value in values.lstrip("=").split("|")]
    return out


def _of_table(name: str, table: dict[str, Any]) -> Parameter:
    kind, when = table.pop("type", None), table.pop("when", None)
    if when is not None and not isinstance(when, Mapping):
        raise TypeError(f"parameter {name!r}: `when` must be a table of values, got {when!r}")
    if kind == "cat" or (kind is None and "categories" in table):
        needed, allowed = {"categories"}, {"categories"}
    elif kind in _NUMERIC:
        needed, allowed = {"low", "high"}, {"low", "high", "log"}
    else:
        raise ValueError(f"parameter {name!r}: type must be one of {', '.join(_NUMERIC)}, cat, got {kind!r}")
    missing, unknown = sorted(needed - table.keys()), sorted(table.keys() - allowed)
    if missing or unknown:
        told = f"lacks {', '.join(missing)}" if missing else f"has no {', '.join(unknown)}"
        raise ValueError(f"parameter {name!r}: a table of type {kind!r} {told}")
    if "categories" in table:
        return Categorical(table["categories"], when=when)
    cls, log = _NUMERIC[kind]
    return cls(table["low"], table["high"], log or bool(table.get("log", False)), when)


def with_types(parameters: dict[str, Any]) -> dict[str, Parameter]:
    """Parameters whose conditions were read from text, with values in the types of the parents."""
    found = {name: parameter_of(name, given) for name, given in parameters.items()}
    out: dict[str, Parameter] = {}
    for name, parameter in found.items():
        when = getattr(parameter, "when", None)
        if when:
            typed = {
                parent: [_typed(found.get(parent), value) for value in several(values)]
                for parent, values in when.items()
            }
            if isinstance(parameter, Categorical):
                parameter = Categorical(parameter.categories, typed)
            elif isinstance(parameter, (Real, Integer)):
                parameter = type(parameter)(parameter.low, parameter.high, parameter.log, typed)
        out[name] = parameter
    return out


def _typed(parent: Parameter | None, value: Any) -> Any:
    """The text of an integer as an integer where that is what the parent takes."""
    if isinstance(parent, Integer) and isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return value
    return value


# -- constraints ---------------------------------------------------------------------------------------------


def constraint_of(given: Linear | str) -> Linear:
    """A linear constraint from itself or from text such as "2*a + b <= 10"."""
    if isinstance(given, Linear):
        return given
    hint = f"a constraint is a linear inequality such as '2*a + b <= 10', got {given!r}"
    try:
        tree = ast.parse(str(given).strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(hint) from None
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1 or type(tree.ops[0]) not in _SIGNS:
        raise ValueError(hint)
    try:
        left, right = _linear(tree.left), _linear(tree.comparators[0])
    except (ValueError, ZeroDivisionError):
        raise ValueError(hint) from None
    weights = {name: left.get(name, 0.0) - right.get(name, 0.0) for name in (left | right) if name}
    weights = {name: weight for name, weight in weights.items() if weight}
    if not weights:
        raise ValueError(hint)
    return Linear(weights, _SIGNS[type(tree.ops[0])], right.get("", 0.0) - left.get("", 0.0))


def _linear(node: ast.AST) -> dict[str, float]:
    """Weights of names in a linear expression; "" is the constant."""
    if isinstance(node, ast.Constant) and _is_number(node.value):
        return {"": float(node.value)}  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return {node.id: 1.0}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return _times(_linear(node.operand), -1.0 if isinstance(node.op, ast.USub) else 1.0)
    if isinstance(node, ast.BinOp):
        left, right = _linear(node.left), _linear(node.right)
        if isinstance(node.op, (ast.Add, ast.Sub)):
            other = right if isinstance(node.op, ast.Add) else _times(right, -1.0)
            return {name: left.get(name, 0.0) + other.get(name, 0.0) for name in left | other}
        if isinstance(node.op, ast.Mult) and (left.keys() == {""} or right.keys() == {""}):
            return _times(right, left[""]) if left.keys() == {""} else _times(left, right[""])
        if isinstance(node.op, ast.Div) and right.keys() == {""}:
            return _times(left, 1.0 / right[""])
    raise ValueError


def _times(weights: dict[str, float], factor: float) -> dict[str, float]:
    return {name: factor * weight for name, weight in weights.items()}
