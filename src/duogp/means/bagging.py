"""Bagged trees: deep trees, each grown on its own draw of the rows, and averaged.

A row that a tree has not drawn is unseen by it, so the average of those trees (out of bag) takes the place of
folds. Boosted trees and bagged ones err in different places, and a blend of both is often better than either:

    t(x) = (1 − a) boosted(x) + a bagged(x)      a minimises Σ wᵢ (yᵢ − t(xᵢ))² over unseen rows, 0 ≤ a ≤ 1

Labels are averaged as probabilities; a prior of one row, spread over the classes, keeps their logs finite.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from duogp.means.forest import Forest, LogAverage

Array = NDArray[np.float64]

#: Most rows that one tree draws.
MOST_DRAWN = 5000
#: Trees whose time is measured.
FIRST_TREES = 5


@dataclass(frozen=True)
class Bagged:
    """Bagged trees of scikit-learn: extremely randomised ones, and for labels as many of a random forest."""

    trees: int = 100

    def fit(
        self,
        X: NDArray,
        y: NDArray,
        classes: int | None,
        weights: NDArray | None,
        seed: int,
        deadline: float | None = None,
    ) -> tuple[Forest, Array]:
        """Fitted to targets y [n], and what it says out of bag: [n, 1], or of several classes [n, C].

        ``deadline``: the value of `time.perf_counter` before which it ends, with fewer trees if need be.
        """
        own: dict[str, Any] = {
            "bootstrap": True,
            "warm_start": True,
            "random_state": seed,
            "max_samples": None if len(X) <= MOST_DRAWN else MOST_DRAWN,
        }
        # scikit-learn's trees hold inputs in float32, and take columns that vary by 1e-7 for constants.
        size = np.abs(np.nan_to_num(X)).max(0)
        size = np.where(size > 0, size, 1.0)
        form, unseen = self._fit(X / size, y, classes, weights, own, deadline)
        return replace(form, threshold=form.threshold * torch.as_tensor(size)[form.feature]), unseen

    def _fit(
        self,
        X: NDArray,
        y: NDArray,
        classes: int | None,
        weights: NDArray | None,
        own: dict[str, Any],
        deadline: float | None,
    ) -> tuple[Forest, Array]:
        from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor, RandomForestClassifier

        if classes is None:
            unit = float(np.abs(y).max()) or 1.0  # squares of large numbers would overflow
            model = ExtraTreesRegressor(**own)
            _grow(model, self.trees, X, y / unit, weights, deadline)
            unseen = _known(model.oob_prediction_, float((y / unit).mean()))
            return Forest.of_bagged([model], unit), unit * unseen[:, None]
        models: list[Any] = [ExtraTreesClassifier(**own), RandomForestClassifier(**own)]
        for k, model in enumerate(models):
            now = time.perf_counter()
            until = None if deadline is None else now + (deadline - now) / (len(models) - k)
            _grow(model, self.trees // len(models), X, y, weights, until)
        trees = sum(len(model.estimators_) for model in models)
        present = models[0].classes_
        p = np.zeros((len(X), classes))
        for model in models:
            p[:, present] += _known(model.oob_decision_function_, 1 / len(present)) / len(models)
        form = LogAverage.of_labels(models, classes)
        # Out of bag about a third of the trees speak.
        return form, form.latent(torch.as_tensor(p), trees * np.exp(-1)).numpy()


def _grow(
    model: Any, trees: int, X: NDArray, y: NDArray, weights: NDArray | None, deadline: float | None
) -> None:
    """Fit a forest of scikit-learn: the first trees tell how many more there is time for."""
    begun = time.perf_counter()
    model.set_params(n_estimators=FIRST_TREES).fit(X, y, sample_weight=weights)
    if deadline is not None:
        now = time.perf_counter()
        # A third of the time is for the rows out of bag.
        affordable = int(FIRST_TREES * (deadline - now) / (1.5 * max(now - begun, 1e-6)))
        trees = min(trees, FIRST_TREES + affordable)
    model.set_params(n_estimators=max(trees, FIRST_TREES + 1), oob_score=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of rows that no tree has left out
        model.fit(X, y, sample_weight=weights)


def _known(values: Array, otherwise: float) -> Array:
    """Rows that every tree has drawn have no out-of-bag value."""
    return np.nan_to_num(values, nan=otherwise)


def blend_share(y: Array, first: Array, second: Array, weights: Array | None = None) -> float:
    """The share a of ``second`` in (1 − a) first + a second with the least squared error, in [0, 1]."""
    w = 1.0 if weights is None else weights
    apart = second - first
    size = float((w * apart**2).sum())
    if not np.isfinite(size) or size <= 0:
        return 0.0
    return float(np.clip((w * (y - first) * apart).sum() / size, 0.0, 1.0))
