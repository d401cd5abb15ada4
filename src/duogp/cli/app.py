"""The ``duogp`` application. `build` imports typer and rich, a command imports torch when it runs."""

import sys
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    import typer

HINT = "the duogp command needs typer and rich: pip install typer rich (python -m duogp.bench works without)"
INTERRUPTED = 130


def main() -> None:
    """Entry point of the console script."""
    try:
        app = build()
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.exit(HINT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    app()


def build() -> "typer.Typer":
    """The application with all its commands."""
    import typer

    from duogp.cli.bench import add_bench
    from duogp.cli.bo import bo
    from duogp.cli.data import add_data
    from duogp.cli.errors import CommandGroup, add_command
    from duogp.cli.evaluate import evaluate
    from duogp.cli.explain import explain
    from duogp.cli.export import export
    from duogp.cli.fit import fit
    from duogp.cli.info import info
    from duogp.cli.methods import methods
    from duogp.cli.plot import plot
    from duogp.cli.predict import predict
    from duogp.cli.report import report
    from duogp.cli.serve import serve

    app = typer.Typer(
        cls=CommandGroup,
        name="duogp",
        help="Gaussian processes whose mean and covariance learn separately.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

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

    for function in (fit, predict, evaluate, explain, report, plot, info, methods, export, serve, bo):
        add_command(app, function)
    add_bench(app)
    add_data(app)
    return app
