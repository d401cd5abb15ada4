"""Boosted trees of scikit-learn that grow in rounds, without going through earlier trees again.

A warm start of HistGradientBoosting puts its rows into bins once more and predicts them with all trees that
there are, and so does every look at the loss of other rows: of many short rounds this is more work than the
trees themselves (with weights, whose bins are dear, ten times as much). Here bins and both sums are kept, and
new trees added to the sums in the same order, so that nothing changes in the last digit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from numpy.typing import NDArray

from duogp.means.columns import OnColumns

Loss = Callable[[Any, NDArray, NDArray], NDArray]
#: Methods of scikit-learn's models, not public, that this rests on; without one warm starts are plain.
NEEDED = ("_raw_predict", "_bin_data", "_predict_iterations", "_preprocess_X")


class Rows(NamedTuple):
    """Rows, targets and weights, where there are some."""

    X: NDArray
    y: NDArray
    weights: NDArray | None = None


class Growing:
    """A HistGradientBoosting model that grows on some rows and is judged by others."""

    def __init__(self, model: Any, train: Rows, held_out: Rows) -> None:
        self.model, self.train, self.held_out = model, train, held_out
        self._inner: Any = model.model if isinstance(model, OnColumns) else model
        self._quick = all(callable(getattr(self._inner, name, None)) for name in NEEDED)
        self._binned: tuple[NDArray, Any] | None = None  # training rows in bins, and what puts them there
        self._trained: NDArray | None = None  # sums of trees for the training rows, which `fit` adds to
        self._judged: NDArray | None = None  # and for the rows held out
        self._count = 0  # iterations that are in the latter

    def grow(self, trees: int) -> None:
        """Go on until there are so many trees."""
        self.model.set_params(max_iter=trees)
        if not self._quick:
            self.model.fit(*self.train[:2], sample_weight=self.train.weights)
            return
        with (
            _standing_in(self._inner, "_raw_predict", self._of_training_rows),
            _standing_in(self._inner, "_bin_data", self._in_bins),
        ):
            self.model.fit(*self.train[:2], sample_weight=self.train.weights)

    def loss(self, loss: Loss) -> NDArray:
        """Of every row held out, [n]."""
        if not self._quick:
            return loss(self.model, self.held_out.X, self.held_out.y)
        with _standing_in(self._inner, "_raw_predict", self._of_rows_held_out):
            return loss(self.model, self.held_out.X, self.held_out.y)

    def _in_bins(self, plain: Callable[..., NDArray], *rows: Any, **which: Any) -> NDArray:
        """The training rows in bins: there are no others in a fit without early stopping."""
        if self._binned is None:
            self._binned = plain(*rows, **which), self._inner._bin_mapper
        found, self._inner._bin_mapper = self._binned
        return found

    def _of_training_rows(
        self, plain: Callable[..., NDArray], X: NDArray, n_threads: int | None = None
    ) -> NDArray:
        if self._trained is None:
            self._trained = plain(X, n_threads)
        return self._trained  # trees of the round that begins are added to this very array

    def _of_rows_held_out(
        self, plain: Callable[..., NDArray], X: NDArray, n_threads: int | None = None
    ) -> NDArray:
        model = self._inner
        if self._judged is None:
            self._judged = plain(X, n_threads)
        else:
            rows = model._preprocess_X(X, reset=False)
            model._predict_iterations(rows, model._predictors[self._count :], self._judged, False, 1)
        self._count = len(model._predictors)
        return self._judged.copy()


@contextmanager
def _standing_in(model: Any, method: str, other: Callable[..., NDArray]) -> Iterator[None]:
    """Have ``other(plain, …)`` stand in for a method of one model for a while, ``plain`` being the method."""
    plain = getattr(model, method)
    setattr(model, method, partial(other, plain))
    try:
        yield
    finally:
        delattr(model, method)
