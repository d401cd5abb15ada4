"""Imports point down, imports inside functions counted; nobody outside asks for a basis' class or name."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import duogp
from duogp import bases
from duogp.bases import Basis

SOURCE = Path(duogp.__file__).parent
#: The house from the ground up. A package may import what stands before it, and itself.
STOREYS = [
    ["_version", "errors", "saveable", "json_files", "disk", "_moved"],
    ["numerics"],
    ["data"],
    ["metrics"],
    ["kernels", "likelihoods", "variational", "means"],
    ["bases", "objectives"],
    ["fused"],
    ["models"],
    ["inference"],
    ["training"],
    ["methods"],
    ["posterior"],
    ["fitting"],
    ["online", "baselines"],
    ["api"],
    ["tables", "plots"],
    ["sklearn", "bench"],
    ["io"],
    ["export", "serving", "reports"],
    ["bo"],
    ["cli"],
    ["demo", "__main__"],
]
HEIGHT = {name: height for height, names in enumerate(STOREYS) for name in names}
#: Neighbours on one storey that one may import the other; the order of the list is that of the imports.
NEIGHBOURS = {("likelihoods", "kernels"), ("objectives", "bases"), ("means", "kernels"), ("plots", "tables")}


def modules() -> dict[str, Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found.pop("")  # the root composes the storeys
    return found


def imports(tree: ast.Module, known: dict[str, Path]) -> set[str]:
    """Modules of duogp that a module imports at run time, anywhere in it."""
    for_types = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for part in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    out = set()
    for name in names:
        if name.partition(".")[0] != "duogp":
            continue
        target = name.removeprefix("duogp").removeprefix(".")
        while target and target not in known:
            target = target.rpartition(".")[0]
        out.add(target)  # "": the root
    return out


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: imports(ast.parse(path.read_text()), known) - {name} for name, path in known.items()}


def test_every_package_has_its_storey(graph):
    assert {name.partition(".")[0] for name in graph} == HEIGHT.keys()


def test_no_import_points_up(graph):
    wrong = []
    for name, targets in graph.items():
        own = name.partition(".")[0]
        for target in targets - {""}:
            other = target.partition(".")[0]
            level = HEIGHT[own] - HEIGHT[other]
            if own != other and (level < 0 or (level == 0 and (own, other) not in NEIGHBOURS)):
                wrong.append(f"{name} → {target}")
    assert not wrong, f"imports that point up or sideways: {', '.join(sorted(wrong))}"


def test_nobody_inside_imports_through_the_root(graph):
    """`import duogp` inside the library would hide where a name comes from."""
    through = sorted(name for name, targets in graph.items() if "" in targets)
    assert not through


def test_there_is_no_cycle(graph):
    """A package's `__init__` counts as what stands in it."""
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"a cycle: {' → '.join(error.args[1])}")


def test_at_most_twelve_modules_stand_directly_under_the_root():
    assert len(list(SOURCE.glob("*.py"))) <= 12


def test_nobody_outside_asks_for_a_basis_class_or_name():
    """Traits are on the classes: no isinstance on bases, no comparison of a basis' name (DESIGN §3)."""
    classes = {name for name in bases.__all__ if isinstance(getattr(bases, name), type)}
    classes = {name for name in classes if issubclass(getattr(bases, name), Basis)} - {"Basis"}
    assert {"Coupled", "Conditional", "TwoBlock", "Hybrid", "Separate", "Subspace", "Exact"} <= classes
    wrong = []
    for name, path in modules().items():
        if name.partition(".")[0] in ("bases", "fused"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
                asked = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
                asked |= {part.attr for part in ast.walk(node.args[1]) if isinstance(part, ast.Attribute)}
                if asked & classes:
                    wrong.append(f"{name}:{node.lineno} {ast.unparse(node)}")
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                values = [c.value for side in sides for c in ast.walk(side) if isinstance(c, ast.Constant)]
                named = any(ast.unparse(side).endswith(".basis") for side in sides)
                if named and any(isinstance(value, str) for value in values):
                    wrong.append(f"{name}:{node.lineno} {ast.unparse(node)}")
    assert not wrong, wrong
