"""`duogp bench`: the arguments of ``python -m duogp.bench``, handed to its parser."""

import typer

from duogp.cli.errors import errors_reported


def add_bench(app: typer.Typer) -> None:
    """Register the command; options and ``--help`` are those of `duogp.bench.__main__.parser`."""

    @app.command(
        "bench",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def bench(context: typer.Context) -> None:
        """Run benchmark suites and compare them with papers."""
        from duogp.bench.__main__ import main

        with errors_reported("--debug" in context.args):
            raise typer.Exit(main(context.args or ["--help"], prog="duogp bench"))
