"""Moments and samples of likelihoods are those of scipy's distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from duogp.likelihoods import BernoulliLikelihood, RobustMaxLikelihood, SoftmaxLikelihood
from helpers.likelihoods import ONE_LATENT, class_problem, heteroscedastic, mean_over, problem, spread, value

with_moments = pytest.mark.parametrize("name", [n for n, r in ONE_LATENT.items() if r.moments])


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
