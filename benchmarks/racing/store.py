"""The results file: a head and rows, written after every course, so that a race can go on where it ended."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from duogp.bench.measure import versions

Row = dict[str, Any]


@lru_cache(maxsize=1)
def commit_of_tree() -> tuple[str | None, bool | None]:
    """The commit of the library's source, and whether files differ; (None, None) where it is not known.

    ``DUOGP_COMMIT`` names it where there is no history, with a "+" where files differ.
    """
    found = versions().get("commit")
    return (None, None) if found is None else (found.rstrip("+"), found.endswith("+"))


def course_of(row: Row) -> tuple[str, int, str]:
    """Rows of one course come from one run, and are replaced together."""
    return row["what"], row["M"], row["dtype"]


class Store:
    def __init__(self, path: Path | None, head: dict[str, Any]) -> None:
        self.path, self.head = path, head
        self.rows: list[Row] = []
        if path is not None and path.exists():
            self.rows = json.loads(path.read_text(encoding="utf-8"))["rows"]

    def has(self, what: str, M: int, dtype: str) -> bool:
        return any(course_of(row) == (what, M, dtype) for row in self.rows)

    def add(self, rows: list[Row]) -> None:
        """Put the rows of one course in the place of older ones, and write the file."""
        fresh = {course_of(row) for row in rows}
        self.rows = [row for row in self.rows if course_of(row) not in fresh] + rows
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self.head | {"rows": self.rows}, indent=1)
            self.path.write_text(text + "\n", encoding="utf-8")
