"""End processes that fit at random moments, twice each, and let them go on: are the predictions the same?

    python benchmarks/kill_fits.py                   every kind of fit, four times
    python benchmarks/kill_fits.py lbfgs auto -n 10  some of them, ten times

Each fit is a process of its own that is ended by SIGKILL; moments are uniform over the length of a whole fit.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

#: Settings of `duogp.fit`; None: an estimator with its default, ``method="auto"``.
FITS: dict[str, dict[str, Any] | None] = {
    "lbfgs": {"solver": "closed-form", "epochs": 120},
    "adam": {"solver": "closed-form", "optimizer": "adam", "epochs": 120},
    "stochastic": {"solver": "stochastic", "epochs": 40},
    "natural": {"solver": "natural", "epochs": 30},
    "auto": None,
    "classes": None,
}


def predictions(kind: str, folder: str | None) -> np.ndarray:
    """Those of a fit that goes on from the checkpoints in a folder."""
    import duogp

    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (400, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=400)
    shared: dict[str, Any] = {"device": "cpu", "random_state": 0, "checkpoint_dir": folder}
    print("begun", flush=True)
    if kind == "auto":
        return duogp.GPRegressor(**shared, checkpoint_every=0.05).fit(X, y).predict(X)
    if kind == "classes":
        return duogp.GPClassifier(**shared, checkpoint_every=0.05).fit(X, y > 0).predict_proba(X)
    own: dict[str, Any] = {"num_inducing": 30, "batch_size": 64, "tolerance": 0.0, "backend": "eager"}
    gp: Any = duogp.fit(X, y, "svgp", checkpoint_every=0.02, **own, **(FITS[kind] or {}), **shared)
    mean: np.ndarray = gp.predict(X).mean
    return mean


def child(kind: str, folder: str | None) -> subprocess.Popen[str]:
    """A process that fits, and has begun to."""
    command = [sys.executable, __file__, "--child", folder or "", kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def trial(kind: str, whole: str, length: float, rng: random.Random) -> tuple[bool, int]:
    """Whether a fit that was ended twice is the same, and how often it was ended before it was over."""
    kills = 0
    with tempfile.TemporaryDirectory() as home:
        folder = str(Path(home) / "run")
        for _ in range(2):
            process = child(kind, folder)
            time.sleep(rng.uniform(0.02, 0.95) * length)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                kills += 1
            process.communicate()
        out, error = child(kind, folder).communicate()
    if out != whole:
        print(error[-500:], file=sys.stderr)
    return out == whole, kills


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kinds", nargs="*", default=[], metavar="kind", help=", ".join(FITS))
    parser.add_argument("-n", type=int, default=4, help="fits of every kind")
    parser.add_argument("--child", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        found = predictions(options.kinds[0], options.child or None)
        print(np.ascontiguousarray(found).tobytes().hex())
        return 0
    rng, all_same = random.Random(0), True
    for kind in options.kinds or FITS:
        process, begun = child(kind, None), time.perf_counter()
        whole, _ = process.communicate()
        length = time.perf_counter() - begun
        found = [trial(kind, whole, length, rng) for _ in range(options.n)]
        same, kills = sum(ok for ok, _ in found), sum(k for _, k in found)
        all_same &= same == options.n
        print(f"{kind:12} {same} of {options.n} the same, after {kills} kills ({length:.1f} s)", flush=True)
    return 0 if all_same else 1


if __name__ == "__main__":
    sys.exit(main())
