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
#: Steps of the grid that inputs and targets stand on, in a spread, and the farthest place on it.
LEVELS, FARTHEST = 4096, 1e6
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
        grid, centre, spread = _on_grid(X)
        form, unseen = self._fit(grid, y, classes, weights, own, deadline)
        at = torch.as_tensor(centre)[form.feature] + form.threshold * torch.as_tensor(spread)[form.feature]
        return replace(form, threshold=at), unseen

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
            grid, centre, spread = _on_grid(y[:, None])
            model = ExtraTreesRegressor(**own)
            _grow(model, self.trees, X, grid[:, 0], weights, deadline)
            unseen = _known(model.oob_prediction_, float(grid.mean()))[:, None]
            form = Forest.of_bagged([model], float(spread[0]))
            return replace(form, baseline=torch.as_tensor(centre)), centre + spread * unseen
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


def _on_grid(values: NDArray) -> tuple[Array, Array, Array]:
    """Columns on a grid of 2⁻¹² of their spread, their centre and spread: values ≈ centre + spread · grid.

    Small nodes can be split equally well by several columns. On a grid such ties are exact, and the choice
    does not depend on the last digit, hence not on units or on the machine. It also keeps float32, in which
    scikit-learn's trees hold inputs, and their habit of taking columns that vary by 1e-7 for constants.
    """
    known = np.where(np.isfinite(values), values, np.nan)
    centre, spread = np.zeros(values.shape[1]), np.ones(values.shape[1])
    for j, column in enumerate(known.T):
        rows = column[~np.isnan(column)]
        if not len(rows):
            continue
        low, centre[j], high = np.quantile(rows, [0.1, 0.5, 0.9])
        with np.errstate(over="ignore"):
            widths = [high - low, rows.max() - rows.min()]
        spread[j] = next((w for w in widths if 0 < w < np.inf), 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        grid = np.rint((values - centre) / spread * LEVELS) / LEVELS
    return np.clip(grid, -FARTHEST, FARTHEST), centre, spread


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
