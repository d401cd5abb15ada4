"""One pass over a source: how many rows, their scales, and a uniform sample of them.

Means and variances are merged by the formula of Chan, Golub and LeVeque (1979). The sample is the rows with
the smallest random numbers of `place_hashes`. Neither depends on the order in which chunks are read or on the
number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from duogp.data.columns import informative_columns
from duogp.data.scaling import Scaler, freedom, whole_cube
from duogp.data.sources import Chunk, Floats, place_hashes
from duogp.numerics.groups import Group


@dataclass(frozen=True, eq=False)
class Moments:
    """Weighted means and sums of squared deviations of columns, and their extremes; all [c]."""

    rows: float
    weight: float
    weight_squares: float  # Σ w²
    mean: Floats
    squares: Floats  # Σ w (a − mean)²
    low: Floats
    high: Floats

    @classmethod
    def of(cls, A: Floats, weight: Floats | None) -> Moments:
        w = np.ones(len(A)) if weight is None else weight
        total = float(w.sum())
        mean = w @ A / total
        mean = mean + w @ (A - mean) / total  # corrects the rounding of the first mean, as in 1e12 ± 1
        return cls(len(A), total, float(w @ w), mean, w @ (A - mean) ** 2, A.min(0), A.max(0))

    def merged(self, other: Moments) -> Moments:
        """The moments of the rows of both."""
        total = self.weight + other.weight
        step = other.mean - self.mean
        return Moments(
            self.rows + other.rows,
            total,
            self.weight_squares + other.weight_squares,
            self.mean + step * (other.weight / total),
            self.squares + other.squares + step**2 * (self.weight * other.weight / total),
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    def scaler(self, kind: bool | str) -> Scaler:
        """To mean 0 and deviation 1 (True, "standard"), to [−1, 1] ("minmax", "cube"), or as is (False)."""
        if not kind:
            return Scaler.identity(len(self.mean))
        varies = informative_columns(np.stack([self.low, self.high]), 4 * np.finfo(np.float64).eps)
        if kind in ("minmax", "cube"):
            low, high = whole_cube(self.low, self.high) if kind == "cube" else (self.low, self.high)
            return Scaler(
                np.where(varies, high / 2 + low / 2, low), np.where(varies, high / 2 - low / 2, 1.0)
            )
        deviation = np.sqrt(self.squares / freedom(self.weight, self.weight_squares))
        return Scaler(self.mean, np.where(varies & (deviation > 0), deviation, 1.0))

    def as_row(self) -> Floats:
        sums = [self.rows, self.weight, self.weight_squares]
        return np.concatenate([sums, self.mean, self.squares, self.low, self.high])

    @classmethod
    def from_row(cls, row: Floats) -> Moments:
        return cls(float(row[0]), float(row[1]), float(row[2]), *np.split(row[3:], 4))


@dataclass(frozen=True, eq=False)
class Survey:
    """What one pass found: moments of the columns of x and then of y, and a sample of the rows."""

    moments: Moments
    sample: Chunk
    dims: int  # columns of x
    held_out: Chunk | None = None  # a sample of the rows held out; None: there are none

    def part(self, of_y: bool) -> Moments:
        """The moments of the columns of x, or of y."""
        s = slice(self.dims, None) if of_y else slice(None, self.dims)
        m = self.moments
        return Moments(m.rows, m.weight, m.weight_squares, m.mean[s], m.squares[s], m.low[s], m.high[s])


Mask = Callable[[Chunk], NDArray[np.bool_]]
#: Memory that a sample may take, and rows that it has in any case.
SAMPLE_BYTES, LEAST_SAMPLE = 2**26, 20_000


def survey(
    chunks: Iterable[Chunk],
    *,
    sample: int,
    seed: int,
    keep: Mask | None = None,
    hold_out: Mask | None = None,
    group: Group | None = None,
) -> Survey:
    """One pass over the chunks of this process, merged with those of the others of the group.

    ``keep``: a mask of the rows of a chunk that count, all by default; ``hold_out``: of those held out. Of
    both, ``sample`` rows are drawn, fewer where so many would take more than `SAMPLE_BYTES`.
    """
    group = Group() if group is None else group
    moments: list[Floats] = []  # [number, moments] of every chunk
    drawn, apart = Smallest(), Smallest()
    shape = np.zeros(4)  # columns of x, y, noise and weights
    for chunk in chunks:
        priority = (place_hashes(chunk.number, len(chunk.x), seed) >> np.uint64(11)).astype(np.float64)
        if not len(chunk.x):
            continue
        found = np.array([_width(part) for part in (chunk.x, chunk.y, chunk.noise, chunk.weight)], float)
        if shape.any() and not np.array_equal(shape, found):
            raise ValueError(f"chunk {chunk.number} has other columns than the chunks before it")
        shape, sample = found, min(sample, max(LEAST_SAMPLE, SAMPLE_BYTES // int(8 * found.sum())))
        if hold_out is not None and (mask := hold_out(chunk)).any():
            apart.add(priority[mask], chunk.take(mask), sample)
        if keep is not None and not (mask := keep(chunk)).all():
            chunk, priority = chunk.take(mask), priority[mask]
        if not len(chunk.x):
            continue
        own = Moments.of(np.column_stack([chunk.x, chunk.y]), chunk.weight)
        moments.append(np.concatenate([[float(chunk.number)], own.as_row()]))
        drawn.add(priority, chunk, sample)
    shapes = group.rows(torch.as_tensor(shape)[None]).numpy()
    shapes = shapes[shapes.any(1)]
    if len(shapes) and (shapes != shapes[0]).any():
        raise ValueError("the chunks of different processes have different columns")
    d, outputs, noise, weight = shapes[0].astype(int) if len(shapes) else (0, 0, 0, 0)
    table = np.stack(moments) if moments else np.empty((0, 3 + 4 * (d + outputs)))
    table = group.rows(torch.as_tensor(table)).numpy()
    if not len(table):
        raise ValueError("the source has no rows to train on")
    widths = (d, outputs, noise, weight)
    rest = None if hold_out is None else _together(apart, widths, sample, group)
    return Survey(
        _merged(table),
        _together(drawn, widths, sample, group),
        int(d),
        rest if rest is not None and len(rest.x) else None,
    )


class Smallest:
    """Rows [priority, x, y, noise, weight] of the smallest priorities that were seen."""

    def __init__(self) -> None:
        self._pieces: list[Floats] = []
        self._rows, self._limit = 0, np.inf  # no row above it can be one of them

    def add(self, priority: Floats, chunk: Chunk, size: int) -> None:
        """Take in the rows of a chunk with their priorities [n]; of all, the ``size`` smallest stay."""
        if self._limit < np.inf:
            mask = priority < self._limit
            priority, chunk = priority[mask], chunk.take(mask)
        parts = [part for part in chunk[:4] if part is not None]
        self._pieces.append(np.column_stack([priority, *parts]))
        self._rows += len(priority)
        if self._rows >= 2 * size:
            self._cut(size)

    def rows(self, size: int) -> Floats | None:
        """In any order; None where there are none."""
        if self._rows > size:
            self._cut(size)
        return np.concatenate(self._pieces) if self._pieces else None

    def _cut(self, size: int) -> None:
        together = np.concatenate(self._pieces)
        self._pieces = [together[np.argpartition(together[:, 0], size - 1)[:size]]]
        self._rows, self._limit = size, float(self._pieces[0][:, 0].max())


def _together(found: Smallest, widths: tuple[int, ...], size: int, group: Group) -> Chunk:
    """The rows of the smallest priorities of all processes."""
    d, outputs, noise, weight = widths
    drawn = found.rows(size)
    own = np.empty((0, 1 + sum(widths))) if drawn is None else drawn
    rows = group.rows(torch.as_tensor(own)).numpy()
    rows = rows[rows[:, 0].argsort(kind="stable")][:size, 1:]
    x, y, own_noise, own_weight = np.split(rows, np.cumsum([d, outputs, noise]), axis=1)
    return Chunk(x, y, own_noise if noise else None, own_weight[:, 0] if weight else None)


def _merged(rows: Floats) -> Moments:
    """The moments of all chunks, in the order of their numbers: the same bits for any number of processes."""
    first, *others = (Moments.from_row(row) for row in rows[rows[:, 0].argsort(kind="stable"), 1:])
    for other in others:
        first = first.merged(other)
    return first


def _width(part: Floats | None) -> int:
    return 0 if part is None else 1 if part.ndim == 1 else part.shape[1]
