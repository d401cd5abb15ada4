"""Rows as a protocol: chunks of a table, dealt to processes, that never have to stand in memory together.

A source is anything with ``chunks(rank, world)``. Each call starts a new pass. The chunks of all ranks
together are the table, each row once; which rows a chunk holds, and its `Chunk.number`, do not depend on
``world``, so that samples drawn by `place_hashes` are the same for any number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from duogp.data.labels import as_labels, codes_of, encode
from duogp.data.validation import as_matrix, as_row_noise, as_row_vector, as_target, column_names

Floats = NDArray[np.float64]
#: Rows of a chunk, unless the user says how many.
CHUNK_ROWS = 65_536


class Chunk(NamedTuple):
    """Rows of a table in the user's units; float64, finite."""

    x: Floats  # [n, d]
    y: Floats  # [n, outputs]
    noise: Floats | None = None  # known noise variances, [n, 1 or outputs]
    weight: Floats | None = None  # [n]
    number: int = 0  # the chunk's place in the source; unique, the same for any number of processes

    def take(self, rows: NDArray) -> Chunk:
        """Some of its rows, by a mask [n] or by their numbers [k]."""
        noise = None if self.noise is None else self.noise[rows]
        weight = None if self.weight is None else self.weight[rows]
        return Chunk(self.x[rows], self.y[rows], noise, weight, self.number)


@runtime_checkable
class Source(Protocol):
    """Rows in chunks, as often as they are asked for.

    A source may also have ``names``, those of the columns of x; ``single_output``, whether y is one number a
    row (assumed where there is one output); ``classes``, the labels of class numbers that stand in y; and
    ``shuffled(rank, world, seed)``, the same chunks in a random order, for minibatches.
    """

    def chunks(self, rank: int = 0, world: int = 1) -> Iterator[Chunk]:
        """One pass over the chunks that belong to process ``rank`` of ``world``."""
        ...


def is_source(value: Any) -> TypeGuard[Source]:
    """Whether this is a source; arrays of other libraries have an attribute `chunks` that is no method."""
    return isinstance(value, Source) and callable(getattr(type(value), "chunks", None))


class ArraySource:
    """The table in memory as a source: consecutive chunks, dealt to ranks in turn.

    ``labels``: y holds class labels, of any type.
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        *,
        noise: Any = None,
        sample_weight: Any = None,
        chunk_rows: int = CHUNK_ROWS,
        labels: bool = False,
    ) -> None:
        self.chunk_rows = require_chunk_rows(chunk_rows)
        self.names = column_names(X)
        self.X = as_matrix(X, "X")
        n = len(self.X)
        self.classes: NDArray | None = None
        if labels:
            y, self.classes = encode(as_labels(y, n))
        target = as_target(y, n)
        self.single_output = target.ndim == 1
        self.y = target.reshape(n, -1).astype(np.float64)
        self.noise = None if noise is None else as_row_noise(noise, n)
        self.weight = None
        if sample_weight is not None:
            self.weight = as_row_vector(sample_weight, n, allow_zero=True)

    def chunks(self, rank: int = 0, world: int = 1) -> Iterator[Chunk]:
        return map(self._chunk, self._numbers(rank, world))

    def shuffled(self, rank: int, world: int, seed: int) -> Iterator[Chunk]:
        """The chunks of a rank in a random order."""
        own = np.array(self._numbers(rank, world), dtype=np.int64)
        return map(self._chunk, np.random.default_rng((seed, rank)).permutation(own).tolist())

    def _numbers(self, rank: int, world: int) -> range:
        return range(rank, -(-len(self.X) // self.chunk_rows), world)

    def _chunk(self, number: int) -> Chunk:
        s = slice(number * self.chunk_rows, (number + 1) * self.chunk_rows)
        return Chunk(
            self.X[s].astype(np.float64, copy=False),
            self.y[s],
            None if self.noise is None else self.noise[s],
            None if self.weight is None else self.weight[s],
            number,
        )


class LabelledSource:
    """A source whose y are labels that are numbers, with the numbers of their classes instead."""

    def __init__(self, source: Source, classes: NDArray) -> None:
        self.source, self.classes = source, classes
        self.names = getattr(source, "names", None)
        self.single_output = True

    def chunks(self, rank: int = 0, world: int = 1) -> Iterator[Chunk]:
        return map(self._encoded, self.source.chunks(rank, world))

    def shuffled(self, rank: int, world: int, seed: int) -> Iterator[Chunk]:
        return map(self._encoded, shuffled_chunks(self.source, rank, world, seed))

    def _encoded(self, chunk: Chunk) -> Chunk:
        return chunk._replace(y=codes_of(chunk.y, self.classes).astype(np.float64))


def shuffled_chunks(source: Source, rank: int, world: int, seed: int) -> Iterator[Chunk]:
    """The chunks of a rank in a random order, where the source has one; else in its own."""
    shuffled = getattr(source, "shuffled", None)
    chunks: Iterator[Chunk] = source.chunks(rank, world) if shuffled is None else shuffled(rank, world, seed)
    return chunks


def require_chunk_rows(value: int) -> int:
    """The number of rows of a chunk, checked."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"chunk_rows must be a whole number from 1, got {value!r}")
    return int(value)


# -- hashes: which rows are for what, without asking the other rows -----------------------------------------


def place_hashes(number: int, n: int, seed: int) -> NDArray[np.uint64]:
    """Random 64-bit numbers [n] of the n rows of chunk ``number``: a function of place and seed alone."""
    start = _mixed(np.array([seed, number], dtype=np.uint64))
    with np.errstate(over="ignore"):
        return _mixed(np.arange(n, dtype=np.uint64) + (start[0] ^ _rotated(start[1])))


def row_hashes(chunk: Chunk, seed: int) -> NDArray[np.uint64]:
    """64-bit hashes [n] of the values of every row: equal rows have equal hashes, wherever they stand."""
    out = np.full(len(chunk.x), _mixed(np.array([seed], dtype=np.uint64))[0], dtype=np.uint64)
    for part in (chunk.x, chunk.y):
        bits = np.ascontiguousarray(part + 0.0).view(np.uint64)  # −0 becomes 0
        for column in bits.T:
            out = _mixed(_rotated(out) ^ column)
    return out


def below(hashes: NDArray[np.uint64], fraction: float) -> NDArray[np.bool_]:
    """Whether a hash, of [n], is among the given fraction of all hashes."""
    return (hashes >> np.uint64(11)).astype(np.float64) < fraction * 2.0**53


def _rotated(h: Any) -> Any:
    return (h << np.uint64(23)) | (h >> np.uint64(41))


def _mixed(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit numbers that leaves no pattern: two rounds of multiply and shift."""
    with np.errstate(over="ignore"):
        h = h + np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return h ^ (h >> np.uint64(31))
