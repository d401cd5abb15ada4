"""Checks of what is asked of samples: how many, from which seed, and whether they fit in memory."""

from __future__ import annotations

import os
from numbers import Integral
from typing import Any


def draws_count(n: Any) -> int:
    """The number of draws."""
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise ValueError(f"n must be a positive integer, got {n!r}")
    return int(n)


def require_seed(seed: Any) -> int | None:
    """None, or a number from 0 to 2⁶³ − 1."""
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise TypeError(f"seed must be an integer or None, got {seed!r}")
    given = int(seed)
    if not 0 <= given < 2**63:
        raise ValueError(f"seed must be from 0 to 2**63 - 1, got {given}")
    return given


def require_memory(n: int, numbers: int) -> None:
    """An error for n draws of so many numbers each that take more than the memory of this machine."""
    wanted, memory = 8 * n * numbers, machine_memory()
    if memory is not None and wanted > memory:
        raise ValueError(
            f"n={n} draws take {wanted / 2**30:,.0f} GiB, more than this machine has "
            f"({memory / 2**30:,.0f} GiB): ask for fewer at a time"
        )


def machine_memory() -> int | None:
    """Bytes of memory of this machine; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
