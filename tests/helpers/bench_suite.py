"""A tiny suite, and cells without a fit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from duogp.bench import Cell
from duogp.bench.runner import begin_row
from duogp.training.history import History, Record

SUITE = """
name = "tiny"
protocol = "dc"
splits = [0, 1]

[settings]
epochs = 3
dtype = "float64"

[[data]]
name = "sklearn/diabetes"
num_inducing = 5

[[data]]
name = "absent"
priority = -1

[[methods]]
name = "slow"
label = "SLOW"
method = "dcsvgp"
beta2 = 1e-3
priority = 2

[[methods]]
name = "svgp"
label = "SVGP"

[[methods]]
name = "map"
label = "MAP"

[tolerance]
rmse_relative = 0.05
nll = 0.05

[paper]
source = "Someone 2023"

[paper.rmse]
"sklearn/diabetes" = { SVGP = 1.0, MAP = 0.5, OTHER = 3.0 }

[paper.nll]
"sklearn/diabetes" = { SVGP = -1.0, MAP = -1.0 }

[paper.learned.lengthscale]
"sklearn/diabetes" = { SVGP = 0.5 }

[learned]
lengthscale = "kernel.lengthscale"
"""


def fake_row(cell: Cell, device: str) -> dict:
    """A row as a fit would leave it, without the fit."""
    metrics = {"rmse": 1.04 + 0.02 * cell.split, "nll": -0.9}
    return begin_row(cell, device) | {
        "metrics": metrics,
        "seconds": {"fit": 0.5, "predict": 0.5},
        "hyperparameters": {"kernel": {"lengthscale": [[0.4, 0.6]]}},
    }


def fake_fit(X, y, *, method, validation, device, random_state, **settings):
    """Predicts the mean of the targets, and remembers how it was called."""
    if method == "map":
        raise RuntimeError("no such luck")
    call = {"method": method, "validation": validation, "seed": random_state, "settings": settings}
    fake_fit.calls.append(call)

    def predict(X_new):
        part = np.full(len(X_new), 0.25)
        return SimpleNamespace(
            mean=np.full(len(X_new), y.mean()),
            std=np.sqrt(3 * part),
            noise=part,
            residual=part,
            explained=part,
        )

    history = History([Record(0, 3.0, 0.1), Record(1, 2.0, 0.2)], solver="stochastic", rollbacks=1)
    return SimpleNamespace(
        predict=predict, hyperparameters=lambda: {"noise": np.float64(0.25)}, history=history
    )
