"""`duogp data`: the benchmark files, where they come from, and whether those here are the right ones."""

from pathlib import Path
from typing import Annotated, Any

import typer

from duogp.cli.errors import USER_ERROR, CommandGroup, add_command, print_line
from duogp.cli.options import AsJson, Quiet
from duogp.cli.output import number, print_pairs, print_rows, show

Names = Annotated[
    list[str] | None, typer.Argument(help="Data sets, such as pol or regression/pol (default: all).")
]
Folder = Annotated[str | None, typer.Option("--folder", help="The data folder (default: $DUOGP_DATA).")]


def add_data(app: typer.Typer) -> None:
    """Register the commands of the group."""
    group = typer.Typer(
        cls=CommandGroup, help="List, fetch and check the data of the benchmarks.", no_args_is_help=True
    )
    for name, function in (("list", list_sets), ("fetch", fetch_sets), ("check", check_sets)):
        add_command(group, function, name)
    app.add_typer(group, name="data")


def list_sets(names: Names = None, folder: Folder = None, as_json: AsJson = False) -> None:
    """The data sets: rows, columns, classes, whether they are here, and where they come from."""
    from dataclasses import asdict

    from duogp.data.benchmark import data_root

    root = Path(folder) if folder else data_root()
    found = [
        {
            **asdict(entry),
            "short": entry.short_origin,
            "here": root is not None and (root / entry.path).is_file(),
        }
        for entry in _entries(names)
    ]
    show(found, as_json, False, _print_one if len(found) == 1 else _print_list)


def fetch_sets(
    names: Names = None,
    source: Annotated[
        str | None,
        typer.Option("--from", help="A folder, or an http(s) address, laid out as the data folder."),
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="The data folder (default: $DUOGP_DATA).")] = None,
    quiet: Quiet = False,
) -> None:
    """Copy data sets into the data folder; each is kept only if its checksum is right."""
    from duogp.data.fetching import data_folder, fetch
    from duogp.data.registry import problem

    if source is None:
        raise ValueError(
            "--from is missing: the files are conversions of public data that no public server has. Give "
            "a folder or an address that has them, or make one from its origin (duogp data list NAME, "
            "docs/data.md)"
        )
    target = data_folder(to)
    for entry in _entries(names):
        if problem(target / entry.path, entry) is None:
            line = "here already"
        else:
            fetch(entry, source, target)
            line = "fetched"
        if not quiet:
            print_line(f"{entry.name}: {line}")


def check_sets(names: Names = None, folder: Folder = None, as_json: AsJson = False) -> None:
    """Compare the files here with the registered ones: keys, shapes, values. Exit status 2 if one differs."""
    from duogp.data.fetching import data_folder
    from duogp.data.registry import problem

    target = data_folder(folder)
    if not target.is_dir():
        raise FileNotFoundError(f"there is no folder {str(target)!r}")
    found = [{"name": e.name, "problem": problem(target / e.path, e)} for e in _entries(names)]
    show(found, as_json, False, lambda rows: _print_check(rows, target))
    if any(each["problem"] and (names or each["problem"] != "missing") for each in found):
        raise typer.Exit(USER_ERROR)
    if not names and all(each["problem"] == "missing" for each in found):
        raise FileNotFoundError(f"{str(target)!r} holds none of the {len(found)} data sets")


def _entries(names: list[str] | None) -> list[Any]:
    from duogp.data.registry import entry_of, registry

    return [entry_of(name) for name in names] if names else list(registry().values())


def _print_list(found: list[dict[str, Any]]) -> None:
    def shape(entry: dict[str, Any]) -> list[str]:
        X = entry["arrays"].get("X")
        return ["", ""] if X is None else [number(X[1][0]), number(X[1][1])]

    rows = [
        [
            e["name"],
            *shape(e),
            number(e["classes"]) if e["classes"] else "",
            "yes" if e["here"] else "",
            e["short"],
        ]
        for e in found
    ]
    print_rows("", ["name", "rows", "dims", "classes", "here", "origin"], rows)


def _print_one(found: list[dict[str, Any]]) -> None:
    (entry,) = found
    arrays = ", ".join(f"{key} {dtype}{list(shape)}" for key, (dtype, shape) in entry["arrays"].items())
    pairs = [
        ("file", entry["path"]),
        ("here", "yes" if entry["here"] else "no"),
        ("arrays", arrays),
        ("origin", entry["origin"]),
        ("address", entry["url"]),
        ("cite", entry["citation"]),
        ("converted", entry["converted"]),
        ("notes", entry["notes"]),
        ("sha256 (arrays)", entry["sha256"]),
    ]
    print_pairs(entry["name"], pairs)


def _print_check(found: list[dict[str, Any]], folder: Path) -> None:
    right = sum(each["problem"] is None for each in found)
    for each in found:
        if each["problem"] is not None:
            print_line(f"{each['name']}: {each['problem']}", None if each["problem"] == "missing" else "red")
    print_line(f"{right} of {len(found)} data sets in {folder} are right")
