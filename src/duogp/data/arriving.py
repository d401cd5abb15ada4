"""Transfers between host and GPU that overlap with the computation: rows in, results out.

Copies on the stream of the computation would wait for all of it, so they have streams of their own: the next
rows are sent and the last results fetched while the GPU computes the rows in between. Rows and results pass
through pinned memory: four times as fast, the extra copy included (an array of 64 MB: 2 ms against 8). On
other devices there is nothing to transfer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.numerics.streams import another_stream

#: Numbers of the streams for rows to a GPU and for results back from it.
THERE, BACK = 5, 6


class Arriving:
    """A matrix [n, d] on the host, sent to a device piece by piece.

    ``prepare`` maps a piece on the device, in float64, to the inputs of the model.
    """

    def __init__(
        self,
        matrix: NDArray,
        device: torch.device,
        prepare: Callable[[Tensor], Tensor],
        beside: NDArray | None = None,
    ) -> None:
        self._matrix, self._device, self._prepare = np.ascontiguousarray(matrix), device, prepare
        self.beside = beside  # what else is known about the rows, on the host

    def __len__(self) -> int:
        return len(self._matrix)

    def split(self, rows: int) -> Iterator[Tensor]:
        """Pieces of so many rows; on a GPU the first is a quarter, so that the computation starts earlier."""
        begin, size = 0, max(1, rows // 4) if self._device.type == "cuda" and rows < len(self) else rows
        while begin < len(self):
            yield self._sent(self._matrix[begin : begin + size])
            begin, size = begin + size, rows

    def together(self) -> Tensor:
        """All rows at once, [n, d]."""
        return self._sent(self._matrix)

    def _sent(self, piece: NDArray) -> Tensor:
        # Of an array that must not be written to torch warns, and filters of warnings are not for threads.
        x = torch.from_numpy(piece if piece.flags.writeable else piece.copy())
        if self._device.type == "cuda":
            pinned = torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x)
            with _on_copy_stream(self._device, THERE):
                x = pinned.to(self._device, non_blocking=True)
            here = torch.cuda.current_stream(self._device)
            here.wait_stream(_copy_stream(self._device, THERE))
            x.record_stream(here)
        return self._prepare(x.to(self._device, torch.float64))


class Leaving:
    """Results [outputs, rows] of a device, fetched piece by piece into a float64 array [rows, outputs].

    A GPU writes a piece to pinned memory when it is computed; the host copies it from there while the next
    ones are computed.
    """

    #: Pieces that may be on their way at the same time.
    WAITING = 2

    def __init__(self, rows: int) -> None:
        self._rows, self._done = rows, 0
        self._out: NDArray[np.float64] | None = None
        self._waiting: deque[_Landing] = deque()

    def add(self, piece: Tensor) -> None:
        """Add the next rows."""
        if self._out is None:
            self._out = np.empty((piece.shape[0], self._rows))
        self._waiting.append(_Landing.of(piece))
        while len(self._waiting) > self.WAITING:
            self._fetch()

    def all(self) -> NDArray[np.float64]:
        """All rows, [rows, outputs]."""
        while self._waiting:
            self._fetch()
        assert self._out is not None and self._done == self._rows
        return self._out.T

    def _fetch(self) -> None:
        assert self._out is not None
        landing = self._waiting.popleft()
        goal = self._out[:, self._done : self._done + landing.rows]
        torch.from_numpy(goal).copy_(landing.wait())
        self._done += landing.rows


class _Landing(NamedTuple):
    """One piece of results on its way to the host."""

    rows: int
    here: Tensor  # on the host; one column where all rows are the same
    there: Tensor  # on the device, kept until it is copied
    done: Any  # a CUDA event

    @classmethod
    def of(cls, piece: Tensor) -> _Landing:
        rows = piece.shape[-1]
        if rows > 1 and piece.stride(-1) == 0:  # the same for every row
            piece = piece[:, :1]
        if not piece.is_cuda:
            return cls(rows, piece, piece, None)
        computed, done = torch.cuda.Event(), torch.cuda.Event()
        computed.record(torch.cuda.current_stream(piece.device))
        here = torch.empty(piece.shape, dtype=piece.dtype, pin_memory=True)
        with _on_copy_stream(piece.device, BACK):
            torch.cuda.current_stream(piece.device).wait_event(computed)
            here.copy_(piece, non_blocking=True)
            done.record(torch.cuda.current_stream(piece.device))
        return cls(rows, here, piece, done)

    def wait(self) -> Tensor:
        """The piece on the host."""
        if self.done is not None:
            self.done.synchronize()
        return self.here


def _on_copy_stream(device: torch.device, number: int) -> AbstractContextManager[Any]:
    return torch.cuda.stream(_copy_stream(device, number)) if device.type == "cuda" else nullcontext()


def _copy_stream(device: torch.device, number: int) -> Any:
    """A CUDA stream for copies in one direction, which overlap with compute and with the other direction."""
    return another_stream(device, number)
