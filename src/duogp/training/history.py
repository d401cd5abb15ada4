"""What happened during training: one record per epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from duogp.saveable import Plottable


@dataclass(frozen=True)
class Record:
    """One epoch of a training."""

    epoch: int
    loss: float  # negative objective per datum, mean over the epoch's steps
    seconds: float  # since the start of training
    validation_nll: float | None = None  # of the scaled target
    learning_rate: float | None = None


@dataclass(repr=False)
class History(Plottable):
    """The course of one fit, of a single method or of a stack.

    ``validation_nll``: negative log density per row of the rows held out, after training, for the target as
    it was scaled for training; it compares with ``validation_nll`` of the records. ``validation_nll_y``: the
    same number for the target in the user's units; it compares with ``-gp.log_density(X, y).mean()`` and
    between models of one table. They differ by Σ log(scale) over the outputs, and are equal for classes.
    """

    records: list[Record] = field(default_factory=list)
    solver: str = ""
    best_epoch: int | None = None
    validation_nll: float | None = None
    validation_nll_y: float | None = None
    stopped_early: bool = False
    converged: bool | None = None  # None: not tested, since the number of steps was given
    ended_by_clock: bool = False  # before its last step, and before it had converged
    rollbacks: int = 0
    jitter: float | None = None
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        last = f", epoch {self.records[-1].epoch}, loss {self.records[-1].loss:.4g}" if self.records else ""
        return f"History({self.solver}{last}, {self.seconds:.1f} s, {self.rollbacks} rollbacks)"

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __getitem__(self, index: int) -> Record:
        return self.records[index]

    def series(self, name: str) -> list[Any]:
        """One column of the records, e.g. ``history.series("loss")``."""
        return [getattr(record, name) for record in self.records]

    def in_units_of(self, scale: NDArray[np.float64]) -> Self:
        """This history, with ``validation_nll_y`` filled in from ``validation_nll``.

        ``scale`` [outputs]: what the target was divided by; p(y) = p(y / scale) / scale for every output.
        """
        if self.validation_nll is not None and self.validation_nll_y is None:
            self.validation_nll_y = self.validation_nll + float(np.log(scale).sum())
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, a list for each column of the records."""
        columns = {name: self.series(name) for name in ("epoch", "loss", "validation_nll", "seconds")}
        strict = {k: [None if v is None or v != v else v for v in column] for k, column in columns.items()}
        return {
            **strict,  # a loss that was rolled back is NaN, which JSON does not know
            "solver": self.solver,
            "best_epoch": self.best_epoch,
            "best_validation_nll": self.validation_nll,
            "best_validation_nll_y": self.validation_nll_y,
            "stopped_early": self.stopped_early,
            "converged": self.converged,
            "rollbacks": self.rollbacks,
            "jitter": self.jitter,
            "total_seconds": self.seconds,
        }
