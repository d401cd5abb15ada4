"""Every expectation of a likelihood is the integral it names: dense grids and scipy's densities."""

from __future__ import annotations

import math

import gpytorch
import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from duogp.bases.marginals import Marginals
from duogp.likelihoods import (
    BernoulliLikelihood,
    BetaLikelihood,
    GammaLikelihood,
    GaussianLikelihood,
    Likelihood,
    PoissonLikelihood,
    StudentTLikelihood,
)
from duogp.objectives import elbo, predictive, vfitc
from helpers.likelihoods import (
    ONE_LATENT,
    REPLICATES,
    ROWS,
    Array,
    brute_elbo,
    brute_predictive,
    brute_vfitc,
    heteroscedastic,
    problem,
    value,
)

every_one_latent = pytest.mark.parametrize("name", ONE_LATENT)


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
        assert_close(found, torch.as_tensor(integral.sum(-2)), rtol=0, atol=5e-6, msg=objective.name)


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
        assert_close(found, torch.as_tensor(integral.sum(-2)), rtol=0, atol=5e-5, msg=objective.name)


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
