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
    imported = {
        name.split(".")[-1]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    }
    assert not [name for name in imported if name.startswith("test_") or name == "conftest"]
