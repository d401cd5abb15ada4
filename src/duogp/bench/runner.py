"""The runner of cells: load, split, fit, predict, measure, append a row. A failure is a row as well."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from duogp.bench import learning_curve, measure
from duogp.bench.provenance import configuration, stamp
from duogp.bench.results import Results, Row, append, begin_row, failure
from duogp.bench.status import state_of
from duogp.bench.suite import RUNNER_SETTINGS, Cell
from duogp.bench.tasks import task_of
from duogp.bench.workers import run_by_joblib, run_in_processes

if TYPE_CHECKING:
    from duogp.data.splits import Split

Job = tuple[Cell, ...]  # cells that differ in their split only, trained as replicates of one model
Execute = Callable[[Job, str], list[Row]]
Report = Callable[[str], None]

SHOWN_METRICS = ("rmse", "accuracy", "nll")


@dataclass(frozen=True)
class Summary:
    """Counts of a run, and the cells that still have no result."""

    ok: int
    failed: int
    missing: list[Cell]


def run(
    cells: Sequence[Cell],
    results: str | Path,
    *,
    device: str | None = None,
    workers: int = 1,
    replicates: int = 1,
    time_limit: float | None = None,
    again: bool = False,
    report: Report = print,
    execute: Execute | None = None,
    parallel: bool = False,
) -> Summary:
    """Run the cells that have no successful row yet, in their order, and append a row for each.

    ``replicates``: the number of splits of the same data and method that are trained as one batched model.
    With a time limit (seconds) no cell starts that is not expected to end in time; expected is the time that
    the same data and method took before, or a small margin where that is not known. ``again``: stale cells
    run as well, after those without a row. ``parallel``: by
    `joblib.Parallel` instead of ``workers``, on the backend and with the jobs of `joblib.parallel_config`.
    """
    for name, count in {"workers": workers, "replicates": replicates}.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    path, execute = Path(results), execute or run_job
    device = measure.resolve_device(device)
    earlier = Results.read(path)
    todo = earlier.missing(cells)
    if again:
        todo += [cell for cell in cells if state_of(cell, earlier).state == "stale"]
    if len(todo) < len(cells):
        report(f"{len(cells) - len(todo)} of {len(cells)} cells are already in {path}")
    budget = Budget(time_limit, device, earlier)
    outcome = {"ok": 0, "failed": 0}

    def finished(job: Job, rows: list[Row]) -> None:
        for cell, row in zip(job, rows, strict=True):
            append(path, row)
            outcome[row["status"]] += 1
            budget.learn(row)
            report(f"[{sum(outcome.values())}/{len(todo)}] {describe(cell, row)}")

    queue = budget.affordable(jobs(todo, replicates))
    if parallel:
        for job, rows in run_by_joblib(queue, device, execute):
            finished(job, rows)
    elif workers == 1:
        for job in queue:
            finished(job, execute(job, device))
    else:
        run_in_processes(queue, min(workers, max(len(todo), 1)), device, execute, finished)
    return Summary(outcome["ok"], outcome["failed"], Results.read(path).missing(cells))


def jobs(cells: Sequence[Cell], replicates: int) -> list[Job]:
    """Cells in their order, in groups of at most ``replicates`` that differ in their split only."""
    waiting: dict[str, list[Cell]] = {}
    for cell in cells:
        waiting.setdefault(cell.family, []).append(cell)
    out: list[Job] = []
    for cell in cells:
        family = waiting[cell.family]
        if family and family[0] is cell:
            out.append(tuple(family[:replicates]))
            del family[:replicates]
    return out


def run_cell(cell: Cell, device: str) -> Row:
    """Fit and evaluate one cell; an exception becomes a row with status "failed"."""
    return run_job((cell,), device)[0]


def run_job(job: Job, device: str) -> list[Row]:
    """Fit and evaluate the cells of a job at once; an exception fails them all."""
    rows = [begin_row(cell, device) for cell in job]
    try:
        for cell, row, found in zip(job, rows, evaluate(job, device), strict=True):
            row |= provenance(cell, device) | found
            if bad := [k for k, v in row["metrics"].items() if isinstance(v, float) and not math.isfinite(v)]:
                row |= failure(FloatingPointError(f"metrics not finite: {', '.join(bad)}"))
    except Exception as error:
        rows = [row | stamp(device) | failure(error) for row in rows]
    return rows


def provenance(cell: Cell, device: str) -> Row:
    """The stamp of a cell's row, and the hash of its resolved configuration."""
    stamped = stamp(
        device,
        method=cell.method,
        settings=cell.settings,
        seed=cell.seed,
        classifies=cell.task == "classification",
    )
    return stamped | {"configuration": configuration(cell)}


def evaluate(job: Job, device: str) -> list[Row]:
    """The fields of the rows that need a fit. Seconds are the job's, divided by its cells."""
    from duogp.data.splits import PROTOCOLS
    from duogp.methods.settings import Settings

    cell = job[0]
    if cell.protocol not in PROTOCOLS:
        raise ValueError(f"protocol must be one of {', '.join(sorted(PROTOCOLS))}, got {cell.protocol!r}")
    task = task_of(cell.task)
    X, y = load_table(cell.data)
    splits = [PROTOCOLS[cell.protocol](X, y, each.split, scale_target=task.scales_targets) for each in job]
    if not task.alike(splits):
        return [row for each in job for row in evaluate((each,), device)]

    settings = task.settings({k: v for k, v in cell.settings.items() if k not in RUNNER_SETTINGS}, y)
    measure.reset_peak_memory(device)
    with measure.Stopwatch(device) as fitting:
        if len(job) == 1:
            models = [fit_one(cell, splits[0], settings, device)]
        else:
            models = fit_together(job, X, task.targets(y, splits[0]), splits, settings, device)
    out = []
    batch_size = settings.get("batch_size", Settings.batch_size)
    with_trace = bool(cell.settings.get("trace", False))
    for model, part in zip(models, splits, strict=True):
        with measure.Stopwatch(device) as predicting:
            prediction = model.predict(part.X_test)
        metrics = task.metrics(part.y_test, prediction)
        seconds = {"fit": fitting.seconds / len(job), "predict": predicting.seconds}
        history = model.history
        per_epoch = learning_curve.steps_per_epoch(history.solver, len(part.y_train), batch_size)
        out.append(
            {
                "n_train": len(part.y_train),
                "n_val": len(part.y_val),
                "n_test": len(part.y_test),
                "dims": int(part.X_train.shape[1]),
                "replicates": len(job),
                "job": [each.split for each in job],
                "seconds": {name: round(value, 4) for name, value in seconds.items()},
                "peak_memory_bytes": measure.peak_memory(device),
                "metrics": {name: v.item() if hasattr(v, "item") else v for name, v in metrics.items()},
                "standard_errors": task.standard_errors(part.y_test, prediction),
                "zscores": task.zscores(part.y_test, prediction),
                "hyperparameters": model.hyperparameters(),
                "history": learning_curve.summary(
                    history, per_epoch, settings.get("steps"), with_trace=with_trace
                ),
            }
        )
    return out


def fit_one(cell: Cell, split: Split, settings: dict[str, Any], device: str) -> Any:
    """The model of one split."""
    from duogp import api

    return api.fit(
        split.X_train,
        split.y_train,
        method=cell.method,
        validation=(split.X_val, split.y_val) if cell.settings.get("use_validation", False) else None,
        device=device,
        random_state=cell.seed,
        **settings,
    )


def fit_together(
    job: Job, X: Any, targets: Any, splits: Sequence[Split], settings: dict[str, Any], device: str
) -> list[Any]:
    """The models of several splits, trained as replicates of one."""
    from duogp import api

    cell, split = job[0], splits[0]
    if not all(np.array_equal(s.x_scaler.shift, split.x_scaler.shift) for s in splits):
        raise ValueError(f"replicates need one scaling for all splits; protocol {cell.protocol!r} has many")
    use_validation = cell.settings.get("use_validation", False)
    return list(
        api.fit_replicates(
            split.x_scaler.transform(np.asarray(X, dtype=np.float64)[:, split.columns]),
            targets,
            [s.rows.train for s in splits],
            method=cell.method,
            validation_rows=[s.rows.val for s in splits] if use_validation else None,
            device=device,
            random_states=[each.seed for each in job],
            **settings,
        )
    )


def load_table(name: str) -> tuple[Any, Any]:
    """X and y of a data set: ``sklearn/NAME`` comes with scikit-learn, any other from `duogp.data`."""
    if name.startswith("sklearn/"):
        from sklearn import datasets

        known = {"diabetes": datasets.load_diabetes, "breast_cancer": datasets.load_breast_cancer}
        if (load_it := known.get(name.removeprefix("sklearn/"))) is None:
            names = " or ".join(f"'sklearn/{each}'" for each in known)
            raise ValueError(f"data must be {names} to come with scikit-learn, got {name!r}")
        return load_it(return_X_y=True)
    from duogp.data.benchmark import load

    dataset = load(name)
    return dataset.X, dataset.y


def describe(cell: Cell, row: Row) -> str:
    """One line for a finished cell."""
    if row["status"] == "failed":
        error = row["error"]
        first = error["message"].splitlines()[0] if error["message"] else ""
        return f"{cell}: failed, {error['type']}: {first}"
    metrics = row["metrics"]
    shown = "  ".join(f"{name} {metrics[name]:.4f}" for name in SHOWN_METRICS if name in metrics)
    return f"{cell}: {sum(row['seconds'].values()):.1f} s  {shown}"


class Budget:
    """Time for new cells: a job starts while the time left covers its expected duration."""

    def __init__(self, limit: float | None, device: str, earlier: Results) -> None:
        self.limit = math.inf if limit is None else limit
        self.margin = min(10.0, 0.05 * self.limit)
        self.device = device
        self.start = time.monotonic()
        self._seconds: dict[tuple[str, str], float] = {}
        for row in earlier.rows:
            self.learn(row)

    def learn(self, row: Row) -> None:
        """Note the time of a data set and a method on this device."""
        if row["status"] == "ok" and row["device"] == self.device:
            self._seconds[row["data"], row["label"]] = sum(row["seconds"].values())

    def left(self) -> float:
        """Seconds until the limit."""
        return self.limit - (time.monotonic() - self.start)

    def affordable(self, queue: Sequence[Job]) -> Iterator[Job]:
        """The jobs in order, up to the first that would not end in time."""
        for job in queue:
            cell = job[0]
            if self.left() < self.margin + len(job) * self._seconds.get((cell.data, cell.label), 0.0):
                return
            yield job
