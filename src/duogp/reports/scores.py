"""Metrics of a model on rows whose targets are known, from predictions made in chunks of rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Central intervals whose coverage is a metric.
COVERAGES = (0.5, 0.9, 0.95)
#: Central intervals of the coverage table.
INTERVALS = (0.5, 0.8, 0.9, 0.95, 0.99)
#: Levels of predicted quantiles: an even grid, and the ends of those intervals that are not on it.
GRID = np.arange(1, 20) / 20
LEVELS = np.unique(np.round([*GRID, *(s for c in INTERVALS for s in ((1 - c) / 2, (1 + c) / 2))], 6))
#: Metrics as they are shown.
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
#: Resamples of the rows behind an interval of a score.
RESAMPLES = 400

Scores = dict[str, NDArray]  # one value per row: y, and what is predicted for it


def score_rows(pieces: Iterable[tuple[Any, NDArray]], levels: NDArray | None = None) -> Scores:
    """Targets and predictions of all rows of the pieces (`NewRows`, y).

    Of numbers: ``mean``, ``std``, ``log_density``, ``crps`` [n] and ``ends`` [n, 2C] of the intervals. Of
    classes: ``probabilities`` [n, classes]. ``levels`` [L]: also ``quantiles`` [n, L] of numbers.
    """
    parts = [{"y": y, **_predicted(rows, y, levels)} for rows, y in pieces]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _predicted(rows: Any, y: NDArray, levels: NDArray | None) -> Scores:
    prediction = rows.predict()
    if rows.gp.classes is not None:
        return {"probabilities": prediction.probabilities}
    ends = np.array([side for c in COVERAGES for side in ((1 - c) / 2, (1 + c) / 2)])
    wanted = ends if levels is None else np.concatenate([ends, levels])
    quantiles = rows.quantiles(wanted)[..., 0].T
    found = {
        "mean": prediction.mean,
        "std": prediction.std,
        "log_density": rows.log_density(y),
        "crps": _crps(prediction, y),
        "ends": quantiles[:, : len(ends)],
    }
    return found if levels is None else found | {"quantiles": quantiles[:, len(ends) :]}


def _crps(prediction: Any, y: NDArray) -> NDArray:
    """Of every row, [n]: of the mixture that a stack says, else of a Gaussian with the predicted moments."""
    from duogp.numerics.mixtures import mixture_crps
    from duogp.posterior.laws import MixturePrediction

    if isinstance(prediction, MixturePrediction):
        return prediction.crps(y)
    one = np.ones((1, len(y)))
    mean, std = (np.reshape(part, (1, -1)) for part in (prediction.mean, prediction.std))
    return mixture_crps(np.asarray(y, dtype=np.float64), mean, std * one, np.ones(1))


def is_on_grid(gp: Any) -> bool:
    """Whether the targets of a stack are rounded to a grid, so that intervals hold more than their level."""
    from duogp.posterior.stack import Stack

    laws = gp.law if isinstance(gp, Stack) and isinstance(gp.law, list) else []
    return any(law.rounding is not None for law in laws)


def metrics_of(gp: Any, scores: Scores) -> dict[str, float]:
    """Metrics by name.

    Density, CRPS and intervals are those of the mixture where the model is a stack. Else density and
    intervals are the likelihood's own, and the CRPS is that of a Gaussian with the predicted mean and
    standard deviation, as the calibration error always is.
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
        "crps": float(np.mean(scores["crps"])),
        **inside,
        "calibration_error": metrics.quantile_calibration_error(y, mean, std),
    }


def metric_intervals(
    gp: Any, scores: Scores, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """95 % intervals of `metrics_of` by the bootstrap: rows are drawn with replacement.

    They say how far the scores may be those of other rows like these, not how the model would change with
    other training rows.
    """
    rng = np.random.default_rng(seed)
    n = len(scores["y"])
    drawn = []
    for _ in range(resamples):
        rows = rng.integers(n, size=n)
        drawn.append(metrics_of(gp, {name: value[rows] for name, value in scores.items()}))
    found = {}
    for name in drawn[0]:
        values = np.array([each[name] for each in drawn])
        values = values[np.isfinite(values)]
        ends = np.quantile(values, [0.025, 0.975]) if len(values) else np.full(2, np.nan)
        found[name] = float(ends[0]), float(ends[1])
    return found


def constant_metrics(gp: Any, y: NDArray) -> dict[str, float]:
    """Metrics of the best prediction that is the same for every row: mean and spread, or frequencies."""
    from duogp import metrics

    if gp.classes is not None:
        shares = np.unique(y, return_counts=True)[1] / len(y)
        entropy = -float(np.sum(shares * np.log(shares)))
        found = {"accuracy": shares.max(), "log_loss": entropy, "brier": 1 - np.sum(shares**2)}
        return {name: float(value) for name, value in found.items()}
    mean, std = np.full(len(y), y.mean()), np.full(len(y), y.std())
    found = {"rmse": metrics.rmse(y, mean), "mae": metrics.mae(y, mean), "r2": 0.0}
    if std[0] > 0:
        found |= {"nll": metrics.nll(y, mean, std), "crps": metrics.crps(y, mean, std)}
    return found


def wilson(hits: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of ``hits`` among ``n``."""
    if not n:
        return float("nan"), float("nan")
    share = hits / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return float(max(centre - half, 0.0)), float(min(centre + half, 1.0))
