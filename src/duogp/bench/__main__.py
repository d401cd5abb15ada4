"""``python -m duogp.bench``: the benchmark runner with the core dependencies alone; also ``duogp bench``."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from duogp.bench.claims import CLAIMS, decide, load_claims
from duogp.bench.experiments import load_experiments, status_line
from duogp.bench.measure import resolve_device
from duogp.bench.numerics import numerics_version
from duogp.bench.report import compare, learned, render
from duogp.bench.rerun import RERUNS, latest, rerun
from duogp.bench.rerun import status_lines as rerun_lines
from duogp.bench.results import Results
from duogp.bench.runner import run
from duogp.bench.status import counts, every_suite, states, status_lines
from duogp.bench.suite import Cell, Suite, find_program, load_suite

#: Missing cells that are listed after a run.
LISTED = 20


def parser(prog: str) -> ArgumentParser:
    """The commands of a suite (run, table, missing) and of the whole store (status, claims, report)."""
    choice = ArgumentParser(add_help=False)
    choice.add_argument("suite", help="name in benchmarks/suites, or the path of a TOML file; arena")
    choice.add_argument("--results", metavar="FILE", help="default: benchmarks/results/NAME.jsonl")
    choice.add_argument("--data", metavar="NAMES", help="only these data sets, separated by commas")
    choice.add_argument("--methods", metavar="NAMES", help="only these methods, separated by commas")
    choice.add_argument("--splits", metavar="K", type=int, help="only the first K splits")
    choice.add_argument("--debug", action="store_true", help="show the traceback of an error")

    top = ArgumentParser(prog=prog, description="Run benchmark suites and compare them with papers.")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    run = commands.add_parser("run", parents=[choice], help="run the cells that have no result yet")
    run.set_defaults(command=run_suite)
    run.add_argument("--device", help="cpu, cuda, cuda:1 (default: cuda where there is one)")
    run.add_argument("--workers", metavar="K", type=int, default=1, help="processes that share the device")
    run.add_argument(
        "--replicates", metavar="K", type=int, default=1, help="splits trained as one batched model"
    )
    run.add_argument("--time-limit", metavar="SECONDS", type=float, help="start no cell that would end later")
    run.add_argument("--stale", action="store_true", help="run stale cells again, after the missing ones")
    table = commands.add_parser("table", parents=[choice], help="the paper's numbers beside ours")
    table.set_defaults(command=print_table)
    table.add_argument("--json", action="store_true", help="a list of rows")
    table.add_argument("--learned", action="store_true", help="learned length-scales instead")
    missing = commands.add_parser("missing", parents=[choice], help="list the cells without a result")
    missing.set_defaults(command=print_missing)

    whole = ArgumentParser(add_help=False)
    whole.add_argument("--debug", action="store_true", help="show the traceback of an error")
    status = commands.add_parser("status", parents=[whole], help="done, stale, failed and missing cells")
    status.set_defaults(store=print_status)
    status.add_argument("suite", nargs="?", help="one suite (default: all of them, and the experiments)")
    status.add_argument("--version", action="store_true", help="only print the numerics version")
    status.add_argument("--json", action="store_true", help="counts by suite")
    claims = commands.add_parser("claims", parents=[whole], help="the papers' claims, decided from the store")
    claims.set_defaults(store=print_claims)
    claims.add_argument("--json", action="store_true", help="a list of decisions")
    again = commands.add_parser("rerun", parents=[whole], help="run cells drawn at random again and compare")
    again.set_defaults(store=rerun_cells)
    again.add_argument("suites", nargs="*", metavar="SUITE", help="default: all of them")
    again.add_argument("--cells", metavar="K", type=int, default=2, help="of each suite (default 2)")
    again.add_argument("--seed", metavar="S", type=int, default=0, help="of the draw (default 0)")
    again.add_argument("--device", help="cpu, cuda (default: cuda where there is one): rows of that kind")
    again.add_argument("--workers", metavar="K", type=int, default=1, help="processes that share the device")
    again.add_argument("--longest", metavar="SECONDS", type=float, help="draw no cell that took longer")
    again.add_argument("--fresh", action="store_true", help="draw no stale cell")
    again.add_argument(
        "--time-limit", metavar="SECONDS", type=float, help="start no cell that would end later"
    )
    again.add_argument("--output", metavar="FILE", type=Path, default=RERUNS, help="of the comparisons")
    report = commands.add_parser("report", parents=[whole], help="one HTML page of everything")
    report.set_defaults(store=write_report)
    report.add_argument("-o", "--output", metavar="FILE", default="report.html", help="default: report.html")
    return top


def main(arguments: Sequence[str] | None = None, prog: str = "python -m duogp.bench") -> int:
    """Exit status: 0, 1 when a cell failed, 2 for an error in the call or the suite, 130 interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if len(arguments) > 1 and (folder := find_program(arguments[1])):
        return run_program(folder, [arguments[0], *arguments[2:]], f"{prog} COMMAND {folder.name}")
    options = parser(prog).parse_args(arguments)
    try:
        if hasattr(options, "store"):
            done: int = options.store(options)
            return done
        suite = load_suite(options.suite)
        cells = suite.cells(names(options.data), names(options.methods), options.splits)
        status: int = options.command(suite, cells, Path(options.results or suite.results), options)
        return status
    except (ValueError, FileNotFoundError) as error:
        if options.debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; finished cells are kept", file=sys.stderr)
        return 130


def run_program(folder: Path, arguments: list[str], prog: str) -> int:
    """Hand a command to a suite that is a program: ``main(arguments, prog)`` of its ``__main__``."""
    if (place := str(folder.resolve().parent)) not in sys.path:
        sys.path.insert(0, place)
    status: int = importlib.import_module(f"{folder.name}.__main__").main(arguments, prog)
    return status


def names(text: str | None) -> list[str] | None:
    """``"pol,bike"`` → its parts; None is all."""
    return text.split(",") if text else None


def run_suite(suite: Suite, cells: list[Cell], path: Path, options: Namespace) -> int:
    """Run the cells that have no result yet."""
    done = run(
        cells,
        path,
        device=options.device,
        workers=options.workers,
        replicates=options.replicates,
        time_limit=options.time_limit,
        again=options.stale,
        report=print_now,
    )
    count = len(done.missing)
    print_now(f"{done.ok} finished, {done.failed} failed, {count} of {len(cells)} missing; {path}")
    for line in missing_lines(done.missing[:LISTED], Results.read(path)):
        print_now(f"missing: {line}")
    if count > LISTED:
        print_now(f"missing: and {count - LISTED} more")
    return 1 if done.failed else 0


def print_table(suite: Suite, cells: list[Cell], path: Path, options: Namespace) -> int:
    """Print the paper's numbers beside ours."""
    rows = (learned if options.learned else compare)(suite, Results.read(path), cells)
    if options.json:
        print_now(json.dumps(list(map(asdict, rows)), indent=2))
    else:
        print_now(render(rows, suite.source))
        for what, why in suite.absent.items():
            print_now(f"not available: {what}: {why}")
    return 0


def print_missing(suite: Suite, cells: list[Cell], path: Path, options: Namespace) -> int:
    """List the cells without a successful row, in the order they would run."""
    found = Results.read(path)
    missing = found.missing(cells)
    for line in missing_lines(missing, found):
        print_now(line)
    print_now(f"{len(missing)} of {len(cells)} cells missing")
    return 0


def missing_lines(cells: list[Cell], found: Results) -> list[str]:
    """One line per cell, with the error of those that failed."""
    lines = []
    for cell in cells:
        row = found.failure(cell)
        why = f" (failed: {row['error']['type']}: {row['error']['message']})" if row else ""
        lines.append(f"{cell}{why}".splitlines()[0])
    return lines


def print_status(options: Namespace) -> int:
    """Print the states of all cells of one suite, or the counts of all suites and experiments."""
    if options.version:
        print_now(numerics_version())
        return 0
    suites = [load_suite(options.suite)] if options.suite else every_suite()
    found = [(suite, states(suite, Results.read(suite.results))) for suite in suites]
    if options.json:
        print_now(json.dumps({suite.name: counts(cells) for suite, cells in found}, indent=2))
        return 0
    for suite, cells in found:
        for line in status_lines(suite, cells, listed=sys.maxsize if options.suite else 0):
            print_now(line)
    if not options.suite:
        for experiment in load_experiments():
            print_now(status_line(experiment))
        for line in rerun_lines(latest()):
            print_now(line)
        print_now(f"numerics version {numerics_version()}")
    return 0


def print_claims(options: Namespace) -> int:
    """Print one line per claim: verdict, n, test, effect."""
    claims, sources = load_claims(CLAIMS)
    decisions = [decide(claim, sources) for claim in claims]
    if options.json:
        print_now(json.dumps(list(map(asdict, decisions)), indent=2, ensure_ascii=False))
        return 0
    for each in decisions:
        print_now(
            f"{each.verdict}: {each.claim.text} ({each.claim.paper}, {each.claim.place}): {each.numbers}"
        )
    return 0


def rerun_cells(options: Namespace) -> int:
    """Run cells again that have a row; exit status 1 when one differs."""
    done = rerun(
        [load_suite(name) for name in options.suites] if options.suites else every_suite(),
        count=options.cells,
        seed=options.seed,
        device=resolve_device(options.device),
        workers=options.workers,
        longest=options.longest,
        fresh=options.fresh,
        time_limit=options.time_limit,
        output=options.output,
        report=print_now,
    )
    print_now(f"{sum(each['agrees'] for each in done)} of {len(done)} cells agree; {options.output}")
    return 0 if all(each["agrees"] for each in done) else 1


def write_report(options: Namespace) -> int:
    """Write the HTML page."""
    from duogp.bench.page import page

    path = Path(options.output)
    path.write_text(page(), encoding="utf-8")
    print_now(f"{path}")
    return 0


def print_now(line: str) -> None:
    """Print without a delay, so that a log file shows progress."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
