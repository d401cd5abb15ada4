"""The one door to pyarrow: imported when a table is met, with a clear word where it is not installed."""

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
    """What an exception of pyarrow says, on one line and without its trailing diagnosis."""
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
