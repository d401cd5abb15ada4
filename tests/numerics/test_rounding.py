"""Laws rounded to the values of a grid, against sums and draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import norm

from duogp.numerics.rounding import Rounding

MEAN, STD = np.array([0.2, 2.4, 7.0]), np.array([0.7, 2.0, 0.3])
GRID = Rounding(np.array([0.0, 1.0, 2.0, 5.0]), 0.02)


def cdf(t):
    return ndtr((t - MEAN) / STD)


def test_grids_are_of_few_values_that_repeat():
    rng = np.random.default_rng(0)
    grades = rng.integers(0, 7, 500).astype(float)
    found = Rounding.of(grades)
    assert found is not None and found.off == 0.01
    np.testing.assert_array_equal(found.values, np.arange(7.0))
    some_off = np.where(rng.uniform(size=500) < 0.03, rng.normal(size=500), grades)
    assert Rounding.of(some_off).off == pytest.approx(np.mean(some_off != np.round(some_off)))
    assert Rounding.of(rng.normal(size=500)) is None
    assert (
        Rounding.of(np.where(rng.uniform(size=500) < 0.5, 0.0, rng.normal(size=500))) is None
    )  # zeros alone
    assert Rounding.of(rng.integers(0, 200, 500).astype(float)) is None  # too many for these rows
    assert Rounding.of(np.full(50, 3.0)) is None and Rounding.of(np.array([1.0])) is None
    assert Rounding.of(np.array([1.0, 1.0, 2.0, 2.0])) is None  # too few rows


def test_values_and_their_cells():
    y = np.array([-9.0, 0.49, 0.51, 3.4, 3.6, 99.0])
    np.testing.assert_array_equal(GRID.nearest(y), [0, 0, 1, 2, 5, 5])
    np.testing.assert_array_equal(GRID.nearest(GRID.values), GRID.values)
    assert GRID.width == pytest.approx(0.01)


def test_the_density_is_one_and_has_the_mass_of_the_cells():
    def density(t, i):
        rows = np.full(3, t)
        return np.exp(GRID.log_density(rows, cdf, norm.logpdf(rows, MEAN, STD)))[i]

    for i in range(3):
        total = 0.0
        for a, low, high in zip(GRID.values, [-np.inf, *GRID.edges], [*GRID.edges, np.inf], strict=True):
            near = quad(density, a - 0.08, a + 0.08, args=(i,), points=[a], epsabs=1e-10)[0]
            mass = norm.cdf(high, MEAN[i], STD[i]) - norm.cdf(low, MEAN[i], STD[i])
            beside = norm.cdf(a + 0.08, MEAN[i], STD[i]) - norm.cdf(a - 0.08, MEAN[i], STD[i])
            assert near == pytest.approx(0.98 * mass + 0.02 * beside, abs=1e-6)
            total += near - 0.02 * beside
        assert total == pytest.approx(0.98, abs=1e-6)


def test_crps_is_that_of_draws_on_the_grid_and_off_it():
    rng = np.random.default_rng(1)
    draws = GRID.nearest(MEAN + STD * rng.standard_normal((200_000, 3)))
    for y in ([0.0, 2.0, 5.0], [-3.0, 1.3, 9.0], [4.0, 5.0, 2.0]):
        target = np.array(y)
        apart = 0.5 * np.abs(draws[:100_000] - draws[100_000:]).mean(0)
        np.testing.assert_allclose(
            GRID.crps(target, cdf), np.abs(draws - target).mean(0) - apart, rtol=0.02, atol=0.01
        )


def test_targets_far_away_have_a_finite_density():
    y = np.array([1e6, -1e6, 0.0])
    found = GRID.log_density(y, cdf, norm.logpdf(y, MEAN, STD))
    assert np.isfinite(found).all()


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_the_scale_of_the_target_does_not_matter(scale):
    grid = Rounding(GRID.values * scale, GRID.off)
    y = np.array([1.0, 5.0, 2.2])
    found = grid.log_density(y * scale, lambda t: cdf(t / scale), norm.logpdf(y, MEAN, STD) - np.log(scale))
    expected = GRID.log_density(y, cdf, norm.logpdf(y, MEAN, STD)) - np.log(scale)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(grid.crps(y * scale, lambda t: cdf(t / scale)) / scale, GRID.crps(y, cdf))
