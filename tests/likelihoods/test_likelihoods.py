"""Every expectation of every likelihood is the integral it names: dense grids and scipy's densities."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import gpytorch
import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

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
    QuadratureDensity,
    QuadratureLikelihood,
    RobustMaxLikelihood,
    SoftmaxLikelihood,
    StudentTLikelihood,
    make_named,
)
from duogp.likelihoods.monte_carlo import PATTERN, by_rows, samples
from duogp.likelihoods.quadrature import GaussHermite
from duogp.likelihoods.robust_max import log_argmax_probabilities
from duogp.numerics.parameters import Positive, batched
from duogp.objectives import elbo, predictive, vfitc

Array = np.ndarray
REPLICATES = 2
ROWS = 5


# -- the same densities by scipy ------------------------------------------------------------------------


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
every_one_latent = pytest.mark.parametrize("name", ONE_LATENT)
with_moments = pytest.mark.parametrize("name", [n for n, r in ONE_LATENT.items() if r.moments])


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


# -- brute force ----------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("outputs", [1, 2])
@every_one_latent
def test_the_three_objectives_are_their_integrals(name: str, outputs: int) -> None:
    p = problem(name, outputs)
    log_p = ONE_LATENT[name].log_prob(p.likelihood)
    y, mu, r, e = (t.numpy() for t in (p.y, *p.f))
    expected = {
        elbo: brute_elbo(log_p, y, mu, r + e),
        predictive: brute_predictive(log_p, y, mu, r + e),
        vfitc: brute_vfitc(log_p, y, mu, r, e),
    }
    for objective, integral in expected.items():
        found = objective(p.density, p.f, p.y)
        assert found.shape == (REPLICATES, ROWS)
        assert_close(found, torch.as_tensor(integral.sum(-2)), rtol=0, atol=5e-6, msg=objective.__name__)


@every_one_latent
def test_predictive_bounds_vfitc_bounds_the_elbo(name: str) -> None:
    """Jensen, pointwise; equal where there is nothing to move across the log (MATH §11 B9)."""
    p = problem(name, rows=100, scale=3.0)
    values = [objective(p.density, p.f, p.y) for objective in (predictive, vfitc, elbo)]
    assert (values[0] >= values[1] - 1e-4).all()
    assert (values[1] >= values[2] - 1e-4).all()
    assert (values[0] - values[2]).max() > 0.05
    nothing = torch.zeros_like(p.f.mean)
    no_residual, no_explained = p.f._replace(residual=nothing), p.f._replace(explained=nothing)
    tolerance = 1e-2 if name == "student-t" else 1e-6  # its ELBO is another, better, integral
    certain = elbo(p.density, no_residual, p.y)
    assert_close(vfitc(p.density, no_residual, p.y), certain, rtol=0, atol=tolerance)
    without = predictive(p.density, no_explained, p.y)
    assert_close(vfitc(p.density, no_explained, p.y), without, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("likelihood", "y", "mean", "variance"),
    [
        (PoissonLikelihood(), 500.0, 6.0, 1.0),
        (PoissonLikelihood(), 40.0, 2.0, 4.0),
        (GammaLikelihood(shape=300.0), 1.5, 0.0, 1.0),
        (BetaLikelihood(precision=500.0), 0.3, 0.0, 1.0),
        (StudentTLikelihood(scale=0.02, dof=4.0), 0.7, 0.0, 1.0),
        (BernoulliLikelihood("logit"), 1.0, -2.0, 50.0),
    ],
    ids=["poisson-500", "poisson-40", "gamma", "beta", "student-t", "logit"],
)
def test_narrow_likelihoods_are_not_stepped_over(
    likelihood: Likelihood, y: float, mean: float, variance: float
) -> None:
    """The log of a mean is exact where p(y|f) is far narrower than q(f); so is the Student-t's E log p."""
    density = likelihood.double().bind()
    args = [torch.tensor([[[t]]], dtype=torch.float64) for t in (y, mean, variance)]
    z = torch.linspace(-12, 12, 400_001, dtype=torch.float64)
    log_w = torch.log_softmax(-0.5 * z**2, 0)
    log_p = density.log_prob(args[0], args[1] + math.sqrt(variance) * z).flatten()
    assert_close(
        density.log_predictive(*args).squeeze(), torch.logsumexp(log_w + log_p, 0), rtol=0, atol=3e-4
    )
    if isinstance(likelihood, StudentTLikelihood | PoissonLikelihood | GammaLikelihood):
        expected = (log_w.exp() * log_p).sum()
        assert_close(density.expected_log_prob(*args).squeeze(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("y", [0.0, 3.0, 1e3, 1e6])
@pytest.mark.parametrize("dof", [2.02, 4.0, 60.0, 1e4])
def test_student_t_without_variance_is_its_density(dof: float, y: float) -> None:
    """The two integrals of student_t, over the precision and for the log, from the bulk to far outliers."""
    density = StudentTLikelihood(scale=0.7, dof=dof).double().bind()
    zero, target = (torch.full((1, 1, 1), t, dtype=torch.float64) for t in (0.0, y))
    exact = density.log_prob(target, zero)
    if y < 1e3 * max(1.0, 60 / dof):
        assert_close(density.log_marginal(target, zero, zero), exact, rtol=2e-3, atol=1e-9)
    assert_close(density.expected_log(target, zero, zero), exact, rtol=1e-4, atol=1e-6)


# -- two latent functions: heteroscedastic noise --------------------------------------------------------


def heteroscedastic(outputs: int = 2, rows: int = 3) -> Problem:
    rng = np.random.default_rng(3)
    shape = (REPLICATES, 2 * outputs, rows)
    f = Marginals(0.7 * rng.normal(size=shape), *(rng.uniform(0.05, 0.5, shape) for _ in range(2)))
    y = rng.normal(size=(REPLICATES, outputs, rows))
    likelihood = replicated(HeteroscedasticGaussianLikelihood(outputs, noise=0.3))
    return Problem(likelihood, Marginals(*map(torch.as_tensor, f)), torch.as_tensor(y))


def test_heteroscedastic_objectives_are_their_integrals() -> None:
    """f and g on tensor grids: two dimensions, and four for VFITC."""
    p = heteroscedastic(outputs=1, rows=2)
    s2 = value(p.likelihood.noise)
    y, mu, r, e = (t.numpy() for t in (p.y, *p.f))

    def grids(f_nodes: int, g_nodes: int) -> tuple[Array, Array, Array]:
        """Standard normal f [F, 1, 1, 1, 1] and g [G, 1, 1, 1], and the weights of the pairs [F, G]."""
        f, g = np.linspace(-6.5, 6.5, f_nodes), np.linspace(-6.5, 6.5, g_nodes)
        w = np.exp(-0.5 * (f[:, None] ** 2 + g**2))
        return f.reshape(-1, 1, 1, 1, 1), g.reshape(-1, 1, 1, 1), w / w.sum()

    fine_f, fine_g, fine = grids(201, 41)

    def log_p(mean: Array, variance: Array) -> Array:
        """log p(y|f, g) on the fine grid."""
        f = mean[..., :1, :] + np.sqrt(variance[..., :1, :]) * fine_f
        g = mean[..., 1:, :] + np.sqrt(variance[..., 1:, :]) * fine_g
        return stats.norm.logpdf(y, f, np.sqrt(s2 * np.exp(g)))

    def log_mean(mean: Array, variance: Array) -> Array:
        return np.log(np.tensordot(fine, np.exp(log_p(mean, variance)), 2))

    outer_f, outer_g, outer = grids(23, 23)
    expected = {
        elbo: np.tensordot(fine, log_p(mu, r + e), 2),
        predictive: log_mean(mu, r + e),
        vfitc: sum(
            w * log_mean(mu + np.sqrt(e) * np.array([f.item(), g.item()]).reshape(1, 2, 1), r)
            for f, row in zip(outer_f, outer, strict=True)
            for g, w in zip(outer_g, row, strict=True)
            if w > 1e-9
        ),
    }
    for objective, integral in expected.items():
        found = objective(p.density, p.f, p.y)
        assert_close(found, torch.as_tensor(integral.sum(-2)), rtol=0, atol=5e-5, msg=objective.__name__)


def test_heteroscedastic_bounds_are_ordered() -> None:
    p = heteroscedastic(rows=50)
    values = [objective(p.density, p.f, p.y) for objective in (predictive, vfitc, elbo)]
    assert (values[0] >= values[1] - 1e-4).all()
    assert (values[1] >= values[2] - 1e-4).all()
    nothing = torch.zeros_like(p.f.mean)
    no_residual, no_explained = p.f._replace(residual=nothing), p.f._replace(explained=nothing)
    assert_close(vfitc(p.density, no_residual, p.y), elbo(p.density, no_residual, p.y), rtol=0, atol=1e-3)
    assert_close(
        vfitc(p.density, no_explained, p.y), predictive(p.density, no_explained, p.y), rtol=0, atol=1e-9
    )


def test_heteroscedastic_is_gaussian_where_the_noise_is_known() -> None:
    p = heteroscedastic()
    flat = Marginals(*(torch.cat([t[:, :2], torch.zeros_like(t[:, 2:])], 1) for t in p.f))
    known = Marginals(*(t[:, :2] for t in p.f))
    gaussian = GaussianLikelihood(2)
    gaussian.noise = p.likelihood.noise
    for objective in (elbo, predictive, vfitc):
        assert_close(
            objective(p.density, flat, p.y), objective(gaussian.bind(), known, p.y), rtol=1e-9, atol=1e-9
        )


# -- classes --------------------------------------------------------------------------------------------


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


def two_class_grid(p: Problem, log_p: Callable[[Tensor], Tensor]) -> dict[Callable, Tensor]:
    """The objectives of two classes, which only see the difference d of the two functions: [R, n]."""
    sign = 2 * p.y[:, 0] - 1
    mu, r, e = ((t[:, 1] - t[:, 0]) * sign if i == 0 else t.sum(1) for i, t in enumerate(p.f))
    z = torch.linspace(-9, 9, 241, dtype=torch.float64)
    w = torch.softmax(-0.5 * z**2, 0)

    def on_grid(mean: Tensor, variance: Tensor) -> Tensor:
        return mean[..., None] + variance.sqrt().view(*variance.shape, *(1,) * (mean.dim() - 1)) * z

    return {
        elbo: log_p(on_grid(mu, r + e)) @ w,
        predictive: (log_p(on_grid(mu, r + e)).exp() @ w).log(),
        vfitc: (log_p(on_grid(on_grid(mu, e), r)).exp() @ w).log() @ w,
    }


def test_softmax_of_two_classes_is_the_logistic_of_their_difference() -> None:
    p = class_problem(SoftmaxLikelihood(2, eval_samples=256, eval_inner_samples=2048), 2)
    p.likelihood.eval()
    for objective, expected in two_class_grid(p, torch.nn.functional.logsigmoid).items():
        assert_close(objective(p.density, p.f, p.y), expected, rtol=0, atol=5e-3, msg=objective.__name__)


def test_robust_max_of_two_classes_is_a_probit_of_their_difference() -> None:
    """π = Φ(d/√v) for the three places of the log; only VFITC's outer expectation is Monte Carlo."""
    p = class_problem(RobustMaxLikelihood(2, epsilon=0.05, eval_samples=2048), 2)
    p.likelihood.eval()
    epsilon = p.likelihood.epsilon[:, None].detach()
    sign = 2 * p.y[:, 0] - 1
    d = sign * (p.f.mean[:, 1] - p.f.mean[:, 0])
    pi = torch.special.ndtr(d / p.f.variance.sum(1).sqrt())
    assert_close(
        elbo(p.density, p.f, p.y), pi * (1 - epsilon).log() + (1 - pi) * epsilon.log(), rtol=0, atol=1e-8
    )
    assert_close(
        predictive(p.density, p.f, p.y), (pi * (1 - epsilon) + (1 - pi) * epsilon).log(), rtol=0, atol=1e-8
    )
    z = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    g = d[..., None] + p.f.explained.sum(1).sqrt()[..., None] * z
    inner = torch.special.ndtr(g / p.f.residual.sum(1).sqrt()[..., None])
    log_p = (inner * (1 - epsilon[..., None]) + (1 - inner) * epsilon[..., None]).log()
    expected = log_p @ torch.softmax(-0.5 * z**2, 0)
    assert_close(vfitc(p.density, p.f, p.y), expected, rtol=0, atol=3e-3)


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("kind", [RobustMaxLikelihood, SoftmaxLikelihood])
def test_class_objectives_are_their_integrals(kind: type, classes: int) -> None:
    """Monte Carlo with as many draws as it takes, within three standard errors of its own."""
    settings = {"eval_inner_samples": 512} if kind is SoftmaxLikelihood else {}
    p = class_problem(kind(classes, **settings), classes, rows=2)
    p.likelihood.eval()
    g = torch.Generator().manual_seed(5)
    many, few = 20_000, 200
    rows = p.y.long()

    def log_p(f: Tensor) -> Tensor:
        """log p(y|f): [..., R, n]."""
        if kind is SoftmaxLikelihood:
            return f.log_softmax(-2).gather(-2, rows.expand(*f.shape[:-2], 1, 2)).squeeze(-2)
        epsilon = p.likelihood.epsilon[:, None]
        hit = f.argmax(-2) == p.y[:, 0]
        return torch.where(hit, 1 - epsilon, epsilon / (classes - 1)).log()

    def normal(count: int, mean: Tensor, variance: Tensor) -> Tensor:
        shape = (count, *mean.shape)
        return mean + variance.sqrt() * torch.randn(shape, generator=g, dtype=torch.float64)

    def check(found: Tensor, estimates: Tensor, slack: float) -> None:
        error = estimates.std(0) / math.sqrt(len(estimates))
        assert ((found - estimates.mean(0)).abs() <= 3 * error + slack).all()

    with torch.no_grad():
        f = normal(many, p.f.mean, p.f.variance)
        check(elbo(p.density, p.f, p.y), log_p(f), 2e-3)
        check(predictive(p.density, p.f, p.y).exp(), log_p(f).exp(), 2e-3)
        # the log of an inner mean over 1,000 draws is off by less than the slack
        g_u = normal(few, p.f.mean, p.f.explained)
        inner = torch.stack([log_p(normal(1000, u, p.f.residual)).exp().mean(0).log() for u in g_u])
        check(vfitc(p.density, p.f, p.y), inner, 1e-2)


@pytest.mark.parametrize("kind", [RobustMaxLikelihood, SoftmaxLikelihood])
def test_class_bounds_are_ordered(kind: type) -> None:
    """Allowing for the draws; softmax is equal draw by draw where nothing crosses the log."""
    settings = {"eval_samples": 128} | ({"eval_inner_samples": 128} if kind is SoftmaxLikelihood else {})
    p = class_problem(kind(4, **settings), 4, rows=40)
    p.likelihood.eval()
    with torch.no_grad():
        values = [objective(p.density, p.f, p.y) for objective in (predictive, vfitc, elbo)]
        assert (values[0] >= values[1] - 0.02).all()
        assert (values[1] >= values[2] - 0.02).all()
        nothing = torch.zeros_like(p.f.mean)
        no_residual, no_explained = p.f._replace(residual=nothing), p.f._replace(explained=nothing)
        tolerance = 1.5 if kind is RobustMaxLikelihood else 1e-6  # a step function by so few draws
        assert_close(
            vfitc(p.density, no_residual, p.y), elbo(p.density, no_residual, p.y), rtol=0, atol=tolerance
        )
        assert_close(
            vfitc(p.density, no_explained, p.y),
            predictive(p.density, no_explained, p.y),
            rtol=0,
            atol=1e-6,
        )


@pytest.mark.parametrize("ratio", [1.0, 3.0, 10.0])
@pytest.mark.parametrize("classes", [2, 5, 26])
def test_argmax_probabilities_by_an_independent_rule(classes: int, ratio: float) -> None:
    """∫ φ_c Π_{j≠c} Φ_j around every class on a dense grid; standard deviations that differ by a ratio."""
    g = torch.Generator().manual_seed(0)
    mean = 2 * torch.randn(1, classes, 20, generator=g, dtype=torch.float64)
    sd = ratio ** -torch.rand(1, classes, 20, generator=g, dtype=torch.float64)
    x = torch.linspace(-9, 9, 1801, dtype=torch.float64)
    w = torch.softmax(-0.5 * x**2, 0)
    expected = []
    for c in range(classes):
        f = mean[:, c : c + 1] + sd[:, c : c + 1] * x[:, None, None, None]
        cdf = torch.special.ndtr((f - mean) / sd)
        cdf[:, :, c] = 1.0
        expected.append((w[:, None, None] * cdf.prod(-2)).sum(0))
    found = log_argmax_probabilities(mean, sd**2)
    assert_close(found.exp(), torch.stack(expected, -2), rtol=0, atol=1e-7)
    assert_close(found.exp().sum(-2), torch.ones(1, 20).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", range(2, 27))
def test_class_probabilities_sum_to_one(classes: int, dtype: torch.dtype) -> None:
    """Also for latents of ±1000 and without any variance; and they are what the predictive density says."""
    g = torch.Generator().manual_seed(classes)
    mean = torch.randn(1, classes, 12, generator=g, dtype=dtype)
    mean[..., 4:8] *= 1e3
    mean[..., 8] = 1e3
    variance = torch.rand(1, classes, 12, generator=g, dtype=dtype)
    variance[..., 2:6] = 0.0
    for likelihood in (RobustMaxLikelihood(classes), SoftmaxLikelihood(classes, eval_inner_samples=64)):
        density = batched(likelihood.eval(), (1,)).to(dtype).bind()
        found = density.class_probabilities(mean, variance).detach()
        assert found.shape == mean.shape and found.dtype == dtype
        assert_close(found.sum(-2), torch.ones(1, 12, dtype=dtype), rtol=0, atol=1e-6)
        assert (found >= 0.99e-12).all()
        numbers = torch.arange(classes).view(-1, 1, 1, 1).expand(-1, 1, 1, 12).to(dtype)
        each = torch.cat([density.log_predictive(y, mean, variance).exp() for y in numbers])
        assert_close(found[0], each.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("link", ["probit", "logit"])
def test_probabilities_of_two_classes(link: str) -> None:
    likelihood = BernoulliLikelihood(link).double()
    mean = torch.tensor([[[-1e3, -2.0, 0.0, 0.3, 1e3]]], dtype=torch.float64)
    variance = torch.tensor([[[0.0, 0.5, 1.0, 3.0, 0.0]]], dtype=torch.float64)
    found = likelihood.bind().class_probabilities(mean, variance)
    assert found.shape == (1, 2, 5)
    assert_close(found.sum(-2), torch.ones(1, 5).double())
    squash = special.ndtr if link == "probit" else special.expit
    expected = mean_over(squash(spread(mean.numpy(), variance.numpy())))
    assert_close(found[:, 1], torch.as_tensor(expected[0]), rtol=0, atol=1e-9)
    assert (found > 0).all() and (found < 1).all()
    with pytest.raises(ValueError, match="one output"):
        likelihood.bind().class_probabilities(mean.expand(1, 2, 5), variance.expand(1, 2, 5))


# -- what others say ------------------------------------------------------------------------------------


def test_probit_is_gpytorchs() -> None:
    p = problem("probit", outputs=1)
    other = gpytorch.likelihoods.BernoulliLikelihood().double()
    f = gpytorch.distributions.MultivariateNormal(
        p.f.mean[:, 0], torch.diag_embed(p.f.variance[:, 0]).double()
    )
    y = p.y[:, 0]
    # its log Φ is an approximation
    assert_close(elbo(p.density, p.f, p.y), other.expected_log_prob(y, f), rtol=0, atol=1e-3)
    assert_close(predictive(p.density, p.f, p.y), other.log_marginal(y, f), rtol=0, atol=1e-9)
    assert_close(
        p.density.class_probabilities(p.f.mean, p.f.variance)[:, 1], other(f).mean, rtol=0, atol=1e-9
    )


# -- moments and samples --------------------------------------------------------------------------------


@with_moments
def test_moments_are_those_of_scipy(name: str) -> None:
    """Given f, and the law of total variance with g outside and f inside."""
    p = problem(name)
    moments = ONE_LATENT[name].moments(p.likelihood)
    for found, expected in zip(
        p.density.conditional_moments(p.f.mean), moments(p.f.mean.numpy()), strict=True
    ):
        assert_close(found, torch.as_tensor(expected), rtol=1e-9, atol=1e-12)
    mu, r, e = (t.numpy() for t in p.f)
    y_mean, y_var = moments(spread(spread(mu, e), r))
    given_g = mean_over(y_mean)
    expected = (
        mean_over(given_g),
        mean_over(mean_over((y_mean - given_g) ** 2)),
        mean_over((given_g - mean_over(given_g)) ** 2),
        mean_over(mean_over(y_var)),
    )
    for found, part in zip(p.density.predictive_moments(*p.f), expected, strict=True):
        assert found.shape == p.y.shape
        assert_close(found, torch.as_tensor(part), rtol=1e-7, atol=1e-9)


def test_heteroscedastic_moments() -> None:
    """E Var[y|f, g] = s² E e^g."""
    p = heteroscedastic()
    mean, residual, explained, noise = p.density.predictive_moments(*p.f)
    assert_close(mean, p.f.mean[:, :2])
    assert_close(residual, p.f.residual[:, :2])
    assert_close(explained, p.f.explained[:, :2])
    g = spread(p.f.mean[:, 2:].numpy(), p.f.variance[:, 2:].numpy())
    assert_close(noise, torch.as_tensor(value(p.likelihood.noise) * mean_over(np.exp(g))))
    given_mean, given_noise = p.density.conditional_moments(p.f.mean)
    assert_close(given_mean, p.f.mean[:, :2])
    assert_close(given_noise, p.likelihood.noise().unsqueeze(-1) * p.f.mean[:, 2:].exp())


@pytest.mark.parametrize("name", [n for n, r in ONE_LATENT.items() if r.moments] + ["heteroscedastic"])
def test_samples_have_the_predictive_moments(name: str) -> None:
    """f drawn, then y given f by the density itself: mean and total variance within Monte Carlo error."""
    p = heteroscedastic() if name == "heteroscedastic" else problem(name)
    if name == "student-t":  # a fourth moment, so that the variance has an error bar
        p.likelihood.dof.set_(12.0)
    g = torch.Generator().manual_seed(0)
    count = 20_000
    f = p.f.mean + p.f.variance.sqrt() * torch.randn(count, *p.f.mean.shape, generator=g, dtype=torch.float64)
    with torch.no_grad():
        y = p.density.sample(f, g)
        moments = p.density.predictive_moments(*p.f)
    assert y.shape == (count, *p.y.shape)
    total = moments.residual + moments.explained + moments.noise
    assert ((y.mean(0) - moments.mean).abs() < 4 * (total / count).sqrt()).all()
    error = (y - y.mean(0)).square().std(0) / math.sqrt(count)
    assert ((y.var(0) - total).abs() < 5 * error).all()


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("kind", [RobustMaxLikelihood, SoftmaxLikelihood, BernoulliLikelihood])
def test_samples_of_classes_have_their_frequencies(kind: type, classes: int) -> None:
    if kind is BernoulliLikelihood:
        likelihood = kind("logit" if classes == 4 else "probit")
        p = class_problem(likelihood, 1)
    else:
        p = class_problem(kind(classes), classes)
    p.likelihood.eval()
    g = torch.Generator().manual_seed(0)
    count = 20_000
    f = p.f.mean + p.f.variance.sqrt() * torch.randn(count, *p.f.mean.shape, generator=g, dtype=torch.float64)
    with torch.no_grad():
        y = p.density.sample(f, g)
        expected = p.density.class_probabilities(p.f.mean, p.f.variance)
    frequency = torch.cat([(y == c).double().mean(0) for c in range(expected.shape[1])], 1)
    assert_close(frequency, expected, rtol=0, atol=0.02)


# -- every likelihood -----------------------------------------------------------------------------------

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
every_objective = pytest.mark.parametrize("objective", [elbo, vfitc, predictive], ids=lambda o: o.__name__)


@every_objective
@every_likelihood
def test_gradients_are_those_of_differences(name: str, objective: Callable) -> None:
    """With respect to the marginals and every learned parameter."""
    p = any_problem(name, rows=3)
    learned = [part for part in p.likelihood.parameters() if part.requires_grad]
    leaves = [t.clone().requires_grad_() for t in p.f]

    def total() -> Tensor:
        return objective(p.density, Marginals(*leaves), p.y).sum()

    gradients = torch.autograd.grad(total(), [*leaves, *learned], allow_unused=True)
    g = torch.Generator().manual_seed(0)
    step = 1e-4
    for leaf, gradient in zip([*leaves, *learned], gradients, strict=True):
        gradient = torch.zeros_like(leaf) if gradient is None else gradient
        direction = torch.randn(leaf.shape, generator=g, dtype=torch.float64)
        with torch.no_grad():
            values = []
            for side in (+1, -2, +1):
                leaf += side * step * direction
                values.append(total())
        slope = (values[0] - values[1]) / (2 * step)
        assert_close((gradient * direction).sum(), slope, rtol=2e-4, atol=2e-5)


@every_objective
@every_likelihood
def test_the_gradient_survives_variances_of_zero(name: str, objective: Callable) -> None:
    """q(u) a point: explained = 0 exactly; at a smooth point the slope is that of a small variance."""
    p = any_problem(name, rows=3)
    slopes = []
    for explained in (0.0, 1e-5):
        leaf = torch.full_like(p.f.explained, explained).requires_grad_()
        objective(p.density, p.f._replace(explained=leaf), p.y).sum().backward()
        slopes.append(leaf.grad)
    assert_close(slopes[0], slopes[1], rtol=1e-2, atol=1e-3)


EXTREME_MEANS = [-1e3, -30.0, 0.0, 30.0, 1e3]
EXTREME_VARIANCES = [-1e-7, 0.0, 1e-12, 1.0, 100.0]


@every_objective
@every_likelihood
def test_extreme_latents_stay_finite_in_float32(name: str, objective: Callable) -> None:
    likelihood = batched(named(name), (1,)).float()
    latents = likelihood.num_latents(1)
    means, variances = (
        t.flatten()
        for t in torch.meshgrid(*map(torch.tensor, (EXTREME_MEANS, EXTREME_VARIANCES)), indexing="ij")
    )
    g = torch.Generator().manual_seed(0)
    order = torch.stack([torch.randperm(len(means), generator=g) for _ in range(latents)])
    lowest, middle, highest = {
        "real": (-50.0, 0.0, 50.0),
        "count": (0.0, 3.0, 1e4),
        "positive": (1e-4, 1.0, 1e4),
        "unit": (1e-4, 0.5, 0.999),
        "classes": (0.0, 1.0, getattr(likelihood, "classes", 2) - 1.0),
    }[likelihood.target]
    for y in (lowest, middle, highest):
        mean, residual = (t[order][None].clone().requires_grad_() for t in (means, variances))
        explained = variances.flip(0)[order][None].clone().requires_grad_()
        f = Marginals(mean, residual, explained)
        found = objective(likelihood.bind(), f, torch.full((1, 1, len(means)), y))
        assert torch.isfinite(found).all(), (y, found)
        found.sum().backward()
        for leaf in f[:3]:
            assert torch.isfinite(leaf.grad).all(), (y, leaf.grad)


@every_objective
@every_likelihood
def test_float32_agrees_with_float64(name: str, objective: Callable) -> None:
    p = any_problem(name)
    exact = objective(p.density, p.f, p.y)
    single = Problem(p.likelihood.float(), Marginals(*(t.float() for t in p.f)), p.y.float())
    found = objective(single.density, single.f, single.y)
    assert found.dtype == torch.float32
    assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)


@every_objective
@every_likelihood
def test_rows_and_replicates_one_by_one(name: str, objective: Callable) -> None:
    """In evaluation no row sees another, however many are asked; parameters act on their replicate alone."""
    p = any_problem(name)
    p.likelihood.eval()
    if name in ("robust-max", "softmax") and objective is vfitc:  # 256 × 512 draws are not needed here
        p.likelihood.outer.fixed_draws = p.likelihood.outer.fixed_draws[:, :8]
    together = objective(p.density, p.f, p.y)
    for i in range(ROWS):
        alone = objective(p.density, Marginals(*(t[..., i : i + 1] for t in p.f)), p.y[..., i : i + 1])
        assert_close(alone, together[:, i : i + 1])
    for r in range(REPLICATES):
        one = named(name).double().eval()
        with torch.no_grad():
            for own, all_of_them in zip(one.parameters(), p.likelihood.parameters(), strict=True):
                own.copy_(all_of_them[r])
        one = batched(one, (1,))
        if hasattr(one, "outer") and hasattr(one.outer, "fixed_draws"):
            one.outer.fixed_draws = p.likelihood.outer.fixed_draws
        alone = objective(one.bind(), Marginals(*(t[r : r + 1] for t in p.f)), p.y[r : r + 1])
        assert_close(alone, together[r : r + 1])


@every_objective
@every_likelihood
def test_a_shared_variance_broadcasts(name: str, objective: Callable) -> None:
    """Latent functions with one kernel have one variance: [R, 1, n] beside a mean [R, C, n]."""
    p = any_problem(name)
    shared = Marginals(p.f.mean, p.f.residual[:, :1], p.f.explained[:, :1])
    whole = Marginals(p.f.mean, *(t.expand_as(p.f.mean) for t in shared[1:]))
    assert_close(objective(p.density, shared, p.y), objective(p.density, whole, p.y))
    ask = "class_probabilities" if p.likelihood.target == "classes" else "predictive_moments"
    arguments = [(f.mean, f.variance) if ask == "class_probabilities" else f for f in (shared, whole)]
    for found, expected in zip(*(getattr(p.density, ask)(*a) for a in arguments), strict=True):
        assert_close(found, expected)


@every_objective
@every_likelihood
def test_nothing_asks_the_host(name: str, objective: Callable) -> None:
    """Value and gradient on tensors without values, where .item() or a branch on a value raises."""
    likelihood = batched(named(name), (REPLICATES,)).float()
    with FakeTensorMode(allow_non_fake_inputs=True):
        shape = (REPLICATES, likelihood.num_latents(1), ROWS)
        f = Marginals(*(torch.rand(shape).requires_grad_() for _ in range(3)))
        objective(likelihood.bind(), f, torch.ones(REPLICATES, 1, ROWS)).sum().backward()
        assert f.mean.grad is not None


# -- draws ----------------------------------------------------------------------------------------------


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


@pytest.mark.parametrize("name", ["robust-max", "softmax"])
def test_draws_follow_their_generators(name: str) -> None:
    """Reproducible, different by replicate, and every step anew; evaluation does not see them."""
    p = any_problem(name)
    values = []
    for seeds in ((1, 2), (1, 2), (2, 1), (3, 4)):
        p.likelihood.draw(generators(*seeds))
        values.append(vfitc(p.density, p.f, p.y))
    assert_close(values[0], values[1])
    assert (values[0] != values[3]).all()
    twins = Marginals(*(t[:1].expand(2, -1, -1) for t in p.f))
    p.likelihood = batched(named(name), (2,)).double()
    p.likelihood.draw(generators(1, 2))
    first = vfitc(p.density, twins, p.y[:1].expand(2, -1, -1))
    p.likelihood.draw(generators(2, 1))
    assert_close(vfitc(p.density, twins, p.y[:1].expand(2, -1, -1)), first.flip(0))
    same = generators(7, 8)
    p.likelihood.draw(same)
    before = p.likelihood.outer().clone()
    p.likelihood.draw(same)
    assert (p.likelihood.outer() != before).any()
    p.likelihood.eval()
    evaluated = predictive(p.density, p.f, p.y)
    p.likelihood.draw(generators(5, 6))
    assert_close(predictive(p.density, p.f, p.y), evaluated, rtol=0, atol=0)


def test_draws_are_antithetic_written_in_place_and_follow_the_module() -> None:
    likelihood = batched(SoftmaxLikelihood(3, samples=6), (2,))
    assert likelihood.outer().shape == (1, 6, 3, PATTERN)  # one set for all replicates, until the first draw
    likelihood.draw(generators(0, 1))
    buffer = likelihood.outer()
    assert buffer.shape == (2, 6, 3, PATTERN)
    likelihood.draw(generators(2, 3))
    assert likelihood.outer().data_ptr() == buffer.data_ptr()  # a captured step reads this memory
    for draws in (likelihood.outer(), likelihood.eval().outer()):
        assert_close(draws.mean(1), torch.zeros_like(draws[:, 0]), rtol=0, atol=1e-6)
    assert likelihood.double().train().outer().dtype == torch.float64
    assert not likelihood.state_dict()
    fixed = likelihood.eval().outer()[0, :, :, 0]
    assert_close(fixed.var(0), torch.ones(3).double(), rtol=0.05, atol=0)
    with pytest.raises(ValueError, match="even"):
        SoftmaxLikelihood(3, samples=5)


def test_rows_share_the_columns_of_a_pattern() -> None:
    """Row i uses column i mod P; replicates that have no draws of their own use the first."""
    likelihood = batched(SoftmaxLikelihood(2), (2,)).double()
    likelihood.draw(generators(0, 1))
    n = PATTERN + 3
    mean = torch.zeros(2, 2, n, dtype=torch.float64)
    f = samples(likelihood.outer(), mean, torch.ones_like(mean))
    assert f.shape == (8, 2, 2, n)
    assert_close(f[..., PATTERN:], f[..., :3])
    assert_close(f[:, 1, :, 5], likelihood.outer()[1, :, :, 5])
    assert_close(samples(likelihood.outer(), mean[:1], torch.ones_like(mean[:1])), f[:, :1])


def test_rows_in_slabs_are_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    likelihood = SoftmaxLikelihood(3).double()
    n = 3 * PATTERN + 7
    f = Marginals(*torch.rand(3, 1, 3, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    y = torch.ones(1, 1, n, dtype=torch.float64)
    values = [objective(likelihood.bind(), f, y) for objective in (elbo, vfitc, predictive)]
    calls = []
    monkeypatch.setattr("duogp.likelihoods.monte_carlo.SLAB", 1)
    assert by_rows(lambda t: calls.append(t.shape[-1]) or t, 1, y).shape == y.shape
    assert calls == [PATTERN] * 3 + [7]
    for objective, expected in zip((elbo, vfitc, predictive), values, strict=True):
        assert_close(objective(likelihood.bind(), f, y), expected)


# -- names, errors, extension ---------------------------------------------------------------------------


@every_likelihood
def test_names_make_likelihoods(name: str) -> None:
    likelihood = named(name)
    assert isinstance(likelihood, LIKELIHOODS[name])
    assert likelihood.target in ("real", "count", "positive", "unit", "classes")
    assert likelihood.num_latents(1) == {"robust-max": 4, "softmax": 4, "heteroscedastic": 2}.get(name, 1)
    assert likelihood.has_powers == (name == "gaussian")
    noise = torch.ones(1, 1, 3)
    if name == "gaussian":
        assert_close(likelihood.bind(noise).noise, likelihood.noise().unsqueeze(-1) + noise)
    else:
        with pytest.raises(ValueError, match="known noise"):
            likelihood.bind(noise)
        with pytest.raises(ValueError, match="γ-robust"):
            likelihood.bind().expected_power(noise, noise, noise, 0.1)
        with pytest.raises(ValueError, match="γ-robust"):
            likelihood.bind().log_power_mass(noise, 1.1)
    f = torch.zeros(1, likelihood.num_latents(1), 3)
    if likelihood.target == "classes":
        for ask in (lambda p: p.conditional_moments(f), lambda p: p.predictive_moments(f, f, f)):
            with pytest.raises(ValueError, match="class_probabilities"):
                ask(likelihood.bind())
    else:
        with pytest.raises(ValueError, match="predictive_moments"):
            likelihood.bind().class_probabilities(f, f)


def test_names_are_read_kindly() -> None:
    options = {"outputs": 3, "noise": 0.5, "noise_floor": 1e-3, "learn_noise": False}
    assert isinstance(make_named("Student T", **options), StudentTLikelihood)
    assert make_named("logit", **options).link == "logit"
    assert make_named("bernoulli", **options).link == "probit"
    gaussian = make_named("gaussian", **options)
    assert gaussian.outputs == 3 and not gaussian.learns_noise
    assert_close(gaussian.noise(), torch.full((3,), 0.5).double())
    low = make_named("gaussian", outputs=1, noise=1e-9, noise_floor=1e-3, learn_noise=True)
    assert_close(low.noise(), torch.tensor([2e-3]).double())
    assert make_named("heteroscedastic", **options).num_latents(3) == 6
    assert_close(make_named("student-t", **options).scale().square(), torch.full((3,), 0.5).double())
    with pytest.raises(ValueError, match="did you mean 'poisson'"):
        make_named("poison", **options)
    with pytest.raises(ValueError, match="needs classes"):
        make_named("softmax", **options)
    with pytest.raises(ValueError, match="2 classes"):
        make_named("logit", classes=3, **options)


def test_what_makes_no_likelihood_is_answered() -> None:
    with pytest.raises(ValueError, match="epsilon"):
        RobustMaxLikelihood(3, epsilon=1.0)
    with pytest.raises(ValueError, match="at least 2"):
        SoftmaxLikelihood(1)
    with pytest.raises(ValueError, match="one output"):
        SoftmaxLikelihood(3).num_latents(2)
    for kind in (BernoulliLikelihood, lambda link: BetaLikelihood(1, link)):
        with pytest.raises(ValueError, match="link"):
            kind("cauchit")


def test_robust_max_may_learn_its_errors() -> None:
    fixed, learned = (RobustMaxLikelihood(3, 0.01, learn_epsilon=flag) for flag in (False, True))
    assert [p.requires_grad for p in fixed.parameters()] == [False]
    assert_close(learned.epsilon.detach(), torch.tensor(0.01).double())
    p = class_problem(learned, 3)
    elbo(p.density, p.f, p.y).sum().backward()
    assert (p.likelihood.epsilon_logit.grad != 0).all()


def test_the_noise_parameters_have_their_start_and_floor() -> None:
    assert_close(HeteroscedasticGaussianLikelihood(2).noise(), torch.full((2,), 0.1).double())
    student = StudentTLikelihood()
    with torch.no_grad():
        student.dof.raw.fill_(-50.0)
    assert student.dof() > 2
    _, noise = student.bind().conditional_moments(torch.zeros(1, 1, 1, dtype=torch.float64))
    assert torch.isfinite(noise).all()


class Laplace(QuadratureLikelihood):
    """A likelihood of someone else's: its density is one formula."""

    target = "real"

    def __init__(self) -> None:
        super().__init__(nodes=64)
        self.scale = Positive(0.8, (1,))

    def bind(self, row_noise: Tensor | None = None) -> Density:
        return LaplaceDensity(self.rule(), self.scale().unsqueeze(-1))


@dataclass(frozen=True)
class LaplaceDensity(QuadratureDensity):
    scale: Tensor

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return -(y - f).abs() / self.scale - (2 * self.scale).log()


def test_a_density_is_one_formula() -> None:
    likelihood = batched(Laplace(), (REPLICATES,))
    p = problem("gaussian", outputs=1)
    y, mu, r, e = (t.numpy() for t in (p.y, *p.f))

    def log_p(y: Array, f: Array) -> Array:
        return stats.laplace.logpdf(y, f, 0.8)

    expected = {
        elbo: brute_elbo(log_p, y, mu, r + e),
        predictive: brute_predictive(log_p, y, mu, r + e),
        vfitc: brute_vfitc(log_p, y, mu, r, e),
    }
    for objective, integral in expected.items():  # a kink, so quadrature errs where it stands
        found = objective(likelihood.bind(), p.f, p.y)
        assert_close(found, torch.as_tensor(integral.sum(-2)), rtol=0, atol=0.05)


@pytest.mark.parametrize("size", [5, 20, 32])
def test_gauss_hermite_is_exact_for_polynomials(size: int) -> None:
    rule = GaussHermite(size)()
    mean, variance = torch.tensor([0.3, -2.0]).double(), torch.tensor([0.5, 2.0]).double()
    found = rule.mean(lambda f: f**4, mean, variance)
    assert_close(found, mean**4 + 6 * mean**2 * variance + 3 * variance**2)
    assert isinstance(GaussHermite(size), nn.Module) and not GaussHermite(size).state_dict()
