"""Output for people (tables) and for machines (JSON with finite numbers)."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text


def plain(value: Any) -> Any:
    """JSON values: numpy as Python, numbers that are not finite as null."""
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def console() -> Console:
    shown = Console()
    return shown if shown.is_terminal else Console(width=160)  # a pipe has no width


def print_pairs(title: str, pairs: Iterable[tuple[str, Any]]) -> None:
    """Names and values in two columns; those without a value are left out."""
    table = Table(box=None, pad_edge=False, show_header=False, title_justify="left", title_style="bold")
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None and value != "":
            table.add_row(name, Text(str(value)))
    shown = console()
    if title:
        shown.print(Text(title, style="bold"))
    shown.print(table)


def print_rows(title: str, columns: list[str], rows: Iterable[Iterable[str]]) -> None:
    """A table with a head; all columns but the first are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    shown = console()
    if title:
        shown.print(Text(title, style="bold"))
    shown.print(table)


def number(value: Any, digits: int = 4) -> str:
    """A number to be read."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.1f}"


def percent(value: Any) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def some(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
