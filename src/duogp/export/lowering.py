"""From a module to an exported program: numbers in full precision, one precision throughout."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

#: Numbers of rows that a graph may be asked about.
ROWS = Dim("rows", min=1, max=2**31 - 1)
FLOATS = (torch.float64, torch.float32)

aten = torch.ops.aten
#: Operators of which an argument may be a number in place of a tensor.
ARITHMETIC = (aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.div.Tensor)


def traced(module: nn.Module, example: Tensor) -> ExportedProgram:
    """The module as a graph of operators, for any number of rows of its input [n, columns]."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.export.export(module, (example,), dynamic_shapes=({0: ROWS},), strict=False)
        except Exception as error:  # whatever a kernel, mean or likelihood of one's own may raise
            reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
            raise ValueError(
                f"the model is no graph of operations on tensors: {reason[0]} (a kernel, mean or likelihood "
                "whose Python depends on values of tensors, or one of gpytorch)"
            ) from error


def lowered(
    program: ExportedProgram,
    example: Tensor,
    dtype: torch.dtype,
    replaced: Mapping[Any, Callable[..., Any]] | None = None,
) -> ExportedProgram:
    """The program in core operators and in one precision, with its numbers as tensors.

    Exporters write a number of the source (1/3, say) in float32 whatever it is multiplied by. ``replaced``:
    operators and the functions that take their place.
    """
    table = torch.export.default_decompositions()
    table.update(replaced or {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module: Any = program.run_decompositions(table).module(check_guards=False)
    _convert_constants(module, dtype)
    for node in list(module.graph.nodes):
        if node.op == "call_function":
            _convert_types(node, dtype)
            _Lifter(module, node, dtype).lift()
    module.graph.lint()
    module.recompile()
    return traced(module, example.to(dtype))


def _convert_constants(module: nn.Module, dtype: torch.dtype) -> None:
    """Parameters become buffers; all floating-point tensors of a module those of one precision."""
    for part in module.modules():
        for name, value in list(part._parameters.items()):
            del part._parameters[name]
            if value is not None:
                part.register_buffer(name, value.detach())
        for store in (part._buffers, vars(part)):
            for name, value in list(store.items()):
                if isinstance(value, Tensor) and value.is_floating_point():
                    store[name] = value.detach().to(dtype)


def _convert_types(node: fx.Node, dtype: torch.dtype) -> None:
    """Casts to any floating-point type, and new tensors of one, become those of the given type."""
    node.args = tuple(dtype if _is_float_type(a) else a for a in node.args)
    node.kwargs = {name: dtype if _is_float_type(v) else v for name, v in node.kwargs.items()}


def _is_float_type(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value in FLOATS


class _Lifter:
    """One node of a graph: its numbers become tensors of the module."""

    def __init__(self, module: Any, node: fx.Node, dtype: torch.dtype) -> None:
        self.module, self.node, self.dtype = module, node, dtype

    def lift(self) -> None:
        target, args = self.node.target, self.node.args
        if target in ARITHMETIC:
            for at in (0, 1):
                if isinstance(args[at], float):
                    self.node.update_arg(at, self._constant(args[at]))
        elif target == aten.clamp.default:
            given: dict[str, Any] = dict(self.node.kwargs)
            bounds: list[Any] = [*args[1:], None, None]
            self._replace_clamp(args[0], given.get("min", bounds[0]), given.get("max", bounds[1]))
        elif target in (aten.full.default, aten.full_like.default) and isinstance(args[1], float):
            self.node.update_arg(1, 1.0)
            with self.module.graph.inserting_after(self.node):
                product = self.module.graph.call_function(aten.mul.Tensor, (self.node, 1.0))
            self.node.replace_all_uses_with(product, delete_user_cb=lambda user: user is not product)
            _Lifter(self.module, product, self.dtype)._number(1, args[1])

    def _number(self, at: int, value: Any) -> None:
        self.node.update_arg(at, self._constant(value))

    def _replace_clamp(self, x: Any, low: Any, high: Any) -> None:
        """clamp(x, low, high) by a maximum and a minimum."""
        for end, op in ((low, aten.maximum.default), (high, aten.minimum.default)):
            if end is not None:
                bound = self._constant(float(end))
                with self.module.graph.inserting_before(self.node):
                    x = self.module.graph.call_function(op, (x, bound))
        self.node.replace_all_uses_with(x)
        self.module.graph.erase_node(self.node)

    def _constant(self, value: Any) -> fx.Node:
        name = f"number_{len(self.module._buffers)}"
        self.module.register_buffer(name, _within(float(value), self.dtype))
        with self.module.graph.inserting_before(self.node):
            constant: fx.Node = self.module.graph.get_attr(name)
        return constant


def _within(value: float, dtype: torch.dtype) -> Tensor:
    """A number of the given precision that is neither zero nor infinite where it was not before.

    The least positive float64 is zero in float32, and what was kept away from 0/0 by it would be no number.
    """
    info = torch.finfo(dtype)
    if value != 0 and math.isfinite(value):
        value = math.copysign(min(max(abs(value), info.tiny), info.max), value)
    return torch.tensor(value, dtype=dtype)
