"""Jobs of the arena: set × split × contestant, each in a process of its own, rows appended to a file.

A job is skipped where the file has a row of the same key (set, split, contestant, label of ours); one that
failed is tried again with ``--again``. Jobs are ordered by split, so that a run cut by ``--deadline`` or
``--within`` leaves whole splits; within a split by contestants and sets as they are named. A process has its
own cores where the machine can pin it, and is killed after `KILL` seconds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from arena.contestants import CONTESTANTS, DEFAULT, OURS
from arena.tables import BLIND

RESULTS = Path(__file__).resolve().parents[1] / "results" / "arena.jsonl"
#: Seconds of a job, prediction and imports included, after which it counts as not finished.
KILL = 150.0
#: Seconds before the end of a run ``--within`` a limit in which no job is started.
LAST_START = 75.0
SPLITS = 5
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
#: Modules that are loaded once for all jobs; none of them is a peer.
PRELOADED = ("pandas", "scipy.stats", "sklearn.ensemble", "torch", "duogp.sklearn.regressor")
Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One fit and its scores."""

    table: str
    kind: str
    half: str
    split: int
    contestant: str
    label: str  # the version of ours; "" for peers

    @property
    def key(self) -> tuple[str, int, str, str]:
        return self.table, self.split, self.contestant, self.label


def key_of(row: Row) -> tuple[str, int, str, str]:
    return row["table"], row["split"], row["contestant"], row["label"]


def jobs(
    heads: Iterable[dict[str, Any]], splits: Iterable[int], contestants: Sequence[str], label: str
) -> list[Job]:
    """All jobs by split, contestant and set; a contestant runs on the kinds of tables it knows."""
    heads = list(heads)
    return [
        Job(head["name"], head["kind"], head["half"], number, name, label if name == OURS else "")
        for number in splits
        for name in contestants
        for head in heads
        if head["kind"] in CONTESTANTS[name].kinds
    ]


def read_rows(path: Path) -> list[Row]:
    """Complete rows of a file of JSON lines; a half-written one is ignored."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def open_jobs(wanted: Iterable[Job], rows: Iterable[Row], again: bool = False) -> list[Job]:
    """Jobs without a row; with ``again`` also those whose rows all failed."""
    done = {key_of(row) for row in rows if row["status"] == "ok" or not again}
    return [job for job in wanted if job.key not in done]


# -- one job -----------------------------------------------------------------------------------------------


def compete(job: Job, folder: Path | None, threads: int) -> Row:
    """Load, split, fit, predict, score."""
    import numpy as np

    from arena import laws
    from arena.tables import Collection, split
    from duogp.bench.provenance import stamp

    table = Collection(folder).load(job.table)
    rows = split(table, job.split)
    X, y = table.X.iloc[rows.train].reset_index(drop=True), table.y[rows.train]
    contestant = CONTESTANTS[job.contestant].make(job.kind, table.classes, job.split, threads)
    start = time.perf_counter()
    contestant.train(X, y)
    fitted = time.perf_counter()
    found = contestant.test(table.X.iloc[rows.test].reset_index(drop=True))
    truth = table.y[rows.test]
    if job.kind == "regression":
        scores = laws.regression_scores(found, truth, float(np.std(y)))
    else:
        scores = laws.class_scores(found, truth)
    return {
        **scores,
        "fit_seconds": round(fitted - start, 2),
        "seconds": round(time.perf_counter() - start, 2),
        "train_rows": len(y),
        "test_rows": len(truth),
        "columns": X.shape[1],
        "notes": contestant.notes,
        "package_version": CONTESTANTS[job.contestant].version,
        **stamp(),
    }


def work(channel: Connection, job: Job, folder: Path | None, threads: int, cores: tuple[int, ...]) -> None:
    """The body of a process: one row goes back."""
    import warnings

    warnings.simplefilter("ignore")
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    try:
        row = compete(job, folder, threads) | {"status": "ok"}
    except Exception as error:
        row = {
            "status": "failed",
            "failure": f"{type(error).__name__}: {error}"[:500],
            "where": places_of(error),
        }
    channel.send(row)
    channel.close()


def places_of(error: Exception) -> list[str]:
    """File and line of the innermost frames, without the folders of this machine."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames]


def processes() -> Any:
    """Processes forked from a server that has the large modules loaded, where the system has that."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


class Process:
    """A job under way on its cores."""

    def __init__(self, job: Job, folder: Path | None, threads: int, cores: tuple[int, ...]) -> None:
        context = processes()
        self.job, self.cores = job, cores
        self.channel, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=work, args=(theirs, job, folder, threads, cores), daemon=True)
        self.start = time.perf_counter()
        self.process.start()
        theirs.close()

    def row(self) -> Row:
        """The row of a process that has ended or answered."""
        try:
            found: Row = self.channel.recv()
        except EOFError:
            self.process.join(5)
            found = {"status": "failed", "failure": f"the process ended with code {self.process.exitcode}"}
        self.end()
        return found

    @property
    def overdue(self) -> bool:
        return time.perf_counter() - self.start > KILL

    def end(self) -> None:
        self.process.join(0.2)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(3)
            if self.process.is_alive():
                self.process.kill()
        self.channel.close()


def run(
    wanted: Sequence[Job],
    path: Path,
    folder: Path | None,
    workers: int,
    threads: int,
    deadline: float | None = None,
    within: float | None = None,
) -> int:
    """Run jobs in their order, so many at once; returns how many were started.

    After ``deadline`` seconds none is started; after ``within`` seconds those under way are ended and have no
    row, so that a later run takes them up.
    """
    if within is not None:
        deadline = min(within - LAST_START, within if deadline is None else deadline)
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    places: list[tuple[int, ...]] = [
        tuple(available[i * threads : (i + 1) * threads]) if len(available) >= workers * threads else ()
        for i in range(workers)
    ]
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))  # for the processes
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    begin, started, busy = time.perf_counter(), 0, []
    queue = list(wanted)[::-1]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        while queue or busy:
            passed = time.perf_counter() - begin
            if deadline is not None and passed > deadline:
                queue.clear()
            if within is not None and passed > within:
                print(f"ended after {within:g} s with {len(busy)} jobs under way", flush=True)
                break
            while queue and places:
                busy.append(Process(queue.pop(), folder, threads, places.pop()))
                started += 1
            ready = wait([process.channel for process in busy], timeout=1.0) if busy else []
            for process in list(busy):
                if process.channel in ready:
                    row = process.row()
                elif process.overdue:
                    process.end()
                    row = {"status": "failed", "failure": f"not finished after {KILL:.0f} s"}
                else:
                    continue
                busy.remove(process)
                places.append(process.cores)
                store(path, process.job, row | {"threads": threads})
    finally:
        for process in busy:
            process.end()
    return started


def store(path: Path, job: Job, row: Row) -> None:
    """Append a row and say it."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(job) | row, ensure_ascii=False) + "\n")
    what = f"NLL {row['nll']:.3f} {row['seconds']:.1f} s" if row["status"] == "ok" else row["failure"]
    print(f"{job.table} {job.split} {job.contestant}: {what}", flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder", type=Path, help="an exported folder of sets (python -m arena.tables --export)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--half", choices=("choice", "report", *BLIND, "all"), default="all", help="all: choice and report"
    )
    parser.add_argument("--kind", choices=("regression", "classification"))
    parser.add_argument("--sets", help="only these, separated by commas")
    parser.add_argument("--contestants", help="only these, separated by commas")
    parser.add_argument("--splits", default=f"0-{SPLITS - 1}", help="such as 0-4 or 1,3")
    parser.add_argument("--label", default="default", help="the version of ours that these rows belong to")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--deadline", type=float, help="seconds after which no job starts")
    parser.add_argument(
        "--within", type=float, help="seconds of the whole run; what is under way then is left to the next"
    )
    parser.add_argument("--again", action="store_true", help="try failed jobs again")


def numbers(text: str) -> list[int]:
    """``"0-2,5"`` → [0, 1, 2, 5]."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def chosen(text: str | None, known: Sequence[str], default: Sequence[str], what: str) -> list[str]:
    """Names of a comma-separated text; unknown ones are an error."""
    names = text.split(",") if text else list(default)
    if strange := [name for name in names if name not in known]:
        raise SystemExit(f"unknown {what}: {', '.join(strange)}; there are {', '.join(known)}")
    return names


def missing_jobs(options: argparse.Namespace) -> list[Job]:
    """The jobs that the options ask for and the file has no row of."""
    from arena.tables import Collection

    collection = Collection(options.folder)
    sets = chosen(options.sets, list(collection.heads), collection.names(options.half, options.kind), "sets")
    contestants = chosen(options.contestants, list(CONTESTANTS), DEFAULT, "contestants")
    heads = [collection.heads[name] for name in sets]
    wanted = jobs(heads, numbers(options.splits), contestants, options.label)
    missing = open_jobs(wanted, read_rows(options.results), options.again)
    print(f"{len(missing)} of {len(wanted)} jobs are missing", flush=True)
    return missing


def main(options: argparse.Namespace) -> int:
    """Run the missing jobs."""
    missing = missing_jobs(options)
    limits = options.deadline, options.within
    run(missing, options.results, options.folder, options.workers, options.threads, *limits)
    return 0


def print_missing(options: argparse.Namespace) -> int:
    """List the missing jobs in the order they would run."""
    for job in missing_jobs(options):
        print(*job.key)
    return 0
