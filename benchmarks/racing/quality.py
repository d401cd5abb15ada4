"""Time to quality: seconds until a validation NLL is reached, ours and the peers', by one protocol.

The target of a pair is the validation NLL that the peer has after all of its epochs, a full run: the peer is
timed until it first is there (within `TOLERANCE`), ours until its validation NLL is, with as many inducing
points. Nobody looks at test rows to decide anything, and their NLL is in the row. Peers: `quality_peers` and
`quality_gpflow`.

Ours is a ladder of settings of `duogp.fit`, in the order of what they cost: the time is the sum of all rungs
that were tried, those that failed included. Who does not get there is in the row without a time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import duogp
from duogp.bench.measure import device_name
from duogp.data.benchmark import load
from duogp.data.splits import Split, dc_protocol
from duogp.metrics import nll
from racing.clock import now, say
from racing.store import commit_of_tree

GPFLOW = ("sgpr", "svgp natural")
INDUCING = {"energy": 200, "pol": 500, "elevators": 500, "bike": 500, "kin40k": 800, "protein": 800}
EPOCHS = 300
#: Nats above the target that count as reached.
TOLERANCE = 0.005
#: What GPflow's process is given, and what it runs.
ROWS = ("X_train", "y_train", "X_val", "y_val", "X_test", "y_test")
SCRIPT = Path(__file__).with_name("quality_gpflow.py")
#: Runs of our ladder; a ladder that takes longer than so many seconds is climbed once.
REPEATS, LONG = 3, 30.0
FAMILIES = ("own kernel", "same model")

#: As gpytorch's model: one lengthscale, no output scale, as many inducing points, rows as they are.
SAME: dict[str, Any] = {
    "kernel": "rbf", "ard": False, "output_scale": False, "inducing_init": "random", "standardize": False,
    "initial_lengthscale": 0.6931471805599453, "initial_noise": 0.6931471805599453,
}  # fmt: skip
#: The library's own: a lengthscale for each column, an output scale, Matérn 5/2.
OWN: dict[str, Any] = {"inducing_init": "random"}
#: Of a rung: rows of the sample, steps on it, steps on all rows. Each is about twice the price of the last.
RUNGS = ((1000, 150, 1), (2000, 150, 1), (4000, 150, 1), (8000, 150, 1), (8000, 150, 20), (8000, 150, 100))


def rungs(family: str, num_inducing: int) -> list[tuple[str, dict[str, Any]]]:
    """Recipes in the order of what they cost: a name and the settings of `duogp.fit`."""
    closed = {"solver": "closed-form", "evaluate_every": 1000, "learning_rate": 0.05}
    model = (OWN if family == "own kernel" else SAME) | closed | {"num_inducing": num_inducing}
    return [
        (
            f"{warm} steps on {rows} rows, {full} on all",
            model | {"warm_start": warm, "warm_start_rows": rows, "epochs": full},
        )
        for rows, warm, full in RUNGS
    ]


def inducing_of(name: str, given: int | None) -> int:
    return INDUCING[name] if given is None else given


def run(
    name: str,
    device: str,
    seconds: float,
    epochs: int = EPOCHS,
    families: Sequence[str] = FAMILIES,
    *,
    rows: int | None = None,
    inducing: int | None = None,
    pythons: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """A row for each family of ours and each peer; none where the full run of gpytorch has no time.

    ``rows``: of a random sample of the set, before it is split. ``pythons``: of GPflow's contestants.
    """
    data = load(name)
    X, y = data.X, data.y
    if rows is not None and rows < len(y):
        kept = np.random.default_rng(0).permutation(len(y))[:rows]
        X, y = X[kept], y[kept]
    split, M = dc_protocol(X, y, 0), inducing_of(name, inducing)
    begun = now(device)
    theirs = peers(split, M, device, epochs, seconds)
    if device == "cpu" and pythons and "gpflow" in pythons:
        theirs |= gpflow_peers(split, M, epochs, seconds - (now(device) - begun), pythons["gpflow"])
    if not theirs:
        return []
    target = min(peer["looks"][-1].validation_nll for peer in theirs.values())
    say(f"  the hardest target: validation NLL {target:.4f}")
    fitted(split, rungs(families[0], M)[0][1] | {"warm_start": 2}, device)  # warm up
    climbed = {family: climb(split, M, device, family, target) for family in families}
    return [
        row_of(name, M, device, family, got, kind, peer, epochs, len(y))
        for family, got in climbed.items()
        for kind, peer in theirs.items()
    ]


def peers(split: Split, M: int, device: str, epochs: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Full runs of gpytorch's contestants that fit into the time: precision and looks of each."""
    from racing.quality_peers import PEERS, Training, faster_precision

    out: dict[str, dict[str, Any]] = {}
    begun = now(device)
    for kind in PEERS:

        def make(dtype: str, kind: str = kind) -> Training:
            return Training(kind, split, M, epochs, device, dtype)

        try:
            dtype = faster_precision(make, device)
            training = make(dtype)
            once = now(device)
            training.epoch()
            guess = epochs * (now(device) - once)
            if guess > seconds - (now(device) - begun):
                say(f"  gpytorch {kind}: {epochs} epochs would take {guess:.0f} s")
                continue
            looks = list(make(dtype).run(max(1, epochs // 60)))
        except Exception as error:  # of memory, or a factorisation
            say(f"  gpytorch {kind} does not take part: {type(error).__name__}: {error}")
            continue
        out[f"gpytorch {kind}"] = {"dtype": dtype, "looks": looks}
        last = looks[-1]
        say(f"  gpytorch {kind}, {dtype}: {last.seconds:.1f} s, validation {last.validation_nll:.4f}")
    return out


def gpflow_peers(split: Split, M: int, epochs: int, seconds: float, python: str) -> dict[str, dict[str, Any]]:
    """Full runs of GPflow's contestants, each in a process of its own."""
    from racing.quality_peers import Look

    out: dict[str, dict[str, Any]] = {}
    threads = str(torch.get_num_threads())
    environment = os.environ | {"OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("PYTHONPATH", None)
    arrays = {name: getattr(split, name) for name in ROWS}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        np.savez(path, **arrays)
        for i, kind in enumerate(GPFLOW):
            command = [python, str(SCRIPT), str(path), kind, str(M), str(epochs), threads]
            share = seconds / (len(GPFLOW) - i)
            begun = now("cpu")
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, env=environment, timeout=max(share, 1.0)
                )
                answer = json.loads(done.stdout)
                looks = [Look(**look) for look in answer["looks"]]
                if not looks:
                    raise RuntimeError(done.stderr.strip().splitlines()[-1])
            except subprocess.TimeoutExpired:
                say(f"  gpflow {kind}: not at the end of {epochs} epochs after {share:.0f} s")
                continue
            except Exception as error:
                say(f"  gpflow {kind} does not take part: {type(error).__name__}: {error}")
                continue
            finally:
                seconds -= now("cpu") - begun
            out[f"gpflow {kind}"] = {"dtype": answer["dtype"], "looks": looks, "version": answer["version"]}
            last = looks[-1]
            say(f"  gpflow {kind}, {answer['dtype']}: {last.seconds:.1f} s, {last.validation_nll:.4f}")
    return out


def climb(split: Split, M: int, device: str, family: str, target: float) -> dict[str, Any]:
    """All rungs up to the first whose validation NLL is there, repeated: seconds of every rung."""
    runs: list[list[float]] = []
    tried: list[dict[str, Any]] = []
    while len(runs) < REPEATS and not (runs and sum(runs[0]) > LONG):
        tried = []
        for recipe, settings in rungs(family, M):
            tried.append({"recipe": recipe, **fitted(split, settings, device)})
            if tried[-1]["validation_nll"] <= target + TOLERANCE:
                break
        runs.append([rung["seconds"] for rung in tried])
    last = tried[-1]
    total = statistics.median(sum(run) for run in runs)
    say(f"  {family}: {total:.2f} s in {len(tried)} rungs, {last['validation_nll']:.4f}")
    return {"runs": runs, "tried": tried}


def fitted(split: Split, settings: dict[str, Any], device: str) -> dict[str, float]:
    begun = now(device)
    model = duogp.fit(split.X_train, split.y_train, "svgp", device=device, **settings)
    seconds = now(device) - begun
    held, asked = model.predict(split.X_val), model.predict(split.X_test)
    return {
        "seconds": seconds,
        "validation_nll": float(nll(split.y_val, held.mean, held.std)),
        "nll": float(nll(split.y_test, asked.mean, asked.std)),
    }


def row_of(
    name: str, M: int, device: str, family: str, got: dict[str, Any], kind: str, peer: dict[str, Any],
    epochs: int, rows: int,
) -> dict[str, Any]:  # fmt: skip
    """One row; times are None for who did not get there, and the ratio with them."""
    looks = peer["looks"]
    target = looks[-1].validation_nll
    there = next(look for look in looks if look.validation_nll <= target + TOLERANCE)
    peer_ms = 1e3 * there.seconds
    tried = got["tried"]
    enough = [i for i, rung in enumerate(tried) if rung["validation_nll"] <= target + TOLERANCE]
    tried = tried[: enough[0] + 1] if enough else tried
    sums = [sum(run[: len(tried)]) for run in got["runs"] if len(run) >= len(tried)]
    ms = 1e3 * statistics.median(sums) if enough else None
    commit, dirty = commit_of_tree()
    return {
        "part": "quality", "what": f"time to quality, {name}", "M": M, "dtype": "float64",
        "device": device.split(":")[0], "device_name": device_name(device), "commit": commit, "dirty": dirty,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"), "threads": torch.get_num_threads(),
        "peer": f"{kind}, {peer['dtype']} / {family}", "peer_version": peer.get("version"),
        "data": name, "rows": rows, "target": target,
        "tolerance": TOLERANCE, "ms": ms, "ms_all": [1e3 * value for value in sums],
        "peer_ms": peer_ms, "peer_full_ms": 1e3 * looks[-1].seconds, "peer_epochs": epochs,
        "ratio": None if ms is None else peer_ms / ms, "ratio_is": "peer_ms / ms",
        "validation_nll": tried[-1]["validation_nll"], "nll": tried[-1]["nll"],
        "peer_validation_nll": looks[-1].validation_nll, "peer_nll": looks[-1].test_nll,
        "tried": tried, "rounds": len(sums), "batch": 1024, "dims": None, "spread": None,
        "roofline_ms": None, "roofline_share": None, "peak_memory_mb": None,
    }  # fmt: skip
