"""`duogp.evaluate`: the metrics of a fitted model on rows whose targets are known."""

from __future__ import annotations

from typing import Any

from duogp.reports.scores import metrics_of, score_rows
from duogp.reports.subject import subject_of


def evaluate(model: Any, X: Any, y: Any) -> dict[str, float]:
    """Metrics by name of a fitted model on rows X [n, d] with targets y [n], as `duogp evaluate` prints them.

    Numbers: rmse, mae, r2, nll, crps, coverage_50, coverage_90, coverage_95, calibration_error. Classes:
    accuracy, log_loss, brier, calibration_error. ``model``: a fitted `GPRegressor`, `GPClassifier` or `GP`;
    X: an array, or a frame with the columns of the fit. The model must not have seen the rows.

        scores = duogp.evaluate(model, X_new, y_new)
        print(scores["nll"], scores["coverage_90"])
    """
    subject = subject_of(model, X, y)
    return metrics_of(subject.gp, score_rows([subject.known_rows()]))
