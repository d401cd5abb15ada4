"""Quantiles against brute force; conformal coverage whatever the model, by the binomial distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import ndtri
from scipy.stats import binom, norm

from duogp import DataWarning, GPClassifier, GPRegressor
from duogp import likelihoods as p
from duogp.numerics.root_finding import find_roots
from duogp.sklearn.conformal import Calibration, calibration_rows
from duogp.sklearn.predictive import Mixture
from duogp.sklearn.quantiles import predictive_of

LEVELS = np.array([0.01, 0.05, 0.5, 0.95, 0.99])
DRAWS = 200_000
QUICK = {"num_inducing": 10, "epochs": 10, "learning_rate": 0.2, "random_state": 0}


# -- quantiles of the model ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("likelihood", "mean", "variance"),
    [
        (p.GaussianLikelihood(1, 0.3), 0.5, 1.0),
        (p.StudentTLikelihood(1, 0.5, dof=3.0), 0.5, 1.0),
        (p.StudentTLikelihood(1, 0.5, dof=3.0), 0.0, 1e-6),
        (p.HeteroscedasticGaussianLikelihood(1, 0.5), 0.3, 1.0),
        (p.PoissonLikelihood(), 0.0, 1.0),
        (p.PoissonLikelihood(), 14.0, 0.5),  # counts far narrower than their rate
        (p.PoissonLikelihood(), 14.0, 1e-6),  # and the reverse
        (p.GammaLikelihood(1, 0.3), 0.0, 1.0),
        (p.GammaLikelihood(1, 1e5), 2.0, 4.0),
        (p.BetaLikelihood(1, precision=2.0), 0.3, 1.0),
        (p.BetaLikelihood(1, "probit", precision=1e5), 1.0, 0.1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, p.Likelihood) else f"{value:g}",
)
def test_quantiles_are_those_of_draws(likelihood, mean, variance):
    likelihood = likelihood.double().eval()
    generator = torch.Generator().manual_seed(0)
    latents = likelihood.num_latents(1)
    with torch.no_grad():
        density = likelihood.bind(None)
        m, v = (torch.full((1, latents, 1), float(t), dtype=torch.float64) for t in (mean, variance))
        found = predictive_of(density, m, v, likelihood.target, generator).quantiles(LEVELS)[:, 0, 0]
        f = m[0] + v[0].sqrt() * torch.randn(latents, DRAWS, generator=generator, dtype=torch.float64)
        y = density.sample(f[None, None], generator).numpy().reshape(-1)
    tolerance = 4 * np.sqrt(LEVELS * (1 - LEVELS) / DRAWS)
    at_most = (y[:, None] <= found).mean(0)
    below = (y[:, None] < found).mean(0)
    assert (at_most >= LEVELS - tolerance).all()
    assert (below <= LEVELS + tolerance).all()  # the smallest such number
    assert (np.diff(found) > 0).all() or likelihood.target == "count"


def test_quantiles_of_a_likelihood_of_the_users_own_come_from_draws():
    class Laplace(p.StudentTLikelihood):
        def bind(self, row_noise=None):
            density = super().bind(row_noise)

            class Other:
                sample = staticmethod(density.sample)

            return Other()

    likelihood = Laplace(1, 0.5, dof=30.0).double()
    m = torch.zeros(1, 1, 3, dtype=torch.float64)
    with torch.no_grad():
        arguments = (m, m + 1, "real", torch.Generator().manual_seed(0))
        drawn = predictive_of(likelihood.bind(), *arguments).quantiles(LEVELS)
        student = p.StudentTLikelihood(1, 0.5, dof=30.0).double()
        known = predictive_of(student.bind(), *arguments).quantiles(LEVELS)
    np.testing.assert_allclose(drawn, known, atol=0.25)


def test_a_mixture_of_one_is_a_gaussian_and_of_two_far_ones_has_a_gap():
    one = Mixture(np.full((1, 1, 2), 3.0), np.full((1, 1, 2), 2.0), np.ones((1, 1, 1)))
    np.testing.assert_allclose(one.quantiles(LEVELS)[:, 0, 0], 3 + 2 * ndtri(LEVELS))
    means = np.array([-100.0, 100.0]).reshape(2, 1, 1)
    two = Mixture(means, np.ones((2, 1, 1)), np.full((2, 1, 1), 0.5))
    found = two.quantiles(np.array([0.25, 0.75]))[:, 0, 0]
    np.testing.assert_allclose(found, [-100, 100], atol=1e-6)


def test_roots_of_steep_flat_and_bounded_functions():
    centre = np.array([0.0, 3.0, -7.5, 9.9])
    found = find_roots(
        lambda x: np.tanh(50 * (x - centre)) + 1e-3 * (x - centre), centre * 0 - 10, centre * 0 + 10
    )
    np.testing.assert_allclose(found, centre, atol=1e-8)
    ends = find_roots(lambda x: x - np.array([-5.0, 5.0]), np.array([-1.0, -1.0]), np.array([1.0, 1.0]))
    np.testing.assert_array_equal(ends, [-1, 1])


@pytest.mark.parametrize(
    "likelihood", ["gaussian", "student-t", "heteroscedastic", "poisson", "gamma", "beta"]
)
def test_intervals_of_every_likelihood_hold_about_so_often_and_stay_in_the_support(likelihood):
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, size=(150, 1))
    f = np.sin(X[:, 0])
    y = {
        "gaussian": f + 0.3 * rng.normal(size=150),
        "student-t": f + 0.2 * rng.standard_t(3, size=150),
        "heteroscedastic": f + np.exp(X[:, 0] - 1) * rng.normal(size=150),
        "poisson": rng.poisson(np.exp(1 + f)).astype(float),
        "gamma": rng.gamma(3, np.exp(f) / 3),
        "beta": np.clip(rng.beta(5 / (1 + np.exp(-f)), 5 / (1 + np.exp(f))), 1e-6, 1 - 1e-6),
    }[likelihood]
    given = {"num_inducing": 10, "random_state": 0, "learning_rate": 0.05, "settings": {"steps": 150}}
    model = GPRegressor(likelihood=likelihood, **given).fit(X, y)
    low, high = model.predict_interval(X, 0.9)
    inside = ((low <= y) & (y <= high)).mean()
    assert binom.cdf(round(150 * inside), 150, 0.9) > 1e-3  # nowhere near too narrow
    assert inside < 0.99
    quantiles = model.predict_quantiles(X, [0.05, 0.5, 0.95])
    np.testing.assert_allclose(quantiles[:, 0], low, rtol=1e-6)
    assert (quantiles[:, 0] <= quantiles[:, 1]).all() and (quantiles[:, 1] <= quantiles[:, 2]).all()
    if likelihood in ("poisson", "gamma", "beta"):
        assert (low >= 0).all()
    if likelihood == "beta":
        assert (high <= 1).all()


def test_quantiles_come_in_the_shape_that_was_asked_for():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    one = GPRegressor("svgp", **QUICK).fit(X, X[:, 0])
    assert one.predict_quantiles(X, 0.5).shape == (30,)
    np.testing.assert_allclose(one.predict_quantiles(X, 0.5), one.predict(X))
    mean, std = one.predict(X, return_std=True)
    np.testing.assert_allclose(one.predict_quantiles(X, [0.1, 0.9])[:, 1], mean + norm.ppf(0.9) * std)
    two = GPRegressor(**QUICK).fit(X, X)
    assert two.predict_quantiles(X).shape == (30, 2, 3)
    assert two.predict_interval(X)[0].shape == (30, 2)
    for wrong in (0.0, 1.5, [0.1, np.nan], [], "much"):
        with pytest.raises((ValueError, TypeError), match="quantiles"):
            one.predict_quantiles(X, wrong)
    with pytest.raises(ValueError, match=r"level must be in \(0, 1\), got 90; did you mean 0.9"):
        one.predict_interval(X, 90)
    with pytest.raises(ValueError, match="kind must be"):
        one.predict_interval(X, kind="bayes")


# -- conformal -----------------------------------------------------------------------------------------------


def heavy(rng, n):
    """Noise without a variance, on a function that the model below cannot follow."""
    X = rng.uniform(-1, 1, size=(n, 1))
    return X, np.sign(np.sin(12 * X[:, 0])) + 0.1 * rng.standard_t(1.5, size=n)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_conformal_intervals_cover_heavy_tails_under_a_poor_model(level):
    """Over draws of the calibration rows, coverage is exact: between level and level + 1/(n + 1)."""
    rng = np.random.default_rng(0)
    model = GPRegressor(**QUICK).fit(*heavy(rng, 60))
    covered, per_draw, draws, size = 0, 20, 150, 39  # 40 · 0.5 and 40 · 0.9 are whole numbers
    for _ in range(draws):
        model.calibrate(*heavy(rng, size))
        X, y = heavy(rng, per_draw)
        low, high = model.predict_interval(X, level, kind="conformal")
        covered += int(((low <= y) & (y <= high)).sum())
    total = draws * per_draw
    # Rows of one draw share its threshold, whose coverage is Beta: the deviation of a sum of clusters.
    spread = np.sqrt(level * (1 - level) * (1 / total + 1 / (draws * (size + 2))))
    assert abs(covered / total - level) < 4 * spread


def test_the_models_own_interval_need_not_cover_where_the_conformal_one_does():
    rng = np.random.default_rng(0)
    model = GPRegressor("svgp", **QUICK, likelihood="gaussian").fit(*heavy(rng, 60))
    model.calibrate(*heavy(rng, 500))
    X, y = heavy(rng, 4000)
    low, high = model.predict_interval(X, 0.5)
    own = ((low <= y) & (y <= high)).mean()
    low, high = model.predict_interval(X, 0.5, kind="conformal")
    conformal = ((low <= y) & (y <= high)).mean()
    assert abs(conformal - 0.5) < 0.08 < abs(own - 0.5)


def test_held_out_rows_have_no_part_in_training():
    """The model of a fit with calibration rows is the model of a fit without them, to the last bit."""
    rng = np.random.default_rng(0)
    X, y = heavy(rng, 80)
    held = GPRegressor(**QUICK, calibration_fraction=0.25, validation_fraction=0.2, early_stopping=True).fit(
        X, y
    )
    train, calibration = calibration_rows(80, 0.25, 0)
    assert len(calibration) == 20 and not set(train) & set(calibration)
    plain = GPRegressor(**QUICK, validation_fraction=0.2, early_stopping=True).fit(X[train], y[train])
    np.testing.assert_array_equal(held.predict(X), plain.predict(X))
    plain.calibrate(X[calibration], y[calibration])
    np.testing.assert_array_equal(held.calibration_.scores, plain.calibration_.scores)
    other = GPRegressor(**QUICK, calibration_fraction=0.25, validation_fraction=0.2, early_stopping=True)
    changed = y.copy()
    changed[calibration] += 100
    np.testing.assert_array_equal(other.fit(X, changed).predict(X), held.predict(X))


def test_too_few_rows_exclude_nothing_and_say_so():
    rng = np.random.default_rng(0)
    model = GPRegressor(**QUICK).fit(*heavy(rng, 40)).calibrate(*heavy(rng, 8))
    X, _ = heavy(rng, 3)
    with pytest.warns(DataWarning, match=r"8 calibration rows cannot guarantee a coverage of 0.9 \(9 can\)"):
        low, high = model.predict_interval(X, 0.9, kind="conformal")
    assert (low == -np.inf).all() and (high == np.inf).all()
    assert np.isfinite(model.predict_interval(X, 8 / 9, kind="conformal")).all()


def test_the_threshold_is_the_finite_sample_quantile():
    scores = Calibration.of(np.arange(9.0)[::-1, None])
    assert scores.threshold(0.9)[0] == 8  # ⌈10 · 0.9⌉ = 9th smallest
    assert scores.threshold(0.7)[0] == 6  # 10 · 0.7 is 7, whatever its last bit says
    assert scores.threshold(0.71)[0] == 7


def test_conformal_intervals_without_calibration_say_what_to_do():
    rng = np.random.default_rng(0)
    model = GPRegressor(**QUICK).fit(*heavy(rng, 20))
    with pytest.raises(ValueError, match="set calibration_fraction before fit, or call calibrate"):
        model.predict_interval(heavy(rng, 2)[0], kind="conformal")
    with pytest.raises(ValueError, match=r"calibration_fraction must be in \[0, 1\), got 2"):
        GPRegressor(calibration_fraction=2).fit(*heavy(rng, 20))


def test_conformal_counts_are_counts_and_outputs_are_covered_each():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, 1))
    counts = np.column_stack([rng.poisson(0.2, 300), rng.poisson(1 + 20 * X[:, 0])])
    model = GPRegressor(
        likelihood="poisson", num_inducing=5, epochs=5, random_state=0, calibration_fraction=0.5
    )
    low, high = model.fit(X, counts).predict_interval(X, 0.8, kind="conformal")
    assert (low == np.round(low)).all() and (low >= 0).all() and (high == np.round(high)).all()
    inside = ((low <= counts) & (counts <= high)).mean(0)
    assert (inside > 0.7).all()


def test_conformal_sets_of_classes_cover():
    rng = np.random.default_rng(0)
    covered, draws = 0, 60
    X = rng.normal(size=(400, 2))
    y = np.where(X[:, 0] + 0.8 * rng.normal(size=400) > 0, "a", np.where(X[:, 1] > 0, "b", "c"))
    model = GPClassifier(num_inducing=8, learning_rate=0.2, settings={"steps": 20}, random_state=0)
    model.fit(X[:60], y[:60])
    for _ in range(draws):
        rows = rng.permutation(np.arange(60, 400))
        model.calibrate(X[rows[:100]], y[rows[:100]])
        sets = model.predict_set(X[rows[100:]], 0.8)
        assert sets.any(1).all()
        covered += sets[np.arange(240), np.searchsorted(model.classes_, y[rows[100:]])].mean()
    assert covered / draws > 0.8 - 0.03
