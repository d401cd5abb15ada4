"""`duogp methods`: the registry as a table."""

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.table import Table

from duogp.cli.options import AsJson
from duogp.cli.output import console, print_pairs, show

COLUMNS = (
    "name",
    "aliases",
    "citation",
    "basis",
    "q",
    "objective",
    "is_bound",
    "variational_parameters",
    "summary",
    "use_when",
)


def methods(
    choose: Annotated[
        bool, typer.Option("--choose", help="Six lines: what is known of the table, and the method.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the named methods: other names, paper, recipe, whether a bound is maximised, when to use each."""
    from duogp.methods import METHODS

    if choose:
        from duogp.methods.guide import CHOOSER

        lines = [{"when": when, "method": method} for when, method in CHOOSER]
        show(lines, as_json, False, lambda _: print_pairs("", CHOOSER))
        return
    aliases: dict[str, list[str]] = {}
    for alias, name in getattr(METHODS, "aliases", {}).items():
        aliases.setdefault(name, []).append(alias)
    rows = [
        {name: name_of(getattr(method, name, None)) for name in COLUMNS}
        | {"aliases": aliases.get(method.name, [])}
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
    """A line for each method; paper, q and parameters only where there are 150 columns."""
    shown = console()
    wide = ("citation", "q", "variational_parameters")
    names = [n for n in COLUMNS if n != "summary" and (shown.width >= 150 or n not in wide)]
    titles = {"citation": "paper", "is_bound": "bound", "variational_parameters": "parameters"}
    titles |= {"aliases": "also", "use_when": "use when"}
    folded = ("variational_parameters", "use_when")
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(titles.get(name, name), no_wrap=name not in folded)
    for row in rows:
        cells = row | {"is_bound": "yes" if row["is_bound"] else "no", "aliases": ", ".join(row["aliases"])}
        table.add_row(*(str(cells[name] if cells[name] is not None else "") for name in names))
    shown.print(table)
    shown.print("duogp methods --choose: which one, in six lines", style="dim")
