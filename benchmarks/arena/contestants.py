"""The registry of contestants: name → family, kinds of tables, module and class, distribution behind it.

Contestants of one family are losses of one method: a report takes the best of them for each metric.
A module is imported when its contestant runs, so that a missing peer is an error of its own rows only.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arena.base import Contestant

OURS = "duogp"
REGRESSION, CLASSIFICATION = "regression", "classification"
BOTH = (REGRESSION, CLASSIFICATION)


@dataclass(frozen=True)
class Listed:
    """One line of the registry."""

    family: str  # as reports show it
    kinds: tuple[str, ...]
    module: str
    cls: str
    package: str  # its version stands in the rows

    def make(self, kind: str, classes: int, seed: int, threads: int) -> Contestant:
        found: Contestant = getattr(importlib.import_module(f"arena.{self.module}"), self.cls)(
            kind, classes, seed, threads
        )
        return found

    @property
    def version(self) -> str:
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return ""


CONTESTANTS: dict[str, Listed] = {
    OURS: Listed("duogp", BOTH, "ours", "DuoGP", "duogp"),
    "catboost": Listed("CatBoost", (CLASSIFICATION,), "boosting", "CatBoost", "catboost"),
    "catboost-rmse": Listed("CatBoost", (REGRESSION,), "boosting", "CatBoost", "catboost"),
    "catboost-uncertainty": Listed("CatBoost", (REGRESSION,), "boosting", "CatBoostUncertainty", "catboost"),
    "lightgbm": Listed("LightGBM", BOTH, "boosting", "LightGBM", "lightgbm"),
    "hgb": Listed("HistGradientBoosting", (CLASSIFICATION,), "boosting", "HistGradient", "scikit-learn"),
    "hgb-mapie": Listed("HGB + MAPIE", (REGRESSION,), "boosting", "HistGradient", "mapie"),
    "quantile-forest": Listed(
        "Quantile forest", (REGRESSION,), "forests", "QuantileForest", "quantile-forest"
    ),
    "random-forest": Listed("Random forest", (CLASSIFICATION,), "forests", "RandomForest", "scikit-learn"),
    "logistic": Listed("Logistic regression", (CLASSIFICATION,), "forests", "Logistic", "scikit-learn"),
    "ngboost": Listed("NGBoost", (REGRESSION,), "boosting", "NGBoost", "ngboost"),
    "deep-ensemble": Listed("Deep ensemble", BOTH, "networks", "DeepEnsemble", "torch"),
    "realmlp": Listed("RealMLP", BOTH, "networks", "RealMLP", "pytabkit"),
    "realmlp-quantiles": Listed("RealMLP", (REGRESSION,), "networks", "RealMLPQuantiles", "pytabkit"),
    "gpytorch-svgp": Listed("gpytorch SVGP", BOTH, "processes", "GPyTorchSVGP", "gpytorch"),
    "sklearn-gp": Listed("scikit-learn GP", (REGRESSION,), "processes", "SklearnGP", "scikit-learn"),
    "gpboost": Listed("GPBoost", (REGRESSION,), "boosting", "GPBoost", "gpboost"),
    "tabm": Listed("TabM", BOTH, "networks", "TabM", "pytabkit"),
}
#: Run unless others are named; TabM takes minutes on two cores.
DEFAULT = tuple(name for name in CONTESTANTS if name != "tabm")


def family_of(name: str) -> str:
    """The family of a contestant, or its own name where it is unknown."""
    return CONTESTANTS[name].family if name in CONTESTANTS else name
