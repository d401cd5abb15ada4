"""Regression and classification cells: scaling of targets, default likelihood, metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from duogp.data.splits import Split

#: Quantiles of the z-scores that a row keeps.
ZSCORE_QUANTILES = 100


class Regression:
    """Targets are numbers, scaled by the protocol; metrics are in its units."""

    scales_targets = True

    def settings(self, settings: dict[str, Any], y: NDArray) -> dict[str, Any]:
        """The settings of the fit, given all targets."""
        return settings

    def targets(self, y: NDArray, split: Split) -> NDArray:
        """All targets of the table as the protocol scales them."""
        return split.y_scaler.transform(np.asarray(y, dtype=np.float64))

    def alike(self, splits: Sequence[Split]) -> bool:
        """Whether models of these splits have one shape and can be trained as one."""
        return True

    def metrics(self, y: NDArray, prediction: Any) -> dict[str, float]:
        from duogp.metrics import regression_metrics

        return regression_metrics(y, prediction.mean, prediction.std, prediction.noise)

    def standard_errors(self, y: NDArray, prediction: Any) -> dict[str, float]:
        """Standard errors over the test rows: of the mean NLL, and of the RMSE by the delta method."""
        errors = (np.asarray(y, dtype=np.float64) - prediction.mean) ** 2
        nll = 0.5 * np.log(2 * np.pi * prediction.std**2) + 0.5 * errors / prediction.std**2
        rmse = float(np.sqrt(errors.mean()))
        return {"rmse": standard_error(errors) / (2 * rmse) if rmse > 0 else 0.0, "nll": standard_error(nll)}

    def zscores(self, y: NDArray, prediction: Any) -> list[float]:
        """Quantiles of (y − mean) / std at the levels ½/Q, 1½/Q, …: what plots of calibration need."""
        z = (np.asarray(y) - prediction.mean) / prediction.std
        if not np.isfinite(z).all():
            return []
        levels = (np.arange(ZSCORE_QUANTILES) + 0.5) / ZSCORE_QUANTILES
        return [float(f"{value:.4g}") for value in np.quantile(z, levels)]


class Classification:
    """Targets are labels, never scaled; metrics look them up among the classes of the model."""

    scales_targets = False

    def settings(self, settings: dict[str, Any], y: NDArray) -> dict[str, Any]:
        """``likelihood = "auto"`` is Bernoulli for two classes, robust-max for more."""
        if settings.get("likelihood", "auto") != "auto":
            return settings
        return settings | {"likelihood": "bernoulli" if len(np.unique(y)) == 2 else "robust-max"}

    def targets(self, y: NDArray, split: Split) -> NDArray:
        return np.asarray(y)

    def alike(self, splits: Sequence[Split]) -> bool:
        """Whether all training sets have the same classes: a model has one function for each."""
        classes = [np.unique(split.y_train) for split in splits]
        return all(np.array_equal(classes[0], other) for other in classes[1:])

    def metrics(self, y: NDArray, prediction: Any) -> dict[str, float]:
        from duogp.metrics import classification_metrics

        return classification_metrics(y, prediction.probabilities, prediction.classes)

    def standard_errors(self, y: NDArray, prediction: Any) -> dict[str, float]:
        """Standard errors over the test rows, of the mean NLL and of the accuracy."""
        from duogp.data.labels import codes_of
        from duogp.metrics import SMALLEST_PROBABILITY

        p, codes = (
            np.asarray(prediction.probabilities),
            codes_of(np.asarray(y), np.asarray(prediction.classes)),
        )
        own = np.where(codes < 0, 0.0, p[np.arange(len(p)), codes])
        nll = -np.log(np.clip(own, SMALLEST_PROBABILITY, 1.0))
        return {"accuracy": standard_error(p.argmax(1) == codes), "nll": standard_error(nll)}

    def zscores(self, y: NDArray, prediction: Any) -> list[float]:
        """None: labels have no z-score."""
        return []


def standard_error(values: NDArray) -> float:
    """Of the mean of one value per row: s / √n; NaN for a single row."""
    values = np.asarray(values, dtype=np.float64)
    return float(values.std(ddof=1) / np.sqrt(values.size)) if values.size > 1 else float("nan")


LearningTask = Regression | Classification
TASKS: dict[str, LearningTask] = {"regression": Regression(), "classification": Classification()}


def task_of(name: str) -> LearningTask:
    """A task by its name."""
    if name not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {name!r}")
    return TASKS[name]
