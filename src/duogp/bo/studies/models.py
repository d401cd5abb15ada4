"""The models behind a study's proposals: those of `duogp.bo.choice`, learned as often as a study can wait.

`botorch_model` is what acquisition functions take, `surrogate` what Thompson sampling and TuRBO draw from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.bo.candidates import Floats
from duogp.bo.choice import EXACT, SPARSE, default_settings, exact_is_affordable, reads_only_sparse
from duogp.bo.surrogates import GPSurrogate

if TYPE_CHECKING:
    from duogp.bo.botorch_model import DuoGPModel

#: Inducing points of a study's sparse model, and most steps of a fit: a proposal must not take long.
INDUCING, STEPS = 100, 200
#: Hyperparameters are learned anew at every row up to the first number, then whenever the rows have grown by
#: the second; between, the data are new and the hyperparameters stay.
EVERY_ROW, GROWTH = 30, 1.1
#: Most rows that hyperparameters are learned from.
LEARNING_ROWS = 500


def learning_rows(rows: int) -> int:
    """How many of the first rows the hyperparameters are learned from: the last step of the schedule.

    It depends on the number of rows alone, so that a study that was resumed proposes what it would have.
    """
    step = EVERY_ROW
    if rows <= step:
        return rows
    while (following := int(np.ceil(step * GROWTH))) <= rows:
        step = following
    return step


def informative_rows(rows: int) -> NDArray[np.int64]:
    """Numbers [k] of the rows that hyperparameters are learned from: the newest, and as many older ones."""
    if rows <= LEARNING_ROWS:
        return np.arange(rows)
    newest = LEARNING_ROWS // 2
    older = np.random.default_rng(rows).choice(rows - newest, LEARNING_ROWS - newest, replace=False)
    return np.concatenate([np.sort(older), np.arange(rows - newest, rows)])


def choice(rows: int, method: str | None, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A method of the registry and its settings: the user's, else the default's of `duogp.bo.choice`."""
    if method is not None:
        return method, settings
    own = default_settings(settings)
    if not reads_only_sparse(settings) and exact_is_affordable(rows, "cpu", refits=True):
        return EXACT, own
    return SPARSE, {"num_inducing": INDUCING} | own


def botorch_model(X: Tensor, Y: Tensor, method: str | None, settings: dict[str, Any]) -> DuoGPModel:
    """A BoTorch model of outcomes Y [n, m] at points X [n, d] of the cube, fitted from scratch."""
    from duogp.bo.botorch_model import DuoGPModel

    name, chosen = choice(len(X), method, settings)
    limit = {} if method is not None else {"steps": STEPS}
    return DuoGPModel.fit(X, Y, method=name, **limit | chosen)


class GrowingModel:
    """The BoTorch model of a history that grows: hyperparameters by the schedule, data always all of them."""

    def __init__(self, method: str | None, **settings: Any) -> None:
        self.method, self.settings = method, settings
        self._learned: tuple[bytes, DuoGPModel] | None = None  # by the points that it was learned from
        self._last: tuple[bytes, DuoGPModel] | None = None

    def of(self, X: Floats, Y: Floats) -> DuoGPModel:
        """The model of Y [n, m] at X [n, d]; the last one where both are the same."""
        key = X.tobytes() + Y.tobytes()
        if self._last is None or self._last[0] != key:
            self._last = key, self._fitted(X, Y)
        return self._last[1]

    def _fitted(self, X: Floats, Y: Floats) -> DuoGPModel:
        first = learning_rows(len(X))
        inputs, outcomes = torch.as_tensor(X, dtype=torch.float64), torch.as_tensor(Y, dtype=torch.float64)
        key = X[:first].tobytes()
        if self._learned is None or self._learned[0] != key:
            rows = torch.as_tensor(informative_rows(first))
            fitted = botorch_model(inputs[rows], outcomes[rows], self.method, self.settings)
            self._learned = key, fitted
        learned = self._learned[1]
        return learned if len(learned.train_X) == len(X) else learned.refit(inputs, outcomes, steps=0)


def surrogate(X: Floats, y: Floats, seed: int, method: str | None = None, **settings: Any) -> GPSurrogate:
    """A surrogate of one outcome y [n] at points X [n, d] of the cube."""
    name, chosen = choice(len(X), method, settings)
    return GPSurrogate.of(name, **chosen).fit(X, y, seed)
