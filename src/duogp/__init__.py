"""Gaussian processes whose mean and covariance learn separately.

Names are imported when they are first used (PEP 562): `import duogp` itself loads neither torch nor
scikit-learn. This module also composes what must not know each other: fitted models and the code that
writes them to disk, training histories and the code that draws them.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from duogp import _moved
from duogp._version import __version__
from duogp.errors import ConvergenceWarning, DataWarning, DuoGPWarning, NumericalWarning
from duogp.saveable import Plottable, Saveable

if TYPE_CHECKING:
    from pathlib import Path

    from duogp import bases, kernels, likelihoods, metrics, objectives
    from duogp.api import fit, fit_replicates, plan
    from duogp.export import export_model
    from duogp.io import load, save
    from duogp.methods import METHODS, Method
    from duogp.methods.settings import Settings
    from duogp.online import OnlineGP
    from duogp.posterior.gp import GP
    from duogp.posterior.prediction import ClassPrediction, Prediction
    from duogp.posterior.statistics import SufficientStatistics, merge, solve, statistics
    from duogp.reports import evaluate, report
    from duogp.sklearn import GPClassifier, GPRegressor
    from duogp.training import History

__all__ = [
    "GP",
    "METHODS",
    "ClassPrediction",
    "ConvergenceWarning",
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
    "SufficientStatistics",
    "__version__",
    "bases",
    "evaluate",
    "export_model",
    "fit",
    "fit_replicates",
    "kernels",
    "likelihoods",
    "load",
    "merge",
    "metrics",
    "objectives",
    "plan",
    "report",
    "save",
    "solve",
    "statistics",
]

#: Public names by the module that has them.
_NAMES = {
    "api": ("fit", "fit_replicates", "plan"),
    "export": ("export_model",),
    "io": ("load", "save"),
    "methods": ("METHODS", "Method"),
    "methods.settings": ("Settings",),
    "online": ("OnlineGP",),
    "posterior.gp": ("GP",),
    "posterior.prediction": ("ClassPrediction", "Prediction"),
    "posterior.statistics": ("SufficientStatistics", "merge", "solve", "statistics"),
    "reports": ("evaluate", "report"),
    "sklearn": ("GPClassifier", "GPRegressor"),
    "training": ("History",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
#: Packages and modules that are attributes without an import statement.
_PACKAGES = (
    *("numerics", "kernels", "likelihoods", "variational", "means", "bases", "objectives", "fused"),
    *("inference", "models", "training", "methods", "fitting", "posterior", "online", "metrics", "data"),
    *("sklearn", "tables", "io", "baselines", "bo", "plots", "bench", "export", "serving", "reports"),
)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"duogp.{_HOMES[name]}"), name)
    elif name in _PACKAGES or name in _moved.MOVED:
        value = importlib.import_module(f"duogp.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})


def _save(model: Any, folder: str | os.PathLike[str]) -> Path:
    from duogp.io import save

    return save(model, folder)


def _draw(history: Any, ax: Any) -> Any:
    from duogp.plots import history_plot

    return history_plot(history, ax)


_moved.install()
Plottable._draw = staticmethod(_draw)
Saveable._write = staticmethod(_save)
