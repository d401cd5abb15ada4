"""The log scale of a target and the moments on both sides of it."""

from __future__ import annotations

import numpy as np
import pytest

from duogp.numerics.lognormal import LogScale


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_moments_are_those_of_draws_and_there_is_a_way_back(shift):
    scale = LogScale(shift)
    mu, v = np.array([0.3, 2.0]), np.array([0.01, 0.4])
    mean, variance = scale.moments(mu, v)
    draws = scale.back(mu + np.sqrt(v) * np.random.default_rng(0).standard_normal((400_000, 2)))
    np.testing.assert_allclose(draws.mean(0), mean, rtol=0.01)
    np.testing.assert_allclose(draws.var(0), variance, rtol=0.03)
    for found, expected in zip(scale.moments_of_logs(mean, variance), (mu, v), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_targets_and_logs():
    y = np.array([2.0, 5.0, 1e6])
    scale = LogScale.of(y)
    assert scale.shift == 1.0
    np.testing.assert_allclose(scale.back(scale.logs(y)), y, rtol=1e-12)


def test_what_no_positive_number_has_stays_finite():
    scale = LogScale(1.0)
    assert np.isfinite(scale.logs(np.array([-5.0, -1.0, 0.0]))).all()
    found = scale.moments_of_logs(np.array([-100.0, 0.0]), np.array([4.0, 1e-300]))
    assert all(np.isfinite(part).all() for part in found)
