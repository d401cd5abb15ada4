"""The distribution of a new observation, P(y ≤ t), for likelihoods whose quantiles have no formula.

Two kinds cover all likelihoods of numbers. With f ~ N(μ, v) at a row:

    mixtures    Gaussian, Student-t (over the precision w), heteroscedastic (over the log noise g), deep
                models and networks (over samples):  P(y ≤ t) = Σ_k w_k Φ((t − μ_k)/σ_k)
    monotone    Poisson, gamma, beta:  P(y ≤ t) = ∫ P(y ≤ t | f) N(f | μ, v) df,  P(y ≤ t | f) falling in f

The integrand of the second is Gaussian times a step of some width around the f* whose median is t. Where
noise is small the step is far narrower than the Gaussian, so the trapezium rule runs over u with
f = f* + width · sinh(u): dense at the step, wide enough for the Gaussian. Arrays are [levels, outputs, n];
samples of deep models lead, [samples, outputs, n].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv, expit, gammainc, gammaincc, gammaincinv, logit, ndtr, ndtri

from duogp.numerics.mixtures import mixture_quantiles
from duogp.numerics.root_finding import find_roots

Array = NDArray[np.float64]

NODES = 64
#: The Gaussian of f is cut off so many standard deviations from its mean.
REACH = 9.0


class Predictive(ABC):
    """The distribution of a new observation at n rows."""

    @abstractmethod
    def quantiles(self, levels: Array) -> Array:
        """[levels, outputs, n], in the units of the model."""


@dataclass(frozen=True)
class Mixture(Predictive):
    """Gaussians [k, outputs, n] with weights [k, outputs or 1, 1] that sum to one."""

    mean: Array
    std: Array
    weight: Array

    def quantiles(self, levels: Array) -> Array:
        weight = np.broadcast_to(self.weight, (*self.mean.shape[:2], 1))[..., 0]
        outputs = range(self.mean.shape[1])
        own = [mixture_quantiles(levels, self.mean[:, p], self.std[:, p], weight[:, p]) for p in outputs]
        return np.stack(own, 1)


@dataclass(frozen=True)
class Monotone(Predictive):
    """y given one latent f ~ N(mean, std²), [samples, outputs, n]; larger f means larger y."""

    mean: Array
    std: Array

    @abstractmethod
    def cdf_given(self, t: Array, f: Array) -> Array:
        """P(y ≤ t | f), elementwise, [...]."""

    @abstractmethod
    def quantile_given(self, p: Array, f: Array) -> Array:
        """The t with P(y ≤ t | f) = p, elementwise, [...]."""

    @abstractmethod
    def step(self, t: Array) -> tuple[Array, Array]:
        """The f at which P(y ≤ t | f) falls from one to zero, about, and the width of that: [...] as t."""

    @abstractmethod
    def to_line(self, t: Array) -> Array:
        """An increasing map of the support to the real line, elementwise [...], where quantiles are found."""

    @abstractmethod
    def from_line(self, s: Array) -> Array: ...

    def cdf(self, t: Array) -> Array:
        where, width = self.step(t)
        # [levels, samples, outputs, n]
        centre = np.clip((where[:, None] - self.mean) / self.std, -REACH, REACH)
        width = np.minimum(width[:, None] / self.std, 1.0)
        u_low, u_high = np.arcsinh((-REACH - centre) / width), np.arcsinh((REACH - centre) / width)
        u = u_low + (u_high - u_low) * np.linspace(0, 1, NODES).reshape(-1, 1, 1, 1, 1)
        z = centre + width * np.sinh(u)
        weight = np.exp(-0.5 * z**2) * np.cosh(u)
        values = self.cdf_given(t[:, None], self.mean + self.std * z)
        return ((weight * values).sum(0) / weight.sum(0)).mean(1)

    def quantiles(self, levels: Array) -> Array:
        p = levels[:, None, None]
        # P(y < Q(p/2 | f at its own p/2)) ≤ p/2 + p/2, and likewise above.
        f_low = self.mean + self.std * ndtri(p / 2)[:, None]
        f_high = self.mean + self.std * ndtri((1 + p) / 2)[:, None]
        low = self.quantile_given(p[:, None] / 2, f_low).min(1)
        high = self.quantile_given((1 + p[:, None]) / 2, f_high).max(1)
        root = find_roots(lambda s: self.cdf(self.from_line(s)) - p, self.to_line(low), self.to_line(high))
        return self.from_line(root)


def _exp(f: Array) -> Array:
    return np.exp(np.clip(f, -690, 690))


@dataclass(frozen=True)
class Poisson(Monotone):
    """P(y ≤ t | f) = Q(t + 1, e^f), continuous in t; quantiles are rounded up to whole numbers."""

    def cdf_given(self, t: Array, f: Array) -> Array:
        return gammaincc(t + 1, _exp(f))

    def quantile_given(self, p: Array, f: Array) -> Array:
        # a bound, by Cantelli's inequality
        rate = _exp(f)
        low, high = np.sqrt(rate) * np.sqrt((1 - p) / p), np.sqrt(rate) * np.sqrt(p / (1 - p))
        return np.maximum(np.where(p < 0.5, rate - low - 1, rate + high), 0)

    def step(self, t: Array) -> tuple[Array, Array]:
        return np.log(t + 2 / 3), 1 / np.sqrt(t + 1)

    def to_line(self, t: Array) -> Array:
        return np.log1p(t)

    def from_line(self, s: Array) -> Array:
        return np.expm1(s)

    def quantiles(self, levels: Array) -> Array:
        return np.ceil(super().quantiles(levels) - 1e-6) + 0.0  # no −0


@dataclass(frozen=True)
class Gamma(Monotone):
    """P(y ≤ t | f) of a gamma distribution with mean e^f."""

    shape: Array  # [outputs, 1]

    def cdf_given(self, t: Array, f: Array) -> Array:
        return gammainc(self.shape, self.shape * t * _exp(-f))

    def quantile_given(self, p: Array, f: Array) -> Array:
        return _exp(f) * gammaincinv(self.shape, p) / self.shape

    def step(self, t: Array) -> tuple[Array, Array]:
        return np.log(t), np.broadcast_to(1 / np.sqrt(self.shape), t.shape)

    def to_line(self, t: Array) -> Array:
        return np.log(np.maximum(t, 1e-300))

    def from_line(self, s: Array) -> Array:
        return np.exp(s)


@dataclass(frozen=True)
class Beta(Monotone):
    """P(y ≤ t | f) of a beta distribution with mean link(f)."""

    precision: Array  # [outputs, 1]
    link: str

    def _shapes(self, f: Array) -> tuple[Array, Array]:
        m, rest = (ndtr(f), ndtr(-f)) if self.link == "probit" else (expit(f), expit(-f))
        tiny = 1e-300
        return np.maximum(m * self.precision, tiny), np.maximum(rest * self.precision, tiny)

    def cdf_given(self, t: Array, f: Array) -> Array:
        return betainc(*self._shapes(f), t)

    def quantile_given(self, p: Array, f: Array) -> Array:
        return betaincinv(*self._shapes(f), np.broadcast_to(p, np.broadcast_shapes(p.shape, f.shape)))

    def step(self, t: Array) -> tuple[Array, Array]:
        if self.link == "probit":
            f = ndtri(t)
            slope = np.exp(-0.5 * f**2) / np.sqrt(2 * np.pi)
        else:
            f, slope = logit(t), t * (1 - t)
        return f, np.sqrt(t * (1 - t) / (1 + self.precision)) / np.maximum(slope, 1e-300)

    def to_line(self, t: Array) -> Array:
        return logit(np.clip(t, 1e-300, 1 - 1e-16))

    def from_line(self, s: Array) -> Array:
        return np.clip(expit(s), 1e-300, 1 - 1e-16)


@dataclass(frozen=True)
class Draws(Predictive):
    """Empirical quantiles of draws [draws, outputs, n], for likelihoods without a distribution function."""

    values: Array
    discrete: bool

    def quantiles(self, levels: Array) -> Array:
        method: Any = "inverted_cdf" if self.discrete else "linear"
        return np.quantile(self.values, levels, axis=0, method=method)
