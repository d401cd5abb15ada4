"""The law of a stack: how what its members say becomes one density, see `posterior.stack`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from duogp.numerics.lognormal import LogScale
from duogp.numerics.mixtures import mixture_cdf, mixture_crps, mixture_log_density, mixture_quantiles
from duogp.numerics.rounding import Rounding
from duogp.posterior.prediction import Prediction, check_interval_level

Array = NDArray[np.float64]

#: r_s, the standard deviations of the ladder relative to the member's.
LADDER = (0.02, 0.06, 0.17, 0.4, 0.7, 1.0, 1.5, 2.5, 5.0)
#: The log excess stays within these bounds; squared errors of its training rows do too.
EXCESS_BOUNDS = (1e-3, 1e2)
#: Quantiles behind the CRPS of a mixture of log-normal laws.
CRPS_NODES = 128
#: Least probability of a class.
LEAST = 1e-12


@dataclass(frozen=True, eq=False)
class MixtureLaw:
    """Of one output with K members: weights [K, S] of members and scales, a [K], b [K], u [K] and δ.

    ``logs``: where the Gaussians are of z = log(y + s), with the moments that those of y amount to.
    ``rounding``: where y is the mixture rounded to the values of a grid.
    """

    weights: Array
    log_scale: Array
    power: Array
    mean_weights: Array
    shared: float = 0.0
    logs: LogScale | None = None
    rounding: Rounding | None = None

    @property
    def of_members(self) -> Array:
        """[K]."""
        return self.weights.sum(1)

    def point(self, mean: Array) -> Array:
        """m from μ_k [K, n], [n]."""
        return self.mean_weights @ mean

    def centres(self, mean: Array) -> Array:
        """m_k from μ_k, [K, n]."""
        return (1 - self.shared) * mean + self.shared * self.point(mean)

    def factor(self, g: Array) -> Array:
        """c_k at rows where the log excess is g [n]: [K, n]."""
        return np.exp(self.log_scale[:, None] + self.power[:, None] * g)

    def components(self, mean: Array, variance: Array, g: Array) -> tuple[Array, Array, Array]:
        """Means and standard deviations [J, n] and weights [J] of the mixture, for moments [K, n]."""
        which, scale = np.nonzero(self.weights > 0)
        centres = self.centres(mean)
        if self.logs is not None:
            centres, variance = self.logs.moments_of_logs(centres, variance)
        std = np.sqrt(variance * self.factor(g))[which] * np.array(LADDER)[scale][:, None]
        return centres[which], std, self.weights[which, scale]

    def scales(self, k: int, size: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Draws [*size] of r_s for member k, by its weights."""
        share = self.weights[k] / max(self.weights[k].sum(), LEAST)
        return np.array(LADDER)[rng.choice(len(LADDER), size, p=share)]

    def mean_factor(self, g: Array) -> Array:
        """What the variance of every member is multiplied by, on average over the ladder: [K, n]."""
        share = self.weights / np.maximum(self.of_members[:, None], np.finfo(float).tiny)
        return self.factor(g) * (share @ np.square(LADDER))[:, None]


@dataclass(frozen=True, eq=False)
class ClassLaw:
    """Weights [1 + K] of the frequencies π [C] and of the members, whose temperatures are T [K]."""

    weights: Array
    temperature: Array
    frequencies: Array

    @property
    def of_members(self) -> Array:
        return self.weights[1:]

    def probabilities(self, members: Array) -> Array:
        """[n, C] from those of the members [K, n, C]."""
        tempered = tempered_probabilities(members, self.temperature)
        return self.weights[0] * self.frequencies + np.tensordot(self.weights[1:], tempered, 1)


def bounded_excess(g: Array) -> Array:
    """g [n, outputs] within the logs of `EXCESS_BOUNDS`."""
    return g.clip(*np.log(EXCESS_BOUNDS))


def tempered_probabilities(p: Array, temperature: Array) -> Array:
    """p^{1/T}, normalised: [K, n, C] for T [K]."""
    logs = np.log(np.maximum(p, LEAST)) / temperature[:, None, None]
    return np.exp(logs - logsumexp(logs, axis=-1, keepdims=True))


@dataclass(frozen=True, repr=False)
class MixturePrediction(Prediction):
    """The point prediction of a mixture, the variance around it, and the components of the mixture.

    ``component_mean`` and ``component_std``: [J, n(, outputs)]; ``weights``: [J], or [J, outputs]; ``logs``:
    of every output the scale on which its components are Gaussian, None for that of the target;
    ``roundings``: of every output the grid that its target is on, or None. Intervals, quantiles, densities
    and metrics but those of the point prediction are the mixture's, rounded where there is a grid.
    """

    component_mean: Array | None = None
    component_std: Array | None = None
    weights: Array | None = None
    logs: tuple[LogScale | None, ...] = ()
    roundings: tuple[Rounding | None, ...] = ()

    def _output(self, p: int) -> tuple[Array, Array, Array]:
        assert self.component_mean is not None and self.component_std is not None and self.weights is not None
        n, count = len(self), len(self.component_mean)
        mean, std = (v.reshape(count, n, -1)[..., p] for v in (self.component_mean, self.component_std))
        weights = self.weights.reshape(count, -1)[:, p]
        there = weights > 0
        return mean[there], std[there], weights[there]

    @property
    def _outputs(self) -> int:
        return 1 if self.mean.ndim == 1 else self.mean.shape[1]

    def quantiles(self, levels: Any) -> Array:
        """[levels, n(, outputs)]."""
        levels = np.atleast_1d(np.asarray(levels, dtype=np.float64))
        found = np.stack([self._quantiles(levels, p) for p in range(self._outputs)], -1)
        return found[..., 0] if self.mean.ndim == 1 else found

    def _scale(self, p: int) -> LogScale | None:
        return self.logs[p] if self.logs else None

    def _rounding(self, p: int) -> Rounding | None:
        return self.roundings[p] if self.roundings else None

    def _quantiles(self, levels: Array, p: int) -> Array:
        found, scale, rounding = (
            mixture_quantiles(levels, *self._output(p)),
            self._scale(p),
            self._rounding(p),
        )
        found = found if scale is None else scale.back(found)
        return found if rounding is None else rounding.nearest(found)

    def _cdf(self, t: Array, p: int) -> Array:
        """P(y ≤ t) before rounding, at levels t [levels, n]."""
        scale = self._scale(p)
        return mixture_cdf(t if scale is None else scale.logs(t), *self._output(p))

    def _log_density(self, y: Array, p: int) -> Array:
        scale, rounding = self._scale(p), self._rounding(p)
        if scale is None:
            found = mixture_log_density(y, *self._output(p))
        else:
            z = scale.logs(y)
            found = mixture_log_density(z, *self._output(p)) - z
        return found if rounding is None else rounding.log_density(y, lambda t: self._cdf(t, p), found)

    def _crps(self, y: Array, p: int) -> Array:
        """In closed form for Gaussians and on a grid, otherwise by quadrature over the quantiles."""
        rounding = self._rounding(p)
        if rounding is not None:
            return rounding.crps(y, lambda t: self._cdf(t, p))
        if self._scale(p) is None:
            return mixture_crps(y, *self._output(p))
        nodes, weights = np.polynomial.legendre.leggauss(CRPS_NODES)
        levels = 0.5 * (1 + nodes)
        away = y - self._quantiles(levels, p)
        return weights @ (away * (levels[:, None] - (away < 0)))

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        check_interval_level(level)
        low, high = self.quantiles([0.5 - level / 2, 0.5 + level / 2])
        return low, high

    def log_density(self, y: Any) -> Array:
        """log p(y|x) of every row, summed over outputs, [n]."""
        target = np.asarray(y, dtype=np.float64).reshape(len(self), -1)
        return sum(
            (self._log_density(target[:, p], p) for p in range(self._outputs)),
            start=np.zeros(len(self)),
        )

    def crps(self, y: Any) -> Array:
        """The continuous ranked probability score of every row, summed over outputs, [n]."""
        target = np.asarray(y, dtype=np.float64).reshape(len(self), -1)
        return sum((self._crps(target[:, p], p) for p in range(self._outputs)), start=np.zeros(len(self)))

    def metrics(self, y: Any) -> dict[str, float]:
        """As `Prediction.metrics`; NLL, CRPS and coverage of the mixture, the others of its moments."""
        out = super().metrics(y)
        target = np.asarray(y, dtype=np.float64).reshape(-1)
        low, high = self.interval(0.95)
        out["nll"] = float(-self._log_density(target, 0).mean())
        out["crps"] = float(self._crps(target, 0).mean())
        if "coverage" in out:
            out["coverage"] = float(((target >= low.reshape(-1)) & (target <= high.reshape(-1))).mean())
        return out
