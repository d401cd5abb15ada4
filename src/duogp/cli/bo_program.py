"""The part of `duogp bo` that optimises programs."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from duogp.cli.errors import note, print_line
from duogp.cli.output import number

#: Evaluations where none are given; seconds between two figures and between two pages.
EVALUATIONS, REDRAW, REWRITE = 100, 10.0, 60.0
_LIMIT = re.compile(r"^\s*(\w+)\s*((?:<=|>=).*)$")


def optimise_program(
    command: str,
    output: str,
    *,
    params: list[str],
    space_file: str | None,
    constraints: list[str],
    directions: list[str],
    limits: list[str],
    parallel: int,
    timeout: float | None,
    method: str | None,
    evaluations: int | None,
    initial: int | None,
    seed: int,
    verbose: bool,
    **settings: Any,
) -> dict[str, Any]:
    """Run a program at the points of a study until it has all its evaluations; what came of it."""
    from duogp.bo.journal import FIGURE
    from duogp.bo.spaces import read_space, space_of_arguments
    from duogp.bo.studies import STRATEGIES, Study
    from duogp.bo.studies.log import EVENTS
    from duogp.bo.studies.programs import Command, run_program
    from duogp.bo.studies.report import PAGE, save_figure, write_report
    from duogp.bo.studies.trials import Trial
    from duogp.methods import METHODS

    if bool(params) == (space_file is not None):
        raise ValueError("give the parameters by --param, or by --space FILE.toml")
    if space_file is not None and constraints:
        raise ValueError("--constraint goes with --param: constraints of a --space are in its file")
    where = read_space(space_file) if space_file is not None else space_of_arguments(params, constraints)
    program = Command(command, where)
    if program.unused and verbose:
        note(f"{', '.join(program.unused)}: not in the command; the program finds it in $DUOGP_POINT")
    if not directions and verbose:
        note("larger values are better (--direction minimise if not)")
    options: dict[str, Any] = dict(settings)
    if method is None or method in STRATEGIES:
        options["strategy"] = method or STRATEGIES[0]
    else:
        options |= {"strategy": "turbo", "method": METHODS[method].name}
    total = EVALUATIONS if evaluations is None else evaluations
    start = drawn = written = time.monotonic()
    title = Path(program.words[0]).name
    study = Study(
        where,
        direction=directions_of(directions),
        constraints=limits_of(limits),
        seed=seed,
        initial=initial,
        folder=output,
        **options,
    )
    before = len(study.done)

    def publish(page: bool = True) -> None:
        save_figure(study, title)
        if page:
            write_report(study, title=f"{title}: {len(study.done)} evaluations", command=command)

    def after(trial: Trial) -> None:
        nonlocal drawn, written
        if verbose:
            print_line(line_of(trial))
        now = time.monotonic()
        if now - drawn > REDRAW:
            page = now - written > REWRITE
            publish(page)
            drawn, written = time.monotonic(), time.monotonic() if page else written

    with study:
        if verbose and len(study):
            print_line(f"going on after {before} evaluations in {output}")
        try:
            run_program(study, program, evaluations=total, parallel=parallel, timeout=timeout, after=after)
        finally:
            if study.done:
                publish()
        return {
            "command": command,
            "done": len(study.done),
            "failed": sum(trial.reason is not None for trial in study.trials),
            "resumed_after": before,
            "best": [{"number": t.number, "point": t.point, "values": t.values} for t in study.front],
            "seconds": time.monotonic() - start,
            "output": output,
            "files": [name for name in (EVENTS, FIGURE, PAGE) if (Path(output) / name).exists()],
        }


def directions_of(given: list[str]) -> str | dict[str, str]:
    """["minimise"] or ["loss=minimise", "time=minimise"] as a study takes them."""
    if not given:
        return "maximise"
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    pairs = [text.partition("=") for text in given]
    if any(not sign for _, sign, _ in pairs):
        raise ValueError(f"several objectives have names: --direction loss=minimise, got {', '.join(given)}")
    return {name.strip(): word.strip() for name, _, word in pairs}


def limits_of(given: list[str]) -> dict[str, str]:
    """["memory <= 8"] as a study takes them."""
    out = {}
    for text in given:
        match = _LIMIT.match(text)
        if match is None:
            raise ValueError(f"--limit takes a name and a bound such as 'memory <= 8', got {text!r}")
        out[match.group(1)] = match.group(2)
    return out


def line_of(trial: Any) -> str:
    """A trial in one line."""
    point = ", ".join(
        f"{name} = {number(value) if isinstance(value, float) else value}"
        for name, value in trial.point.items()
    )
    if trial.values is None:
        return f"trial {trial.number}: failed ({trial.reason}) at {point}"
    values = ", ".join(f"{name} = {number(value, 6)}" for name, value in trial.values.items())
    return f"trial {trial.number}: {values} at {point}"
