"""Rows drawn at random.

One fit may draw more than once: validation rows by the seed, calibration rows by ``(seed, 1)``, test rows of
the command line by ``(seed, 2)``. No draw says anything about another.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.intp]


def hold_out(rows: Rows, size: int, seed: int | tuple[int, ...]) -> tuple[Rows, Rows]:
    """``rows`` without ``size`` of them, drawn at random, and those; both in the order of the draw."""
    order = np.random.default_rng(seed).permutation(len(rows))
    return rows[order[size:]], rows[order[:size]]
