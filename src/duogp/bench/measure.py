"""Measurements of the machine for a row: versions, device, seconds, peak memory."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path


def versions() -> dict[str, str]:
    """Versions that may change a number."""
    import numpy
    import torch

    from duogp._version import __version__

    return {
        "duogp": __version__,
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        **({"commit": commit} if (commit := _commit()) else {}),
    }


@lru_cache(maxsize=1)
def _commit() -> str | None:
    """The commit of the library's source, "+" after it where files differ; None outside a checkout.

    ``DUOGP_COMMIT`` names it on machines that hold a copy without history.
    """
    if given := os.environ.get("DUOGP_COMMIT"):
        return given
    command = ["git", "describe", "--always", "--abbrev=9", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def resolve_device(device: str | None) -> str:
    """The device asked for, or CUDA where there is one, else the CPU."""
    from duogp.methods.settings import Settings

    return str(Settings(device=None if device == "auto" else device).torch_device)


def device_name(device: str) -> str:
    """Description of a device: the GPU's name, or the processor and its threads."""
    import torch

    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    return f"{device} {platform.machine()} ({torch.get_num_threads()} threads)"


def reset_peak_memory(device: str) -> None:
    """Start measuring; on the CPU the peak is that of the whole process."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: str) -> int | None:
    """Bytes: the most that torch allocated on the GPU, or the largest resident size of the process."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB


class Stopwatch:
    """``with Stopwatch(device) as clock: ...``, then ``clock.seconds``, the work on the GPU included."""

    seconds = 0.0

    def __init__(self, device: str) -> None:
        self.device = device

    def now(self) -> float:
        """The time when the work given to the device is done."""
        if self.device.startswith("cuda"):
            import torch

            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def __enter__(self) -> Stopwatch:
        self.start = self.now()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.seconds = self.now() - self.start
