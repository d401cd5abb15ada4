"""The ``duogp`` command. Typer is imported here and nowhere else, and only when the command runs."""

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    import typer

HINT = "the duogp command needs typer and rich: pip install typer rich (python -m duogp.bench works without)"
METHOD_COLUMNS = (
    "name", "citation", "basis", "q", "objective", "is_bound", "variational_parameters", "summary",
)  # fmt: skip


def main() -> None:
    """Entry point of the console script."""
    try:
        app = build()
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.exit(HINT)
    app()


def build() -> "typer.Typer":
    """The application with all its commands."""
    import typer

    app = typer.Typer(
        name="duogp",
        help="Gaussian processes whose mean and covariance learn separately.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    bench = typer.Typer(no_args_is_help=True, help="Run benchmark suites and compare them with papers.")
    app.add_typer(bench, name="bench")

    SuiteName = Annotated[str, typer.Argument(help="Name in benchmarks/suites, or the path of a TOML file.")]
    ResultsFile = Annotated[
        str | None, typer.Option(help="Results file (default: benchmarks/results/NAME.jsonl).")
    ]
    DataNames = Annotated[str | None, typer.Option(help="Only these data sets, separated by commas.")]
    MethodNames = Annotated[str | None, typer.Option(help="Only these methods, separated by commas.")]
    Splits = Annotated[int | None, typer.Option(help="Only the first K splits.")]
    AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

    def show_version(wanted: bool) -> None:
        if wanted:
            from duogp._version import __version__

            typer.echo(f"duogp {__version__}")
            raise typer.Exit

    @app.callback()
    def top(
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None:
        """Gaussian processes whose mean and covariance learn separately."""

    @app.command()
    def methods(as_json: AsJson = False) -> None:
        """List the named methods: paper, recipe, whether a bound is maximised, variational parameters."""
        with polite():
            from duogp.methods import METHODS

            rows = [describe_method(method) for method in METHODS.values()]
            if as_json:
                typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
            else:
                print_methods(rows)

    @bench.command()
    def run(
        suite: SuiteName,
        results: ResultsFile = None,
        data: DataNames = None,
        methods: MethodNames = None,
        splits: Splits = None,
        device: Annotated[
            str | None, typer.Option(help="cpu, cuda, cuda:1 (default: cuda if there).")
        ] = None,
        workers: Annotated[int, typer.Option(help="Processes that share the device.")] = 1,
        replicates: Annotated[int, typer.Option(help="Splits trained as one batched model.")] = 1,
        time_limit: Annotated[
            float | None, typer.Option(help="Seconds: start no cell that would end later.")
        ] = None,
    ) -> None:
        """Run the cells that have no result yet."""
        with polite():
            from duogp.bench import commands

            code = commands.run_suite(
                suite,
                results=results,
                data=data,
                methods=methods,
                splits=splits,
                device=device,
                workers=workers,
                replicates=replicates,
                time_limit=time_limit,
            )
        raise typer.Exit(code)

    @bench.command()
    def table(
        suite: SuiteName,
        results: ResultsFile = None,
        data: DataNames = None,
        methods: MethodNames = None,
        splits: Splits = None,
        as_json: AsJson = False,
        learned: Annotated[bool, typer.Option("--learned", help="Learned length-scales instead.")] = False,
    ) -> None:
        """Put the paper's numbers beside ours."""
        with polite():
            from duogp.bench import commands

            commands.table_of_suite(
                suite,
                results=results,
                data=data,
                methods=methods,
                splits=splits,
                as_json=as_json,
                learned_values=learned,
            )

    @bench.command()
    def missing(
        suite: SuiteName,
        results: ResultsFile = None,
        data: DataNames = None,
        methods: MethodNames = None,
        splits: Splits = None,
    ) -> None:
        """List the cells without a result, in the order they would run."""
        with polite():
            from duogp.bench import commands

            commands.missing_of_suite(suite, results=results, data=data, methods=methods, splits=splits)

    return app


@contextmanager
def polite() -> Iterator[None]:
    """A user's mistake is one red line and exit status 2, not a traceback."""
    import typer

    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
        raise typer.Exit(2) from None


def describe_method(method: Any) -> dict[str, Any]:
    """A registry entry as plain values; further fields of its dataclass are left to the documentation."""
    return {name: plain(getattr(method, name, None)) for name in METHOD_COLUMNS}


def plain(value: Any) -> Any:
    """Text for a part of a recipe: itself, its name, or what it prints as."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if dataclasses.is_dataclass(value) or not hasattr(value, "__name__"):
        return getattr(value, "name", None) or str(value)
    return value.__name__


def print_methods(rows: Iterable[dict[str, Any]]) -> None:
    """The registry as a table."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:  # a pipe has no width
        console = Console(width=160)
    wide = console.width >= 110  # paper and sentence need room
    shown = [name for name in METHOD_COLUMNS if wide or name not in ("citation", "summary")]
    titles = {"citation": "paper", "is_bound": "bound", "variational_parameters": "parameters"}
    table = Table(box=None, pad_edge=False)
    for name in shown:
        table.add_column(titles.get(name, name), no_wrap=name not in ("variational_parameters", "summary"))
    for row in rows:
        cells = row | {"is_bound": "yes" if row["is_bound"] else "no"}
        table.add_row(*(str(cells[name] if cells[name] is not None else "") for name in shown))
    console.print(table)
