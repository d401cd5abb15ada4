"""The models behind a study's proposals. THE one place that chooses them.

`botorch_model` is what acquisition functions take, `surrogate` what Thompson sampling and TuRBO draw from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from duogp.bo.candidates import Floats
from duogp.bo.surrogates import GPSurrogate

if TYPE_CHECKING:
    from duogp.bo.botorch_model import DuoGPModel

EXACT, SPARSE = "exact", "svgp"
#: Rows up to which the exact GP is affordable at every proposal.
EXACT_ROWS = 300
INDUCING = 100
#: Hyperparameters are learned anew at every row up to the first number, then whenever the rows have grown by
#: the second; between, the data are new and the hyperparameters stay.
EVERY_ROW, GROWTH = 30, 1.1


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


def choice(rows: int, method: str | None, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A method of the registry and its settings: the user's, else the exact GP while it is affordable."""
    if method is not None:
        return method, settings
    if rows <= EXACT_ROWS:
        return EXACT, settings
    return SPARSE, {"num_inducing": INDUCING} | settings


def botorch_model(X: Floats, Y: Floats, method: str | None = None, **settings: Any) -> DuoGPModel:
    """A BoTorch model of outcomes Y [n, m] at points X [n, d] of the cube."""
    from duogp.bo.botorch_model import DuoGPModel

    first = learning_rows(len(X))
    name, chosen = choice(first, method, settings)
    inputs, outcomes = torch.as_tensor(X, dtype=torch.float64), torch.as_tensor(Y, dtype=torch.float64)
    model = DuoGPModel.fit(inputs[:first], outcomes[:first], method=name, **chosen)
    return model if first == len(X) else model.refit(inputs, outcomes, steps=0)


def surrogate(X: Floats, y: Floats, seed: int, method: str | None = None, **settings: Any) -> GPSurrogate:
    """A surrogate of one outcome y [n] at points X [n, d] of the cube."""
    name, chosen = choice(len(X), method, settings)
    return GPSurrogate.of(name, **chosen).fit(X, y, seed)
