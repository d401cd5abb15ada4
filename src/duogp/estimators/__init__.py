"""Scikit-learn estimators: everything of `duogp.fit` behind `fit`, `predict` and `score`."""

from duogp.estimators.base import VarianceParts
from duogp.estimators.classifier import GPClassifier
from duogp.estimators.conformal import Calibration
from duogp.estimators.regressor import GPRegressor
from duogp.estimators.storage import KIND, load
from duogp.saving import register_kind

__all__ = ["Calibration", "GPClassifier", "GPRegressor", "VarianceParts"]

register_kind(KIND, load)
