"""`Fitted`: the part of a fitted model that knows the user's units, for GPs and networks alike."""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.data.columns import rows_of_the_fit
from duogp.data.labels import as_labels, codes_of
from duogp.data.scaling import Scaler
from duogp.data.validation import as_target
from duogp.posterior.prediction import ClassPrediction, Prediction
from duogp.saveable import Saveable

#: Held while a posterior is frozen for prediction, once for each model: threads that ask at the same time
#: wait for one of them. Of the module and not of a model, so that models can be copied and pickled.
FREEZING = threading.RLock()


class Fitted(Saveable):
    """A fitted model: columns and scales of its data, and checks of new rows against them."""

    columns: NDArray[np.bool_]  # of X, those that are used
    x_scaler: Scaler
    y_scaler: Scaler
    single_output: bool
    column_names: list[str] | None
    classes: NDArray | None  # the labels behind class numbers; None for regression

    @abstractmethod
    def predict(self, X: Any) -> Prediction | ClassPrediction:
        """Mean and variances of new rows X [n, d]; class probabilities where the targets are labels."""

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Class probabilities [n, classes], in the order of `classes`."""
        prediction = self.predict(X)
        if not isinstance(prediction, ClassPrediction):
            raise ValueError("predict_proba is for class labels: this model was fitted to numbers")
        return prediction.probabilities

    def _rows(self, X: Any) -> NDArray:
        """New rows [n, d] with the columns of the fit."""
        return rows_of_the_fit(X, self.column_names, len(self.columns))

    def _target(self, y: Any, n: int) -> NDArray:
        """Targets of n new rows in the user's units, [n, outputs]; class numbers [n, 1] of labels."""
        if self.classes is not None:
            codes = codes_of(as_labels(y, n), self.classes)
            if (codes < 0).any():
                raise ValueError(
                    f"y holds labels that the model does not know; it knows {self.classes.tolist()}"
                )
            return codes[:, None]
        target, outputs = as_target(y, n, "y"), len(self.y_scaler.scale)
        if target.size != n * outputs:
            raise ValueError(f"y has shape {target.shape}, predictions have {(n, outputs)}")
        return target.reshape(n, outputs)

    def _shape(self, value: NDArray) -> NDArray[np.float64]:
        """Values [n, outputs] or [n, 1] as the user's targets were: [n, outputs], or [n]."""
        shape = len(value), len(self.y_scaler.scale)
        value = value if value.shape == shape else np.broadcast_to(value, shape).astype(np.float64)
        return value[:, 0] if self.single_output else value
