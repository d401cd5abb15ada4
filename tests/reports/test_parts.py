"""Drift, distances, intervals of scores, partial dependence, figures."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import false_discovery_control, norm

import duogp
from duogp.numerics.mixtures import mixture_crps
from duogp.reports.drift import distances, drift, holm
from duogp.reports.effects import dependence
from duogp.reports.html import Words, bars, pairs, table
from duogp.reports.scores import constant_metrics, is_on_grid, metric_intervals, metrics_of, wilson
from duogp.tables import Schema


class Numbers:
    classes = None


def scores(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=n)
    y = mean + 0.5 * rng.normal(size=n)
    levels = norm.ppf([0.25, 0.75, 0.05, 0.95, 0.025, 0.975])
    ends = mean[:, None] + 0.5 * levels
    return {
        "y": y,
        "mean": mean,
        "std": np.full(n, 0.5),
        "log_density": norm.logpdf(y, mean, 0.5),
        "crps": mixture_crps(y, mean[None], np.full((1, n), 0.5), np.ones(1)),
        "ends": ends,
    }


def test_bootstrap_intervals_hold_the_true_score_and_shrink_with_rows():
    held, widths = 0, {}
    for seed in range(20):
        low, high = metric_intervals(Numbers, scores(200, seed), resamples=100)["rmse"]
        held += low <= 0.5 <= high
    assert held >= 15
    for n in (100, 1600):
        low, high = metric_intervals(Numbers, scores(n), resamples=100)["mae"]
        widths[n] = high - low
    assert widths[1600] < 0.5 * widths[100]  # a quarter, by 1/√n


def test_a_constant_prediction_has_the_spread_as_its_error():
    found = scores(300)
    assert constant_metrics(Numbers, found["y"])["rmse"] == pytest.approx(found["y"].std(), rel=1e-12)
    assert metrics_of(Numbers, found)["r2"] > constant_metrics(Numbers, found["y"])["r2"]


def test_the_crps_of_a_stack_is_that_of_its_mixture():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (200, 2))
    y = np.round(3 * np.sin(2 * X[:, 0]) + X[:, 1])  # on a grid
    model = duogp.GPRegressor(random_state=0).fit(X[:120], y[:120])
    assert is_on_grid(model.gp_) and not is_on_grid(Numbers)
    found, told = duogp.evaluate(model, X[120:], y[120:]), model.gp_.predict(X[120:])
    assert found["crps"] == pytest.approx(told.metrics(y[120:])["crps"], rel=1e-9)
    alone = duogp.GPRegressor("svgp", num_inducing=20).fit(X[:120], y[:120])
    moments = alone.gp_.predict(X[120:])
    expected = duogp.metrics.crps(y[120:], moments.mean, moments.std)
    assert duogp.evaluate(alone, X[120:], y[120:])["crps"] == pytest.approx(expected, rel=1e-9)


def test_wilson_and_holm():
    low, high = wilson(0, 10)
    assert low == 0.0
    assert high == pytest.approx(0.2775, abs=1e-3)  # Wilson 1927, 0 of 10
    p = np.array([0.01, 0.04, 0.03, 0.5])
    np.testing.assert_allclose(holm(p), [0.04, 0.09, 0.09, 0.5])
    assert (holm(p) >= false_discovery_control(p)).all()


def test_drift_of_numbers_levels_and_gaps():
    rng = np.random.default_rng(0)
    n = 400
    old = pd.DataFrame(
        {
            "same": rng.normal(size=n),
            "moved": rng.normal(size=n),
            "level": rng.choice(list("ab"), n),
            "gappy": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
        }
    )
    new = old.sample(frac=1.0, random_state=1).reset_index(drop=True)
    new["moved"] += 1.0
    new["level"] = rng.choice(list("abc"), n, p=[0.1, 0.7, 0.2])
    new.loc[rng.random(n) < 0.5, "gappy"] = np.nan
    schema = Schema.learn(old)
    sample, matrix = schema.encode(old).matrix[:200], schema.encode(new).matrix
    found = {each.name: each for each in drift(schema, sample, new, matrix)}
    assert [name for name, each in found.items() if not each.has_drifted] == ["same"]
    assert found["moved"].distance > 0.3
    assert found["level"].unseen == int((new["level"] == "c").sum())
    assert found["gappy"].gaps_now > 0.4 > found["gappy"].gaps_before
    far = distances(schema, sample, matrix)
    assert far is not None
    near = distances(schema, sample, schema.encode(old).matrix[200:])
    assert near is not None
    assert near.is_far.mean() < 0.1
    away = matrix.copy()
    away[0, schema.names.index("same")] = 50.0
    farthest = distances(schema, sample, away)
    assert farthest is not None
    assert farthest.distance.argmax() == 0
    assert farthest.column[0] == "same"
    assert distances(schema, sample[:5], matrix) is None


def test_partial_dependence_of_an_additive_function_is_its_term():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(150, 2))
    y = np.sin(X[:, 0]) + X[:, 1]
    model = duogp.GPRegressor(method="exact", random_state=0).fit(pd.DataFrame(X, columns=["a", "b"]), y)
    frame = pd.DataFrame(X, columns=["a", "b"])
    found = dependence(model.gp_, model.schema_, frame, "a", X[:40])
    inside = np.abs(found.along) < 1.5
    off = found.mean - np.sin(found.along) - X[:40, 1].mean()
    assert np.abs(off[inside]).max() < 0.1  # an exact GP of 150 rows without noise
    assert found.half is not None
    assert (found.half > 0).all()


def test_every_cell_is_escaped():
    evil = "<img src=x onerror=alert(1)>\"'"
    made = table([evil], [[Words(evil)], [evil]]) + pairs([(evil, evil)]) + bars([(evil, 0.5, evil)])
    assert "<img" not in made
    assert made.count("&lt;img") == 7
