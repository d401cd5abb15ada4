"""A long service in a few minutes: memory, threads, global state; tables and folders that were damaged.

    python benchmarks/soak.py                        every part (make soak)
    python benchmarks/soak.py memory threads -n 200  some of them, smaller

    memory    fits and predictions of many kinds in one process: how much the resident memory grows
    threads   threads that predict from one model at once: are their answers those of one thread
    state     what fits, predictions, samples and failures leave behind in the process
    folders   mutated folders of saved models: read, or an error of ours
    tables    generated tables (tests/fitting/test_fuzz.py): fitted, or an error of ours
    runs      mutated checkpoints, runs, studies, results, suites, tables (tests/io/test_untrusted.py)

Numbers go to benchmarks/results/soak.json; the exit status is 1 where a promise is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import duogp
from duogp.bench.provenance import stamp
from duogp.errors import SavedModelError
from duogp.io.folder import MANIFEST, checksum

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from helpers.mutations import edited, mutated  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "soak.json"
#: Fits before the memory is looked at, and megabytes that it may grow by afterwards.
WARM_UP, MOST_GROWTH = 200, 50.0


def table(seed: int, n: int = 40, d: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)


def small(method: str, **own: Any) -> Callable[[int], Any]:
    """A fit of a few steps, its prediction, density and draws."""

    def run(seed: int) -> Any:
        X, y = table(seed, 30 + seed % 20, 1 + seed % 4)
        y = (y > 0).astype(int) if own.get("likelihood") == "classes" else y
        given = {
            "num_inducing": 8,
            "steps": 3,
            "batch_size": 16,
            "device": "cpu",
            "random_state": seed,
            **own,
        }
        gp = duogp.fit(X, y, method, **given)
        gp.predict(X)
        gp.log_density(X, y)
        gp.sample(X[:5], 2, seed=seed)
        return gp

    return run


def estimators(seed: int) -> Any:
    X, y = table(seed)
    given: dict[str, Any] = {"num_inducing": 8, "epochs": 2, "device": "cpu", "random_state": seed}
    model = duogp.GPRegressor("svgp", calibration_fraction=0.2, **given).fit(X, y)
    model.predict_interval(X, kind="conformal")
    labels = duogp.GPClassifier("svgp", **given).fit(X, np.where(y > 0, "a", "b"))
    labels.predict_proba(X)
    return model


def saved(seed: int) -> Any:
    gp = small("svgp")(seed)
    with tempfile.TemporaryDirectory() as folder:
        gp.save(folder)
        return duogp.load(folder)


FITS: dict[str, Callable[[int], Any]] = {
    "closed form": small("svgp"),
    "minibatches": small("svgp", solver="stochastic"),
    "natural": small("svgp", solver="natural"),
    "dcsvgp": small("dcsvgp", warm_start=2),
    "predictive": small("ppgpr-chol", dtype="float32"),
    "odsvgp": small("odsvgp"),
    "exact": small("exact"),
    "classes": small("svgp", likelihood="classes"),
    "student-t": small("svgp", likelihood="student-t"),
    "deep kernel": small("svgp-dkl"),
    "estimators": estimators,
    "saved": saved,
}


def resident() -> float:
    """Megabytes of this process that are in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory(options: argparse.Namespace) -> dict[str, Any]:
    names = list(FITS)
    before = [resident()]
    for k in range(WARM_UP + options.fits):
        FITS[names[k % len(names)]](k)
        if k + 1 == WARM_UP:
            before = [resident()]
        elif k >= WARM_UP and (k + 1 - WARM_UP) % max(1, options.fits // 4) == 0:
            before.append(resident())
    tensors = sum(isinstance(each, torch.Tensor) for each in gc.get_objects())
    growth = before[-1] - before[0]
    return {
        "fits": options.fits,
        "resident_mb": [round(value, 1) for value in before],
        "growth_mb": round(growth, 1),
        "tensors_left": tensors,
        "kept": growth < MOST_GROWTH,
    }


def threads(options: argparse.Namespace) -> dict[str, Any]:
    """Predictions of eight threads at once, first of models that nobody has asked before."""
    rounds, wrong = max(1, options.fits // 40), 0
    X, y = table(0)
    rows = [table(seed, 50)[0] for seed in range(8)]
    models: dict[str, Callable[[], Any]] = {
        "svgp": lambda: duogp.fit(X, y, "svgp", steps=3, device="cpu"),
        "dcsvgp": lambda: duogp.fit(X, y, "dcsvgp", steps=3, warm_start=2, device="cpu"),
        "student-t": lambda: duogp.fit(X, y, "svgp", likelihood="student-t", steps=3, device="cpu"),
        "estimator": lambda: duogp.GPRegressor("svgp", epochs=3, device="cpu", random_state=0).fit(X, y),
    }

    def answer(model: Any, seed: int) -> bytes:
        found = model.predict(rows[seed])
        mean = found if isinstance(found, np.ndarray) else found.mean
        draws = model.sample(rows[seed], 2, seed=seed).tobytes() if hasattr(model, "sample") else b""
        return mean.tobytes() + draws

    for make in models.values():
        expected = [answer(make(), seed) for seed in range(8)]
        with ThreadPoolExecutor(8) as pool:
            for _ in range(rounds):
                model = make()
                found = list(pool.map(answer, [model] * 8, range(8)))
                wrong += sum(a != b for a, b in zip(found, expected, strict=True))
    total = 8 * rounds * len(models)
    return {"answers": total, "different": wrong, "kept": wrong == 0}


def process_state() -> dict[str, Any]:
    loggers = [logging.getLogger(), logging.getLogger("duogp")]
    return {
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "gradients": torch.is_grad_enabled(),
        "torch generator": torch.get_rng_state().numpy().tobytes(),
        "numpy generator": repr(np.random.get_state()),  # noqa: NPY002
        "python generator": random.getstate(),
        "numpy errors": np.geterr(),
        "warnings": list(warnings.filters),
        "handlers": [list(each.handlers) for each in loggers],
        "levels": [each.level for each in loggers],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
    }


def state(options: argparse.Namespace) -> dict[str, Any]:
    for run in FITS.values():  # imports, caches
        run(0)
    changed: set[str] = set()
    rounds = max(1, options.fits // 100)
    for k in range(rounds):
        for name, run in FITS.items():
            before = process_state()
            run(k)
            with contextlib.suppress(ZeroDivisionError):
                duogp.fit(*table(k), "svgp", steps=3, callbacks=[_raise], device="cpu")
            after = process_state()
            changed |= {f"{name}: {part}" for part in before if before[part] != after[part]}
    return {"runs": rounds * len(FITS), "changed": sorted(changed), "kept": not changed}


def _raise(_: Any) -> None:
    raise ZeroDivisionError


# -- folders -------------------------------------------------------------------------------------------------


def folders(options: argparse.Namespace) -> dict[str, Any]:
    """Folders of four models, with bytes changed, or entries of the manifest with a right checksum."""
    X, y = table(0)
    given: dict[str, Any] = {"num_inducing": 6, "device": "cpu", "random_state": 0}
    frame = {"a": X[:, 0], "b": [("u", "v", "w")[k % 3] for k in range(len(X))]}
    models: list[Any] = [
        duogp.fit(X, y, "svgp", steps=2, **given),
        duogp.fit(X, y > 0, "dcsvgp", likelihood="classes", steps=2, **given),
        duogp.fit(X, y, "svgp-dkl", steps=2, **given),
    ]
    try:
        import pandas

        models.append(duogp.GPRegressor("svgp", epochs=2, **given).fit(pandas.DataFrame(frame), y))
    except ImportError:
        pass
    refused, read, foreign = 0, 0, []
    with tempfile.TemporaryDirectory() as home:
        for place, model in enumerate(models):
            folder = Path(home) / str(place)
            model.save(folder)
            whole = {path.name: path.read_bytes() for path in folder.iterdir()}
            for k in range(options.files // len(models)):
                rng = np.random.default_rng([place, k])
                name = list(whole)[rng.integers(len(whole))]
                if rng.random() < 0.6:
                    found = edited(json.loads(whole[MANIFEST]), rng)
                    found["checksum"] = checksum(found)
                    name, data = MANIFEST, json.dumps(found).encode()
                else:
                    data = mutated(whole[name], rng)
                (folder / name).write_bytes(data)
                try:
                    loaded = duogp.load(folder)
                    loaded.predict(X if not hasattr(loaded, "feature_names_in_") else _frame(frame))
                    read += 1
                except SavedModelError:
                    refused += 1
                except Exception as error:
                    foreign.append(f"{place}/{k}: {type(error).__name__}: {error}"[:200])
                (folder / name).write_bytes(whole[name])
    total = refused + read + len(foreign)
    return {"folders": total, "refused": refused, "read": read, "foreign": foreign[:20], "kept": not foreign}


def _frame(columns: dict[str, Any]) -> Any:
    import pandas

    return pandas.DataFrame(columns)


# -- by the tests --------------------------------------------------------------------------------------------


def by_tests(jobs: list[list[str]], **environment: str) -> dict[str, Any]:
    """Runs of pytest with these words, at the same time."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    own = {**os.environ, **environment}
    with ThreadPoolExecutor(len(jobs)) as pool:
        done = list(
            pool.map(
                lambda words: subprocess.run(
                    [*command, *words], cwd=ROOT, env=own, capture_output=True, text=True
                ),
                jobs,
            )
        )
    lines = [line for each in done for line in each.stdout.splitlines()]
    passed = sum(int(found[1]) for line in lines if (found := re.search(r"(\d+) passed", line)))
    failed = [line for line in lines if line.startswith("FAILED")]
    errors = [each.stderr[-300:] for each in done if each.returncode and not failed]
    kept = all(each.returncode == 0 for each in done)
    return {"tests_passed": passed, "failed": (failed + errors)[:10], "kept": kept}


def tables(options: argparse.Namespace) -> dict[str, Any]:
    own = {"HYPOTHESIS_PROFILE": "search", "DUOGP_FUZZ_TABLES": str(-(-options.tables // options.jobs))}
    return {"tables": options.tables} | by_tests([["tests/fitting/test_fuzz.py"]] * options.jobs, **own)


def runs(options: argparse.Namespace) -> dict[str, Any]:
    own = {"DUOGP_FUZZ_FILES": str(options.files)}
    groups = ["edited_checkpoints", "checkpoint and not edited", "studies", "not checkpoint and not studies"]
    jobs = [["tests/io/test_untrusted.py", "-k", group] for group in groups]
    return {"files_of_each_kind": options.files} | by_tests(jobs, **own)


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "memory": memory,
    "threads": threads,
    "state": state,
    "folders": folders,
    "tables": tables,
    "runs": runs,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=[], metavar="part", help=", ".join(PARTS))
    parser.add_argument("-n", type=int, default=2000, help="fits, tables and folders, unless told otherwise")
    for name in ("fits", "tables", "files"):
        parser.add_argument(f"--{name}", type=int, help=f"number of {name}")
    parser.add_argument("--jobs", type=int, default=2, help="processes that share the tables")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    for name in ("fits", "tables", "files"):
        setattr(options, name, getattr(options, name) or options.n)
    good = True
    for name in options.parts or PARTS:
        begun = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row = PARTS[name](options)
        row["seconds"] = round(time.perf_counter() - begun, 1)
        print(f"{name:8} {json.dumps(row)}", flush=True)
        good &= row["kept"]
        known = json.loads(options.results.read_text()) if options.results.exists() else {}
        options.results.write_text(json.dumps(known | {name: row | stamp()}, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
