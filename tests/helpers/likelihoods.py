"""Random problems for likelihoods, and the same densities by scipy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

from duogp.bases.marginals import Marginals
from duogp.likelihoods import (
    LIKELIHOODS,
    BernoulliLikelihood,
    BetaLikelihood,
    Density,
    GammaLikelihood,
    GaussianLikelihood,
    HeteroscedasticGaussianLikelihood,
    Likelihood,
    PoissonLikelihood,
    StudentTLikelihood,
    make_named,
)
from duogp.numerics.parameters import Positive, batched

Array = np.ndarray
REPLICATES = 2
ROWS = 5


def value(part: Positive) -> Array:
    """[R, outputs, 1]."""
    return part().detach().numpy()[..., None]


class Reference(NamedTuple):
    """What scipy knows: log p(y|f), and mean and variance of y given f. Parameters are [R, outputs, 1]."""

    likelihood: Callable[[int], Likelihood]
    log_prob: Callable[[Likelihood], Callable[[Array, Array], Array]]
    moments: Callable[[Likelihood], Callable[[Array], tuple[Array, Array]]] | None
    targets: Callable[[np.random.Generator, Array], Array]  # plausible y for a given f


def beta(link: str) -> Reference:
    def shapes(p: Likelihood, f: Array) -> tuple[Array, Array]:
        squash = special.expit if link == "logit" else special.ndtr
        return squash(f) * value(p.precision), squash(-f) * value(p.precision)

    return Reference(
        lambda outputs: BetaLikelihood(outputs, link),
        lambda p: lambda y, f: stats.beta.logpdf(y, *shapes(p, f)),
        lambda p: lambda f: stats.beta.stats(*shapes(p, f)),
        lambda rng, f: rng.uniform(0.1, 0.9, f.shape),
    )


ONE_LATENT = {
    "gaussian": Reference(
        GaussianLikelihood,
        lambda p: lambda y, f: stats.norm.logpdf(y, f, np.sqrt(value(p.noise))),
        lambda p: lambda f: (f, value(p.noise) + 0 * f),
        lambda rng, f: f + rng.normal(size=f.shape),
    ),
    "student-t": Reference(
        StudentTLikelihood,
        lambda p: lambda y, f: stats.t.logpdf(y, value(p.dof), f, value(p.scale)),
        lambda p: lambda f: stats.t.stats(value(p.dof), f, value(p.scale)),
        lambda rng, f: f + rng.standard_t(2, f.shape),
    ),
    "probit": Reference(
        lambda outputs: BernoulliLikelihood("probit"),
        lambda p: lambda y, f: stats.norm.logcdf((2 * y - 1) * f),
        None,
        lambda rng, f: rng.integers(0, 2, f.shape).astype(float),
    ),
    "logit": Reference(
        lambda outputs: BernoulliLikelihood("logit"),
        lambda p: lambda y, f: special.log_expit((2 * y - 1) * f),
        None,
        lambda rng, f: rng.integers(0, 2, f.shape).astype(float),
    ),
    "poisson": Reference(
        lambda outputs: PoissonLikelihood(),
        lambda p: lambda y, f: stats.poisson.logpmf(y, np.exp(f)),
        lambda p: lambda f: stats.poisson.stats(np.exp(f)),
        lambda rng, f: rng.poisson(np.exp(f)).astype(float),
    ),
    "gamma": Reference(
        GammaLikelihood,
        lambda p: lambda y, f: stats.gamma.logpdf(y, value(p.shape), scale=np.exp(f) / value(p.shape)),
        lambda p: lambda f: stats.gamma.stats(value(p.shape), scale=np.exp(f) / value(p.shape)),
        lambda rng, f: np.exp(f) * rng.gamma(2.0, 0.5, f.shape) + 0.01,
    ),
    "beta-logit": beta("logit"),
    "beta-probit": beta("probit"),
}


@torch.no_grad()
def replicated(likelihood: Likelihood, seed: int = 0) -> Likelihood:
    """R replicates, every parameter of every one of its own value."""
    g = torch.Generator().manual_seed(seed)
    out = batched(likelihood, (REPLICATES,)).double()
    for p in out.parameters():
        p += 0.5 * (torch.rand(p.shape, generator=g, dtype=torch.float64) - 0.5)
    return out


@dataclass
class Problem:
    likelihood: Likelihood
    f: Marginals
    y: Tensor

    @property
    def density(self) -> Density:
        return self.likelihood.bind()


def problem(name: str, outputs: int = 2, rows: int = ROWS, scale: float = 1.0, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    shape = (REPLICATES, outputs, rows)
    f = Marginals(rng.normal(size=shape), *(rng.uniform(0.05, 1.0, shape) * scale for _ in range(2)))
    y = ONE_LATENT[name].targets(rng, f.mean)
    likelihood = replicated(ONE_LATENT[name].likelihood(outputs))
    return Problem(likelihood, Marginals(*map(torch.as_tensor, f)), torch.as_tensor(y))


GRID = np.linspace(-9, 9, 241)
WEIGHTS = np.exp(-0.5 * GRID**2) / np.exp(-0.5 * GRID**2).sum()


def spread(mean: Array, variance: Array) -> Array:
    """f on the grid of N(mean, variance), along a new leading axis."""
    return mean + np.sqrt(variance) * GRID.reshape(-1, *(1,) * np.ndim(mean))


def mean_over(values: Array) -> Array:
    """The expectation over the leading axis."""
    return np.tensordot(WEIGHTS, values, 1)


def brute_elbo(log_p: Callable, y: Array, mu: Array, v: Array) -> Array:
    return mean_over(log_p(y, spread(mu, v)))


def brute_predictive(log_p: Callable, y: Array, mu: Array, v: Array) -> Array:
    return np.log(mean_over(np.exp(log_p(y, spread(mu, v)))))


def brute_vfitc(log_p: Callable, y: Array, mu: Array, r: Array, e: Array) -> Array:
    return mean_over(np.log(mean_over(np.exp(log_p(y, spread(spread(mu, e), r))))))


def heteroscedastic(outputs: int = 2, rows: int = 3) -> Problem:
    rng = np.random.default_rng(3)
    shape = (REPLICATES, 2 * outputs, rows)
    f = Marginals(0.7 * rng.normal(size=shape), *(rng.uniform(0.05, 0.5, shape) for _ in range(2)))
    y = rng.normal(size=(REPLICATES, outputs, rows))
    likelihood = replicated(HeteroscedasticGaussianLikelihood(outputs, noise=0.3))
    return Problem(likelihood, Marginals(*map(torch.as_tensor, f)), torch.as_tensor(y))


def class_problem(likelihood: Likelihood, classes: int, rows: int = ROWS, seed: int = 0) -> Problem:
    g = torch.Generator().manual_seed(seed)
    shape = (REPLICATES, classes, rows)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=g, dtype=torch.float64)

    f = Marginals(
        torch.randn(shape, generator=g, dtype=torch.float64), *(0.1 + uniform(*shape) for _ in range(2))
    )
    y = (classes * uniform(REPLICATES, 1, rows)).floor()
    return Problem(replicated(likelihood), f, y)


CLASSES = 4


def named(name: str, outputs: int = 1) -> Likelihood:
    many = name in ("robust-max", "softmax")
    return make_named(
        name,
        outputs=outputs,
        classes=CLASSES if many else None,
        noise=0.3,
        noise_floor=1e-4,
        learn_noise=True,
    )


def any_problem(name: str, rows: int = ROWS, seed: int = 0) -> Problem:
    """A random problem of any likelihood with one output."""
    likelihood = replicated(named(name))
    out = class_problem(likelihood, likelihood.num_latents(1), rows, seed)
    g = torch.Generator().manual_seed(seed + 1)
    u = torch.rand(REPLICATES, 1, rows, generator=g, dtype=torch.float64)
    y = {
        "real": 4 * u - 2,
        "count": (6 * u).floor(),
        "positive": 0.1 + 2 * u,
        "unit": 0.05 + 0.9 * u,
        "classes": (u * likelihood.classes).floor() if likelihood.target == "classes" else None,
    }[likelihood.target]
    return Problem(likelihood, out.f, y)


every_likelihood = pytest.mark.parametrize("name", LIKELIHOODS)
