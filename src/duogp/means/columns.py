"""Trees of tables with more columns than rows: each model sees the columns that its own rows speak for.

A fit of scikit-learn's boosted trees takes a third of a millisecond for every column, however few the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from duogp.means.forest import Forest

#: A table is wide if it has more columns than rows and than these; and columns of it that are kept.
WIDE, KEPT = 1000, 500


def is_wide(n: int, inputs: int) -> bool:
    """Whether there are so many inputs that trees look at a choice of them only."""
    return inputs > max(WIDE, n)


def telling_columns(X: NDArray, y: NDArray, is_label: bool) -> NDArray[np.intp]:
    """The columns with the largest correlation with the target, or with any of its labels, in order.

    X [n, d], y [n]; their numbers [k], k ≤ `KEPT`.
    """
    targets = (y[:, None] == np.unique(y)).astype(np.float64) if is_label else y[:, None].astype(np.float64)
    targets = targets - targets.mean(0)
    targets /= np.abs(targets).max(0).clip(np.finfo(np.float64).tiny)
    x = X - X.mean(0)
    x /= np.abs(x).max(0).clip(np.finfo(np.float64).tiny)  # no squares that overflow or vanish
    size = np.linalg.norm(x, axis=0)
    share = np.abs(targets.T @ x) / np.where(size > 0, size, np.inf)
    share = (share / np.linalg.norm(targets, axis=0).clip(1e-300)[:, None]).max(0)
    return np.sort(np.argsort(-share, kind="stable")[:KEPT])


@dataclass(frozen=True)
class OnColumns:
    """A scikit-learn model of some columns of a table."""

    model: Any
    columns: NDArray[np.intp]
    inputs: int  # columns of the table

    @property
    def classes_(self) -> NDArray:
        return self.model.classes_

    def set_params(self, **given: Any) -> None:
        self.model.set_params(**given)

    def fit(self, X: NDArray, y: NDArray, sample_weight: NDArray | None = None) -> None:
        self.model.fit(X[:, self.columns], y, sample_weight=sample_weight)

    def predict(self, X: NDArray) -> NDArray:
        return self.model.predict(X[:, self.columns])

    def predict_proba(self, X: NDArray) -> NDArray:
        return self.model.predict_proba(X[:, self.columns])

    def forest(self) -> Forest | None:
        """Its trees, as trees of the table."""
        own = Forest.of(self.model)
        if own is None:
            return None
        return replace(own, feature=torch.from_numpy(self.columns)[own.feature], inputs=self.inputs)
