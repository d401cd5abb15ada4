"""Time, memory and the interleaving of contestants."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

#: Rounds that are run even when the time is up.
LEAST_ROUNDS = 3


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


class Clock:
    """What seconds are: of a clock on the wall, or those that this process was computing (on a CPU)."""

    of_process = False


def now(device: str) -> float:
    """Seconds, once the device has done all it was asked to do."""
    synchronise(device)
    return time.process_time() if Clock.of_process else time.perf_counter()


class Contestant(ABC):
    """Runs blocks of work; a block lasts long enough to be timed."""

    version: str | None = None  # of its library
    peak_bytes: int | None = None  # above what was in use before it was set up, where that can be known

    @abstractmethod
    def block(self) -> float:
        """Run one block; seconds of one unit of work (a step, a prediction)."""

    def close(self) -> None:
        """Give everything back."""


class PeakMemory:
    """``with PeakMemory(device) as memory: ...`` then ``memory.bytes``: the peak above the start, or None."""

    bytes: int | None = None

    def __init__(self, device: str) -> None:
        self.on_cuda = device.startswith("cuda")

    def __enter__(self) -> PeakMemory:
        gc.collect()
        if self.on_cuda:
            torch.cuda.reset_peak_memory_stats()
            self.before: int | None = torch.cuda.memory_allocated()
        else:
            self.before = _resident("VmRSS:") if _forget_peak() else None
        return self

    def __exit__(self, *_: object) -> None:
        after = torch.cuda.max_memory_allocated() if self.on_cuda else _resident("VmHWM:")
        if self.before is not None and after is not None:
            self.bytes = max(0, after - self.before)


def _resident(name: str) -> int | None:
    """A line of the kernel's own account of this process (Linux), in bytes."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return None


def _forget_peak() -> bool:
    """Start the process's resident peak anew (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


@dataclass
class Timing:
    """Seconds of one unit of work, round by round."""

    seconds: list[float] = field(default_factory=list)
    version: str | None = None
    peak_bytes: int | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the interquartile range, relative to the median."""
        low, high = self.quartiles
        return 0.5 * (high - low) / self.median

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.seconds) < 2:
            return self.seconds[0], self.seconds[0]
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high


def interleave(
    contestants: dict[str, Contestant], rounds: int, seconds: float, threads: int
) -> dict[str, Timing]:
    """Every round times each of them once, forwards and backwards in turn; medians are the caller's.

    Rounds end early when `seconds` are over, but never before there are a few of them. Who fails on the way
    (a factorisation, say) is out of the race; the first of them must not.
    """
    timings = {name: Timing(version=c.version, peak_bytes=c.peak_bytes) for name, c in contestants.items()}
    names = list(contestants)
    begun = time.perf_counter()
    for r in range(rounds):
        gc.collect()
        for name in names[:] if r % 2 == 0 else names[::-1]:
            torch.set_num_threads(threads)
            try:
                timings[name].seconds.append(contestants[name].block())
            except Exception as error:
                if name == names[0]:
                    raise
                say(f"  {name} gave up: {type(error).__name__}: {error}")
                names.remove(name)
                del timings[name]
        if time.perf_counter() - begun > seconds and r + 1 >= min(LEAST_ROUNDS, rounds):
            break
    return timings


def warm_up(contestants: Sequence[Contestant], blocks: int, threads: int) -> None:
    """Compilation, capture, caches and the optimisers' first steps are not what is measured."""
    for contestant in contestants:
        torch.set_num_threads(threads)
        for _ in range(blocks):
            contestant.block()


def say(message: str) -> None:
    """To people: stdout belongs to the results."""
    print(message, file=sys.stderr, flush=True)
