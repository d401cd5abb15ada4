"""Gaussian processes whose mean and covariance learn separately."""

from typing import TYPE_CHECKING, Any

from duogp import bases, kernels, likelihoods, metrics, objectives
from duogp._version import __version__
from duogp.api import fit, fit_replicates
from duogp.errors import DataWarning, DuoGPWarning, NumericalWarning
from duogp.io import load, save
from duogp.methods import METHODS, Method
from duogp.methods.settings import Settings
from duogp.online import OnlineGP
from duogp.posterior.gp import GP
from duogp.posterior.prediction import ClassPrediction, Prediction
from duogp.training import History

if TYPE_CHECKING:
    from duogp.sklearn import GPClassifier, GPRegressor

__all__ = [
    "GP",
    "METHODS",
    "ClassPrediction",
    "DataWarning",
    "DuoGPWarning",
    "GPClassifier",
    "GPRegressor",
    "History",
    "Method",
    "NumericalWarning",
    "OnlineGP",
    "Prediction",
    "Settings",
    "__version__",
    "bases",
    "fit",
    "fit_replicates",
    "kernels",
    "likelihoods",
    "load",
    "metrics",
    "objectives",
    "save",
]


def __getattr__(name: str) -> Any:
    """The estimators are imported when they are asked for: they need a later scikit-learn than the rest."""
    if name in ("GPClassifier", "GPRegressor"):
        from duogp import sklearn as estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
