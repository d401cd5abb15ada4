"""`duogp bench`: benchmark suites; the work is done by `duogp.bench`."""

from typing import Annotated

import typer

from duogp.cli.manners import command
from duogp.cli.options import AsJson, Device

SuiteName = Annotated[str, typer.Argument(help="Name in benchmarks/suites, or the path of a TOML file.")]
ResultsFile = Annotated[
    str | None, typer.Option(help="Results file (default: benchmarks/results/NAME.jsonl).")
]
DataNames = Annotated[str | None, typer.Option(help="Only these data sets, separated by commas.")]
MethodNames = Annotated[str | None, typer.Option(help="Only these methods, separated by commas.")]
Splits = Annotated[int | None, typer.Option(help="Only the first K splits.")]


def register(app: typer.Typer) -> None:
    bench = typer.Typer(no_args_is_help=True, help="Run benchmark suites and compare them with papers.")
    app.add_typer(bench, name="bench")

    @command(bench)
    def run(
        suite: SuiteName,
        results: ResultsFile = None,
        data: DataNames = None,
        methods: MethodNames = None,
        splits: Splits = None,
        device: Device = None,
        workers: Annotated[int, typer.Option(help="Processes that share the device.")] = 1,
        replicates: Annotated[int, typer.Option(help="Splits trained as one batched model.")] = 1,
        time_limit: Annotated[
            float | None, typer.Option(help="Seconds: start no cell that would end later.")
        ] = None,
    ) -> None:
        """Run the cells that have no result yet."""
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

    @command(bench)
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

    @command(bench)
    def missing(
        suite: SuiteName,
        results: ResultsFile = None,
        data: DataNames = None,
        methods: MethodNames = None,
        splits: Splits = None,
    ) -> None:
        """List the cells without a result, in the order they would run."""
        from duogp.bench import commands

        commands.missing_of_suite(suite, results=results, data=data, methods=methods, splits=splits)
