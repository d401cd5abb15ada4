"""`duogp bo`: optimisation of a task by `duogp.bo`."""

import time
from typing import Annotated, Any

import typer

from duogp.cli.errors import print_line
from duogp.cli.options import AsJson, Device, Quiet, Seed, settings_of
from duogp.cli.output import number, print_pairs, show


def bo(
    task: Annotated[str, typer.Argument(help="ackley, hartmann6, push, rover, lunar, ranolazine, …")],
    output: Annotated[str, typer.Option("--output", "-o", help="Folder of the run; resumed if there.")],
    method: Annotated[
        str, typer.Option(help="A name that `duogp methods` lists, botorch (its exact GP) or random.")
    ] = "dcsvgp",
    evaluations: Annotated[int, typer.Option("--evaluations", "-n", help="In all.")] = 1000,
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", help="Points of a batch.")] = 10,
    regions: Annotated[int, typer.Option(help="Trust regions: TuRBO-m.")] = 1,
    initial: Annotated[int | None, typer.Option(help="Points that start a region (2d).")] = None,
    candidates: Annotated[
        int | None, typer.Option(help="Points that a region chooses among (100d, at most 5000).")
    ] = None,
    perturbed: Annotated[
        int | None, typer.Option(help="Coordinates that a candidate moves (the task's own, or 20).")
    ] = None,
    seed: Seed = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the model, name=value (repeatable): --set beta2=0"),
    ] = None,
    task_set: Annotated[
        list[str] | None, typer.Option("--task-set", help="An option of the task, name=value (repeatable).")
    ] = None,
    device: Device = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Optimise a task by TuRBO with any model, or go on with a run that was stopped."""
    import duogp.sklearn  # noqa: F401  # before the clock starts
    from duogp.bo import optimise, result_of
    from duogp.bo.journal import EVALUATIONS, FIGURE, read_options

    settings = settings_of(set_) | ({} if device is None else {"device": device})
    verbose = not (quiet or as_json)
    before = 0 if read_options(output) is None else len(result_of(output))
    if before and verbose:
        print_line(f"going on after {before} evaluations in {output}")
    start = time.perf_counter()
    found = optimise(
        task,
        method,
        folder=output,
        evaluations=evaluations,
        batch_size=batch_size,
        regions=regions,
        initial=initial,
        candidates=candidates,
        perturbed=perturbed,
        seed=seed,
        task_options=settings_of(task_set),
        verbose=verbose,
        **settings,
    )
    report = {
        "task": task,
        "method": found.method,
        "evaluations": len(found),
        "resumed_after": before,
        "best": found.best_y,
        "best_x": found.best_x,
        "best_evaluation": int(found.y.argmax()) + 1,
        "regret": None if found.optimum is None else found.optimum - found.best_y,
        "seconds": time.perf_counter() - start,
        "output": output,
        "files": [EVALUATIONS, FIGURE],
    }
    show(report, as_json, quiet, print_report)


def print_report(report: dict[str, Any]) -> None:
    pairs: list[tuple[str, Any]] = [
        ("method", report["method"]),
        ("evaluations", number(report["evaluations"])),
        ("best value", f"{number(report['best'], 6)} (evaluation {report['best_evaluation']})"),
        ("regret", None if report["regret"] is None else number(report["regret"])),
        ("time", f"{report['seconds']:.1f} s"),
        ("written to", f"{report['output']} ({', '.join(report['files'])})"),
    ]
    print_pairs(f"optimisation of {report['task']}", pairs)
