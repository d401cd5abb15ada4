"""From a course to its rows."""

from __future__ import annotations

import gc
import os
from datetime import UTC, datetime
from typing import Any

import torch

from duogp.bench.measure import device_name
from racing.clock import Clock, Contestant, PeakMemory, Timing, interleave, say, warm_up
from racing.courses import Course, Options
from racing.roofline import Product
from racing.store import commit_of_tree

OURS, ROOF = "duogp", "matrix product"


def run(course: Course, options: Options) -> list[dict[str, Any]]:
    """Set up everyone, warm up, race; one row for each peer that could take part."""
    contestants: dict[str, Contestant] = {}
    try:
        for name, make in {OURS: course.ours, **course.peers}.items():
            try:
                contestants[name] = _set_up(make, course, options)
            except Exception as error:
                if name == OURS:
                    raise
                say(f"  {name} does not take part: {type(error).__name__}: {error}")
        product = Product(course.product, course.dtype, options.device)
        rounds = min(options.rounds, 5) if course.once else options.rounds
        timings = interleave(contestants | {ROOF: product}, rounds, options.seconds, options.threads)
    finally:
        for contestant in contestants.values():
            contestant.close()
        contestants.clear()
        gc.collect()
        if options.on_cuda:
            torch.cuda.empty_cache()
    return rows_of(course, options, timings, rate=product.flops / timings[ROOF].median)


def _set_up(make: Any, course: Course, options: Options) -> Contestant:
    with PeakMemory(options.device) as memory:
        contestant: Contestant = make()
        try:
            warm_up(
                [contestant], 1 if course.once and not options.on_cuda else options.warm_up, options.threads
            )
        except BaseException:
            contestant.close()
            raise
    if not hasattr(contestant, "process"):  # another process has its own memory
        contestant.peak_bytes = memory.bytes
    return contestant


def rows_of(
    course: Course, options: Options, timings: dict[str, Timing], rate: float
) -> list[dict[str, Any]]:
    mine = timings[OURS]
    commit, dirty = commit_of_tree()
    roofline_ms = 1e3 * course.flops / rate
    shared = {
        "part": course.part,
        "what": course.what,
        "M": course.M,
        "device": options.device.split(":")[0],
        "device_name": device_name(options.device),
        "threads": options.threads,
        "clock": "process" if Clock.of_process else "wall",
        "load": os.getloadavg()[0],
        "dtype": course.dtype,
        "commit": commit,
        "dirty": dirty,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "ms": 1e3 * mine.median,
        "ms_min": 1e3 * min(mine.seconds),
        "ms_quartiles": [1e3 * value for value in mine.quartiles],
        "spread": mine.spread,
        "rounds": len(mine.seconds),
        "flops": course.flops,
        "matmul_gflops": rate / 1e9,
        "roofline_ms": roofline_ms,
        "roofline_share": roofline_ms / (1e3 * mine.median),
        "peak_memory_mb": _megabytes(mine.peak_bytes),
        **course.facts,
    }
    out = []
    for name in [name for name in timings if name not in (OURS, ROOF)]:
        peer = timings[name]
        costs = name.startswith(OURS)  # another step of ours: what this one costs in units of that
        ratio = mine.median / peer.median if costs else peer.median / mine.median
        own = {
            "peer": name,
            "peer_version": peer.version,
            "peer_ms": 1e3 * peer.median,
            "peer_ms_min": 1e3 * min(peer.seconds),
            "peer_ms_quartiles": [1e3 * value for value in peer.quartiles],
            "peer_spread": peer.spread,
            "peer_peak_memory_mb": _megabytes(peer.peak_bytes),
            "ratio": ratio,
            "ratio_is": "ms / peer_ms" if costs else "peer_ms / ms",
        }
        out.append(shared | own)
    if not out:  # nobody else is there
        own = {"peer": "roofline", "peer_ms": roofline_ms, "ratio": 1e3 * mine.median / roofline_ms}
        out.append(shared | own | {"ratio_is": "ms / peer_ms"})
    return out


def _megabytes(count: int | None) -> float | None:
    return None if count is None else round(count / 2**20, 1)
