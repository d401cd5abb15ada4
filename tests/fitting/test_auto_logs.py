"""``method="auto"`` on positive, skewed targets: members on the log scale, and a law that may stand on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import trapezoid

import duogp
from duogp.fitting import rules
from duogp.fitting.dataset import Dataset
from duogp.fitting.race_logs import log_scale_of
from duogp.methods.settings import Settings
from duogp.posterior.log_target import LogTargetGP
from duogp.sklearn.quantiles import predictive_quantiles

LONG = {"time_budget": 600.0, "device": "cpu"}


def prices(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Effects that multiply, and noise in proportion."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 3))
    return X, 1e5 * np.exp(1.2 * X[:, 0] + np.sin(3 * X[:, 1]) + 0.3 * rng.standard_normal(n))


@pytest.fixture(scope="module")
def fitted():
    X, y = prices(160)
    return X, y, duogp.fit(X, y, "auto", **LONG)


def test_prices_are_modelled_on_the_log_scale(fitted, monkeypatch):
    X, y, gp = fitted
    assert any(isinstance(member, LogTargetGP) for member in gp.members)
    assert sum(w for label, w in gp.weights.items() if label.endswith("of log y")) > 0.5
    assert gp.law[0].logs is not None
    new, truth = prices(400, seed=1)
    monkeypatch.setattr(rules, "RULES", replace(rules.RULES, least_skew=np.inf))
    plain = duogp.fit(X, y, "auto", **LONG)
    assert not any(isinstance(member, LogTargetGP) for member in plain.members)
    ours, theirs = gp.predict(new).metrics(truth), plain.predict(new).metrics(truth)
    assert ours["nll"] < theirs["nll"] - 0.05 and ours["crps"] < theirs["crps"]


def test_the_density_is_one_and_agrees_with_quantiles_and_crps(fitted):
    X, _, gp = fitted
    prediction, scale = gp.predict(X[:3]), gp.law[0].logs
    z = np.linspace(-10, 30, 20_001)
    y = scale.back(z)
    for i, quantile in enumerate(prediction.quantiles([0.8])[0]):
        logs = gp.predict(np.repeat(X[i : i + 1], len(y), 0)).log_density(y)
        density = np.exp(logs + z)  # of z
        assert trapezoid(density, z) == pytest.approx(1, abs=1e-3)
        assert trapezoid(density * (y < quantile), z) == pytest.approx(0.8, abs=3e-3)
    y = np.array([1e5, 2e5, 5e4])
    draws = gp.sample(X[:3], 20_000, seed=0, observation_noise=True)
    apart = np.abs(draws - y).mean(0) - 0.5 * np.abs(draws[:10_000] - draws[10_000:]).mean(0)
    np.testing.assert_allclose(prediction._crps(y, 0), apart, rtol=0.05)


def test_draws_have_the_law_of_the_mixture(fitted):
    X, _, gp = fitted
    draws = gp.sample(X[:5], 20_000, seed=1, observation_noise=True)
    levels = [0.1, 0.5, 0.9]
    found = np.quantile(draws, levels, axis=0)
    np.testing.assert_allclose(found, gp.predict(X[:5]).quantiles(levels), rtol=0.08)
    assert (gp.sample(X[:5], 50, seed=2) > -np.min(prices(160)[1])).all()


def test_targets_that_were_never_seen_are_finite(fitted):
    X, _, gp = fitted
    assert np.isfinite(gp.log_density(X[:3], np.array([0.0, -5.0, 1e12]))).all()
    far = gp.predict(np.full((2, 3), 1e6))
    assert np.isfinite(far.mean).all() and np.isfinite(far.std).all()


def test_saved_and_loaded(fitted, tmp_path):
    X, y, gp = fitted
    gp.save(tmp_path / "model")
    again = duogp.load(tmp_path / "model")
    assert again.law[0].logs == gp.law[0].logs
    np.testing.assert_allclose(again.predict(X).mean, gp.predict(X).mean, rtol=1e-9)
    np.testing.assert_allclose(again.log_density(X, y), gp.log_density(X, y), rtol=1e-7)


def test_a_member_alone_is_a_model_of_the_target(fitted, tmp_path):
    X, y, gp = fitted
    member = gp.members[gp.labels.index("exact of log y")]  # without a learned mean, whose folds disagree
    assert isinstance(member, LogTargetGP)
    prediction = member.predict(X[:4])
    np.testing.assert_allclose(member.predict_mean(X[:4]), prediction.mean, rtol=1e-6)
    draws = member.sample(X[:4], 40_000, seed=0, observation_noise=True)
    np.testing.assert_allclose(draws.mean(0), prediction.mean, rtol=0.02)
    np.testing.assert_allclose(draws.std(0), prediction.std, rtol=0.05)
    covariance = member.covariance(X[:4])
    variances = np.diagonal(covariance, axis1=1, axis2=2)[0]  # parts of a prediction are in proportion
    np.testing.assert_allclose(variances, prediction.function_variance, rtol=0.3)
    assert np.linalg.eigvalsh(covariance).min() > -1e-6 * covariance.max()
    found = np.quantile(draws, [0.1, 0.9], axis=0)
    expected = predictive_quantiles(member, X[:4], np.array([0.1, 0.9]))[..., 0]
    np.testing.assert_allclose(found, expected, rtol=0.03)
    assert member.sample_paths(3, seed=0)(X[:4]).min() > -y.min()
    member.save(tmp_path / "member")
    np.testing.assert_allclose(
        duogp.load(tmp_path / "member").predict(X).mean, member.predict(X).mean, rtol=1e-9
    )


@pytest.mark.parametrize(
    ("change", "tried"),
    [
        (lambda y: y, True),
        (lambda y: -y, False),
        (lambda y: y - y.min(), False),  # a zero
        (lambda y: np.log(y), False),  # symmetric
        (lambda y: np.stack([y, y], 1), False),
    ],
)
def test_which_targets_have_a_log_scale(change, tried):
    X, y = prices(200)
    data = Dataset.of_table(X, change(y), Settings())
    assert (log_scale_of(data, rules.RULES.least_skew) is not None) == tried


def test_known_noise_and_weights():
    X, y = prices(120)
    gp = duogp.fit(X, y, "auto", noise=np.full(120, 1e6), **LONG)
    assert not any(isinstance(member, LogTargetGP) for member in gp.members)
    weighted = duogp.fit(X, y, "auto", sample_weight=np.linspace(0.5, 2, 120), **LONG)
    assert np.isfinite(weighted.predict(X).std).all()


def test_a_large_table_goes_on_with_the_better_scale(monkeypatch):
    own = replace(rules.RULES, small=100, exact_rows=rules.ByDevice(cpu=100, cuda=100))
    monkeypatch.setattr(rules, "RULES", own)
    X, y = prices(700)
    gp = duogp.fit(X, y, "auto", num_inducing=20, batch_size=128, steps=20, **LONG)
    started = [note for note in gp.history.notes if "ppgpr" in note]
    assert started and all("of log y" in note for note in started)
    assert gp.predict(X).metrics(y)["rmse"] < 0.6 * y.std()


def test_learned_means_see_the_rows_held_out_in_the_end(monkeypatch):
    own = replace(rules.RULES, small=100, exact_rows=rules.ByDevice(cpu=100, cuda=100), predictive=())
    monkeypatch.setattr(rules, "RULES", own)
    seen = []
    from duogp.fitting import learned

    def recorded(spec, X, *rest, **keywords):
        seen.append(len(X))
        return cross_fit(spec, X, *rest, **keywords)

    cross_fit = learned.cross_fit
    monkeypatch.setattr(learned, "cross_fit", recorded)
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (600, 2))
    step = np.sign(X[:, 0] * X[:, 1]) + 0.1 * rng.standard_normal(600)
    gp = duogp.fit(X, step, "auto", num_inducing=20, steps=20, **LONG)
    assert seen == [510, 600]
    with_trees = gp.members[gp.labels.index("svgp + trees")]
    assert with_trees.learned.unseen is not None
    seen.clear()
    duogp.fit(
        X, np.where(step > 0, "a", "b"), "auto", likelihood="classes", num_inducing=20, steps=20, **LONG
    )
    assert sorted(seen)[:3] == [510] * 3 and set(seen[3:]) <= {600}
    seen.clear()
    given = (X[:80], step[:80])
    duogp.fit(X, step, "auto", num_inducing=20, steps=20, validation=given, **LONG)
    assert seen == [600]  # rows that were given for validation stay outside
