"""Rows per second and peak memory on files that do not fit into memory, beside reading and arithmetic alone.

A Parquet set of generated rows × 8 is written in pieces and deleted afterwards (``--keep``: it stays, and
another call with ``--keep`` uses it). Each stage runs in a process of its own, whose largest resident size is
measured: of the whole process, libraries and CUDA among them (``peak_mb``), and while the rows go through it
(``stage_mb``), beside what was resident just before that (``before_mb``) and how much of that are pages of
files, which is what libraries are (``files_mb``):

    read        the files by pyarrow, every column, nothing done with it
    chunks      the same as chunks of float64, what training is fed with
    pass        one closed-form pass: the statistics of all rows and the optimal q(u)
    evaluation  the bound and its gradient: two passes
    epoch       one epoch of minibatches (Adam), shuffled in windows
    predict     `duogp predict` of all rows to one Parquet file

and, as floors, `pass`, `evaluation`, `epoch` and `predict` on fewer rows, which stand in memory as the models
take them, each before its stage; stages come in the order that is asked for. A stage is compared with the
slower of `read` and its floor. With ``--within SECONDS`` a stage is left out, and said to be, where its floor
shows that it would not end in time.

    python benchmarks/throughput.py --rows 100_000_000 --folder rows --processes 12
    python benchmarks/throughput.py --rows 100_000_000 --folder rows --keep --within 400 --stages read pass
    python benchmarks/throughput.py --rows 100_000_000 --stages read chunks epoch --batch-size 16384
    python benchmarks/throughput.py --cost --most-rows 100_000_000     # over rows, columns and points
    python benchmarks/throughput.py --figure                           # docs/images/cost.png
    python benchmarks/throughput.py --table

Results: benchmarks/results/throughput.jsonl (--results: another file), one row for a stage.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
RESULTS = HERE.parent / "results" / "throughput.jsonl"
FIGURE = HERE.parents[1] / "docs" / "images" / "cost.png"
STAGES = ("read", "chunks", "pass", "evaluation", "epoch", "predict")
VARIED = ("columns", "points", "rows")
FLOORS = ("pass", "evaluation", "epoch", "predict")
PIECE = 1_000_000  # rows of a file
SAMPLE = 5000  # rows that the model is made from


# -- files ---------------------------------------------------------------------------------------------------


def rows_of(n: int, columns: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets: a smooth function of all columns, and noise."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, columns), dtype=np.float32)
    f = np.sin(2 * X[:, 0]) + X[:, 1:].sum(1) / np.sqrt(columns)
    return X, f + 0.1 * rng.standard_normal(n, dtype=np.float32)


def write(folder: Path, rows: int, columns: int, processes: int) -> float:
    """Files of a million rows, by several processes; the seconds it took."""
    start = time.perf_counter()
    pieces = [
        (folder, piece, min(PIECE, rows - first), columns)
        for piece, first in enumerate(range(0, rows, PIECE))
    ]
    with multiprocessing.get_context("spawn").Pool(min(processes, len(pieces))) as pool:
        pool.starmap(write_piece, pieces, chunksize=1)
    return time.perf_counter() - start


def write_piece(folder: Path, piece: int, rows: int, columns: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    X, y = rows_of(rows, columns, piece)
    table = pa.table({f"x{i}": X[:, i] for i in range(columns)} | {"y": y})
    parquet.write_table(table, folder / f"{piece:05d}.parquet", row_group_size=131_072)


def prepare(folder: Path, options: dict[str, Any], *, keep: bool) -> None:
    """Write the files, unless they are to be kept and are there already."""
    import pyarrow.dataset

    folder.mkdir(parents=True, exist_ok=True)
    if keep and any(folder.iterdir()):
        found = pyarrow.dataset.dataset(str(folder)).count_rows()
        if found != options["rows"]:
            raise SystemExit(f"{folder} has {found:,} rows, not {options['rows']:,}")
        return
    if any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty: it would be deleted afterwards")
    seconds = write(folder, options["rows"], options["columns"], options["processes"])
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{options['rows']:,} rows written in {seconds:.0f} s, {size / 1e9:.2f} GB", flush=True)


# -- stages, each in a process of its own --------------------------------------------------------------------


def model_of(options: dict[str, Any]) -> Any:
    """A GP with the asked number of points; what it has learned does not matter here."""
    import duogp

    X, y = rows_of(max(SAMPLE, 2 * options["points"]), options["columns"], 10**6)
    given = {"num_inducing": options["points"], "dtype": options["dtype"], "device": options["device"]}
    return duogp.fit(X, y, "svgp", solver="closed-form", epochs=2, inducing_init="random", **given)


def source_of(options: dict[str, Any]) -> Any:
    from duogp.data.arrow_source import ArrowSource

    return ArrowSource(options["folder"], "y")


def stream_of(gp: Any, source: Any, *, on_host: bool = False) -> Any:
    import torch

    from duogp.fitting.builder import CPU_CHUNK_ROWS
    from duogp.fitting.streamed_rows import CUDA_BATCH_ROWS
    from duogp.posterior.statistics import scaled_batch
    from duogp.training.stream import Stream

    device = gp.model.beta1.device
    scaled = partial(
        scaled_batch,
        x_scaler=gp.x_scaler,
        y_scaler=gp.y_scaler,
        columns=gp.columns,
        dtype=gp.model.basis.q.mean.dtype,
        device=torch.device("cpu") if on_host else device,
    )
    return Stream(
        source,
        scaled,
        keep=lambda chunk: np.ones(len(chunk.x), dtype=bool),
        sample=next(source.chunks()),
        rows=CPU_CHUNK_ROWS if device.type == "cpu" else CUDA_BATCH_ROWS,
        pinned=on_host and device.type == "cuda",
    )


def objective_of(options: dict[str, Any]) -> tuple[Any, int]:
    """The collapsed objective of the files, or of rows in memory, and the number of rows."""
    from duogp.data.sources import ArraySource
    from duogp.inference.closed_form import CollapsedObjective

    gp = model_of(options)
    if not options["floor"]:
        gp.model.num_data.fill_(float(options["rows"]))
        return CollapsedObjective(gp.model, stream_of(gp, source_of(options))), options["rows"]
    X, y = rows_of(options["floor_rows"], options["columns"], 0)
    batches = list(stream_of(gp, ArraySource(X, y)).batches())
    gp.model.num_data.fill_(float(len(y)))
    return CollapsedObjective(gp.model, [lambda b=b: b for b in batches]), len(y)


def timed(function: Callable[[], Any], device: Any) -> float:
    from duogp.bench.measure import Stopwatch

    MEMORY.update(resident())
    with Stopwatch(str(device)) as clock:
        function()
    MEMORY["stage_mb"] = status("VmHWM")
    return clock.seconds


#: What `timed` has found out about the memory of this process.
MEMORY: dict[str, float | None] = dict.fromkeys(("before_mb", "files_mb", "stage_mb", "peak_mb"))


def resident() -> dict[str, float | None]:
    """What is resident now; the largest size is counted from here on. Known on Linux."""
    found = {"before_mb": status("VmRSS"), "files_mb": status("RssFile"), "peak_mb": status("VmHWM")}
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return found


def status(name: str) -> float | None:
    """A size of this process in MB."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return round(int(line.split()[1]) * 1024 / 1e6, 1)
    return None


def stage_read(options: dict[str, Any]) -> tuple[float, int]:
    from duogp.data.arrow_source import record_batches

    source = source_of(options)
    names = source.dataset.schema.names
    start = time.perf_counter()
    rows = sum(batch.num_rows for _, batch in record_batches(source.dataset, names, source.chunk_rows))
    return time.perf_counter() - start, rows


def stage_chunks(options: dict[str, Any]) -> tuple[float, int]:
    source = source_of(options)
    start = time.perf_counter()
    rows = sum(len(chunk.x) for chunk in source.chunks())
    return time.perf_counter() - start, rows


def stage_pass(options: dict[str, Any]) -> tuple[float, int]:
    objective, rows = objective_of(options)
    return timed(objective.solve, objective.model.beta1.device), rows


def stage_evaluation(options: dict[str, Any]) -> tuple[float, int]:
    objective, rows = objective_of(options)
    return timed(objective.backward, objective.model.train().beta1.device), rows


def stage_epoch(options: dict[str, Any]) -> tuple[float, int]:
    import torch

    from duogp.training import Minibatches, Stochastic, Table, TableFeed, TrainingPlan, train
    from duogp.training.stream import StreamFeed

    gp = model_of(options)
    device, size = gp.model.beta1.device, options["batch_size"]
    generator = torch.Generator(device).manual_seed(0)
    if options["floor"]:
        X, y = rows_of(options["floor_rows"], options["columns"], 0)
        dtype = gp.model.basis.q.mean.dtype
        x = torch.as_tensor(gp.x_scaler.transform(X), dtype=dtype, device=device)
        t = torch.as_tensor(gp.y_scaler.transform(y[:, None]), dtype=dtype, device=device)
        rows = len(y)
        feed: Any = TableFeed(
            Table(x, t, dtype=dtype), Minibatches(torch.arange(rows, device=device)[None], size, [generator])
        )
    else:
        rows = options["rows"]
        stream = stream_of(gp, source_of(options), on_host=True)
        feed = StreamFeed(stream, [rows], size, [generator], device=device)
    gp.model.train().num_data.fill_(float(rows))
    plan = TrainingPlan(epochs=1, learning_rate=1e-3, backend=options["backend"])
    return timed(lambda: train(gp.model, Stochastic(gp.model, feed), plan), device), rows


def stage_predict(options: dict[str, Any]) -> tuple[float, int]:
    import pyarrow as pa

    from duogp.cli.model_folder import save_model
    from duogp.tables import Schema

    gp = model_of(options)
    if options["floor"]:
        X, _ = rows_of(options["floor_rows"], options["columns"], 0)
        gp.predict(X[:10])
        return timed(lambda: gp.predict(X), gp.model.beta1.device), len(X)
    X, y = rows_of(SAMPLE, options["columns"], 10**6)
    table = pa.table({f"x{i}": X[:, i] for i in range(X.shape[1])} | {"y": y})
    with tempfile.TemporaryDirectory(dir=Path(options["folder"]).resolve().parent) as folder:
        save_model(gp, Schema.learn(table, "y"), {"text": None}, Path(folder) / "model")
        command = [
            sys.executable,
            "-m",
            "duogp",
            "predict",
            f"{folder}/model",
            f"{options['folder']}/*.parquet",
        ]
        command += ["-o", f"{folder}/out.parquet", "--json", "--quiet"]
        command += [] if options["device"] is None else ["--device", options["device"]]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start, options["rows"]


class Repeated:
    """A source of so many rows without files: the same random chunks again and again."""

    def __init__(self, rows: int, columns: int, chunk_rows: int = 65_536) -> None:
        X, y = rows_of(min(rows, 4 * chunk_rows), columns, 0)
        self.rows, self.chunk_rows = rows, chunk_rows
        self.X, self.y = X.astype(np.float64), y.astype(np.float64)[:, None]

    def chunks(self, rank: int = 0, world: int = 1) -> Iterator[Any]:
        from duogp.data.sources import Chunk

        size, places = self.chunk_rows, -(-len(self.X) // self.chunk_rows)
        for number, first in enumerate(range(0, self.rows, size)):
            s = slice(number % places * size, number % places * size + min(size, self.rows - first))
            yield Chunk(self.X[s], self.y[s], number=number)


def stage_cost(options: dict[str, Any]) -> tuple[float, int]:
    """One closed-form pass over generated rows."""
    from duogp.inference.closed_form import CollapsedObjective

    gp = model_of(options)
    objective = CollapsedObjective(gp.model, stream_of(gp, Repeated(options["rows"], options["columns"])))
    gp.model.num_data.fill_(float(options["rows"]))
    return timed(objective.solve, gp.model.beta1.device), options["rows"]


# -- measuring -----------------------------------------------------------------------------------------------


def child(options: dict[str, Any]) -> None:
    """Run one stage and print what it took."""
    import torch

    from duogp.bench.measure import device_name, peak_memory, resolve_device, versions
    from duogp.bench.provenance import stamp

    torch.set_num_threads(options["threads"])
    device = resolve_device(options["device"])
    seconds, rows = globals()[f"stage_{options['stage']}"](options)
    peak = max(peak_memory("cpu") or 0, int(1e6 * (MEMORY["peak_mb"] or 0)))
    found = {
        **{k: options[k] for k in ("stage", "floor", "columns", "points", "batch_size", "dtype", "threads")},
        "rows": rows,
        "seconds": round(seconds, 4),
        "rows_per_second": round(rows / seconds, 1),
        **MEMORY,
        "peak_mb": round(max(peak, peak_of_children()) / 1e6, 1),
        "device": device_name(device),
        "file_rows": None if options["stage"] == "cost" else options["rows"],
        **versions(),
        **stamp(),
    }
    print(json.dumps(found))


def peak_of_children() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure(options: dict[str, Any], limit: float | None = None) -> dict[str, Any] | None:
    """A stage in a process of its own; its row is stored. None where it failed or outlasted the limit."""
    environment = os.environ | {"OMP_NUM_THREADS": str(options["threads"])}
    command = [sys.executable, str(HERE), "--child", json.dumps(options)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    )
    try:
        out, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its own children too
        process.wait()
        print(f"{options['stage']:<11}ended after {limit:.0f} s, before it was done", flush=True)
        return None
    if process.returncode:
        print(f"{options['stage']:<11}failed:\n{errors}", flush=True)
        return None
    row: dict[str, Any] = json.loads(out.splitlines()[-1])
    with Path(options["results"]).open("a") as file:
        file.write(json.dumps(row) + "\n")
    kind = "floor" if row["floor"] else ""
    print(
        f"{row['stage']:<11}{kind:<6}{row['rows']:>12,} rows × {row['columns']}, M = {row['points']:<5}"
        f"{row['seconds']:>10.2f} s {row['rows_per_second']:>14,.0f} rows/s {row['peak_mb']:>8,.0f} MB",
        flush=True,
    )
    return row


def throughput(options: dict[str, Any], stages: list[str], *, keep: bool, within: float | None) -> None:
    """Write the files, measure all stages, delete the files."""
    end = None if within is None else time.monotonic() + within
    folder = Path(options["folder"])
    try:
        prepare(folder, options, keep=keep)
        found: dict[tuple[str, bool], dict[str, Any]] = {}
        both = ((stage, floor) for stage in stages for floor in (True, False))
        for stage, floor in (each for each in both if each[0] in FLOORS or not each[1]):
            left = None if end is None else end - time.monotonic()
            need = 0.0 if floor else expected(found, stage, options["rows"])
            if left is not None and left < need:
                print(f"{stage:<11}left out: it takes {need:.0f} s, {left:.0f} s are left", flush=True)
            elif row := measure({**options, "stage": stage, "floor": floor}, left):
                found[stage, floor] = row
        compare(found)
    finally:
        if not keep:
            shutil.rmtree(folder)


def expected(found: dict[tuple[str, bool], dict[str, Any]], stage: str, rows: int) -> float:
    """Seconds of a stage, by its floor, with a quarter more and its start."""
    floor = found.get((stage, True))
    return 10 + (1.25 * rows / floor["rows_per_second"] if floor else 0)


def compare(found: dict[tuple[str, bool], dict[str, Any]]) -> None:
    """Every stage against the slower of reading and its floor."""
    for stage in FLOORS:
        own, floor, read = (found.get(key) for key in ((stage, False), (stage, True), ("read", False)))
        if own and floor and read:
            slower = min(floor["rows_per_second"], read["rows_per_second"])
            print(f"{stage:<11} {slower / own['rows_per_second']:.2f} × the slower of reading and arithmetic")


def cost(options: dict[str, Any], most_rows: int, within: float | None, varied: list[str]) -> None:
    """Seconds of one pass over rows, columns and points, one of them varied at a time."""
    end = None if within is None else time.monotonic() + within
    points, columns = options["points"], options["columns"]
    rows = 200_000
    every = {
        "columns": [(rows, d, points) for d in (2, 4, 8, 16, 32, 64, 128)],
        "points": [(rows, columns, m) for m in (50, 100, 200, 500, 1000, 2000)],
        "rows": [(10**k, columns, points) for k in range(4, 9) if 10**k <= most_rows],
    }
    for n, d, m in dict.fromkeys(case for name in varied for case in every[name]):
        left = None if end is None else end - time.monotonic()
        if left is not None and left < 10:
            print(f"left out: {n:,} rows × {d}, M = {m}", flush=True)
            continue
        measure({**options, "stage": "cost", "floor": False, "rows": n, "columns": d, "points": m}, left)


# -- reports -------------------------------------------------------------------------------------------------


def stored(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def print_table(results: Path) -> None:
    """The stages that are stored, the newest of each."""
    names = ("file_rows", "device", "dtype", "points", "stage", "floor")
    newest = {tuple(r[name] for name in names): r for r in stored(results) if r["stage"] != "cost"}
    print(
        "| rows of the files | device | | M | stage | | rows/s | peak MB |\n|---|---|---|---|---|---|---|---|"
    )
    for (n, device, dtype, points, stage, floor), r in sorted(newest.items(), key=lambda pair: str(pair[0])):
        word = "in memory" if floor else "files"
        speed = f"{r['rows_per_second']:,.0f} | {r['peak_mb']:,.0f}"
        print(f"| {n:,} | {device} | {dtype} | {points} | {stage} | {word} | {speed} |")


def draw_line(
    axis: Any, seconds: dict[tuple[int, int, int], float], varied: int, colour: str, device: str
) -> None:
    """Seconds of one device over one of rows, columns and points, and a dashed line of the expected slope."""
    every = list(seconds)
    usual = [max({k[i] for k in every}, key=lambda v, i=i: sum(k[i] == v for k in every)) for i in range(3)]
    rest = [i for i in range(3) if i != varied]
    points = {k: s for k, s in seconds.items() if all(k[j] == usual[j] for j in rest)}
    x, y = np.array(sorted((k[varied], s) for k, s in points.items())).T
    slope = 2 if varied == 2 else 1
    axis.loglog(x, y, "o-", color=colour, label=device)
    axis.loglog(x, y[-1] * (x / x[-1]) ** slope, "--", color=colour, alpha=0.4)
    words = ("rows", "columns", "points")
    axis.set_xlabel(f"{words[varied]} (dashed: slope {slope})")
    axis.set_title(", ".join(f"{usual[j]:,} {words[j]}" for j in rest), fontsize=10, loc="left")


def draw(results: Path) -> None:
    """docs/images/cost.png: seconds over rows, columns and points, with lines of the expected slope.

    Passes of files and of rows in memory (`pass`) are points of it too.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from drawing import common_legend, tidy
    from duogp.plots import PALETTE

    lines: dict[str, dict[tuple[int, int, int], float]] = {}
    for r in stored(results):
        if r["stage"] in ("cost", "pass") and r["dtype"] == "float64":
            lines.setdefault(r["device"], {})[r["rows"], r["columns"], r["points"]] = r["seconds"]
    if not lines:
        raise SystemExit("there are no rows of --cost yet")
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True, layout="constrained")
    for colour, (device, seconds) in enumerate(sorted(lines.items())):
        for i, axis in enumerate(axes):
            draw_line(axis, seconds, i, PALETTE[colour], device)
            tidy(axis)
    common_legend(figure, list(axes))
    axes[0].set_ylabel("seconds of one pass")
    figure.savefig(FIGURE, dpi=150)
    print(f"drawn: {FIGURE}")


def main() -> None:
    number = partial(lambda text: int(float(text.replace("_", ""))))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=number, default=1_000_000)
    parser.add_argument("--folder", default=None, help="new or empty; deleted afterwards")
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--floor-rows", type=number, default=200_000)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--device", default=None)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="that write the files")
    parser.add_argument("--keep", action="store_true", help="the files stay; those that are there are used")
    parser.add_argument("--within", type=float, default=None, help="seconds for all stages")
    parser.add_argument("--stages", nargs="*", choices=STAGES, default=list(STAGES))
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--most-rows", type=number, default=1_000_000)
    parser.add_argument("--vary", nargs="+", choices=VARIED, default=list(VARIED), help="with --cost")
    parser.add_argument("--figure", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--results", default=str(RESULTS))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(json.loads(given.child))
        return
    if given.table or given.figure:
        (print_table if given.table else draw)(Path(given.results))
        return
    names = (
        "rows",
        "columns",
        "points",
        "batch_size",
        "floor_rows",
        "dtype",
        "device",
        "backend",
        "threads",
        "processes",
        "results",
    )
    options = {name: getattr(given, name) for name in names}
    if given.cost:
        cost({**options, "folder": None}, given.most_rows, given.within, given.vary)
        return
    options["folder"] = given.folder or tempfile.mkdtemp(prefix="duogp_rows_")
    throughput(options, given.stages, keep=given.keep, within=given.within)


if __name__ == "__main__":
    main()
