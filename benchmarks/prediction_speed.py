"""Predictions with variance, arrays in and arrays out, beside gpytorch and beside their bare matrix products.

For every number of inducing points M and both precisions, in turn within one process:

    parts       `gp.predict(X)`: mean, both parts of the variance, noise
    whole       `gp.predict(X, in_parts=False)`: the variance in one number
    ...-products  matrix products alone (x·Z, k·a, two triangular roots or one, in blocks of rows) by torch in
                that precision, rows and results transferred
    gpytorch    its LargeBatchVariationalStrategy, mean and variance of y, in its best chunk

Contestants are timed in alternating order; a row has medians and quartiles in milliseconds. The models are
hardly trained, gpytorch's by ten steps, ours by two in closed form (float64, the default): what they predict
is of no interest here. Of float32 predictions the error is stored. ``--variants`` tries other sizes of blocks
and chunks. ``--clock cpu`` with one thread is for machines with other work.

    python benchmarks/prediction_speed.py --within 150                    # CUDA where there is one
    python benchmarks/prediction_speed.py --device cpu --sizes 200 500 1000 --threads 2 --within 120
    python benchmarks/prediction_speed.py --table

Results: benchmarks/results/prediction_speed.jsonl (--results: another file).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
RESULTS = HERE.parent / "results" / "prediction_speed.jsonl"
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))


def wall(device: str) -> float:
    from racing.clock import now

    return now(device)


#: Seconds by the wall, or those that the process has computed: on a machine with other work, with one thread.
CLOCKS: dict[str, Callable[[str], float]] = {"wall": wall, "cpu": lambda device: time.process_time()}
#: Rounds that are timed even when the time is up.
LEAST_ROUNDS = 3


def contestants(problem: Any, X: np.ndarray, gp: Any) -> dict[str, Callable[[], Any]]:
    """What is timed at one M, each a call."""
    out: dict[str, Callable[[], Any]] = {}
    for precision in ("float64", "float32"):
        for name, in_parts in (("parts", True), ("whole", False)):
            out[f"{name} {precision}"] = lambda p=precision, i=in_parts: gp.predict(
                X, precision=p, in_parts=i
            )
    for precision in ("float64", "float32"):
        out[f"parts-products {precision}"] = bare_products(problem, X, precision, roots=2)
        out[f"whole-products {precision}"] = bare_products(problem, X, precision, roots=1)
    return out


def fitted(problem: Any) -> Any:
    """Our model: RBF on random points, the optimal q(u)."""
    import duogp
    from racing import ours

    dropped = ("epochs", "batch_size", "learning_rate", "schedule", "dtype")
    given = {k: v for k, v in ours.step_settings(problem).items() if k not in dropped}
    return duogp.fit(*problem.arrays(), "svgp", **given | {"solver": "closed-form", "epochs": 2})


def peers(problem: Any, X: np.ndarray) -> dict[str, Callable[[], Any]]:
    try:
        from racing.peers_gpytorch import Predicting
    except ImportError:
        return {}
    from dataclasses import replace

    out: dict[str, Callable[[], Any]] = {}
    for precision in ("float32", "float64"):
        made = Predicting(replace(problem, dtype=precision), "large-batch", X)
        out[f"gpytorch {precision}"] = made.block
    return out


def bare_products(problem: Any, X: np.ndarray, precision: str, *, roots: int) -> Callable[[], Any]:
    """Matrix products alone: arrays in, arrays out, nothing between them."""
    import torch

    from duogp.data.arriving import Arriving, Leaving
    from duogp.numerics.products import even_cuts

    M, device, kind = problem.inducing, torch.device(problem.device), getattr(torch, precision)
    size, chunk = (256, 65536) if device.type == "cuda" else (128, 2048)
    Z = torch.as_tensor(problem.points()[0], dtype=kind, device=device)
    a = torch.ones(1, M, dtype=kind, device=device)
    cuts = even_cuts(M, max(1, round(M / size)))
    blocks = [torch.ones(roots * (end - begin), end, dtype=kind, device=device) for begin, end in cuts]

    def run() -> list[np.ndarray]:
        leaving = [Leaving(len(X)) for _ in range(3)]
        for piece in Arriving(X, device, lambda x: x).split(chunk):
            k = Z @ piece.to(kind).mT
            mean, variance = a @ k, None
            for block in blocks:
                phi = block @ k[: block.shape[1]]
                variance = phi[:1] if variance is None else variance
            for each, value in zip(leaving, (mean, variance, mean), strict=True):
                each.add(value)
        return [each.all() for each in leaving]

    return run


@contextmanager
def having(**constants: int) -> Iterator[None]:
    """Constants of the library at other values."""
    from duogp.bases import many_rows
    from duogp.posterior import incoming

    places = {name: incoming if "CHUNK" in name else many_rows for name in constants}
    before = {name: getattr(places[name], name) for name in constants}
    for name, value in constants.items():
        setattr(places[name], name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(places[name], name, value)


def variants(on_cuda: bool) -> list[dict[str, int]]:
    if on_cuda:
        blocks = [{"CUDA_BLOCK_ROWS": b} for b in (128, 512, 4096)]
        chunks = [{"CUDA_CHUNK_BYTES": m * 2**20} for m in (256, 1024, 4096, 8192)]
        return [{"SPLIT": False}, *blocks, *chunks]
    blocks = [{"BLOCK_ROWS": b} for b in (64, 256, 512)]
    return blocks + [{"CHUNK_BYTES": m * 2**20} for m in (2, 4, 8, 32, 64)]


def timed(
    calls: dict[str, Callable[[], Any]], device: str, rounds: int, until: float, clock: str
) -> dict[str, list[float]]:
    """Seconds of every call, round by round, forwards and backwards in turn."""
    now = CLOCKS[clock]
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for r in range(rounds):
        for name in list(calls) if r % 2 == 0 else list(calls)[::-1]:
            begun = now(device)
            calls[name]()
            seconds[name].append(now(device) - begun)
        if time.monotonic() > until and r + 1 >= LEAST_ROUNDS:
            break
    return seconds


def summary(seconds: list[float]) -> dict[str, Any]:
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return {
        "ms": round(1e3 * middle, 3),
        "quartiles": [round(1e3 * low, 3), round(1e3 * high, 3)],
        "rounds": len(seconds),
    }


def errors(gp: Any, X: np.ndarray, *, in_parts: bool) -> dict[str, Any]:
    """The largest error of float32 in the variance of y, relative to it, and the reported bound."""
    one, two = (gp.predict(X[:20_000], precision=p, in_parts=in_parts) for p in ("float64", "float32"))
    seen = float((np.abs(two.variance - one.variance) / one.variance).max())
    sites = [site for site, _ in gp.posterior.many_rows("float32", in_parts=in_parts).sites]
    kind = [name for name in ("split", "fused") if all(getattr(site, name) for site in sites)]
    return {
        "answered_in": two.precision,
        "products": " ".join(kind) or "plain",
        "variance_error": seen,
        "error_bound": two.error.variance,
    }


def measure(M: int, given: argparse.Namespace, device: str, until: float) -> list[dict[str, Any]]:
    """All contestants at one M."""
    import gc

    import torch

    from duogp.bench.measure import device_name, versions
    from racing.problem import Problem

    problem = Problem(M, "float32", device, dims=given.dims, threads=given.threads)
    X = np.random.default_rng(1).standard_normal((given.rows, given.dims))
    gp = fitted(problem)
    calls = contestants(problem, X, gp) | ({} if given.alone else peers(problem, X))
    for call in calls.values():
        call()
    found = {
        name: summary(values)
        for name, values in timed(calls, device, given.rounds, until, given.clock).items()
    }
    best = min((v["ms"] for name, v in found.items() if name.startswith("gpytorch")), default=None)
    head = {"M": M, "rows": given.rows, "dims": given.dims, "device": device_name(device)}
    tail = {"threads": torch.get_num_threads(), "clock": given.clock, **versions()}
    rows = []
    for name, values in found.items():
        what, precision = name.split()
        row = {**head, "what": what, "precision": precision, **values}
        if what in ("parts", "whole"):
            bare = found[f"{what}-products {precision}"]["ms"]
            row |= {"over_products": round(values["ms"] / bare, 3)}
            row |= {} if best is None else {"gpytorch_over_ours": round(best / values["ms"], 3)}
            if precision == "float32":
                row |= errors(gp, X, in_parts=what == "parts")
        rows.append(row | tail)
        say(row)
    if given.variants:
        try_variants(problem, X, gp, device, given, until)
    del calls, gp
    gc.collect()
    return rows


def try_variants(
    problem: Any, X: np.ndarray, gp: Any, device: str, given: argparse.Namespace, until: float
) -> None:
    """Other block and chunk sizes: printed, not stored."""
    for constants in variants(device.startswith("cuda")):
        if time.monotonic() > until:
            return
        forget(gp)
        with having(**constants):
            calls = {k: v for k, v in contestants(problem, X, gp).items() if "products" not in k}
            for call in calls.values():
                call()
            found = timed(calls, device, LEAST_ROUNDS, until, given.clock)
        text = "  ".join(f"{name} {1e3 * statistics.median(values):.1f}" for name, values in found.items())
        print(f"  M = {problem.inducing} {constants}: {text}", flush=True)
    forget(gp)


def forget(gp: Any) -> None:
    """Freeze again at the next prediction."""
    gp._roads.clear()
    gp.posterior._made.clear()


def say(row: dict[str, Any]) -> None:
    extra = "".join(
        f"  {name} {row[name]:.3g}"
        for name in ("over_products", "gpytorch_over_ours", "variance_error", "error_bound")
        if name in row
    )
    extra += f"  {row['products']}" if "products" in row else ""
    low, high = row["quartiles"]
    print(
        f"M = {row['M']:<5} {row['what']:<15}{row['precision']:<8} {row['ms']:>9.1f} ms "
        f"[{low:.1f}, {high:.1f}]{extra}{' in float64' if row.get('answered_in') == 'float64' else ''}",
        flush=True,
    )


def run(given: argparse.Namespace) -> None:
    import torch

    from duogp.bench.measure import resolve_device

    begun = time.monotonic()
    device = resolve_device(given.device)
    given.rows = given.rows or (1_000_000 if device.startswith("cuda") else 20_000)
    torch.set_num_threads(given.threads)
    for i, M in enumerate(given.sizes):
        share = given.within / len(given.sizes)
        for row in measure(M, given, device, begun + (i + 1) * share):
            with Path(given.results).open("a") as file:
                file.write(json.dumps(row) + "\n")
        if time.monotonic() - begun > given.within:
            print(f"time is up after M = {M}")
            return


def table(path: Path) -> str:
    """Markdown of the newest row of each kind."""
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        newest[row["device"], row["M"], row["what"], row["precision"]] = row
    lines = [
        "| device | M | what | precision | ms | quartiles | × its products | × gpytorch's best |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in newest.values():
        low, high = row["quartiles"]
        lines.append(
            f"| {row['device']} | {row['M']} | {row['what']} | {row['precision']} | {row['ms']:.1f} | "
            f"{low:.1f}–{high:.1f} | {row.get('over_products', '')} | {row.get('gpytorch_over_ours', '')} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", help="cpu or cuda; CUDA where there is one")
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 500, 1000, 2000])
    parser.add_argument("--rows", type=int, help="a million; on a CPU 20,000")
    parser.add_argument("--dims", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: time of the process")
    parser.add_argument("--within", type=float, default=150.0, help="seconds")
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--alone", action="store_true", help="without gpytorch")
    parser.add_argument("--results", default=str(RESULTS))
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        print(table(Path(given.results)))
        return
    run(given)


if __name__ == "__main__":
    main()
