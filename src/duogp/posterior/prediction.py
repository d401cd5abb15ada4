"""What a fitted model says about new rows, its variance in parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from duogp.data.labels import as_labels, codes_of
from duogp.data.validation import as_target
from duogp.metrics import classification_metrics, regression_metrics

Array = NDArray[np.float64]


def check_interval_level(level: float) -> None:
    """An error for a level outside (0, 1)."""
    if not 0 < level < 1:
        hint = f"; did you mean {level / 100:g}?" if 1 < level < 100 else ""
        raise ValueError(f"level must be in (0, 1), got {level}{hint}")


@dataclass(frozen=True)
class PredictionError:
    """Bounds on what float32 changes in a prediction: a multiple of the largest change at so many ``rows``.

    ``mean``: in standard deviations of an observation; of class probabilities as it is. ``variance``: of the
    variance or a part of it, in variances of an observation; of classes in those of the latent function.
    """

    mean: float
    variance: float
    rows: int

    @property
    def largest(self) -> float:
        return max(self.mean, self.variance)


@dataclass(frozen=True, repr=False)
class Prediction:
    """Arrays [n], or [n, outputs] for several outputs, in the units of the targets."""

    mean: Array
    residual: Array  # distributional: prior variance the inducing points do not explain (far from the data)
    explained: Array  # within-data: what remains uncertain about the inducing values
    noise: Array  # observation noise
    disagreement: Array | float = 0.0  # between the folds of a learned mean, and the members of a stack
    precision: str = field(default="float64", kw_only=True)  # of the products behind the variances
    error: PredictionError | None = field(default=None, kw_only=True)  # where float32 was asked for

    @property
    def function_variance(self) -> Array:
        """Variance of f, without observation noise, [n] or [n, outputs]."""
        return self.residual + self.explained + self.disagreement

    @property
    def variance(self) -> Array:
        """Variance of a new observation, [n] or [n, outputs]."""
        return self.residual + self.explained + self.noise + self.disagreement

    @property
    def std(self) -> Array:
        """Standard deviation of a new observation, [n] or [n, outputs]."""
        return np.sqrt(self.variance)

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Ends (lower, upper), each [n] or [n, outputs], of the central interval of a new observation.

        That of a Gaussian with these moments: exact for Gaussian noise, an approximation for other
        likelihoods, which may reach beyond what their targets can be.
        """
        check_interval_level(level)
        half = float(ndtri(0.5 + level / 2)) * self.std
        return self.mean - half, self.mean + half

    def metrics(self, y: Any) -> dict[str, float]:
        """All metrics of `duogp.metrics` against the targets y [n] of the same rows (one output).

        They judge a Gaussian with these moments; the density of another likelihood is `GP.log_density`.
        """
        if self.mean.size != len(self):
            raise ValueError(f"metrics are of one output, this prediction has {self.mean.shape[1]}")
        if np.shape(y)[:1] != (len(self),):
            raise ValueError(f"y has {len(np.atleast_1d(y))} rows, but the prediction has {len(self)}")
        target = as_target(y, len(self), "y").reshape(-1)
        return regression_metrics(target, self.mean.reshape(-1), self.std.reshape(-1), self.noise.reshape(-1))

    def __repr__(self) -> str:
        return f"Prediction({len(self)} rows, average mean {self.mean.mean():.4g}, std {self.std.mean():.4g})"

    def __len__(self) -> int:
        return len(self.mean)


@dataclass(frozen=True, repr=False)
class ClassPrediction:
    """Probabilities [n, C] of the classes, and the latent functions behind them [n, latents]."""

    probabilities: Array
    classes: NDArray
    latent_mean: Array
    residual: Array  # distributional variance of the latent functions (far from the data)
    explained: Array  # their within-data variance
    disagreement: Array | float = 0.0  # between the folds of a learned mean, and the members of a stack
    precision: str = field(default="float64", kw_only=True)  # of the products behind the variances
    error: PredictionError | None = field(default=None, kw_only=True)  # where float32 was asked for

    @property
    def labels(self) -> NDArray:
        """The most probable class of each row, [n]."""
        return self.classes[self.probabilities.argmax(-1)]

    @property
    def entropy(self) -> Array:
        """Entropy [n] of the class probabilities, in nats: 0 for a certain class, log C if all are equal."""
        return -(self.probabilities * np.log(self.probabilities)).sum(-1)

    def metrics(self, y: Any) -> dict[str, float]:
        """Accuracy, NLL, Brier score and calibration error against the labels y [n] of the same rows."""
        codes = codes_of(as_labels(y, len(self)), self.classes)
        if (codes < 0).any():
            unknown = np.unique(np.asarray(y)[codes < 0])[:5].tolist()
            raise ValueError(f"y holds labels that the model does not know: {unknown}")
        return classification_metrics(codes, self.probabilities)

    def __repr__(self) -> str:
        sure = self.probabilities.max(-1).mean()
        return (
            f"ClassPrediction({len(self)} rows, {len(self.classes)} classes, average confidence {sure:.3f})"
        )

    def __len__(self) -> int:
        return len(self.probabilities)
