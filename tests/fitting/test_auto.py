"""``method="auto"``: candidates, the stack that they end in, and what it says about itself."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

import duogp
from duogp.fitting import auto, rules
from duogp.fitting.dataset import Dataset
from duogp.fitting.race import Race
from duogp.kernels import RBF
from duogp.methods.settings import Settings
from duogp.posterior.gp import GP
from duogp.posterior.laws import MixturePrediction
from duogp.posterior.stack import Stack

#: Far more than these fits take, so that the clock decides nothing.
LONG = {"time_budget": 600.0}


def table(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(3 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.standard_normal(n)


@pytest.fixture(scope="module")
def quick():
    """The same course in fewer steps, with small tables taken for large ones."""
    patch = pytest.MonkeyPatch()
    fewer = replace(rules.RULES, small=300, exact_rows=rules.ByDevice(cpu=200, cuda=200))
    patch.setattr(rules, "RULES", fewer)
    yield
    patch.undo()


QUICK = {"num_inducing": 20, "batch_size": 128, "steps": 20, "device": "cpu", **LONG}
pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("n", [2, 5, 40, 150])
def test_small_tables_leave_out_every_row_in_its_turn(n):
    X, y = table(n)
    gp = duogp.fit(X, y, "auto", device="cpu", **LONG)
    assert isinstance(gp, Stack) and "every row left out in its turn" in gp.history.notes[0]
    assert set(gp.labels) <= {"exact", "exact + trees", "exact + ridge"}
    assert np.isfinite(gp.predict(X).std).all()
    if n == 150:
        assert gp.predict(X).metrics(y)["rmse"] < 0.2


@pytest.mark.parametrize(
    ("given", "method"),
    [({"beta2": 0.1}, "dcsvgp"), ({"num_latents": 2}, "svgp"), ({"solver": "natural"}, "svgp"), ({}, None)],
)
def test_what_is_given_may_leave_one_method(given, method):
    settings, X = Settings.of(given), np.arange(500.0)[:, None]
    chosen = auto.choose(Dataset.of_table(X, X[:, 0] % 3, settings), given, settings)
    assert (None if chosen is None else chosen[0]) == method
    if chosen is not None:
        assert chosen[1].startswith(method)


def test_a_large_table_tells_its_members_and_is_repeatable():
    X, y = table(700)
    first, second = (duogp.fit(X, 50 + 10 * y, "auto", **QUICK) for _ in range(2))
    assert {"svgp + trees", "svgp"} <= set(first.labels) | {"svgp"}
    assert any("ppgpr" in note for note in first.history.notes)
    assert sum(first.weights.values()) == pytest.approx(1)
    for one, other in zip(first.predict(X[:50]).interval(), second.predict(X[:50]).interval(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert first.predict(X).metrics(50 + 10 * y)["rmse"] < 3


@pytest.fixture
def rows_race(monkeypatch):
    """Sparse GPs of few points, and means on all rows, without predictive methods."""
    few = rules.ByDevice(cpu=15, cuda=15)
    sample = rules.ByDevice(cpu=200, cuda=200)
    own = replace(rules.RULES, predictive=(), closed_points=few, rows_sample=sample)
    monkeypatch.setattr(rules, "RULES", own)


def test_a_mean_on_all_rows_follows_what_few_points_cannot(rows_race, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (700, 2))
    y = np.sin(6 * X[:, 0]) * np.cos(3 * X[:, 1]) + 0.05 * rng.standard_normal(700)
    new = rng.uniform(-2, 2, (200, 2))
    gp = duogp.fit(X[:600], y[:600], "auto", mean="constant", device="cpu", **LONG)
    dense = gp.members[gp.labels.index("hybrid")]
    assert dense.model.basis.a.shape[-1] == 600  # those held out are in it at the end
    truth = np.sin(6 * new[:, 0]) * np.cos(3 * new[:, 1])
    assert np.sqrt(np.mean((gp.predict(new).mean - truth) ** 2)) < 0.1  # of svgp: 0.5
    gp.save(tmp_path / "model")
    again = duogp.load(tmp_path / "model")
    np.testing.assert_allclose(again.predict(new).mean, gp.predict(new).mean, rtol=1e-6)
    np.testing.assert_allclose(again.predict(new).std, gp.predict(new).std, rtol=1e-6)


def test_a_mean_on_all_rows_of_several_outputs_with_weights(rows_race):
    X, y = table(400)
    weights = np.linspace(0.5, 2.0, 400)
    gp = duogp.fit(
        X, np.stack([y, -y], 1), "auto", mean="constant", sample_weight=weights, device="cpu", **LONG
    )
    assert any("hybrid" in note for note in gp.history.notes)
    assert gp.predict(X).mean.shape == (400, 2)


def test_the_score_of_the_notes_is_that_of_the_rows_held_out():
    X, y = table(900)
    gp = duogp.fit(X[:700], y[:700], "auto", validation=(X[700:], y[700:]), **QUICK)
    expected = -gp.log_density(X[700:], y[700:]).mean()
    assert gp.history.validation_nll_y == pytest.approx(expected, abs=1e-6)
    scaled = expected - np.log(gp.y_scaler.scale[0])
    assert gp.history.validation_nll == pytest.approx(scaled, abs=1e-6)


def test_a_small_table_without_time_leaves_candidates_out_and_says_so():
    X, y = table(400)
    gp = duogp.fit(X, y, "auto", time_budget=0.2, random_state=0, device="cpu")
    assert any("not tried, the time was up" in note for note in gp.history.notes)
    assert np.isfinite(gp.predict(X[:20]).std).all()


def test_a_small_table_that_the_clock_ended_is_a_warning(monkeypatch):
    """Unless the seconds were the user's."""

    def note(race, name, history):
        race.ended.append(f"{name} {race.title}".strip())

    monkeypatch.setattr(Race, "note", note)
    X, y = table(80)
    words = r"share of .*exact.* in the 55 s of method='auto' was over before.*busy"
    with pytest.warns(duogp.ConvergenceWarning, match=words):
        duogp.fit(X, y, "auto", random_state=0, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error", duogp.ConvergenceWarning)
        duogp.fit(X, y, "auto", random_state=0, device="cpu", **LONG)


def test_the_clock_ends_it_and_the_notes_say_so():
    X, y = table(2000)
    gp = duogp.fit(X, y, "auto", device="cpu", num_inducing=50, time_budget=0.5)
    assert any("the time was up" in note for note in gp.history.notes)
    assert np.isfinite(gp.predict(X).std).all()


@pytest.mark.parametrize("n", [120, 500])
@pytest.mark.parametrize("likelihood", ["classes", "softmax", "student-t", "poisson"])
def test_likelihoods_without_a_closed_form(likelihood, n):
    X, y = table(n)
    target = np.where(y > 0.3, "up", "down")
    if likelihood == "softmax":
        target = np.where(y > 0.3, "up", np.where(y < -0.3, "down", "level"))
    elif likelihood != "classes":
        target = y if likelihood == "student-t" else np.random.default_rng(0).poisson(np.exp(y))
    gp = duogp.fit(X, target, "auto", likelihood=likelihood, **QUICK)
    classes = likelihood in ("classes", "softmax")
    assert isinstance(gp, Stack) and set(gp.labels) <= {"svgp", "svgp + trees", "trees", "logistic", "bagged"}
    assert np.isfinite(gp.log_density(X, target)).all()
    scores = gp.predict(X).metrics(target)
    assert scores["accuracy"] > 0.7 if classes else scores["rmse"] < 2


def test_several_outputs_weights_noise_and_kernel_objects():
    X, y = table(500)
    weights = np.where(np.arange(500) % 5, 1.0, 0.0)
    given = {**QUICK, "sample_weight": weights}
    both = duogp.fit(X, np.stack([y, -y], 1), "auto", **given)
    assert both.predict(X).mean.shape == (500, 2) and len(both.law) == 2
    assert both.predict(X).quantiles([0.1, 0.9]).shape == (2, 500, 2)
    assert duogp.fit(X, y, "auto", kernel=RBF(2), **given).predict(X).mean.shape == (500,)
    known = duogp.fit(X, y, "auto", noise=np.full(500, 0.01), **QUICK)
    assert known.known_noise and (known.predict(X, noise=np.full(500, 4.0)).std > 1.5).all()
    with pytest.raises(ValueError, match="needs noise="):
        known.log_density(X, y)


def test_a_mean_that_is_asked_for_is_the_only_one():
    X, y = table(100)
    assert duogp.fit(X, y, "auto", mean="constant", device="cpu", **LONG).labels == ["exact"]
    assert duogp.fit(X, y, "auto", mean="trees", device="cpu", **LONG).labels == ["exact + trees"]


def test_lists_of_beta_are_for_methods_by_name():
    with pytest.raises(ValueError, match="method='auto' takes one beta1"):
        duogp.fit(*table(700), "auto", beta1=[0.1, 1.0])


def test_a_plan_says_what_would_be_stacked():
    said = str(duogp.plan(*table(700), "auto"))
    assert "svgp + trees" in said and "105 rows that are held out" in said
    assert "every row in its turn" in str(duogp.plan(*table(100), "auto"))


# -- the stack as a model ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stacked(quick) -> tuple[Stack, np.ndarray, np.ndarray]:
    X, y = table(600)
    y = y + np.random.default_rng(5).normal(size=600) * np.exp(X[:, 1]) / 4  # noisier on one side
    return duogp.fit(X[:500], y[:500], "auto", **QUICK), X[500:], y[500:]


def test_moments_are_those_of_the_mixture(stacked):
    gp, X, y = stacked
    p = gp.predict(X)
    assert isinstance(p, MixturePrediction)
    each = np.stack([member.predict(X).mean for member in gp.members])
    np.testing.assert_allclose(p.mean, gp.law[0].mean_weights @ each)
    around = p.weights[:, 0] @ (p.component_std**2 + (p.component_mean - p.mean) ** 2)
    np.testing.assert_allclose(p.variance, around, rtol=1e-8)
    np.testing.assert_allclose(gp.predict_mean(X), p.mean)
    np.testing.assert_allclose(gp.log_density(X, y), p.log_density(y))
    metrics = p.metrics(y)
    assert metrics["nll"] == pytest.approx(-p.log_density(y).mean())
    low, high = p.interval(0.8)
    assert ((low < p.quantiles([0.5])[0]) & (p.quantiles([0.5])[0] < high)).all()
    assert (p.disagreement > 0).all() and (p.noise > 0).all()


def test_draws_have_the_law_of_the_mixture(stacked):
    gp, X, _ = stacked
    draws = gp.sample(X[:3], 4000, seed=0, observation_noise=True)
    p = gp.predict(X[:3])
    np.testing.assert_allclose(draws.mean(0), p.mean, atol=0.05)
    np.testing.assert_allclose(draws.std(0), p.std, rtol=0.2)
    quartile = p.quantiles([0.25])[0]
    np.testing.assert_allclose((draws < quartile).mean(0), 0.25, atol=0.04)
    assert gp.sample(X, 2, seed=1).shape == (2, 100)
    np.testing.assert_array_equal(gp.sample(X, 2, seed=1), gp.sample(X, 2, seed=1))


def test_noise_that_differs_is_recognised(stacked):
    gp, X, _ = stacked
    std = gp.predict(X).std
    assert std[X[:, 1] > 1].mean() > 1.5 * std[X[:, 1] < -1].mean()


def test_covariance_is_symmetric_and_positive(stacked):
    gp, X, _ = stacked
    (covariance,) = gp.covariance(X[:20])
    np.testing.assert_allclose(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > -1e-8


def test_saved_and_loaded(stacked, tmp_path):
    gp, X, y = stacked
    gp.save(tmp_path / "model")
    again = duogp.load(tmp_path / "model")
    assert isinstance(again, Stack) and again.weights == gp.weights
    np.testing.assert_allclose(again.log_density(X, y), gp.log_density(X, y), atol=1e-8)
    assert again.history.notes == gp.history.notes


def test_classes_saved_and_loaded(tmp_path):
    X, y = table(150)
    gp = duogp.fit(X, np.where(y > 0, "up", "down"), "auto", likelihood="classes", **QUICK)
    gp.save(tmp_path / "model")
    again = duogp.load(tmp_path / "model")
    np.testing.assert_allclose(again.predict_proba(X), gp.predict_proba(X), atol=1e-6)
    assert again.sample(X, 3, seed=0, observation_noise=True).shape == (3, 150)
    np.testing.assert_allclose(gp.predict_proba(X).sum(1), 1)


def test_what_was_learned(stacked):
    gp, _, _ = stacked
    learned = gp.hyperparameters()
    assert learned["weights"] == gp.weights and set(learned["members"]) == set(gp.labels)
    assert isinstance(gp.best, GP) and gp.best.method is gp.method
    assert repr(gp).startswith("Stack(")


def test_a_kernel_that_knows_its_rows_by_heart_is_found_out():
    """Noise in many columns: the evidence finds a function, rows left out under another kernel do not."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((80, 30)), rng.standard_normal(80)
    gp = duogp.fit(X, y, "auto", mean="constant", device="cpu", **LONG)
    new = rng.standard_normal((300, 30))
    scores = gp.predict(new).metrics(rng.standard_normal(300))
    assert scores["nll"] < 1.6  # of the law that the targets have: 1.42
    assert scores["coverage"] > 0.94  # 0.98; judged by the kernel of all rows: 0.90


def test_inputs_of_few_values_do_not_tell_labels_out_of_fold() -> None:
    """Equal rows are joined; both labels of an input must be left out at once, or predictions go astray."""
    rng = np.random.default_rng(0)
    X = (rng.random((900, 5)) < 0.4).astype(float)
    p = 1.0 / (1.0 + np.exp(3.0 - 2.0 * X[:, 0] - X[:, 1]))
    y = (rng.random(900) < p).astype(int)
    model = duogp.GPClassifier(random_state=0).fit(X, y)
    found = model.predict_proba(X)[:, 1]
    loss = -np.mean(np.where(y == 1, np.log(found), np.log1p(-found)))
    best = -np.mean(np.where(y == 1, np.log(p), np.log1p(-p)))
    assert abs(found.mean() - y.mean()) < 0.03 and loss < best + 0.02
