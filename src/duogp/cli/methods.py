"""`duogp methods`: the registry as a table."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import typer
from rich.table import Table

from duogp.cli.manners import command
from duogp.cli.options import AsJson
from duogp.cli.showing import console, print_json

COLUMNS = ("name", "citation", "basis", "q", "objective", "is_bound", "variational_parameters", "summary")


def register(app: typer.Typer) -> None:
    @command(app)
    def methods(as_json: AsJson = False) -> None:
        """List the named methods: paper, recipe, whether a bound is maximised, variational parameters."""
        from duogp.methods import METHODS

        rows = [describe_method(method) for method in METHODS.values()]
        if as_json:
            print_json(rows)
        else:
            print_methods(rows)


def describe_method(method: Any) -> dict[str, Any]:
    """A registry entry as plain values; further fields of its dataclass are left to the documentation."""
    return {name: name_of(getattr(method, name, None)) for name in COLUMNS}


def name_of(value: Any) -> Any:
    """Text for a part of a recipe: itself, its name, or what it prints as."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if dataclasses.is_dataclass(value) or not hasattr(value, "__name__"):
        return getattr(value, "name", None) or str(value)
    return value.__name__


def print_methods(rows: Iterable[dict[str, Any]]) -> None:
    shown = console()
    wide = shown.width >= 110  # paper and sentence need room
    names = [name for name in COLUMNS if wide or name not in ("citation", "summary")]
    titles = {"citation": "paper", "is_bound": "bound", "variational_parameters": "parameters"}
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(titles.get(name, name), no_wrap=name not in ("variational_parameters", "summary"))
    for row in rows:
        cells = row | {"is_bound": "yes" if row["is_bound"] else "no"}
        table.add_row(*(str(cells[name] if cells[name] is not None else "") for name in names))
    shown.print(table)
