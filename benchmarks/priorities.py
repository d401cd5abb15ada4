"""The suites of the five papers in one queue: the most wanted cells first, under one time limit.

    python benchmarks/priorities.py run --time-limit 540 --workers 6 --results-dir FOLDER
    python benchmarks/priorities.py collect FOLDER        append what FOLDER holds to the suites' results
    python benchmarks/priorities.py tidy                  drop rows that later ones of the same cells replaced
    python benchmarks/priorities.py status                what each step has, lacks, and would take
    python benchmarks/priorities.py run --file benchmarks/priorities_cpu.toml --device cpu --workers 9 ...

`benchmarks/priorities.toml` lists the steps; those of ``priorities_cpu.toml`` are for the cores of a machine
whose GPU has the others. Cells that have a row are skipped: a run goes on where another ended; with
``--since 2026-11-17T12:00`` only rows that finished later count; with ``--stale`` it is the cells with a
stale row that run, and no others. A cell whose hash is that of a finished cell
of another suite (Table 8 repeats a row of Table 2) takes its row over. With ``--results-dir`` rows of all
suites go to one file there, ``rows.jsonl`` (and ``online_robot.jsonl``), so that little has to be copied
back; without it to the suites' own files.

No cell starts that would not end before ``--time-limit`` seconds, judged by what the same data and method
took on this kind of device, times how much slower this run is than those were (``--pace``, until it shows).
A cell that does not fit is passed over, smaller ones after it still run. At ``--hard-limit`` everything is
stopped; only cells in work are lost.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duogp.bench.measure import resolve_device
from duogp.bench.results import Results, Row, append, rewrite
from duogp.bench.runner import Job, describe, jobs, run_job
from duogp.bench.status import every_suite, is_stale
from duogp.bench.suite import Cell, load_suite
from duogp.bench.workers import run_in_processes
from job_times import Clock

HERE = Path(__file__).resolve().parent
STEPS = HERE / "priorities.toml"
ROBOT = "online_robot"
ROBOT_RESULTS = HERE / "results" / f"{ROBOT}.jsonl"
#: Where worker processes find the robots' results file and the generated data sets.
ROBOT_OUTPUT, ROBOT_CACHE = "DUOGP_ROBOT_OUTPUT", "DUOGP_ROBOT_CACHE"
#: Whether they leave stale lines of that file aside.
ROBOT_FRESH = "DUOGP_ROBOT_FRESH"


class TimeUp(Exception):
    """The hard limit."""


# -- what there is to do -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A choice of the cells of a suite."""

    number: int
    suite: str
    data: list[str] | None = None
    methods: list[str] | None = None
    splits: int | None = None
    replicates: int = 1

    def cells(self) -> list[Cell]:
        """The cells in the order they run."""
        if self.suite == ROBOT:
            return robot_cells(self.data, self.methods, self.splits or 1)
        return load_suite(self.suite).cells(self.data, self.methods, self.splits)

    def __str__(self) -> str:
        text = "; ".join(",".join(names) for names in (self.data, self.methods) if names)
        short = text if len(text) < 60 else f"{text[:57]}..."
        return f"{self.number:2d} {self.suite}" + (f" ({short})" if short else "")


def read_steps(path: Path, chosen: str | None = None) -> list[Step]:
    """The steps of a file; ``chosen``: only these numbers, "1,4-6"."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))["step"]
    steps = [Step(number, **table) for number, table in enumerate(tables, 1)]
    if chosen is None:
        return steps
    wanted: set[int] = set()
    for part in chosen.split(","):
        first, _, last = part.partition("-")
        wanted |= set(range(int(first), int(last or first) + 1))
    return [step for step in steps if step.number in wanted]


def robot_cells(data: Sequence[str] | None, methods: Sequence[str] | None, seeds: int) -> list[Cell]:
    """Cells of benchmarks/online_robot.py: its own settings and store; a split is a seed."""
    import online_robot

    sets = data or [*online_robot.ROBOTS, *(name for name in online_robot.MUJOCO if cached(name))]
    names = methods or online_robot.CHEAP_FIRST.split(",")
    return [
        Cell(ROBOT, name, method, method, ROBOT, seed, {})
        for seed in range(seeds)
        for method in names
        for name in sets
    ]


def cached(name: str) -> bool:
    """Whether a MuJoCo set was generated."""
    return (Path(os.environ.get(ROBOT_CACHE, "local/data/robot")) / f"{name}.npz").is_file()


# -- what there is already ---------------------------------------------------------------------------------


class Store:
    """Rows of all suites: those stored, and those of a folder of new ones."""

    def __init__(self, folder: Path | None, since: str = "", *, stale: bool = False) -> None:
        self.folder, self.since, self.stale = folder, since, stale
        self.new = Results.read(folder / "rows.jsonl") if folder else Results()
        self._stored: dict[str, Results] = {}
        self._robots = robot_rows(ROBOT_RESULTS)
        if folder:
            self._robots += robot_rows(folder / f"{ROBOT}.jsonl")

    def stored(self, suite: str) -> Results:
        """The rows of a suite's own file that count."""
        if suite not in self._stored:
            rows = [] if suite == ROBOT else Results.read(load_suite(suite).results).rows
            self._stored[suite] = Results(row for row in rows if str(row.get("finished")) >= self.since)
        return self._stored[suite]

    def settles(self, row: Row | None) -> bool:
        """Whether nothing is left to run for a cell with this row, or with none."""
        return (row is None or not is_stale(row)) if self.stale else row is not None

    def done(self, cell: Cell) -> bool:
        if cell.suite == ROBOT:
            key = (cell.data, cell.method, cell.split)
            rows = [row for row in self._robots if (row["data"], row["method"], row["seed"]) == key]
            return self.settles(rows[-1] if rows else None)
        if self.settles(self.stored(cell.suite).ok(cell)):
            return True
        same = (row for row in self.new.rows if (row["suite"], row["hash"]) == (cell.suite, cell.hash))
        return any(row["status"] == "ok" for row in same)

    def failed(self, cell: Cell) -> bool:
        """Whether all rows of a cell are failures."""
        found = (self.new, self.stored(cell.suite))
        return any(rows.failure(cell) is not None for rows in found)

    def elsewhere(self, cell: Cell, suites: Iterable[str]) -> Row | None:
        """The row of the same cell in another suite."""
        for suite in suites:
            row = None if suite in (cell.suite, ROBOT) else self.stored(suite).ok(cell)
            if row is not None and not (self.stale and is_stale(row)):
                return row
        return self.new.ok(cell)

    def add(self, row: Row) -> None:
        """Append a row: to the folder's one file, or to the suite's."""
        path = self.folder / "rows.jsonl" if self.folder else load_suite(row["suite"]).results
        append(path, row)

    def rows(self, suites: Iterable[str]) -> Iterator[Row]:
        """All rows, old ones too: for times."""
        for suite in suites:
            yield from [] if suite == ROBOT else Results.read(load_suite(suite).results).rows
        yield from self.new.rows


def robot_rows(path: Path) -> list[dict[str, Any]]:
    """The results (not the tunings) of benchmarks/online_robot.py."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [line for line in lines if line["kind"] == "result"]


# -- running -----------------------------------------------------------------------------------------------


def plan(steps: Sequence[Step], store: Store, *, write: bool = True) -> list[Job]:
    """All jobs in order, each cell once; rows of equal cells of other suites are taken over before."""
    suites = sorted(path.stem for path in (HERE / "suites").glob("*.toml"))
    seen: set[tuple[str, str]] = set()
    hashes: set[str] = set()
    queue: list[Job] = []
    for step in steps:
        todo = []
        for cell in step.cells():
            key = (cell.suite, cell.hash)
            if key in seen or store.done(cell):
                continue
            seen.add(key)
            if cell.suite != ROBOT and (row := store.elsewhere(cell, suites)) is not None:
                if write:
                    store.add(row | {"suite": cell.suite, "label": cell.label, "taken_from": row["suite"]})
                continue
            if cell.hash not in hashes:  # the same cell of another suite follows in the next run
                hashes.add(cell.hash)
                todo.append(cell)
        once = [cell for cell in todo if store.failed(cell)]
        queue += jobs([cell for cell in todo if cell not in once], step.replicates) + jobs(once, 1)
    return queue


def execute(job: Job, device: str) -> list[Row]:
    """The rows of a job; a robot's go to a store of their own."""
    if job[0].suite != ROBOT:
        return run_job(job, device)
    return [run_robot(cell, device) for cell in job]


def run_robot(cell: Cell, device: str) -> Row:
    """Choose a rate and train, as benchmarks/online_robot.py does; the row is of the queue alone."""
    import online_robot

    output, cache = Path(os.environ[ROBOT_OUTPUT]), Path(os.environ.get(ROBOT_CACHE, "local/data/robot"))
    options = argparse.Namespace(
        iterations=2000, tuning_iterations=500, batch_size=1024, shrink=1.0, dtype="float64", device=device,
        seed=cell.split, output=output, data_cache=cache,
    )  # fmt: skip
    store = online_robot.Store(output)
    if output != ROBOT_RESULTS:
        store.lines = [*online_robot.Store(ROBOT_RESULTS).lines, *store.lines]
    if os.environ.get(ROBOT_FRESH):
        store.lines = [line for line in store.lines if not is_stale(line)]
    start = time.perf_counter()
    try:
        online_robot.compete(cell.data, cell.method, store, math.inf, options)
    except Exception as error:
        return {"status": "failed", "error": {"type": type(error).__name__, "message": str(error)}}
    seconds = {"fit": time.perf_counter() - start}
    about = {name: getattr(cell, name) for name in ("suite", "data", "label", "method")}
    return {"status": "ok", "seconds": seconds, "metrics": {}, "device": device, **about}


def run(options: argparse.Namespace) -> int:
    """Run the queue; the exit status is 1 when a cell failed."""
    folder: Path | None = options.results_dir
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    os.environ[ROBOT_OUTPUT] = str(folder / f"{ROBOT}.jsonl" if folder else ROBOT_RESULTS)
    os.environ.setdefault(ROBOT_CACHE, str(options.robot_cache))
    os.environ[ROBOT_FRESH] = "yes" if options.stale else ""
    device = resolve_device(options.device)
    steps = read_steps(options.file, options.steps)
    store = Store(folder, options.since, stale=options.stale)
    queue = plan(steps, store)
    rows = store.rows(dict.fromkeys(step.suite for step in steps))
    clock = Clock(options.time_limit, device, rows, options.pace)
    counts, passed, total = {"ok": 0, "failed": 0}, list[Cell](), sum(map(len, queue))
    print(f"{total} cells in {len(queue)} jobs on {device}, {options.workers} workers", flush=True)

    def finished(job: Job, rows: list[Row]) -> None:
        clock.learn(job, rows)
        for cell, row in zip(job, rows, strict=True):
            if cell.suite != ROBOT:
                store.add(row)
            counts[row["status"]] += 1
            print(f"{clock.limit - clock.left():6.0f} s [{sum(counts.values())}/{total}] {cell.suite} "
                  f"{describe(cell, row)}", flush=True)  # fmt: skip

    def stop(*_: object) -> None:
        raise TimeUp

    if options.hard_limit:
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, options.hard_limit)
    try:
        run_in_processes(clock.affordable(queue, passed), options.workers, device, execute, finished)
    except (TimeUp, KeyboardInterrupt):
        print("stopped; finished cells are kept", flush=True)
    signal.setitimer(signal.ITIMER_REAL, 0)
    done = sum(counts.values())
    print(f"{counts['ok']} finished, {counts['failed']} failed, {total - done} left "
          f"({len(passed)} did not fit the time); the same command goes on")  # fmt: skip
    return 1 if counts["failed"] else 0


def identity(row: Row) -> tuple[str, str, str]:
    return row["hash"], row["status"], str(row.get("finished"))


def collect(options: argparse.Namespace) -> int:
    """Append the rows of a folder to the suites' results; what is there already is left out."""
    for path in sorted(options.folder.glob("*.jsonl")):
        if path.stem == ROBOT:
            old = ROBOT_RESULTS.read_text(encoding="utf-8").splitlines() if ROBOT_RESULTS.exists() else []
            lines = path.read_text(encoding="utf-8").splitlines()
            fresh = [line for line in lines if line and line not in old]
            with ROBOT_RESULTS.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in fresh)
            print(f"{ROBOT}: {len(fresh)} lines")
            continue
        counts: dict[str, int] = {}
        known: dict[str, set[tuple[str, str, str]]] = {}
        for row in Results.read(path).rows:
            suite = load_suite(row["suite"])
            have = known.setdefault(suite.name, set(map(identity, Results.read(suite.results).rows)))
            if (key := identity(row)) not in have:
                have.add(key)
                append(suite.results, row)
                counts[suite.name] = counts.get(suite.name, 0) + 1
        print(f"{path.name}: " + (", ".join(f"{name} {n}" for name, n in counts.items()) or "nothing new"))
    return 0


def tidy(options: argparse.Namespace) -> int:
    """Suites' results without rows that later ones of the same cell replaced."""
    for suite in every_suite():
        found = Results.read(suite.results)
        kept = found.current()
        if len(kept) < len(found.rows):
            rewrite(suite.results, kept)
            print(f"{suite.name}: {len(found.rows) - len(kept)} rows of {len(found.rows)} were replaced")
    return 0


def status(options: argparse.Namespace) -> int:
    """One line for each step: finished cells of all, and the seconds the others would take on a device."""
    steps = read_steps(options.file, options.steps)
    store = Store(options.results_dir, options.since, stale=options.stale)
    device = options.device or resolve_device(None)  # one that is not here may be asked about
    clock = Clock(math.inf, device, store.rows({step.suite for step in steps}))
    counted: set[tuple[str, str]] = set()
    for step in steps:
        cells = step.cells()
        missing = [cell for cell in cells if not store.done(cell)]
        new = [cell for cell in missing if (cell.suite, cell.hash) not in counted]
        counted |= {(cell.suite, cell.hash) for cell in new}
        seconds = sum(clock.expected((cell,)) for cell in new)
        done = f"{len(cells) - len(missing)} of {len(cells)} {'not stale' if options.stale else 'done'}"
        print(f"{step}: {done}, {len(new)} new, about {seconds:,.0f} s")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--file", type=Path, default=STEPS, help="the steps (default: priorities.toml)")
    common.add_argument("--steps", metavar="NUMBERS", help="only these, such as 1,4-6")
    common.add_argument("--device", help="cpu, cuda, cuda:1 (default: cuda where there is one)")
    common.add_argument("--results-dir", type=Path, metavar="FOLDER", help="one file of rows for all suites")
    common.add_argument("--since", default="", metavar="TIME", help="rows from before (ISO) do not count")
    common.add_argument("--stale", action="store_true", help="cells with a stale row, no others")
    runs = commands.add_parser(
        "run", parents=[common], help="run what has no row yet, or a stale one (--stale)"
    )
    runs.add_argument("--time-limit", type=float, default=math.inf, metavar="SECONDS")
    runs.add_argument("--hard-limit", type=float, metavar="SECONDS", help="stop everything (default: never)")
    runs.add_argument("--pace", type=float, default=1.0, metavar="FACTOR", help="of what cells took before")
    runs.add_argument("--workers", type=int, default=1, help="processes that share the device")
    runs.add_argument("--robot-cache", type=Path, default=Path("local/data/robot"), help="MuJoCo sets")
    runs.set_defaults(command=run)
    states = commands.add_parser("status", parents=[common], help="what each step has and lacks")
    states.set_defaults(command=status)
    collects = commands.add_parser("collect", help="append the rows of a folder to the suites' results")
    collects.add_argument("folder", type=Path)
    collects.set_defaults(command=collect)
    tidies = commands.add_parser("tidy", help="drop rows that later ones of the same cells replaced")
    tidies.set_defaults(command=tidy)
    options = parser.parse_args(arguments)
    if getattr(options, "stale", False) and options.since:
        parser.error("--since leaves old rows aside, --stale looks for them: give one of the two")
    return int(options.command(options))


if __name__ == "__main__":
    sys.exit(main())
