"""`fit_stream`: a table fitted as a stream, for methods that grow their bases online."""

from __future__ import annotations

from typing import Any

import numpy as np

from duogp.fitting.dataset import Dataset
from duogp.methods import Method
from duogp.methods.settings import Settings
from duogp.online.learner import START_ROWS, OnlineGP
from duogp.posterior.gp import GP

#: Passes over the rows unless ``epochs`` or ``steps`` is given.
EPOCHS = 50


def fit_stream(X: Any, y: Any, method: str | Method, sample_weight: Any, settings: dict[str, Any]) -> GP:
    """A GP that has learned from shuffled minibatches of the rows, for some epochs."""
    options = {name: value for name, value in settings.items() if value is not None}
    shared = Settings(likelihood=options.get("likelihood", "gaussian"))
    data = Dataset.of_table(X, y, shared, sample_weight=sample_weight)
    (rows,), target = data.rows, data.target
    X, y, weights = data.X[rows], target.values[rows], None if data.weights is None else data.weights[rows]
    if target.classes is not None:
        y = target.classes[y[:, 0].astype(np.intp)]
        options.setdefault("classes", target.classes)
    elif target.single_output:
        y = y[:, 0]
    epochs, steps = options.pop("epochs", None), options.pop("steps", None)
    if epochs is not None and steps is not None:
        raise ValueError("epochs and steps both say how long to train: give one of them")
    options.setdefault("start_rows", min(max(len(X), 2), START_ROWS))
    learner = OnlineGP(method, num_data=len(X), **options)
    size = min(learner.settings.batch_size, len(X))
    per_epoch = -(-len(X) // size)
    left = steps or (epochs or EPOCHS) * per_epoch
    rng = np.random.default_rng(learner.settings.random_state)
    while left > 0:
        order = rng.permutation(len(X))
        for start in range(0, min(left, per_epoch) * size, size):
            rows = order[start : start + size]
            learner.partial_fit(X[rows], y[rows], None if weights is None else weights[rows])
        left -= per_epoch
    gp = learner.gp
    gp.column_names = data.names
    return gp
