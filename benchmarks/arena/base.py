"""What a contestant is: fit to a frame within a minute, then predict the law of other rows."""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arena.encoding import spread_dates
from arena.laws import Gaussian, Law

#: Seconds of a fit: contestants with a number of iterations stop there.
BUDGET = 60.0
VALIDATION = 0.15  # share of the training rows for early stopping, where a contestant wants it
Vector = NDArray[np.float64]


class Contestant(ABC):
    """A method with its authors' recommended settings.

    ``kind`` is "regression" or "classification"; ``classes`` the number of classes. `fit` is given the frame
    with dates in columns of numbers (`encoding.spread_dates`) unless ``takes_dates``.
    """

    takes_dates = False
    #: Modules that are imported before the clock starts.
    needs: tuple[str, ...] = ()

    def __init__(self, kind: str, classes: int, seed: int, threads: int) -> None:
        for name in self.needs:
            importlib.import_module(name)
        self.kind, self.classes, self.seed, self.threads = kind, classes, seed, threads
        self.notes: dict[str, Any] = {}

    def train(self, X: pd.DataFrame, y: NDArray) -> None:
        """Fit, with the clock running."""
        self.deadline = time.perf_counter() + BUDGET
        self.fit(X if self.takes_dates else spread_dates(X), y)

    def test(self, X: pd.DataFrame) -> Any:
        """A `Law`, or class probabilities [n, classes]."""
        X = X if self.takes_dates else spread_dates(X)
        return self.law(X) if self.kind == "regression" else self.probabilities(X)

    @abstractmethod
    def fit(self, X: pd.DataFrame, y: NDArray) -> None: ...

    def law(self, X: pd.DataFrame) -> Law:
        raise NotImplementedError(f"{type(self).__name__} is not for regression")

    def probabilities(self, X: pd.DataFrame) -> Vector:
        raise NotImplementedError(f"{type(self).__name__} is not for classification")

    # -- shared parts ----------------------------------------------------------------------------------------

    @property
    def late(self) -> bool:
        """Whether the minute is over."""
        return time.perf_counter() > self.deadline

    def held_out(self, y: NDArray) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Row numbers for training and validation; every class keeps a row for training."""
        order = np.random.default_rng(self.seed).permutation(len(y))
        count = max(1, round(VALIDATION * len(y)))
        val, fit = order[:count], order[count:]
        if self.kind == "classification":
            lacking = np.setdiff1d(y, y[fit])
            moved = np.asarray([int(val[y[val] == c][0]) for c in lacking], np.intp)
            fit, val = np.concatenate([fit, moved]), np.setdiff1d(val, moved, assume_unique=True)
        return fit, val


def constant_law(mean: Vector, residuals: Vector) -> Gaussian:
    """N(mean, s²) with the root mean square s of validation residuals, for methods without a variance."""
    s = max(float(np.sqrt(np.mean(residuals**2))), 1e-12)
    return Gaussian(mean, np.full(len(mean), s))


def aligned(probabilities: Vector, present: NDArray, classes: int) -> Vector:
    """Probabilities of the classes seen in training in the columns of all classes."""
    full = np.zeros((len(probabilities), classes))
    full[:, np.asarray(present, np.intp)] = probabilities
    return full
