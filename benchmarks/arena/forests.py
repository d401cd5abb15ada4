"""Forests and logistic regression."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arena.base import Contestant, Vector, aligned
from arena.encoding import OneHot, codes
from arena.laws import Law, choose_factor, midlevels, sample_law

QUANTILES = 50


class QuantileForest(Contestant):
    """Quantile regression forest: 500 trees, at least 5 rows a leaf; a law from 50 quantiles (see `laws`).

    The bandwidth is chosen on out-of-bag quantiles of at most 2,000 training rows.
    """

    needs = ("quantile_forest",)

    def fit(self, X: pd.DataFrame, y: NDArray) -> None:
        from quantile_forest import RandomForestQuantileRegressor

        Z = _filled(X)
        self.levels = list(midlevels(QUANTILES))
        self.model = RandomForestQuantileRegressor(
            n_estimators=500,
            min_samples_leaf=5,
            max_features=1 / 3,
            oob_score=True,
            n_jobs=self.threads,
            random_state=self.seed,
        ).fit(Z, y)
        self.least = 1e-3 * float(y.std())
        sample = self.model.predict(Z, quantiles=self.levels, oob_score=True)
        there = np.flatnonzero(np.isfinite(sample).all(1))[:2000]
        self.factor = choose_factor(sample[there], y[there], self.least)

    def law(self, X: pd.DataFrame) -> Law:
        Z = _filled(X)
        sample = np.asarray(self.model.predict(Z, quantiles=self.levels))
        return sample_law(
            sample, self.least, self.factor, np.asarray(self.model.predict(Z, quantiles="mean"))
        )


def _filled(X: pd.DataFrame) -> NDArray[np.float64]:
    """Codes with gaps at a value below all others."""
    Z = codes(X)[0]
    return np.where(np.isnan(Z), -1e6, Z).astype(np.float32).astype(np.float64)


class RandomForest(Contestant):
    """scikit-learn's random forest of 500 trees; every leaf has one row or more (the default)."""

    needs = ("sklearn.ensemble",)

    def fit(self, X: pd.DataFrame, y: NDArray) -> None:
        from sklearn.ensemble import RandomForestClassifier

        model = RandomForestClassifier(500, n_jobs=self.threads, random_state=self.seed)
        self.model = model.fit(_filled(X), y)

    def probabilities(self, X: pd.DataFrame) -> Vector:
        p = aligned(self.model.predict_proba(_filled(X)), self.model.classes_, self.classes)
        return np.clip(p, 1 / 1001, 1)  # as if each class had half a tree more: no infinite log loss


class Logistic(Contestant):
    """Logistic regression on scaled one-hot columns, its penalty by cross-validation."""

    needs = ("sklearn.linear_model", "sklearn.model_selection")

    def fit(self, X: pd.DataFrame, y: NDArray) -> None:
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV

        self.encode = OneHot(X)
        folds = int(min(5, np.bincount(y)[np.bincount(y) > 0].min()))
        model = LogisticRegression(max_iter=500)
        if folds >= 2:
            model = GridSearchCV(model, {"C": [0.01, 0.1, 1.0, 10.0]}, scoring="neg_log_loss", cv=folds)
        self.model = model.fit(self.encode(X), y)

    def probabilities(self, X: pd.DataFrame) -> Vector:
        return aligned(self.model.predict_proba(self.encode(X)), self.model.classes_, self.classes)
