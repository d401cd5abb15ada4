"""The tests themselves: modules of a readable size that do not import each other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MODULES = sorted(TESTS.rglob("*.py"))
LONGEST = 600


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(TESTS)))
def test_modules_are_short_and_share_by_helpers_alone(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST
    imported: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            imported.append(node.module or "")
        elif isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
    names = [name.split(".")[-1] for name in imported]
    assert not [name for name in names if name.startswith("test_") or name == "conftest"]
