"""A GP of the logarithm of a positive target, with inputs and predictions in the units of the target.

    log(y + s) | x ~ N(μ(x), v(x)),    E y = exp(μ + v/2) − s,    Var y = (E y + s)² (eᵛ − 1)

Prices, salaries, durations and amounts spread in proportion to their size: on the log scale their noise is
the same everywhere, and effects that multiply add up.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from duogp.bases.many_rows import Precision
from duogp.numerics.lognormal import LogScale
from duogp.posterior.gp import GP
from duogp.posterior.prediction import Prediction

Array = NDArray[np.float64]

#: How far from the average log target a mean may be, and how large a standard deviation, in units of their
#: spread: errors of an extrapolating GP grow exponentially.
MOST_AWAY = 6.0
MOST_STD = 1.5


class LogUnits(NamedTuple):
    """The log scale, and the average and the standard deviation of the training targets on it."""

    scale: LogScale
    centre: float
    spread: float

    @classmethod
    def of(cls, scale: LogScale, y: Array) -> Self:
        logs = scale.logs(y)
        return cls(scale, float(logs.mean()), max(float(logs.std()), 1e-12))

    def moments(self, mu: Array, v: Array) -> tuple[Array, Array]:
        """E y and Var y, each [...] as μ and v, kept within what the training targets make credible."""
        reach = MOST_AWAY * self.spread
        mu = np.clip(mu, self.centre - reach, self.centre + reach)
        return self.scale.moments(mu, np.minimum(v, (MOST_STD * self.spread) ** 2))

    def back(self, logs: Array) -> Array:
        """Draws [...] in the units of y, kept within what is credible likewise."""
        reach = (MOST_AWAY + 3 * MOST_STD) * self.spread
        return self.scale.back(np.clip(logs, self.centre - reach, self.centre + reach))


class LogTargetGP(GP):
    """See the module; ``units``: of the logarithms it was trained on."""

    units: LogUnits

    @classmethod
    def of(cls, gp: GP, units: LogUnits) -> Self:
        """The GP of log y as a model of y."""
        known = gp._of_the_table()
        out = cls(gp.model, method=gp.method, settings=gp.settings, history=gp.history, **known)
        out.units = units
        return out

    def with_model(self, *args: Any, **keywords: Any) -> Self:
        """As `GP.with_model`; the scale stays too."""
        out = super().with_model(*args, **keywords)
        out.units = self.units
        return out

    def predict(
        self, X: Any, *, noise: Any = None, in_parts: bool = True, precision: Precision | None = None
    ) -> Prediction:
        """As `GP.predict`; the parts share the variance of y as they share that of log y.

        The error of float32 is that of the moments of log y.
        """
        log = self.predict_logs(X, noise=noise, in_parts=in_parts, precision=precision)
        mean, variance = self.units.moments(log.mean, log.variance)
        ratio = variance / np.maximum(log.variance, np.finfo(np.float64).tiny)
        parts = (log.residual, log.explained, log.noise, log.disagreement)
        told: dict[str, Any] = {"precision": log.precision, "error": log.error}
        return Prediction(mean, *(part * ratio for part in parts), **told)

    def predict_logs(
        self, X: Any, *, noise: Any = None, in_parts: bool = True, precision: Precision | None = None
    ) -> Prediction:
        """What the GP says of log(y + s)."""
        return cast(Prediction, super().predict(X, noise=noise, in_parts=in_parts, precision=precision))

    def predict_mean(self, X: Any) -> Array:
        """E[y | x] [n] at X [n, d]: it takes the variance to know."""
        return self.predict(X, in_parts=False).mean

    def log_density(self, X: Any, y: Any, *, noise: Any = None) -> Array:
        """log p(y | x, data) [n] of rows X [n, d], y [n]; below the support it is that of its edge."""
        logs = self.units.scale.logs(np.asarray(y, dtype=np.float64))
        return super().log_density(X, logs, noise=noise) - logs.reshape(len(logs), -1).sum(1)

    def covariance(self, X: Any) -> Array:
        """Of exp f at all rows, [1, n, n]: (E y + s)(E y' + s)(exp cov(f, f') − 1)."""
        log = self.predict_logs(X)
        mean = self.units.moments(log.mean, log.function_variance)[0] + self.units.scale.shift
        most = (MOST_STD * self.units.spread) ** 2
        return np.asarray(mean[:, None] * mean * np.expm1(np.minimum(super().covariance(X), most)))

    def _draws_to_user(self, draws: Tensor) -> Array:
        return self.units.back(super()._draws_to_user(draws))
