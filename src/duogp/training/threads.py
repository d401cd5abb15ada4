"""Precision of products and number of CPU threads while training steps are taken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from duogp.models.model import Model

#: Multiplications of a step's largest product up to which one thread does it alone. Threads wait for each
#: other at every operation, actively: where another process holds one of their cores, a step of small
#: operations takes up to thirty times as long (measured), and on a free machine a second thread gains no more
#: than a fifth at this size.
ONE_THREAD = 40_000_000


class _Precision:
    """How many trainings, in any thread, want full precision, and what was set before the first."""

    lock = threading.Lock()
    count = 0
    before = "highest"


@contextmanager
def full_precision() -> Iterator[None]:
    """Products of float32 in full precision: TF32 in φ makes variances negative (MATH §11 C3).

    The setting is the process's: the last training to end puts back what the first one found.
    """
    with _Precision.lock:
        if _Precision.count == 0:
            _Precision.before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("highest")
        _Precision.count += 1
    try:
        yield
    finally:
        with _Precision.lock:
            _Precision.count -= 1
            if _Precision.count == 0:
                torch.set_float32_matmul_precision(_Precision.before)


@contextmanager
def modest_threads(model: Model, rows: int | None) -> Iterator[None]:
    """One thread for small steps on a CPU; what was set before comes back."""
    before, q = torch.get_num_threads(), model.basis.q
    functions = max(1, q.mean.numel() // max(q.mean.shape[-1], 1))  # of all replicates
    small = (
        rows is not None and rows * q.size**2 * functions <= ONE_THREAD and model.beta1.device.type == "cpu"
    )
    if not small or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
