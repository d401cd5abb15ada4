"""Metrics of a model on rows whose targets are known, from predictions made in chunks of rows."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.cli.output import number, percent

#: Central intervals whose coverage is reported.
COVERAGES = (0.5, 0.9, 0.95)
#: Metrics as they are printed.
TITLES = {
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    "nll": "NLL (nats per row)",
    "crps": "CRPS",
    **{f"coverage_{100 * c:g}": f"in the {100 * c:g} % interval" for c in COVERAGES},
    "calibration_error": "calibration error",
    "accuracy": "accuracy",
    "log_loss": "log-loss (nats per row)",
    "brier": "Brier score",
}

Scores = dict[str, NDArray]  # one value per row: y, and what is predicted for it


def score_rows(pieces: Iterable[tuple[Any, NDArray]]) -> Scores:
    """Targets and predictions of all rows of the pieces (`NewRows`, y).

    Of numbers: ``mean``, ``std``, ``log_density`` [n] and ``ends`` [n, 2C] of the central intervals. Of
    classes: ``probabilities`` [n, classes].
    """
    parts = [{"y": y, **_predicted(rows, y)} for rows, y in pieces]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _predicted(rows: Any, y: NDArray) -> Scores:
    prediction = rows.predict()
    if rows.gp.classes is not None:
        return {"probabilities": prediction.probabilities}
    levels = np.array([side for c in COVERAGES for side in ((1 - c) / 2, (1 + c) / 2)])
    return {
        "mean": prediction.mean,
        "std": prediction.std,
        "log_density": rows.log_density(y),
        "ends": rows.quantiles(levels)[..., 0].T,
    }


def metrics_of(gp: Any, scores: Scores) -> dict[str, float]:
    """Metrics by name.

    Density and intervals are the likelihood's own; CRPS and calibration error are those of a Gaussian with
    the predicted mean and standard deviation.
    """
    from duogp import metrics

    y = scores["y"]
    if gp.classes is not None:
        found = metrics.classification_metrics(y, scores["probabilities"], gp.classes)
        names = {"accuracy": "accuracy", "log_loss": "nll", "brier": "brier", "calibration_error": "ece"}
        return {name: found[stored] for name, stored in names.items()}
    mean, std, ends = scores["mean"], scores["std"], scores["ends"].T
    inside = {
        f"coverage_{100 * c:g}": float(np.mean((ends[2 * i] <= y) & (y <= ends[2 * i + 1])))
        for i, c in enumerate(COVERAGES)
    }
    return {
        "rmse": metrics.rmse(y, mean),
        "mae": metrics.mae(y, mean),
        "r2": 1 - metrics.nmse(y, mean),
        "nll": -float(np.mean(scores["log_density"])),
        "crps": metrics.crps(y, mean, std),
        **inside,
        "calibration_error": metrics.quantile_calibration_error(y, mean, std),
    }


def metric_pairs(found: dict[str, float]) -> list[tuple[str, str]]:
    """Metrics for `print_pairs`; shares in per cent."""
    shares = ("coverage", "accuracy")
    return [(TITLES.get(n, n), percent(v) if n.startswith(shares) else number(v)) for n, v in found.items()]
