"""Metrics of a model on rows whose targets are known, accumulated piece by piece."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp import metrics
from duogp.sklearn.quantiles import predictive_quantiles

#: Central intervals whose coverage is reported.
COVERAGES = (0.5, 0.9, 0.95)


@dataclass
class Scored:
    """Predictions and what came true. Of classes only `y` and `probabilities` are filled."""

    y: list[NDArray] = field(default_factory=list)
    mean: list[NDArray] = field(default_factory=list)
    std: list[NDArray] = field(default_factory=list)
    noise: list[NDArray] = field(default_factory=list)
    log_density: list[NDArray] = field(default_factory=list)
    ends: list[NDArray] = field(default_factory=list)  # [2 coverages, n]
    probabilities: list[NDArray] = field(default_factory=list)

    def joined(self, name: str) -> NDArray:
        return np.concatenate(getattr(self, name), -1 if name == "ends" else 0)

    @property
    def rows(self) -> int:
        return sum(len(y) for y in self.y)


def score_rows(gp: Any, pieces: Iterable[tuple[NDArray, NDArray]]) -> Scored:
    """Predictions for pieces (X, y)."""
    out = Scored()
    levels = np.array([side for c in COVERAGES for side in ((1 - c) / 2, (1 + c) / 2)])
    for X, y in pieces:
        prediction = gp.predict(X)
        out.y.append(y)
        if gp.classes is not None:
            out.probabilities.append(prediction.probabilities)
            continue
        out.mean.append(prediction.mean)
        out.std.append(prediction.std)
        out.noise.append(prediction.noise)
        out.log_density.append(gp.log_density(X, y))
        out.ends.append(predictive_quantiles(gp, X, levels)[..., 0])
    return out


def metrics_of(gp: Any, scored: Scored) -> dict[str, float]:
    """Of numbers: the density and the intervals are the likelihood's own; CRPS and the calibration error are
    those of a Gaussian with the predicted mean and standard deviation."""
    y = scored.joined("y")
    if gp.classes is not None:
        found = metrics.classification_metrics(y, scored.joined("probabilities"), gp.classes)
        return {
            "accuracy": found["accuracy"],
            "log_loss": found["nll"],
            "brier": found["brier"],
            "calibration_error": found["ece"],
        }
    mean, std, ends = scored.joined("mean"), scored.joined("std"), scored.joined("ends")
    inside = {
        f"coverage_{100 * c:g}": float(np.mean((ends[2 * i] <= y) & (y <= ends[2 * i + 1])))
        for i, c in enumerate(COVERAGES)
    }
    return {
        "rmse": metrics.rmse(y, mean),
        "mae": metrics.mae(y, mean),
        "r2": 1 - metrics.nmse(y, mean),
        "nll": -float(np.mean(scored.joined("log_density"))),
        "crps": metrics.crps(y, mean, std),
        **inside,
        "calibration_error": metrics.quantile_calibration_error(y, mean, std),
    }


#: What each metric is, for people.
WORDS = {
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    "nll": "NLL (nats per row)",
    "crps": "CRPS",
    "coverage_50": "in the 50 % interval",
    "coverage_90": "in the 90 % interval",
    "coverage_95": "in the 95 % interval",
    "calibration_error": "calibration error",
    "accuracy": "accuracy",
    "log_loss": "log-loss (nats per row)",
    "brier": "Brier score",
}
