"""SIGKILL at random moments: is what was there whole, and does the same call end as one without a kill?

    python benchmarks/kill_fits.py                      every kind of job, 20 kills each
    python benchmarks/kill_fits.py stochastic auto -n 4 some of them

Kills come at random moments of the clock. Those of "fit --force, swap" come before or after an operation on
files while the model is written, spread over all of them: the old folder gives way to the new one there.

Jobs: fits of every solver, classes, deep models, `auto`; `save` over a saved model, `duogp fit --force` over
another model, `bench run`, `bo`. The expected answer of a job comes from an interpreter of its own; jobs that
are killed, and those that go on, are forks of one that has only imported. A trial that ends before its kill
is repeated. Results are appended to benchmarks/results/kill_fits.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import duogp
import duogp.bench.__main__
import duogp.bo
import duogp.cli
import duogp.io
import duogp.sklearn
from duogp.bench.provenance import stamp
from duogp.bench.results import Results, append

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from helpers.moments import watched

RESULTS = Path(__file__).parent / "results" / "kill_fits.jsonl"
#: Times that a trial is repeated because its job was over before the kill.
REPEATS = 20


class Job(NamedTuple):
    """Something to be killed; each part is given a folder of its own."""

    run: Callable[[Path], bytes]  # what it ends with
    prepare: Callable[[Path], None] = lambda home: None
    #: After a kill: the state of what it writes, "old", "new" or "whole"; anything else is a fault.
    look: Callable[[Path], str] = lambda home: "whole"
    #: Function and module whose operations on files are the moments of the kills; None: those of the clock.
    inside: tuple[str, str] | None = None


def table(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n, 3))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=n)


# -- fits ----------------------------------------------------------------------------------------------------


def fit(method: str, labels: bool = False, **own: Any) -> Job:
    def run(home: Path) -> bytes:
        X, y = table()
        settings: dict[str, Any] = {"num_inducing": 20, "batch_size": 64, "tolerance": 0.0, "device": "cpu"}
        settings |= {"backend": "eager", "random_state": 0, "checkpoint_dir": home / "run", **own}
        if labels:
            settings |= {"likelihood": "classes"}
        target = (y > 0).astype(int) if labels else y
        gp = duogp.fit(X, target, method, checkpoint_steps=4, **settings)
        found = gp.predict(X)
        return found.probabilities.tobytes() if labels else found.mean.tobytes() + found.std.tobytes()

    return Job(run)


def estimator(labels: bool = False) -> Job:
    def run(home: Path) -> bytes:
        X, y = table(40)
        given: dict[str, Any] = {"device": "cpu", "random_state": 0, "checkpoint_dir": home / "model"}
        given |= {"checkpoint_every": 0.05, "time_budget": 3600.0}  # the clock cuts nothing short
        if labels:
            return duogp.GPClassifier(**given).fit(X, y > 0).predict_proba(X).tobytes()
        return duogp.GPRegressor(**given).fit(X, y).predict(X).tobytes()

    return Job(run)


# -- models on disk ------------------------------------------------------------------------------------------


def predictions_of(folder: Path) -> bytes:
    X, _ = table()
    found: np.ndarray = duogp.load(folder).predict(X).mean
    return found.tobytes()


def saving() -> Job:
    """A model saved many times over another one."""

    def prepare(home: Path) -> None:
        X, y = table()
        for name, target in (("old", y), ("new", -y)):
            duogp.fit(X, target, "svgp", num_inducing=200, steps=2, device="cpu").save(home / name)
        shutil.copytree(home / "old", home / "model")
        (home / "model" / "notes.txt").write_text("mine")

    def run(home: Path) -> bytes:
        both = [duogp.load(home / name) for name in ("old", "new")]
        for k in range(20):
            both[(k + 1) % 2].save(home / "model")
        both[1].save(home / "model")
        assert (home / "model" / "notes.txt").read_text() == "mine"
        return predictions_of(home / "model")

    def look(home: Path) -> str:
        found = predictions_of(home / "model")
        return next((n for n in ("old", "new") if found == predictions_of(home / n)), "of neither model")

    return Job(run, prepare, look)


def write_csv(path: Path, columns: dict[str, np.ndarray]) -> None:
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")


def command(*words: str) -> None:
    sys.argv = ["duogp", *words]
    try:
        duogp.cli.main()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"duogp {' '.join(words)} ended with {end.code}") from end


def forced(inside: tuple[str, str] | None = None) -> Job:
    """`duogp fit --force` over a model of another table, with other columns and units."""
    X, y = table(100)

    def fit_table(home: Path, name: str) -> None:
        own = ("--method", "svgp", "--epochs", "2", "--num-inducing", "10", "--device", "cpu", "--quiet")
        command("fit", str(home / f"{name}.csv"), "-t", "y", "-o", str(home / "model"), "--force", *own)

    def answer(home: Path) -> bytes:
        import pandas

        frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]})
        return duogp.load(home / "model").predict(frame).tobytes()

    def prepare(home: Path) -> None:
        write_csv(home / "first.csv", {"a": X[:, 0], "b": X[:, 1], "y": y})
        write_csv(home / "second.csv", {"a": -5 * X[:, 0], "b": 100 + 7 * X[:, 1], "c": X[:, 2], "y": -y})
        for name in ("second", "first"):
            fit_table(home, name)
            (home / f"{name}.answer").write_bytes(answer(home))

    def run(home: Path) -> bytes:
        fit_table(home, "second")
        return answer(home)

    def look(home: Path) -> str:
        found = answer(home)
        names = {"first": "old", "second": "new"}
        whole = (names[n] for n in names if found == (home / f"{n}.answer").read_bytes())
        return next(whole, "of neither model")

    return Job(run, prepare, look, inside)


# -- runs ----------------------------------------------------------------------------------------------------

SUITE = """
name = "tiny"
protocol = "dc"
splits = [0, 1]
[settings]
epochs = 6
dtype = "float64"
[[data]]
name = "sklearn/diabetes"
num_inducing = 10
[[methods]]
name = "svgp"
[[methods]]
name = "dcsvgp"
"""


def benchmark() -> Job:
    def prepare(home: Path) -> None:
        (home / "tiny.toml").write_text(SUITE)

    def rows(home: Path) -> list[Any]:
        ok = [row for row in Results.read(home / "rows.jsonl").rows if row["status"] == "ok"]
        return sorted([row["hash"], row["metrics"], row["hyperparameters"]] for row in ok)

    def run(home: Path) -> bytes:
        words = ["run", str(home / "tiny.toml"), "--device", "cpu", "--results", str(home / "rows.jsonl")]
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            status = duogp.bench.__main__.main(words)
        assert status == 0 and len(rows(home)) == 4
        return json.dumps(rows(home)).encode()

    def look(home: Path) -> str:
        path = home / "rows.jsonl"
        whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        for line in whole:
            json.loads(line)  # all but the line that was cut off
        found = rows(home)
        return "whole" if len({row[0] for row in found}) == len(found) else "cells came twice"

    return Job(run, prepare, look)


class Bowl:
    name, dims = "bowl", 2
    bounds = np.array([[0.0, 0.0], [1.0, 1.0]])

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return -((X - 0.3) ** 2).sum(1)


def optimisation() -> Job:
    """`optimise` (TuRBO) with its run on disk."""

    def run(home: Path) -> bytes:
        found = duogp.bo.optimise(
            Bowl(), "svgp", folder=home / "run", evaluations=24, batch_size=4, seed=0, plot=False, steps=20
        )
        return found.X.tobytes() + found.y.tobytes()

    return Job(run)


def study() -> Job:
    """Ask and tell with the model of the default."""
    space = {"x": duogp.bo.Real(-2, 2), "n": duogp.bo.Integer(0, 9)}

    def opened(home: Path) -> Any:
        return duogp.bo.Study(space, direction="minimise", folder=home / "study", seed=0, initial=4)

    def run(home: Path) -> bytes:
        with opened(home) as own:
            while len(own.done) < 7:
                trial = own.pending[0] if own.pending else own.ask()
                own.tell(trial, (trial["x"] - 0.5) ** 2 + 0.1 * trial["n"])
                with (home / "acknowledged").open("a") as file:
                    file.write(f"{trial.number}\n")
            return json.dumps([[t.point, t.values] for t in own.trials]).encode()

    def look(home: Path) -> str:
        path = home / "acknowledged"
        told = path.read_text().split("\n")[:-1] if path.exists() else []
        if not (home / "study" / "study.jsonl").exists():
            return "lost" if told else "whole"
        with opened(home) as own:
            done = {trial.number for trial in own.done}
        return "whole" if {int(number) for number in told} <= done else "an answer was lost"

    return Job(run, look=look)


JOBS: dict[str, Callable[[], Job]] = {
    "closed-form": lambda: fit("svgp", solver="closed-form", epochs=60),
    "closed-form adam": lambda: fit("svgp", solver="closed-form", optimizer="adam", epochs=60),
    "dcsvgp": lambda: fit("dcsvgp", epochs=30),
    "stochastic": lambda: fit("svgp", solver="stochastic", epochs=15),
    "natural": lambda: fit("svgp", solver="natural", epochs=10),
    "classes": lambda: fit("svgp", labels=True, epochs=10),
    "deep kernel": lambda: fit("svgp-dkl", solver="stochastic", epochs=10),
    "deep gp": lambda: fit("dgp", epochs=4),
    "auto": estimator,
    "auto classes": lambda: estimator(labels=True),
    "save": saving,
    "fit --force": forced,
    "fit --force, swap": lambda: forced(inside=("write_folder", "duogp.io.folder")),
    "bench run": benchmark,
    "bo": optimisation,
    "study": study,
}


# -- processes -----------------------------------------------------------------------------------------------


def forked(act: Callable[[], bytes], log: Path) -> tuple[int, int]:
    """A process that acts, and the end of a pipe that its answer comes from."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    status = 1
    try:
        os.close(reading)
        with log.open("a") as file, contextlib.redirect_stderr(file), contextlib.redirect_stdout(file):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    os.write(writing, act())
                status = 0
            except BaseException:
                traceback.print_exc()
    finally:
        os._exit(status)


def answer_of(process: tuple[int, int]) -> tuple[bytes, int]:
    """What a process answers, and its exit status (negative: the signal that ended it)."""
    pid, reading = process
    with os.fdopen(reading, "rb") as file:
        answer = file.read()
    return answer, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


def done(act: Callable[[], bytes], log: Path) -> bytes:
    """The answer of a process that must not fail."""
    answer, status = answer_of(forked(act, log))
    if status:
        raise RuntimeError(log.read_text()[-3000:])
    return answer


class Outcome(NamedTuple):
    same: bool
    state: str
    error: str = ""


def killed(job: Job, length: float, home: Path, share: float) -> bool:
    """Whether a job was killed, after this share of its time or of its operations on files (``length``)."""
    if job.inside is not None:
        moment = 1 + int(share * length)
        process = forked(lambda: watched_run(job, home / "job", moment), home / "log")
    else:
        process = forked(lambda: digest(job.run(home / "job")), home / "log")
        time.sleep(share * length)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process[0], signal.SIGKILL)
    return answer_of(process)[1] == -signal.SIGKILL


def watched_run(job: Job, folder: Path, kill_at: int | None = None) -> bytes:
    """Run a job, and count its operations on files; the process ends at one of them."""
    assert job.inside is not None
    with watched(*job.inside, kill_at) as moments:
        job.run(folder)
    return str(moments.count).encode()


def trial(job: Job, expected: bytes, length: float, home: Path, shares: Callable[[], list[float]]) -> Outcome:
    """A kill after each of some shares, a look at what is there, and the same call once more."""
    log = home / "log"
    for _ in range(REPEATS):
        shutil.copytree(home / "template", home / "job")
        if sum([killed(job, length, home, share) for share in shares()]):
            break
        shutil.rmtree(home / "job")
    else:
        raise RuntimeError("the job is over too soon to be killed")
    try:
        state = done(lambda: job.look(home / "job").encode(), log).decode()
        answer = done(lambda: digest(job.run(home / "job")), log)
    except RuntimeError as error:
        return Outcome(False, "failed", str(error))
    finally:
        shutil.rmtree(home / "job")
    return Outcome(answer == expected, state)


def shares_of(job: Job, k: int, kills: int, rng: random.Random) -> list[float]:
    """When trial k is killed, now and then twice; in order through the operations on files."""
    if job.inside is not None:
        return [(k + rng.random()) / kills]
    return [rng.random() for _ in range(rng.choice([1, 1, 2]))]


def measure(kind: str, kills: int, seed: int) -> dict[str, Any]:
    """A row about one kind of job."""
    job, rng = JOBS[kind](), random.Random(f"{kind} {seed}")
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        template, log = home / "template", home / "log"
        template.mkdir()
        done(lambda: job.prepare(template) or b"", log)
        shutil.copytree(template, home / "fresh")
        call = [sys.executable, __file__, "--child", str(home / "fresh"), kind]
        finished = subprocess.run(call, capture_output=True, text=True)
        if finished.returncode:
            raise RuntimeError(finished.stderr)
        expected = finished.stdout.split()[-1].encode()
        shutil.copytree(template, home / "timed")
        begun = time.perf_counter()
        if job.inside is None:
            done(lambda: digest(job.run(home / "timed")), log)
            length = seconds = time.perf_counter() - begun
        else:
            length = float(done(lambda: watched_run(job, home / "timed"), log))
            seconds = time.perf_counter() - begun
        moments = [partial(shares_of, job, k, kills, rng) for k in range(kills)]
        found = [trial(job, expected, length, home, shares) for shares in moments]
    states = [outcome.state for outcome in found]
    return {
        "kind": kind,
        "kills": len(found),
        "same": sum(outcome.same for outcome in found),
        "sound": sum(state in ("old", "new", "whole") for state in states),
        "states": {state: states.count(state) for state in sorted(set(states))},
        "seconds": round(seconds, 2),
        **({} if job.inside is None else {"moments": int(length)}),
        "errors": [outcome.error[-500:] for outcome in found if outcome.error][:3],
        **stamp(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kinds", nargs="*", default=[], metavar="kind", help=", ".join(JOBS))
    parser.add_argument("-n", type=int, default=20, help="kills of every kind")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--results", type=Path, default=RESULTS, help="rows are appended to this file")
    parser.add_argument("--child", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            print("\n" + digest(JOBS[options.kinds[0]]().run(Path(options.child))).decode())
        return 0
    good = True
    for kind in options.kinds or JOBS:
        row = measure(kind, options.n, options.seed)
        good &= row["same"] == row["sound"] == row["kills"]
        append(options.results, row)
        told = f"{row['same']} of {row['kills']} the same, {row['sound']} sound {row['states']}"
        print(f"{kind:18} {told} ({row['seconds']} s)", *row["errors"], sep="\n  ", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
