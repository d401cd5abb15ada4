"""The parts that columns have in the predictions of a fitted model of any kind: `predict` is all it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Rows of which the effect of shuffling a column is measured, and shuffles of each.
SAMPLE_ROWS = 256
SHUFFLES = 2


def sample_of(matrix: NDArray, seed: int) -> NDArray:
    """Some rows [m, d] of a matrix [n, d], in their order."""
    chosen = np.sort(np.random.default_rng([seed % 2**32, 3]).permutation(len(matrix))[:SAMPLE_ROWS])
    return np.array(matrix[chosen], dtype=np.float64)


def shares_of_columns(gp: Any, rows: NDArray, places: NDArray[np.intp], columns: int) -> NDArray[np.float64]:
    """Shares [columns] of the mean square changes of the predictions when one column is shuffled.

    ``places``: the column of the table that each column of the rows belongs to.
    """
    changes = np.zeros(columns)
    before = predicted(gp, rows)
    for place in np.unique(places):
        changes[place] = squared_change(gp, rows, before, places == place)
    total = changes.sum()
    return changes / total if total > 0 else changes


def squared_change(gp: Any, rows: NDArray, before: NDArray, own: NDArray[np.bool_], seed: int = 0) -> float:
    """Mean square change of predictions ``before`` at rows [n, d] when the columns ``own`` [d] are shuffled.

    Outputs count in units of the spread of their predictions.
    """
    scale = before.std(0) if gp.classes is None else np.ones(before.shape[1])
    rng = np.random.default_rng(seed)
    changes = []
    for _ in range(SHUFFLES):
        changed = rows.copy()
        changed[:, own] = rows[rng.permutation(len(rows))][:, own]
        changes.append(np.mean(((predicted(gp, changed) - before) / np.where(scale > 0, scale, 1.0)) ** 2))
    return float(np.mean(changes))


def predicted(gp: Any, rows: NDArray) -> NDArray:
    """The predictive mean [n, outputs], or class probabilities [n, classes]."""
    prediction = gp.predict(rows)
    values = prediction.probabilities if gp.classes is not None else prediction.mean
    return values.reshape(len(rows), -1)
