"""`fit_stream`: a table, or a source of chunks, as a stream, for methods that grow their bases online."""

from __future__ import annotations

from typing import Any

import numpy as np

from duogp.data.prefetch import ahead
from duogp.data.sources import Source, shuffled_chunks
from duogp.fitting.dataset import Dataset
from duogp.fitting.factories import target_kind
from duogp.fitting.streamed_rows import with_labels
from duogp.methods import Method
from duogp.methods.settings import Settings
from duogp.numerics.groups import Group, current_group
from duogp.online.learner import START_ROWS, OnlineGP
from duogp.posterior.gp import GP

#: Passes over the rows unless ``epochs`` or ``steps`` is given.
EPOCHS = 50
#: Steps on a source of chunks, if so many make an epoch at least.
MOST_STEPS = 30_000


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


def fit_chunks(source: Source, method: str | Method, settings: dict[str, Any]) -> GP:
    """A GP that has learned from the chunks of a source, each shuffled, in a new order every epoch.

    One pass counts the rows, and finds class labels. Without ``epochs`` or ``steps``: as many epochs as make
    `MOST_STEPS` steps, one at least and `EPOCHS` at most.
    """
    options = {name: value for name, value in settings.items() if value is not None}
    if current_group().world > 1:
        raise ValueError("methods that grow with a stream learn in one process")
    if target_kind(options.get("likelihood", "gaussian")) == "classes":
        source = with_labels(source, Group())
    classes = getattr(source, "classes", None)
    n = sum(len(chunk.x) for chunk in source.chunks())
    if n < 2:
        raise ValueError(f"the source has {n} rows to train on; at least 2 are required")
    epochs, steps = options.pop("epochs", None), options.pop("steps", None)
    if epochs is not None and steps is not None:
        raise ValueError("epochs and steps both say how long to train: give one of them")
    options.setdefault("start_rows", min(n, START_ROWS))
    if classes is not None:
        options.setdefault("classes", classes)
    learner = OnlineGP(method, num_data=n, **options)
    size = min(learner.settings.batch_size, n)
    per_epoch = -(-n // size)
    left = steps or (epochs or min(EPOCHS, max(1, MOST_STEPS // per_epoch))) * per_epoch
    rng = np.random.default_rng(learner.settings.random_state)
    while left > 0:
        for chunk in ahead(shuffled_chunks(source, 0, 1, int(rng.integers(2**62)))):
            if chunk.noise is not None:
                raise ValueError("methods that grow with a stream know no noise of rows")
            rows = chunk.take(rng.permutation(len(chunk.x))[: left * size])
            y = rows.y[:, 0] if classes is None else classes[rows.y[:, 0].astype(np.intp)]
            y = rows.y if classes is None and rows.y.shape[1] > 1 else y
            learner.partial_fit(rows.x, y, rows.weight)
            left -= -(-len(rows.x) // size)
            if left <= 0:
                break
    gp = learner.gp
    gp.column_names = getattr(source, "names", None)
    return gp
