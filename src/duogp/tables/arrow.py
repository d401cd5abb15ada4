"""Import of pyarrow, at the first table, with a hint where it is not installed."""

from __future__ import annotations

import importlib
from typing import Any

HINT = "reading and writing tables needs pyarrow: pip install pyarrow"


def arrow(part: str | None = None) -> Any:
    """The module pyarrow, or one of its parts: ``arrow("parquet")``."""
    try:
        return importlib.import_module("pyarrow" if part is None else f"pyarrow.{part}")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("pyarrow"):
            raise
        raise ModuleNotFoundError(HINT, name="pyarrow") from None


def first_line(error: BaseException) -> str:
    """The message of a pyarrow exception, without the lines of diagnosis after it."""
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
