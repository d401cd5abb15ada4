"""Ten million rows through `OnlineGP`, drawn batch by batch and never stored: memory stays, error falls.

The rows are uniform in eight dimensions, of which five matter; the noise has a standard deviation of 0.2. At
every power of ten the process' resident memory and the test RMSE (against the function without noise) and NLL
are written down. An NLL below its floor, that of the true function and noise, is impossible but for chance.

    python benchmarks/online_stream.py --output benchmarks/results/online_stream.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from duogp.bench.measure import device_name
from duogp.bench.provenance import stamp
from duogp.online import OnlineGP

DIMS = 8
NOISE = 0.2


def function(X: NDArray) -> NDArray:
    return np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + np.exp(-4 * X[:, 3] ** 2) + 0.5 * X[:, 4]


def draw(rng: np.random.Generator, n: int) -> tuple[NDArray, NDArray]:
    X = rng.uniform(-1, 1, size=(n, DIMS))
    return X, function(X) + NOISE * rng.normal(size=n)


def resident_megabytes() -> float:
    """Memory of this process as the kernel counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmRSS: this benchmark runs on Linux")


def sizes(rows: int, batch: int) -> Iterator[int]:
    """Batches that stop at every power of ten on the way."""
    seen, mark = 0, 1000
    while seen < rows:
        size = min(batch, mark - seen if mark > seen else batch, rows - seen)
        seen += size
        mark = mark * 10 if seen >= mark else mark
        yield size


def run(options: argparse.Namespace) -> dict[str, Any]:
    rng = np.random.default_rng(options.seed)
    X_test, y_test = draw(np.random.default_rng(options.seed + 1), 5000)
    truth = function(X_test)
    learner = OnlineGP(
        options.method, num_inducing=options.inducing, kernel="rbf", batch_size=options.minibatch,
        device=options.device, random_state=options.seed,
    )  # fmt: skip
    found: list[dict[str, Any]] = []
    seconds = 0.0
    print(f"{'rows':>12} {'seconds':>9} {'memory MB':>10} {'RMSE':>8} {'NLL':>8}")
    for size in sizes(options.rows, options.batch):
        rows = draw(rng, size)
        start = time.perf_counter()
        learner.partial_fit(*rows)
        seconds += time.perf_counter() - start
        seen = learner.num_seen
        if seen == options.rows or (seen >= 1000 and np.log10(seen).is_integer()):
            mean = learner.predict(X_test).mean
            row = {
                "rows": seen,
                "seconds": seconds,
                "memory_megabytes": resident_megabytes(),
                "rmse": float(np.sqrt(np.mean((mean - truth) ** 2))),
                "nll": float(-learner.log_density(X_test, y_test).mean()),
                "parameters": sum(p.numel() for p in learner.model.parameters()),
            }
            found.append(row)
            print("{rows:12,d} {seconds:9.1f} {memory_megabytes:10.0f} {rmse:8.4f} {nll:8.4f}".format(**row))
    residual = (y_test - truth) / NOISE
    floor = float(np.mean(0.5 * residual**2) + np.log(NOISE) + 0.5 * np.log(2 * np.pi))
    print(f"the NLL of the true function and noise is {floor:.4f}")
    return {
        "method": options.method,
        "num_inducing": options.inducing,
        "batch": options.batch,
        "minibatch": options.minibatch,
        "dims": DIMS,
        "noise": NOISE,
        "nll_floor": floor,
        "device": device_name(options.device),
        **stamp(),
        "rows": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=10_000, help="rows of a call")
    parser.add_argument("--minibatch", type=int, default=2_000, help="rows of a step")
    parser.add_argument("--method", default="svi")
    parser.add_argument("--inducing", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="of the CPU; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    found = run(options)
    if options.output:
        options.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
