"""`duogp methods`: the registry as a table."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from rich.table import Table

from duogp.cli.options import AsJson
from duogp.cli.output import console, show

COLUMNS = (
    *("name", "citation", "basis", "q", "objective", "is_bound", "variational_parameters"),
    *("summary", "use_when"),
)
#: shown from so many columns of the terminal on
WIDE = {"citation": 110, "summary": 110, "use_when": 170}


def methods(as_json: AsJson = False) -> None:
    """List the named methods: paper, recipe, whether a bound is maximised, variational parameters."""
    from duogp.methods import METHODS

    aliases: dict[str, str] = getattr(METHODS, "aliases", {})
    rows = [
        {name: name_of(getattr(method, name, None)) for name in COLUMNS}
        | {"aliases": [alias for alias, target in aliases.items() if target == method.name]}
        for method in METHODS.values()
    ]
    show(rows, as_json, False, print_methods)


def name_of(value: Any) -> Any:
    """A field of a method as a plain value: itself, its name, or its text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if dataclasses.is_dataclass(value) or not hasattr(value, "__name__"):
        return getattr(value, "name", None) or str(value)
    return value.__name__


def print_methods(rows: Iterable[dict[str, Any]]) -> None:
    """A line for each method, its aliases beside its name; what is in `WIDE` where there is room for it."""
    shown = console()
    names = [name for name in COLUMNS if shown.width >= WIDE.get(name, 0)]
    titles = {"citation": "paper", "is_bound": "bound", "variational_parameters": "parameters"}
    titles["use_when"] = "use when"
    table = Table(box=None, pad_edge=False)
    for name in names:
        wraps = name in ("variational_parameters", "summary", "use_when")
        table.add_column(titles.get(name, name), no_wrap=not wraps)
    for row in rows:
        cells = row | {"is_bound": "yes" if row["is_bound"] else "no"}
        cells["name"] = ", ".join([row["name"], *row["aliases"]])
        table.add_row(*(str(cells[name] if cells[name] is not None else "") for name in names))
    shown.print(table)
