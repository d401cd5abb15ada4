"""Bayesian optimisation as in §5.3 of Zhu et al. (2023): coupled and decoupled models inside TuRBO-1.

    rover       60-d, 2,000 evaluations, q = 100 after 200 initial ones; 200 inducing points
    lunar       12-d, 500 evaluations on 10 terrains, q = 25 after 50; 200 inducing points. The best point of
                a run is scored once more on all 50 terrains
    ranolazine  256-d, 1,500 evaluations, q = 50 after 1,000 molecules of ZINC-250k; 500 inducing points.
                Needs the trained autoencoder and the data folder

Rover and Lunar compare SVGP with DCSVGP (β₂ = 0 and 0.1 as in the paper, and 1, the bound), trained as in the
paper, by Adam on minibatches (-adam), and with q(u) in closed form (the library's default below a thousand
rows); Ranolazine has PPGPR-DKL and PPGPR-DCDKL, and a search near good molecules three times: with a model of
their substructures (fingerprint), with one of their latent points (near-latent) and with none (near). Random
search and TuRBO with an exact GP run beside them, the latter twice: ours with TuRBO's settings and warm-
started refits, and BoTorch's with those of its tutorial. Models of one seed start from the same points.

Every finished run is a line of the results file and is not computed again. With a time limit nothing new is
started after it, and what runs then stops after its batch; it goes on from --state the next time (where
safetensors is installed; elsewhere it starts again). What a task or a contestant needs and is missing is said
and left out: Rover, our models and random search need numpy, scipy, scikit-learn and torch alone.
The tasks are those of packages/duogp-tasks, installed or on PYTHONPATH.

    export DUOGP_DATA=<folder with bo/ and molecules/>
    python benchmarks/paper_bo.py --tasks rover,lunar --workers 2 --time-limit 3000
    python benchmarks/paper_bo.py --tables --figure
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr, ttest_1samp

from duogp.bench.measure import device_name
from duogp.bench.provenance import stamp
from duogp.bo import Proposal, Result, optimise
from duogp.bo.journal import Evaluated
from duogp.bo.plots import comparison_plot, mean_and_error
from duogp.bo.regions import PAPER_SUCCESSES
from duogp.bo.surrogates import NOISES

ROOT = Path(__file__).parent
#: What makes two runs the same.
KEY = ("task", "contestant", "seed", "evaluations", "batch_size", "initial", "num_inducing")


@dataclass(frozen=True)
class Contestant:
    label: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    sparse: bool = True  # it has inducing points
    features: str | None = None  # of a search of molecules (duogp_tasks.molecules.search), in place of TuRBO


@dataclass(frozen=True)
class Experiment:
    title: str
    contestants: tuple[str, ...]
    runs: int
    evaluations: int
    batch_size: int
    initial: int
    inducing: int
    options: Mapping[str, Any] = field(default_factory=dict)  # of the task
    scored: Mapping[str, Any] | None = None  # options of the task that judges the best point


#: As the paper trains: Adam and minibatches, hyperparameters and q(u) together.
ADAM = {"solver": "stochastic", "minibatch": 250, "learning_rate": 0.02, "dtype": "float32"}
SOLVE = {"solver": "closed-form"}
CONTESTANTS = {
    "svgp-adam": Contestant("SVGP, Adam", "svgp", ADAM),
    "dcsvgp-0-adam": Contestant("DCSVGP, β₂ = 0, Adam", "dcsvgp", ADAM | {"beta2": 0.0}),
    "dcsvgp-0.1-adam": Contestant("DCSVGP, β₂ = 0.1, Adam", "dcsvgp", ADAM | {"beta2": 0.1}),
    "dcsvgp-1-adam": Contestant("DCSVGP, β₂ = 1, Adam", "dcsvgp", ADAM | {"beta2": 1.0}),
    "svgp": Contestant("SVGP", "svgp", SOLVE),
    "dcsvgp-0": Contestant("DCSVGP, β₂ = 0", "dcsvgp", SOLVE | {"beta2": 0.0}),
    "dcsvgp-0.1": Contestant("DCSVGP, β₂ = 0.1", "dcsvgp", SOLVE | {"beta2": 0.1}),
    "dcsvgp-1": Contestant("DCSVGP, β₂ = 1", "dcsvgp", SOLVE | {"beta2": 1.0}),
    "ppgpr-dkl": Contestant("PPGPR-DKL", "ppgpr-dkl"),
    "ppgpr-dcdkl": Contestant("PPGPR-DCDKL, β₂ = 0", "ppgpr-dcdkl", {"beta2": 0.0}),
    "fingerprint": Contestant(
        "near good molecules, GP of substructures", "molecules", sparse=False, features="fingerprint"
    ),
    "near-latent": Contestant(
        "near good molecules, GP of latent points", "molecules", sparse=False, features="latent"
    ),
    "near": Contestant("near good molecules, no model", "molecules", sparse=False, features="none"),
    "random": Contestant("random search", "random", sparse=False),
    "exact": Contestant("exact GP", "exact", {"noise_floor": NOISES[0]}, sparse=False),
    "botorch": Contestant("exact GP, BoTorch's tutorial", "botorch", sparse=False),
}
TRAINED = ("svgp-adam", "dcsvgp-0-adam", "dcsvgp-0.1-adam", "dcsvgp-1-adam")
SOLVED = ("svgp", "dcsvgp-0", "dcsvgp-0.1", "dcsvgp-1")
GAUSSIAN = ("random", *TRAINED, *SOLVED, "exact", "botorch")
DEEP = ("random", "ppgpr-dkl", "ppgpr-dcdkl", "fingerprint", "near-latent", "near", "exact", "botorch")
#: What the figure shows of them: the paper's comparison, the library's default, and the others.
DRAWN = {"svgp-adam", "dcsvgp-0-adam", "dcsvgp-0.1-adam", "svgp", "dcsvgp-1", "exact", "botorch", *DEEP}
#: Modules of duogp_tasks and their classes.
TASKS = {"rover": "Rover", "lunar": "Lunar", "ranolazine": "RanolazineMPO"}
EXPERIMENTS = {
    "rover": Experiment("Rover, 60-d", GAUSSIAN, 10, 2000, 100, 200, 200),
    "lunar": Experiment(
        "Lunar lander, 12-d",
        GAUSSIAN,
        10,
        500,
        25,
        50,
        200,
        options={"terrains": 10},
        scored={"terrains": 50},
    ),
    "ranolazine": Experiment("Ranolazine MPO, 256-d", DEEP, 10, 1500, 50, 1000, 500),
}
QUICK = {
    "rover": Experiment("Rover, 60-d", GAUSSIAN, 2, 160, 40, 80, 30),
    "lunar": Experiment(
        "Lunar lander, 12-d", GAUSSIAN, 2, 30, 10, 10, 20, options={"terrains": 1}, scored={"terrains": 2}
    ),
    "ranolazine": Experiment("Ranolazine MPO, 256-d", DEEP, 2, 60, 20, 20, 20),
}


@dataclass(frozen=True)
class Job:
    task: str
    contestant: str
    seed: int
    experiment: Experiment
    device: str
    state: Path
    deadline: float

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of KEY."""
        e = self.experiment
        return (self.task, self.contestant, self.seed, e.evaluations, e.batch_size, e.initial, e.inducing)


class OutOfTimeError(Exception):
    """The time limit has passed in the middle of a run."""


def run(job: Job) -> dict[str, Any] | None:
    """One run, or None where the time was over before its end."""
    if time.time() > job.deadline:
        return None
    experiment, contestant = job.experiment, CONTESTANTS[job.contestant]
    settings = dict(contestant.settings)
    if contestant.method not in ("random", "botorch", "molecules"):
        settings["device"] = job.device
    if contestant.sparse:
        settings["num_inducing"] = experiment.inducing
    task = make(job.task, **experiment.options)
    initial: Any = experiment.initial
    if job.task == "ranolazine":
        initial = task.zinc(experiment.initial, seed=job.seed)
    batches: list[int] = []
    folder = job.state / "-".join(map(str, job.key)) if find_spec("safetensors") else None

    def watch(proposal: Proposal, values: np.ndarray) -> None:
        batches.append(len(values))
        if time.time() > job.deadline:
            raise OutOfTimeError

    start = time.perf_counter()
    ahead = None
    try:
        if contestant.features is not None:
            found, ahead = search(job, task, initial, watch)
        else:
            found = optimise(
                task,
                contestant.method,
                evaluations=experiment.evaluations,
                batch_size=experiment.batch_size,
                initial=initial,
                seed=job.seed,
                successes=PAPER_SUCCESSES,
                folder=folder,
                plot=False,
                callback=watch,
                **settings,
            )
    except OutOfTimeError:
        return None
    seconds = time.perf_counter() - start
    better = np.flatnonzero(np.diff(found.incumbent, prepend=-np.inf))
    x = found.X[found.y.argmax()]
    score = None if experiment.scored is None else float(make(job.task, **experiment.scored)(x[None])[0])
    return {
        **dict(zip(KEY, job.key, strict=True)),
        "task_options": dict(experiment.options),
        "best": found.best_y,
        "score": score,  # of the best point, by the options in `scored`
        "scored": experiment.scored,
        # After which evaluations the best value changed, and to what: the whole curve.
        "incumbent": [[int(i) + 1, float(found.incumbent[i])] for i in better],
        "ahead": ahead,  # rank correlation of the model's mean with the values of each batch after the first
        "best_x": x.tolist(),
        "seconds": seconds if sum(batches) == len(found) else None,  # of runs in one piece
        "device": device_name(settings.get("device", "cpu")),
        **stamp(),
    }


def search(
    job: Job, task: Any, start: np.ndarray, watch: Callable[[Proposal, np.ndarray], None]
) -> tuple[Result, list[float] | None]:
    """A run of `MoleculeSearch` and its rank correlations one batch ahead; it goes on from the job's file."""
    from duogp_tasks.molecules.search import MoleculeSearch

    experiment, features = job.experiment, CONTESTANTS[job.contestant].features
    strategy: Any = MoleculeSearch(
        task, start, batch_size=experiment.batch_size, seed=job.seed, features=features
    )
    path = job.state / ("-".join(map(str, job.key)) + ".npz")
    batches: list[Evaluated] = []
    ahead: list[float] = []
    if path.is_file():
        with np.load(path) as known:
            ahead = known["ahead"].tolist()
            ends = known["sizes"].cumsum()[:-1]
            for X, y in zip(np.split(known["X"], ends), np.split(known["y"], ends), strict=True):
                batches.append(Evaluated(Proposal(X, np.zeros(len(X), dtype=np.int64)), y))
                strategy.tell(*batches[-1])
    while len(strategy.y) < experiment.evaluations:
        proposal = strategy.ask(experiment.evaluations - len(strategy.y))
        values = task(proposal.X)
        if strategy.ahead:
            ahead.append(float(spearmanr(strategy.ahead[-1], values).statistic))
        strategy.tell(proposal, values)
        batches.append(Evaluated(proposal, values))
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {"X": strategy.X, "y": strategy.y, "sizes": [len(b.y) for b in batches], "ahead": ahead}
        part = path.with_suffix(".part.npz")
        np.savez(part, **arrays)
        part.replace(path)
        watch(proposal, values)
    return Result.of(task.name, job.contestant, batches, task.bounds, task.optimum), ahead or None


def make(task: str, **options: Any) -> Any:
    return getattr(import_module(f"duogp_tasks.{task}"), TASKS[task])(**options)


def missing(task: str, contestant: str, quick: bool) -> str | None:
    """Why a run cannot be made here."""
    if contestant == "botorch" and find_spec("botorch") is None:
        return "BoTorch is not installed"
    return missing_for(task, quick)


@functools.cache
def missing_for(task: str, quick: bool) -> str | None:
    try:
        made = make(task)
        if task == "rover" and not (quick or made.is_published):
            return "set DUOGP_DATA to the folder that holds bo/rover_obstacles.csv"
        if task == "ranolazine":
            made.zinc(1)
    except (ImportError, FileNotFoundError) as error:
        return str(error)
    return None


def wanted(options: argparse.Namespace, known: list[dict[str, Any]]) -> Iterator[Job]:
    """What is not in the results yet; first runs first, so that whatever stops it leaves a fair picture."""
    done = {_key(line) for line in known}
    deadline = time.time() + options.time_limit if options.time_limit is not None else float("inf")
    said: set[tuple[str, str]] = set()  # once for each thing that is missing
    tasks = {name: (QUICK if options.quick else EXPERIMENTS)[name] for name in options.tasks.split(",")}
    for seed in range(max(options.runs or e.runs for e in tasks.values())):
        for name, experiment in tasks.items():
            for contestant in experiment.contestants:
                if seed >= (options.runs or experiment.runs):
                    continue
                if options.contestants and contestant not in options.contestants.split(","):
                    continue
                job = Job(name, contestant, seed, experiment, options.device, options.state, deadline)
                if job.key in done:
                    continue
                if (obstacle := missing(name, contestant, options.quick)) is None:
                    yield job
                elif (name, obstacle) not in said:
                    said.add((name, obstacle))
                    print(f"skipped: {name}, {contestant}: {obstacle}", flush=True)


def work(options: argparse.Namespace) -> None:
    jobs = list(wanted(options, stored(options.output)))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, context, torch.set_num_threads, (options.threads,)) as pool:
        for future in as_completed([pool.submit(run, job) for job in jobs]):
            line = future.result()
            if line is None:
                unfinished += 1
                continue
            with options.output.open("a") as file:
                file.write(json.dumps(line) + "\n")
            took = "" if line["seconds"] is None else f", {line['seconds']:.0f} s"
            print(
                f"{line['task']}, {line['contestant']}, run {line['seed']}: {line['best']:.4f}{took}",
                flush=True,
            )
    if unfinished:
        print(f"the time is over: {unfinished} runs are left")


def stored(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def _key(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in KEY)


def curve(line: dict[str, Any]) -> np.ndarray:
    """The best value after each evaluation."""
    numbers, values = zip(*line["incumbent"], strict=True)
    return np.repeat(values, np.diff([*numbers, line["evaluations"] + 1]))


def of_task(lines: list[dict[str, Any]], task: str) -> dict[str, list[dict[str, Any]]]:
    """Runs of each contestant, in the order of the table above."""
    groups = {
        name: [line for line in lines if line["task"] == task and line["contestant"] == name]
        for name in CONTESTANTS
    }
    return {name: sorted(runs, key=lambda line: line["seed"]) for name, runs in groups.items() if runs}


def tables(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Best values at the end: mean ± standard error over runs, and what decoupling changes, run by run."""
    for task, experiment in EXPERIMENTS.items():
        groups = of_task(lines, task)
        if not groups:
            continue
        yield f"\n{experiment.title}\n"
        head = ("contestant", "runs", "best value", "on all terrains", "one batch ahead")
        head += ("better than coupled in", "seconds")
        yield f"| {' | '.join(head)} |"
        yield f"|{' --- |' * len(head)}"
        for name, runs in groups.items():
            wins = against_coupled(groups, name) if "dc" in name else ""
            times = [run["seconds"] for run in runs if run["seconds"] is not None]
            took = f"{np.median(times):.0f}" if times else ""
            means = (summary(runs, what) for what in ("best", "score", "ahead"))
            cells = [CONTESTANTS[name].label, str(len(runs)), *means, wins, took]
            yield f"| {' | '.join(cells)} |"


def against_coupled(groups: dict[str, list[dict[str, Any]]], name: str) -> str:
    """Runs that are better than the coupled model's from the same points, the mean difference, p (t-test)."""
    coupled = {run["seed"]: run["best"] for run in groups.get(coupled_one(name), [])}
    differences = [
        run["best"] - coupled[run["seed"]] for run in groups.get(name, []) if run["seed"] in coupled
    ]
    if len(differences) < 2:
        return ""
    wins = f"{sum(d > 0 for d in differences)} of {len(differences)}"
    p = float(ttest_1samp(differences, 0.0).pvalue)
    return f"{wins} ({np.mean(differences):+.2g}, p = {p:.2g})".replace("-", "−")


def coupled_one(name: str) -> str:
    """Whom a decoupled contestant is compared with."""
    if name.startswith("ppgpr"):
        return "ppgpr-dkl"
    return "svgp-adam" if name.endswith("-adam") else "svgp"


def summary(runs: list[dict[str, Any]], name: str) -> str:
    """Mean ± standard error of a number of each run (of a list: its mean); nothing where no run has it."""
    values = [np.array([np.mean(run[name])]) for run in runs if run.get(name) is not None]
    if not values:
        return ""
    mean, error = mean_and_error(values)
    digits = 3 if error[0] < 0.1 else 2 if error[0] < 1.5 else 0
    text = f"{mean[0]:.{digits}f} ± {error[0]:.{digits}f}" if len(values) > 1 else f"{mean[0]:.3g}"
    return text.replace("-", "−")


def figure(lines: list[dict[str, Any]], path: Path) -> None:
    """Means and standard errors of the best value so far, a panel for each task."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tasks = [task for task in EXPERIMENTS if of_task(lines, task)]
    if not tasks:
        raise SystemExit("there are no results to draw")
    drawing = Figure(figsize=(4.8 * len(tasks), 4.6), layout="constrained")
    FigureCanvasAgg(drawing)
    for ax, task in zip(np.atleast_1d(drawing.subplots(1, len(tasks))), tasks, strict=True):
        groups = of_task(lines, task)
        curves = {
            CONTESTANTS[name].label: [curve(run) for run in runs]
            for name, runs in groups.items()
            if name in DRAWN
        }
        comparison_plot(curves, ax, title=EXPERIMENTS[task].title)
        first = min(run["initial"] for runs in groups.values() for run in runs)
        ax.set_xlim(first, EXPERIMENTS[task].evaluations)  # before it all points are random
        means = [mean_and_error(several)[0][first - 1 :] for several in curves.values()]
        low, high = min(m.min() for m in means), max(m.max() for m in means)
        ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
        if (inside := ax.get_legend()) is not None:
            inside.remove()  # it would cover curves
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=130)
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", default=",".join(EXPERIMENTS))
    parser.add_argument("--contestants", help=f"of {', '.join(CONTESTANTS)}; those of the task by default")
    parser.add_argument("--runs", type=int, help="of each contestant: 10")
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--device", default="cpu", help="of our models")
    parser.add_argument("--time-limit", type=float, help="seconds after which runs stop")
    parser.add_argument("--quick", action="store_true", help="tiny runs, into files under --state")
    parser.add_argument("--state", type=Path, default=Path("local/paper_bo"), help="runs under way")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--tables", action="store_true", help="run nothing, print what is stored")
    parser.add_argument("--figure", action="store_true", help="draw what is stored, too")
    parser.add_argument("--figure-file", type=Path)
    options = parser.parse_args()
    for kind, known, asked in (
        ("tasks", EXPERIMENTS, options.tasks),
        ("contestants", CONTESTANTS, options.contestants),
    ):
        if asked and (unknown := [name for name in asked.split(",") if name not in known]):
            parser.error(f"--{kind}: {', '.join(unknown)} not among {', '.join(known)}")
    results = options.state if options.quick else ROOT / "results"
    images = options.state if options.quick else ROOT.parent / "docs" / "images"
    options.output = options.output or results / "paper_bo.jsonl"
    if not options.tables:
        work(options)
    lines = stored(options.output)
    for line in tables(lines):
        print(line)
    if options.figure:
        figure(lines, options.figure_file or images / "paper_bo.png")


if __name__ == "__main__":
    main()
