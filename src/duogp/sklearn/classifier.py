"""`GPClassifier`: labels of any type, and their probabilities."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score

from duogp.data.arrow_source import is_dataset
from duogp.data.labels import as_labels, codes_of, encode
from duogp.sklearn.base import MOST_OUTCOMES, BaseGP
from duogp.sklearn.conformal import Calibration, check_level, class_scores
from duogp.sklearn.new_rows import NewRows
from duogp.sklearn.streamed import fit_dataset, refuse_target
from duogp.sklearn.training_rows import read_weights, warn_of_column

Array = NDArray[np.float64]


class GPClassifier(ClassifierMixin, BaseGP):
    """Gaussian process classification of any size, as a scikit-learn estimator.

    ``method``: "auto", or a name of `duogp.METHODS`. ``likelihood``: None chooses by the number of classes;
    "bernoulli" ("probit"), "logit", "robust-max", "softmax", or an object. All other keywords are those of
    `GPRegressor`. After `fit` there are its attributes and ``classes_``.

        model = GPClassifier(method="svgp", num_inducing=50, random_state=0).fit(X, labels)
        probabilities = model.predict_proba(X_new)  # [n, classes], in the order of classes_
    """

    _default_likelihood = "classes"
    _refused_likelihood = "for numbers, not for labels: use GPRegressor"

    # -- prediction ------------------------------------------------------------------------------------------

    def predict(self, X: Any) -> NDArray:
        """The most probable label of each row of X [n, d], [n]."""
        codes = self.predict_proba(X).argmax(1)  # raises before the fit
        return self.classes_[codes]

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities [n, classes], in the order of ``classes_``."""
        if is_dataset(X):
            return self._over(X, self.predict_proba)
        probabilities: Array = self._predict(X).probabilities
        return probabilities

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of class probabilities, [n, classes]."""
        return np.log(self.predict_proba(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of the rows X [n, d] whose most probable label is that of y [n]."""
        found = self.predict(X)
        weight = read_weights(sample_weight, len(found))
        return float(accuracy_score(as_labels(y, len(found)), found, sample_weight=weight))

    def decision_function(self, X: Any) -> Array:
        """Log odds of the second of two classes [n]; log probabilities of more [n, classes]."""
        logs = self.predict_log_proba(X)
        return logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs

    def predict_set(self, X: Any, level: float = 0.9) -> NDArray[np.bool_]:
        """Conformal sets as a mask [n, classes], which hold the true label with probability ≥ ``level``.

        The coverage holds for any model, on average over rows like those of the calibration
        (`calibration_fraction` or `calibrate`). No set is empty.
        """
        level = check_level(level)
        probabilities = self.predict_proba(X)
        chosen = 1 - probabilities <= self._required_calibration("sets").threshold(level)
        chosen[np.arange(len(chosen)), probabilities.argmax(1)] = True
        return chosen

    def calibrate(self, X: Any, y: Any) -> Self:
        """Calibrate conformal sets on rows X [n, d] and labels y [n] that the fit has not used."""
        return self._calibrated(X, y)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> NDArray:
        """Joint draws of labels, [n, n_samples]."""
        draws = self._draws(X, n_samples, random_state, False, None)
        return self.classes_[codes_of(draws.T.reshape(-1), self.gp_.classes)].reshape(draws.T.shape)

    # -- fitting ---------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        target: str | None = None,
        validation: tuple[Any, Any] | None = None,
    ) -> Self:
        """Fit to a table X [n, d] and its labels y [n]; see `GPRegressor.fit`."""
        if is_dataset(X):
            self._object_labels = False
            given = {"y": y, "sample_weight": sample_weight, "validation": validation}
            fit_dataset(self, X, target, given)
            self._name_classes(self._gp.classes)
            return self
        refuse_target(target)
        self._object_labels = getattr(y, "dtype", None) == np.dtype(object)
        self._fit(X, y, sample_weight, validation=validation)
        self._name_classes(self._gp.classes)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn from one more minibatch X [n, d], y [n] (`duogp.OnlineGP`), also after `fit`.

        ``classes``: all labels of the stream, needed where the first minibatch does not have all of them.
        """
        if not self.__sklearn_is_fitted__():
            self._object_labels = getattr(y, "dtype", None) == np.dtype(object)
        self._partial_fit(X, y, sample_weight, classes)
        assert self._learner is not None
        self._name_classes(self._learner.classes)
        return self

    def _name_classes(self, classes: Any) -> None:
        """Sets ``classes_``: of dtype object where the labels of the fit were."""
        self.classes_ = np.asarray(classes, dtype=object if self._object_labels else None)

    def _level_target(self, target: NDArray) -> Array | None:
        labels, codes = np.unique(target, return_inverse=True)
        if len(labels) == 2:
            return codes.astype(np.float64)
        return np.eye(len(labels))[codes] if len(labels) <= MOST_OUTCOMES else None

    def _read_target(self, y: Any, n: int, name: str = "y") -> NDArray:
        labels = as_labels(y, n, name)
        warn_of_column(y)
        encode(labels, name)  # raises for values that are no labels
        return labels

    def _calibrate(self, rows: NewRows, y: NDArray, noise: Any) -> None:
        probabilities = rows.predict().probabilities
        self.calibration_ = Calibration.of(class_scores(probabilities, codes_of(y, rows.gp.classes)))
