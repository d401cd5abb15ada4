"""`fit_stream`: a table fitted as a stream, for methods that grow their bases online."""

from __future__ import annotations

from typing import Any

import numpy as np

from duogp.data.targets import raw_target
from duogp.data.validation import as_matrix, as_row_vector, column_names
from duogp.fitting.factories import target_kind
from duogp.methods import Method
from duogp.methods.settings import Settings
from duogp.online.learner import START_ROWS, OnlineGP
from duogp.posterior.gp import GP

#: Passes over the rows unless ``epochs`` or ``steps`` is given.
EPOCHS = 50


def fit_stream(X: Any, y: Any, method: str | Method, sample_weight: Any, settings: dict[str, Any]) -> GP:
    """A GP that has learned from shuffled minibatches of the rows, for some epochs."""
    options = {name: value for name, value in settings.items() if value is not None}
    kind = target_kind(Settings(likelihood=options.get("likelihood", "gaussian")))
    names, X = column_names(X), as_matrix(X, "X")
    y = raw_target(y, len(X), kind)
    epochs, steps = options.pop("epochs", None), options.pop("steps", None)
    if epochs is not None and steps is not None:
        raise ValueError("epochs and steps both say how long to train: give one of them")
    if sample_weight is not None:  # a row of no weight must not count anywhere
        sample_weight = as_row_vector(sample_weight, len(X), "sample_weight", allow_zero=True)
        if not sample_weight.any():
            raise ValueError("sample_weight must not be zero for every row")
        kept = np.flatnonzero(sample_weight)
        X, y, sample_weight = X[kept], y[kept], sample_weight[kept]
    if kind == "classes":
        options.setdefault("classes", np.unique(y))
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
            learner.partial_fit(X[rows], y[rows], None if sample_weight is None else sample_weight[rows])
        left -= per_epoch
    gp = learner.gp
    gp.column_names = names
    return gp
