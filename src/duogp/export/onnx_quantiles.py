"""Quantiles of a mixture of Gaussians as an ONNX subgraph: the steps of `export.mixtures` in one loop.

Unrolled, the steps would be most of a graph, and most of the time that its export takes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from duogp.export.mixtures import HALVINGS, NEWTON
from duogp.export.special import K, coefficients
from duogp.numerics.lognormal import LogScale
from duogp.numerics.rounding import Rounding

#: ONNX's number of that type.
INT64 = 7


class Nodes:
    """Nodes of a graph under construction; a call adds one and returns the name of its output."""

    def __init__(self, onnx: Any, dtype: Any, prefix: str, constants: list[Any] | None = None) -> None:
        self.onnx, self.dtype, self.prefix = onnx, dtype, prefix
        self.nodes: list[Any] = []
        self.constants: list[Any] = [] if constants is None else constants

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{self.prefix}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def number(self, value: Any, dtype: Any = None) -> str:
        """A constant of the graph."""
        name = f"quantiles_constant_{len(self.constants)}"
        array = np.asarray(value, dtype=self.dtype if dtype is None else dtype)
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def sum(self, x: str) -> str:
        """Over the leading axis."""
        return self("ReduceSum", x, self.number([0], np.int64), keepdims=0)

    def scaled_erfc(self, x: str) -> str:
        """e^{x²} erfc(x) for x ≥ 0, as `special.scaled_erfc`."""
        shift = self.number(K)
        t = self("Div", self("Sub", x, shift), self("Add", x, shift))
        twice = self("Mul", t, self.number(2.0))
        first, *rest = coefficients()
        b, after = self.number(rest[-1]), self.number(0.0)
        for c in reversed(rest[:-1]):
            b, after = self("Add", self("Sub", self("Mul", twice, b), after), self.number(c)), b
        return self("Add", self("Sub", self("Mul", t, b), after), self.number(first))

    def ndtr(self, z: str) -> str:
        """Φ(z)."""
        size = self("Mul", self("Abs", z), self.number(math.sqrt(0.5)))
        tail = self("Mul", self("Exp", self("Neg", self("Mul", size, size))), self.scaled_erfc(size))
        lower = self("Mul", tail, self.number(0.5))
        return self("Where", self("Less", z, self.number(0.0)), lower, self("Sub", self.number(1.0), lower))


def add_quantiles(
    onnx: Any,
    model: Any,
    levels: list[float],
    single: bool,
    logs: LogScale | None = None,
    roundings: tuple[Rounding | None, ...] = (),
    name: str = "quantiles",
) -> None:
    """Replace the last three outputs of a model, the components of a mixture, by its quantiles.

    Components are [k, outputs, n] and weights [k, outputs or 1, 1]; the quantiles [n, levels] of one output,
    or [n, outputs, levels]. ``logs``: the scale of the components, where it is not that of the target;
    ``roundings``: the grid of every output, or None.
    """
    helper, graph = onnx.helper, model.graph
    mean, std, weights = (output.name for output in graph.output[-3:])
    element = graph.output[-3].type.tensor_type.elem_type
    dtype = helper.tensor_dtype_to_np_dtype(element)
    make = Nodes(onnx, dtype, "quantiles")
    x = _standardised_quantiles(make, element, levels, mean, std, weights)
    if logs is not None:
        x = make("Sub", make("Exp", x), make.number(logs.shift))
    if roundings:
        x = _rounded(make, x, roundings)
    if single:  # [levels, 1, n]
        found = make("Transpose", make("Squeeze", x, make.number([1], np.int64)), perm=[1, 0])
    else:
        found = make("Transpose", x, perm=[2, 1, 0])
    make.nodes.append(helper.make_node("Identity", [found], [name], name=name))
    graph.node.extend(make.nodes)
    graph.initializer.extend(make.constants)
    del graph.output[-3:]
    shape = ["rows", len(levels)] if single else ["rows", "outputs", len(levels)]
    graph.output.append(helper.make_tensor_value_info(name, element, shape))


def _rounded(make: Nodes, x: str, roundings: tuple[Rounding | None, ...]) -> str:
    """[levels, outputs, n], every output on its grid: the value after as many edges as lie below."""
    found = []
    for p, rounding in enumerate(roundings):
        own = make("Gather", x, make.number([p], np.int64), axis=1)
        if rounding is not None:
            one = make("Unsqueeze", own, make.number([3], np.int64))
            beyond = make("Cast", make("Greater", one, make.number(rounding.edges)), to=INT64)
            place = make("ReduceSum", beyond, make.number([3], np.int64), keepdims=0)
            own = make("Gather", make.number(rounding.values), place, axis=0)
        found.append(own)
    return make("Concat", *found, axis=1)


def _standardised_quantiles(
    make: Nodes, element: int, levels: list[float], mean: str, std: str, weights: str
) -> str:
    """[levels, outputs, n] in the units of the components."""
    centre = make.sum(make("Mul", weights, mean))
    away = make("Sub", mean, centre)
    spread = make("Add", make("Mul", std, std), make("Mul", away, away))
    deviation = make("Sqrt", make.sum(make("Mul", weights, spread)))
    axis = make.number([1], np.int64)
    m = make("Unsqueeze", make("Div", away, deviation), axis)  # [k, 1, outputs, n]
    s = make("Unsqueeze", make("Div", std, deviation), axis)
    w = make("Unsqueeze", weights, axis)
    p = np.array(levels)[:, None, None]
    flat = make("Mul", deviation, make.number(0.0))  # zeros [outputs, n]
    low = make("Add", flat, make.number(-np.sqrt((1 - p) / p)))
    high = make("Add", flat, make.number(np.sqrt(p / (1 - p))))
    x = make("Mul", make("Add", low, high), make.number(0.5))
    body = _body(make, element, m, s, w, make.number(p))
    outputs = ["quantiles_low", "quantiles_high", "quantiles_x"]
    steps, going = make.number(HALVINGS + NEWTON, np.int64), make.number(True, np.bool_)
    loop = make.onnx.helper.make_node("Loop", [steps, going, low, high, x], outputs, name="loop", body=body)
    make.nodes.append(loop)
    return make("Add", centre, make("Mul", deviation, outputs[-1]))


def _body(make: Nodes, element: int, m: str, s: str, w: str, p: str) -> Any:
    """One step: the bracket [low, high] around the root and the next place x within it."""
    helper = make.onnx.helper
    inside = Nodes(make.onnx, make.dtype, "step", make.constants)
    half, zero = make.number(0.5), make.number(0.0)
    z = inside("Div", inside("Sub", "x", m), s)
    value = inside("Sub", inside.sum(inside("Mul", w, inside.ndtr(z))), p)
    below = inside("Less", value, zero)
    low, high = inside("Where", below, "x", "low"), inside("Where", below, "high", "x")
    middle = inside("Mul", inside("Add", low, high), half)
    bell = inside("Exp", inside("Neg", inside("Mul", half, inside("Mul", z, z))))
    density = inside.sum(inside("Div", inside("Mul", w, bell), s))
    density = inside("Mul", density, make.number(1 / math.sqrt(2 * math.pi)))
    slope = inside("Max", density, make.number(np.finfo(make.dtype).tiny))
    newton = inside("Sub", "x", inside("Div", value, slope))
    within = inside("And", inside("Less", low, newton), inside("Less", newton, high))
    late = inside("GreaterOrEqual", "step", make.number(HALVINGS, np.int64))
    next_x = inside("Where", inside("And", within, late), newton, middle)
    going = inside("Identity", "going")
    tensor = helper.make_tensor_value_info
    return helper.make_graph(
        inside.nodes,
        "step",
        [
            tensor("step", make.onnx.TensorProto.INT64, []),
            tensor("going", make.onnx.TensorProto.BOOL, []),
            *(tensor(name, element, None) for name in ("low", "high", "x")),
        ],
        [
            tensor(going, make.onnx.TensorProto.BOOL, []),
            *(tensor(name, element, None) for name in (low, high, next_x)),
        ],
    )
