"""Mixtures of Gaussians against numerical integration, and their weights against the optimum."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from duogp.numerics.mixtures import (
    mixture_cdf,
    mixture_crps,
    mixture_log_density,
    mixture_quantiles,
    mixture_weights,
)

MEAN = np.array([[0.0, 1.0], [2.0, -1.0], [0.5, 0.5]])
STD = np.array([[1.0, 0.2], [0.3, 2.0], [5.0, 1.0]])
WEIGHTS = np.array([0.5, 0.3, 0.2])
Y = np.array([0.4, 3.0])


def density(t: float, row: int) -> float:
    return float((WEIGHTS * norm.pdf(t, MEAN[:, row], STD[:, row])).sum())


@pytest.mark.parametrize("row", [0, 1])
def test_density_distribution_function_and_score(row):
    assert mixture_log_density(Y, MEAN, STD, WEIGHTS)[row] == pytest.approx(np.log(density(Y[row], row)))
    below = quad(density, -60, Y[row], args=(row,), points=[0.0], limit=200)[0]
    assert mixture_cdf(Y[None], MEAN, STD, WEIGHTS)[0, row] == pytest.approx(below, abs=1e-7)

    def away(t: float) -> float:
        point = np.full((1, 2), t)
        return float((mixture_cdf(point, MEAN, STD, WEIGHTS)[0, row] - (t >= Y[row])) ** 2)

    expected = quad(away, -60, Y[row], limit=300)[0] + quad(away, Y[row], 60, limit=300)[0]
    assert mixture_crps(Y, MEAN, STD, WEIGHTS)[row] == pytest.approx(expected, rel=1e-5)


def test_quantiles_invert_the_distribution_function():
    levels = np.array([0.001, 0.05, 0.5, 0.9, 0.999])
    found = mixture_quantiles(levels, MEAN, STD, WEIGHTS)
    np.testing.assert_allclose(
        mixture_cdf(found, MEAN, STD, WEIGHTS), np.repeat(levels[:, None], 2, 1), atol=1e-8
    )
    one = mixture_quantiles(levels, MEAN[:1], STD[:1], np.ones(1))
    np.testing.assert_allclose(one[:, 0], norm.ppf(levels))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_quantiles_of_any_scale(scale):
    """The bounds between which they are looked for hold a law of any width."""
    levels = np.array([1e-4, 0.01, 0.5, 0.99, 0.9999])
    found = mixture_quantiles(levels, scale * MEAN, scale * STD, WEIGHTS)
    np.testing.assert_allclose(found / scale, mixture_quantiles(levels, MEAN, STD, WEIGHTS), atol=1e-5)
    same = mixture_quantiles(levels, np.zeros((2, 1)), np.full((2, 1), scale), np.array([0.5, 0.5]))
    np.testing.assert_allclose(same[:, 0], norm.ppf(levels, scale=scale), rtol=1e-5, atol=1e-7 * scale)


def test_quantiles_of_narrow_components_far_apart():
    """The distance between the components counts for the bounds, and not their widths alone."""
    mean, std, weights = np.array([[-100.0], [100.0]]), np.full((2, 1), 0.01), np.array([0.4, 0.6])
    found = mixture_quantiles(np.array([0.2, 0.5]), mean, std, weights)[:, 0]
    np.testing.assert_allclose(found, [-100.0, 100 + 0.01 * norm.ppf(1 / 6)], atol=1e-6)


def test_weights_find_the_densities_that_the_rows_are_from():
    rng = np.random.default_rng(0)
    y = np.where(rng.random(5000) < 0.7, rng.normal(0, 1, 5000), rng.normal(4, 1, 5000))
    logs = norm.logpdf(y, np.array([[0.0], [4.0], [-9.0]]), 1.0)
    weights = mixture_weights(logs, np.full(3, 1 / 3))
    np.testing.assert_allclose(weights, [0.7, 0.3, 0.0], atol=0.03)
    assert weights.sum() == pytest.approx(1)
    for shift in (-2000.0, 2000.0):  # densities that are no floats: only their ratios count
        np.testing.assert_allclose(mixture_weights(logs + shift, np.full(3, 1 / 3)), weights, atol=1e-9)


def test_few_rows_change_little():
    logs = np.array([[0.0, 0.0], [-3.0, -3.0]])
    prior = np.array([0.5, 0.5])
    assert mixture_weights(logs, prior, pseudo_rows=100.0)[1] > 0.45
    assert mixture_weights(logs, prior, pseudo_rows=1e-6)[1] < 0.01
    counted_twice = mixture_weights(np.repeat(logs, 2, 1), prior, pseudo_rows=3.0)
    weighed = mixture_weights(logs, prior, np.array([2.0, 2.0]), 3.0)
    np.testing.assert_allclose(counted_twice, weighed, atol=1e-6)
