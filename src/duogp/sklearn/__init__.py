"""Scikit-learn estimators: everything of `duogp.fit` behind `fit`, `predict` and `score`."""

from duogp.sklearn.classifier import GPClassifier
from duogp.sklearn.conformal import Calibration
from duogp.sklearn.fitted import VarianceParts
from duogp.sklearn.regressor import GPRegressor

__all__ = ["Calibration", "GPClassifier", "GPRegressor", "VarianceParts"]
