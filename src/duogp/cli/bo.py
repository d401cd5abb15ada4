"""`duogp bo`: optimisation of a program or a task by `duogp.bo`."""

import time
from typing import Annotated, Any

import typer

from duogp.cli.errors import print_line
from duogp.cli.options import AsJson, Device, Quiet, Seed, settings_of
from duogp.cli.output import number, print_pairs, show


def bo(
    output: Annotated[
        str, typer.Option("--output", "--run", "-o", help="Folder of the run; resumed if there.")
    ],
    task: Annotated[
        str | None, typer.Argument(help="ackley, hartmann6, push, rover, lunar, ranolazine, …")
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--command", help="A program to optimise, its parameters in braces: './train.sh {lr} {layers}'."
        ),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            "-p",
            help="A parameter of the program (repeatable): lr=log(1e-5,1e-1), layers=int(1,8), x=real(0,1), "
            "kind=cat(a,b), 'm=real(0,1) if kind=a'.",
        ),
    ] = None,
    space: Annotated[str | None, typer.Option(help="TOML file with the parameters instead.")] = None,
    constraint: Annotated[
        list[str] | None,
        typer.Option(help="A linear constraint on parameters (repeatable): 'a + 2*b <= 10'."),
    ] = None,
    direction: Annotated[
        list[str] | None,
        typer.Option(help="minimise or maximise; several objectives: loss=minimise (repeatable)."),
    ] = None,
    limit: Annotated[
        list[str] | None, typer.Option(help="A limit of another outcome (repeatable): 'memory <= 8'.")
    ] = None,
    parallel: Annotated[int, typer.Option("--parallel", "-j", help="Programs at a time.")] = 1,
    timeout: Annotated[float | None, typer.Option(help="Seconds after which a program is ended.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Of a task: auto, a name that `duogp methods` lists, botorch (its exact GP) or random; "
            "of a program: model, turbo, thompson, random or a GP inside turbo."
        ),
    ] = None,
    evaluations: Annotated[
        int | None, typer.Option("--evaluations", "-n", help="In all (1000; of a program 100).")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", help="Points of a batch.")] = 10,
    regions: Annotated[int, typer.Option(help="Trust regions: TuRBO-m.")] = 1,
    initial: Annotated[int | None, typer.Option(help="Points that start a region (2d).")] = None,
    candidates: Annotated[
        int | None,
        typer.Option(help="Points that a region chooses among (100d, at least 2000, at most 5000)."),
    ] = None,
    perturbed: Annotated[
        int | None, typer.Option(help="Coordinates that a candidate moves (the task's own, or 20).")
    ] = None,
    successes: Annotated[
        int | None, typer.Option(help="Batches in a row that improve and so double a region (10).")
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
    """Optimise a program or a task, or go on with a run that was stopped."""
    if (task is None) == (command is None):
        raise ValueError("give a --command with --param, or the name of a task")
    verbose = not (quiet or as_json)
    if command is not None:
        from duogp.cli.bo_program import optimise_program

        program = optimise_program(
            command,
            output,
            params=param or [],
            space_file=space,
            constraints=constraint or [],
            directions=direction or [],
            limits=limit or [],
            parallel=parallel,
            timeout=timeout,
            method=method,
            evaluations=evaluations,
            initial=initial,
            seed=seed,
            verbose=verbose,
            **settings_of(set_) | ({} if device is None else {"device": device}),
        )
        show(program, as_json, quiet, print_program)
        return
    assert task is not None
    only = {"param": param, "space": space, "constraint": constraint, "limit": limit, "timeout": timeout}
    only |= {"direction": direction, "parallel": parallel if parallel != 1 else None}
    if given := [f"--{name}" for name, value in only.items() if value]:
        raise ValueError(f"{', '.join(given)}: only with --command")
    import duogp.sklearn  # noqa: F401  # before the clock starts
    from duogp.bo import optimise, result_of
    from duogp.bo.journal import EVALUATIONS, FIGURE, read_options

    settings = settings_of(set_) | ({} if device is None else {"device": device})
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
        successes=successes,
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
        "best_evaluation": found.best_row + 1,
        "regret": None if found.optimum is None else found.optimum - found.best_y,
        "seconds": time.perf_counter() - start,
        "output": output,
        "files": [EVALUATIONS, FIGURE],
    }
    show(report, as_json, quiet, print_report)


def print_program(report: dict[str, Any]) -> None:
    """The report of a study of a program, for people."""
    counts = f"{report['done']} done, {report['failed']} failed"
    pairs: list[tuple[str, Any]] = [("trials", counts)]
    for trial in report["best"][:10]:
        values = ", ".join(f"{name} = {number(value, 6)}" for name, value in trial["values"].items())
        point = ", ".join(f"{name} = {value}" for name, value in trial["point"].items())
        pairs.append(("best", f"{values} at {point} (trial {trial['number']})"))
    pairs += [
        ("time", f"{report['seconds']:.1f} s"),
        ("written to", f"{report['output']} ({', '.join(report['files'])})"),
    ]
    print_pairs(f"optimisation of {report['command']}", pairs)


def print_report(report: dict[str, Any]) -> None:
    """The report of an optimisation task, for people."""
    pairs: list[tuple[str, Any]] = [
        ("method", report["method"]),
        ("evaluations", number(report["evaluations"])),
        ("best value", f"{number(report['best'], 6)} (evaluation {report['best_evaluation']})"),
        ("regret", None if report["regret"] is None else number(report["regret"])),
        ("time", f"{report['seconds']:.1f} s"),
        ("written to", f"{report['output']} ({', '.join(report['files'])})"),
    ]
    print_pairs(f"optimisation of {report['task']}", pairs)
