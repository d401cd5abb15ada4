"""Time to quality: seconds until a validation NLL is reached, ours and the peers', by one protocol.

The target of a pair is the validation NLL that the peer has after all of its epochs, a full run. Both are
timed until they first are there (within `TOLERANCE`), with as many inducing points; looking at the validation
rows is not timed. Nobody looks at test rows to decide anything, and their NLL is in the row. Peers:
`quality_peers` and `quality_gpflow`.

Ours is `duogp.fit(X, y, "svgp", num_inducing=M)`, otherwise untouched, and, should that not be enough, once
more with a tenth of its tolerance: the time is then that of all of the first and of a part of the second. A
fit takes the same steps whether it is looked at or not, so one is timed and another one, with validation
rows, says after which step the target was reached. Steps on a sample of the rows, which it begins with, count
and are not looked at. Who does not get there is in the row without a time.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

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
#: Times that a fit of ours is timed; one that takes longer than so many seconds once.
REPEATS, LONG = 3, 60.0
FAMILIES = ("own kernel", "same model")

#: As gpytorch's model: one lengthscale, no output scale, as many inducing points, rows as they are.
SAME: dict[str, Any] = {
    "kernel": "rbf", "ard": False, "output_scale": False, "inducing_init": "random", "standardize": False,
    "initial_lengthscale": 0.6931471805599453, "initial_noise": 0.6931471805599453,
}  # fmt: skip
#: Of our fits, in the order in which they are tried.
RUNGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("the default", {}),
    ("a tenth of the tolerance", {"tolerance": 5e-4}),
)


def rungs(family: str, num_inducing: int) -> list[tuple[str, dict[str, Any]]]:
    """Recipes in the order of what they cost: a name and the settings of `duogp.fit`."""
    model = (SAME if family == "same model" else {}) | {"num_inducing": num_inducing}
    return [(name, model | settings) for name, settings in RUNGS]


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
    warm_up = rungs(families[0], M)[0][1] | {"epochs": 2}
    duogp.fit(split.X_train, split.y_train, "svgp", device=device, **warm_up)
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
            share = max(seconds / (len(GPFLOW) - i), 1.0)
            begun = now("cpu")
            try:
                limit = share if math.isfinite(share) else None
                done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=limit)
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


class Rung(NamedTuple):
    """A fit of ours: what it says of itself, seconds after every step, validation NLL after every step."""

    facts: dict[str, Any]
    times: list[list[float]]  # of every repeat
    nll: list[float]

    def first(self, target: float) -> int | None:
        """The first step at whose end the validation NLL is there."""
        return next((i for i, value in enumerate(self.nll) if value <= target + TOLERANCE), None)


def climb(split: Split, M: int, device: str, family: str, target: float) -> list[Rung]:
    """Rungs up to the first that reaches the target, each timed several times."""
    tried: list[Rung] = []
    for recipe, settings in rungs(family, M):
        tried.append(fitted(split, settings, device, recipe))
        if tried[-1].first(target) is not None:
            break
    whole = sum(rung.facts["seconds"] for rung in tried)
    say(f"  {family}: {whole:.2f} s in {len(tried)} rungs to its own end, {tried[-1].nll[-1]:.4f}")
    return tried


def fitted(split: Split, settings: dict[str, Any], device: str, recipe: str) -> Rung:
    times: list[list[float]] = []
    while len(times) < REPEATS and not (times and times[0][-1] > LONG):
        begun = now(device)
        gp = duogp.fit(split.X_train, split.y_train, "svgp", device=device, evaluate_every=1, **settings)
        whole = now(device) - begun
        # Seconds of the steps on all rows, counted from the end of the call.
        times.append([whole - (gp.history[-1].seconds - record.seconds) for record in gp.history])
    looked: dict[str, Any] = {"validation": (split.X_val, split.y_val), "early_stopping": False}
    again = duogp.fit(
        split.X_train, split.y_train, "svgp", device=device, evaluate_every=1, **looked, **settings
    ).history
    in_units = again.validation_nll_y - again.validation_nll  # records are of the scaled target
    path = [float(record.validation_nll + in_units) for record in again]
    held, asked = gp.predict(split.X_val), gp.predict(split.X_test)
    facts = {
        "recipe": recipe,
        "seconds": statistics.median(run[-1] for run in times),
        "steps": len(path),
        "validation_nll": float(nll(split.y_val, held.mean, held.std)),
        "nll": float(nll(split.y_test, asked.mean, asked.std)),
    }
    if abs(path[-1] - facts["validation_nll"]) > TOLERANCE:  # a GPU may take a step more or less
        raise RuntimeError(f"looking changed the fit: {len(path)} steps to {path[-1]:.4f}, not {facts}")
    return Rung(facts, times, path)


def row_of(
    name: str, M: int, device: str, family: str, tried: list[Rung], kind: str, peer: dict[str, Any],
    epochs: int, rows: int,
) -> dict[str, Any]:  # fmt: skip
    """One row; times are None for who did not get there, and the ratio with them."""
    looks = peer["looks"]
    target = looks[-1].validation_nll
    there = next(look for look in looks if look.validation_nll <= target + TOLERANCE)
    peer_ms = 1e3 * there.seconds
    reached = [(i, step) for i, rung in enumerate(tried) if (step := rung.first(target)) is not None]
    sums: list[float] = []
    if reached:
        last, step = reached[0]
        tried = tried[: last + 1]
        before = sum(rung.facts["seconds"] for rung in tried[:-1])
        sums = [before + run[min(step, len(run) - 1)] for run in tried[-1].times]
    ms = 1e3 * statistics.median(sums) if sums else None
    whole = sum(rung.facts["seconds"] for rung in tried)
    commit, dirty = commit_of_tree()
    return {
        "part": "quality", "what": f"time to quality, {name}", "M": M, "dtype": "float64",
        "device": device.split(":")[0], "device_name": device_name(device), "commit": commit, "dirty": dirty,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"), "threads": torch.get_num_threads(),
        "peer": f"{kind}, {peer['dtype']} / {family}", "peer_version": peer.get("version"),
        "data": name, "rows": rows, "target": target,
        "tolerance": TOLERANCE, "ms": ms, "ms_all": [1e3 * value for value in sums], "full_ms": 1e3 * whole,
        "peer_ms": peer_ms, "peer_full_ms": 1e3 * looks[-1].seconds, "peer_epochs": epochs,
        "ratio": None if ms is None else peer_ms / ms, "ratio_is": "peer_ms / ms",
        "step": reached[0][1] + 1 if reached else None,
        "validation_nll": tried[-1].facts["validation_nll"], "nll": tried[-1].facts["nll"],
        "peer_validation_nll": looks[-1].validation_nll, "peer_nll": looks[-1].test_nll,
        "tried": [rung.facts for rung in tried], "rounds": len(sums), "batch": 1024, "dims": None,
        "spread": None, "roofline_ms": None, "roofline_share": None, "peak_memory_mb": None,
    }  # fmt: skip
