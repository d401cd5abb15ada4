"""JSON from files that others may have changed: a value, or a ValueError that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: Bytes; options, schemas and units are small.
LARGEST = 2**28


def read_json(path: Path) -> Any:
    """The value in a file."""
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it has more than {LARGEST} bytes")
        return parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: it cannot be read, it was changed or damaged: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """The object (names and values) in a file."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: it holds {type(found).__name__}, expected names and values")
    return found


def parse_json(data: bytes) -> Any:
    """A JSON value; whatever is none is a ValueError, also what is nested too deeply."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
