"""Who proposes what to evaluate next: the contract, and random search."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from duogp.bo.candidates import Floats

#: What a random number is for: draws for one purpose never depend on those for another.
DESIGN, FIT, CANDIDATES, DRAW, RANDOM = range(5)


@dataclass(frozen=True)
class Proposal:
    """Points of the cube to evaluate together, and the trust region of each (0 where there is none)."""

    X: Floats  # [n, d]
    regions: NDArray[np.int64]  # [n]

    def __len__(self) -> int:
        return len(self.X)


class Strategy(ABC):
    """`ask`, evaluate, `tell`. What is asked depends on the seed, on what was told and on what was saved.

    Random numbers come from the seed and the number of batches told, never from a generator that lives on:
    a strategy that is told the same batches again, and given back what it saved, asks the same.
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
        """The next batch, of no more than so many points."""

    def tell(self, proposal: Proposal, y: Floats) -> None:
        """Values of all points of a batch; larger is better."""
        self.batches += 1

    def save(self, folder: Path) -> None:
        """Into a new folder, what the last `ask` has learned beyond what it was told."""

    def load(self, folder: Path) -> None:
        """What `save` wrote, after all batches were told."""

    @property
    def status(self) -> str:
        """In a few words."""
        return ""

    def rng(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *purpose])

    def number(self, *purpose: int) -> int:
        """A seed for somebody else's generator."""
        return int(self.rng(*purpose).integers(2**31))


class RandomSearch(Strategy):
    """Uniform points, after those of ``start`` [n, d]."""

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
