"""`Strategy`, which proposes points and is told their values, and random search."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from duogp.bo.candidates import Floats

#: Purposes of random numbers: draws for one do not depend on those for another.
DESIGN, FIT, CANDIDATES, DRAW, RANDOM = range(5)


@dataclass(frozen=True)
class Proposal:
    """A batch of points of the cube, and the trust region of each (0 where there is none)."""

    X: Floats  # [n, d]
    regions: NDArray[np.int64]  # [n]

    def __len__(self) -> int:
        return len(self.X)


class Strategy(ABC):
    """A rule that proposes batches (`ask`), from the values of those before (`tell`).

    Random numbers come from the seed and the number of batches told, not from a generator with a state: a
    strategy that is told the same batches, and loads what it saved, proposes the same points.
    """

    def __init__(self, dims: int, batch_size: int, seed: int) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be a positive integer, got {batch_size}")
        if seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        self.dims, self.batch_size, self.seed = dims, batch_size, seed
        self.batches = 0  # told so far

    @abstractmethod
    def ask(self, most: int) -> Proposal:
        """The next batch, of at most ``most`` points."""

    def tell(self, proposal: Proposal, y: Floats) -> None:
        """Take in the values y [q] of all points of a batch; larger is better, NaN a failed evaluation."""
        self.batches += 1

    def save(self, folder: Path) -> None:
        """Write to a new folder the state of the last `ask` that its batches do not determine."""

    def load(self, folder: Path) -> None:
        """Read what `save` wrote, after all batches were told."""

    @property
    def status(self) -> str:
        """A few words for the progress bar."""
        return ""

    def rng(self, *purpose: int) -> np.random.Generator:
        """A random generator for one purpose: the same for the same seed and purpose."""
        return np.random.default_rng([self.seed, *purpose])

    def number(self, *purpose: int) -> int:
        """A seed for another generator."""
        return int(self.rng(*purpose).integers(2**31))


class RandomSearch(Strategy):
    """Uniform random points, after those of ``start`` [n, d]."""

    def __init__(self, dims: int, batch_size: int, seed: int, start: Floats | None = None) -> None:
        super().__init__(dims, batch_size, seed)
        self.waiting = np.empty((0, dims)) if start is None else start

    def ask(self, most: int) -> Proposal:
        n = min(self.batch_size, most)
        random = self.rng(RANDOM, self.batches).random((n, self.dims))
        X = self.waiting[:most] if len(self.waiting) else random
        return Proposal(X, np.zeros(len(X), dtype=np.int64))

    def tell(self, proposal: Proposal, y: Floats) -> None:
        self.waiting = self.waiting[len(y) :]
        super().tell(proposal, y)
