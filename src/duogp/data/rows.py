"""Rows drawn at random.

One fit may draw more than once: validation rows by the seed, calibration rows by ``(seed, 1)``, test rows of
the command line by ``(seed, 2)``. No draw says anything about another.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.intp]


def hold_out(
    rows: Rows, size: int, seed: int | tuple[int, ...], groups: Rows | None = None
) -> tuple[Rows, Rows]:
    """``rows`` without ``size`` of them, drawn at random, and those; both in the order of the draw.

    ``groups`` [len(rows)]: rows of a group are drawn together; one group at most is cut to make the size.
    """
    random = np.random.default_rng(seed)
    order = random.permutation(len(rows))
    if groups is not None:
        place = random.permutation(int(groups.max()) + 1)[groups]
        order = order[np.argsort(place[order], kind="stable")]
    return rows[order[size:]], rows[order[:size]]


def groups_of_inputs(X: NDArray, weights: NDArray | None) -> Rows | None:
    """The number of the group of rows with equal inputs that a row of X [n, d] belongs to, [n].

    None where all inputs differ, or where the rows have no weights. Weights tell of equal rows that were
    joined: (x, 0) five hundred times and (x, 1) thirty times are two rows then. If one of them were left out
    without the other, the only target known at x would be the other one, and what is predicted out of fold
    would tell the target by its absence.
    """
    if weights is None:
        return None
    digest = digests(X.T)
    values, groups = np.unique(digest, return_inverse=True)
    return None if len(values) == len(X) else groups


def digests(columns: Iterable[NDArray]) -> NDArray[np.uint64]:
    """A number for the bits of every row [n]: equal rows have equal ones, others hardly ever."""
    digest: NDArray[np.uint64] | None = None
    for column in columns:
        bits = (column.astype(np.float64) + 0.0).view(np.uint64)  # −0 and 0 are one number
        digest = np.zeros(len(bits), dtype=np.uint64) if digest is None else digest
        digest = (digest ^ (bits >> np.uint64(29)) ^ bits) * np.uint64(0x9E3779B97F4A7C15)
        digest ^= digest >> np.uint64(32)
    assert digest is not None
    return digest
