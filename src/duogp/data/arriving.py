"""Rows on their way to a device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Arriving:
    """A matrix of which a piece is sent when it is asked for: on a GPU, while that works on the one before.

    ``prepare`` makes of a piece on the device, in float64, what the model wants to see.
    """

    def __init__(self, matrix: NDArray, device: torch.device, prepare: Callable[[Tensor], Tensor]) -> None:
        self._matrix, self._device, self._prepare = np.ascontiguousarray(matrix), device, prepare

    def __len__(self) -> int:
        return len(self._matrix)

    def split(self, rows: int) -> Iterator[Tensor]:
        """Pieces of so many rows, one after the other."""
        for begin in range(0, len(self), rows):
            yield self._sent(self._matrix[begin : begin + rows])

    def together(self) -> Tensor:
        """All rows at once."""
        return self._sent(self._matrix)

    def _sent(self, piece: NDArray) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nor do we write
            return self._prepare(torch.as_tensor(piece, device=self._device).double())
