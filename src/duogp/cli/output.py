"""Output on standard output: tables for people, JSON with finite numbers for programs."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from duogp.bench.results import finite
from duogp.reports.html import number, percent

__all__ = ["console", "number", "percent", "print_pairs", "print_rows", "show"]


def show(report: Any, as_json: bool, quiet: bool, in_words: Callable[[Any], None]) -> None:
    """The report of a command: as JSON, or printed by ``in_words`` unless the user wants it quiet."""
    if as_json:
        typer.echo(json.dumps(finite(report), indent=2, ensure_ascii=False, allow_nan=False))
    elif not quiet:
        in_words(report)


def console() -> Console:
    """The terminal, or 160 columns where standard output is a pipe or a file."""
    shown = Console()
    return shown if shown.is_terminal else Console(width=160)


def print_pairs(title: str, pairs: Iterable[tuple[str, Any]]) -> None:
    """Names and values in two columns; pairs without a value are left out."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None and value != "":
            table.add_row(name, Text(str(value)))
    _print(title, table)


def print_rows(title: str, columns: list[str], rows: Iterable[Iterable[str]]) -> None:
    """A table with a head; all columns but the first are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    _print(title, table)


def _print(title: str, table: Table) -> None:
    shown = console()
    if title:
        shown.print(Text(title, style="bold"))
    shown.print(table)
