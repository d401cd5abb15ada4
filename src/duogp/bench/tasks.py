"""What a task changes in a cell: how targets are scaled, which likelihood is asked for, what is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.data.splits import Split


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


class Classification:
    """Targets are labels and stay as they are. Metrics look them up among the classes that the model saw."""

    scales_targets = False

    def settings(self, settings: dict[str, Any], y: NDArray) -> dict[str, Any]:
        """``likelihood = "auto"``: two classes make it Bernoulli, more robust-max."""
        if settings.get("likelihood", "auto") != "auto":
            return settings
        return settings | {"likelihood": "bernoulli" if len(np.unique(y)) == 2 else "robust-max"}

    def targets(self, y: NDArray, split: Split) -> NDArray:
        return np.asarray(y)

    def alike(self, splits: Sequence[Split]) -> bool:
        """A rare class may be missing from some training sets: those models have fewer functions."""
        classes = [np.unique(split.y_train) for split in splits]
        return all(np.array_equal(classes[0], other) for other in classes[1:])

    def metrics(self, y: NDArray, prediction: Any) -> dict[str, float]:
        from duogp.metrics import classification_metrics

        return classification_metrics(y, prediction.probabilities, prediction.classes)


Task = Regression | Classification
TASKS: dict[str, Task] = {"regression": Regression(), "classification": Classification()}


def task_of(name: str) -> Task:
    """A task by its name."""
    if name not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {name!r}")
    return TASKS[name]
