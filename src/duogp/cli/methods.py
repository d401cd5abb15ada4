"""`duogp methods`: the registry as a table."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from rich.table import Table

from duogp.cli.options import AsJson
from duogp.cli.output import console, show

COLUMNS = ("name", "citation", "basis", "q", "objective", "is_bound", "variational_parameters", "summary")


def methods(as_json: AsJson = False) -> None:
    """List the named methods: paper, recipe, whether a bound is maximised, variational parameters."""
    from duogp.methods import METHODS

    rows = [{name: name_of(getattr(method, name, None)) for name in COLUMNS} for method in METHODS.values()]
    show(rows, as_json, False, print_methods)


def name_of(value: Any) -> Any:
    """A field of a method as a plain value: itself, its name, or its text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if dataclasses.is_dataclass(value) or not hasattr(value, "__name__"):
        return getattr(value, "name", None) or str(value)
    return value.__name__


def print_methods(rows: Iterable[dict[str, Any]]) -> None:
    """A line for each method; paper and summary only where there are 110 columns."""
    shown = console()
    names = [name for name in COLUMNS if shown.width >= 110 or name not in ("citation", "summary")]
    titles = {"citation": "paper", "is_bound": "bound", "variational_parameters": "parameters"}
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(titles.get(name, name), no_wrap=name not in ("variational_parameters", "summary"))
    for row in rows:
        cells = row | {"is_bound": "yes" if row["is_bound"] else "no"}
        table.add_row(*(str(cells[name] if cells[name] is not None else "") for name in names))
    shown.print(table)
