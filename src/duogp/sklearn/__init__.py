"""Scikit-learn estimators: everything of `duogp.fit` behind `fit`, `predict` and `score`."""

from duogp.io import register_kind
from duogp.sklearn.base import VarianceParts
from duogp.sklearn.classifier import GPClassifier
from duogp.sklearn.conformal import Calibration
from duogp.sklearn.regressor import GPRegressor
from duogp.sklearn.storage import KIND, load

__all__ = ["Calibration", "GPClassifier", "GPRegressor", "VarianceParts"]

register_kind(KIND, load)
