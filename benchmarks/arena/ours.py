"""`GPRegressor()` and `GPClassifier()` with no setting but the device (and the seed)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import duogp
from arena.base import Contestant, Vector, aligned
from arena.laws import Gaussian, Law, Told


class DuoGP(Contestant):
    """The default. It is given the frame; a version that refuses it, the numbers of `duogp.tables.Schema`."""

    takes_dates = True
    needs = ("duogp.sklearn.regressor", "duogp.sklearn.classifier", "duogp.tables.schema")

    def fit(self, X: pd.DataFrame, y: NDArray) -> None:
        import torch

        torch.set_num_threads(self.threads)
        kind = duogp.GPRegressor if self.kind == "regression" else duogp.GPClassifier
        self.schema = None
        try:
            self.model = kind(random_state=self.seed, device="cpu").fit(X, y)
        except (TypeError, ValueError) as error:
            from duogp.tables import Schema

            self.notes["frame refused"] = str(error)[:200]
            self.schema = Schema.learn(X)
            self.model = kind(random_state=self.seed, device="cpu").fit(self.schema.encode(X).matrix, y)
        self.notes["method"] = str(self.model.method_)

    def _inputs(self, X: pd.DataFrame) -> object:
        return X if self.schema is None else self.schema.encode(X).matrix

    def law(self, X: pd.DataFrame) -> Law:
        inputs = self._inputs(X)
        mean, std = self.model.predict(inputs, return_std=True)
        gaussian, told = Gaussian(mean, std), Told(
            mean,
            lambda y: np.asarray(self.model.log_density(inputs, y)),
            lambda levels: np.asarray(self.model.predict_quantiles(inputs, levels)),
        )  # fmt: skip
        # Whether the law is Gaussian: the density at two places, no test target is needed.
        places = (mean + 0.3 * std, mean - 1.7 * std)
        same = all(np.allclose(told.log_density(p), gaussian.log_density(p), atol=1e-4) for p in places)
        return gaussian if same else told

    def probabilities(self, X: pd.DataFrame) -> Vector:
        p = self.model.predict_proba(self._inputs(X))
        return aligned(p, self.model.classes_, self.classes)
