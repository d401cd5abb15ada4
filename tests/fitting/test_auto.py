"""``method="auto"``: the rule, the race, and what it says about itself."""

from __future__ import annotations

import time

import numpy as np
import pytest

import duogp
from duogp.fitting import auto
from duogp.fitting.dataset import Dataset
from duogp.kernels import RBF
from duogp.methods.settings import Settings


def table(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(3 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.standard_normal(n)


@pytest.mark.parametrize("n", [5, 100, 300, 1999])
def test_small_tables_are_answered_at_once(n):
    X, y = table(n)
    start = time.process_time()
    gp = duogp.fit(X, y, "auto")
    assert time.process_time() - start < 10  # two seconds on a free machine; this is no benchmark
    assert gp.method.name == "sgpr" and f"{n} rows are few" in gp.history.notes[0]
    assert gp.predict(X).metrics(y)["rmse"] < 0.5


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({}, "sgpr"),
        ({"likelihood": "poisson"}, "svgp"),
        ({"solver": "natural"}, "svgp"),
        ({"solver": "stochastic"}, "svgp"),
        ({"beta2": 0.1}, "dcsvgp"),
        ({"num_latents": 2}, "svgp"),
    ],
)
def test_the_rule_respects_what_is_given(given, method):
    def chosen(n, given):
        settings, X = Settings.of(given), np.arange(float(n))[:, None]
        return auto.choose(Dataset.of_table(X, X[:, 0] % 3, settings), given, settings)

    assert chosen(500, given).method == method
    assert (chosen(5000, given) is None) == ("closed-form" not in given.values())
    assert chosen(5000, {"solver": "closed-form"}).method == "dcsvgp"


@pytest.fixture(scope="module")
def quick_race():
    """Small enough for a test: fewer steps, the same course."""
    patch = pytest.MonkeyPatch()
    for name, value in {"START_STEPS": 15, "RACE_STEPS": 8, "FINISH_STEPS": 60, "START_ROWS": 500}.items():
        patch.setattr(auto, name, value)
    yield
    patch.undo()


@pytest.mark.usefixtures("quick_race")
def test_a_race_tells_its_standings_and_is_repeatable():
    X, y = table(2500)
    settings = {"num_inducing": 30, "batch_size": 256}
    first, second = (duogp.fit(X, 50 + 10 * y, "auto", **settings) for _ in range(2))
    notes = " ".join(first.history.notes)
    assert first.method.name in notes and all(name in notes for name in (*auto.GAUSSIAN, "svgp"))
    assert first.method is second.method and first.settings.dtype == "float32"
    np.testing.assert_array_equal(first.predict(X).std, second.predict(X).std)
    assert first.predict(X).metrics(50 + 10 * y)["rmse"] < 2.5


@pytest.mark.usefixtures("quick_race")
def test_a_race_ends_in_time():
    X, y = table(4000)
    gp = duogp.fit(X, y, "auto", num_inducing=30, time_budget=2.0)
    assert gp.history.seconds < 8 and np.isfinite(gp.predict(X).std).all()


@pytest.mark.usefixtures("quick_race")
def test_validation_rows_of_the_users_decide():
    X, y = table(3000)
    gp = duogp.fit(X[:2500], y[:2500], "auto", validation=(X[2500:], y[2500:]), num_inducing=20)
    expected = -gp.log_density(X[2500:], y[2500:]).mean() - np.log(gp.y_scaler.scale[0])
    assert gp.history.validation_nll == pytest.approx(expected, abs=1e-2)


@pytest.mark.usefixtures("quick_race")
@pytest.mark.parametrize(
    ("likelihood", "settings"),
    [("classes", {}), ("student-t", {}), ("gaussian", {"solver": "natural"}), ("gaussian", {"beta2": 0.01})],
)
def test_other_fields(likelihood, settings):
    X, y = table(2100)
    target = np.where(y > 0.3, "up", np.where(y < -0.3, "down", "level")) if likelihood == "classes" else y
    gp = duogp.fit(X, target, "auto", likelihood=likelihood, num_inducing=15, batch_size=256, **settings)
    if likelihood != "gaussian" or "solver" in settings:
        assert gp.method.name in (*auto.OTHERS, "svgp")
        assert gp.history.solver in ("natural", "closed-form")
    else:
        assert gp.method.name in ("dcppgpr", "dcsvgp", "svgp")
    if likelihood == "classes":
        assert gp.predict(X).metrics(target)["accuracy"] > 0.6


@pytest.mark.usefixtures("quick_race")
def test_several_outputs_weights_and_kernel_objects():
    X, y = table(2100)
    weights = np.where(np.arange(2100) % 5, 1.0, 0.0)
    settings = {"num_inducing": 15, "batch_size": 256, "sample_weight": weights}
    assert duogp.fit(X, np.stack([y, -y], 1), "auto", **settings).predict(X).mean.shape == (2100, 2)
    assert duogp.fit(X, y, "auto", kernel=RBF(2), **settings).predict(X).mean.shape == (2100,)


def test_lists_of_beta_are_for_methods_by_name():
    with pytest.raises(ValueError, match="method='auto' takes one beta1"):
        duogp.fit(*table(2100), "auto", beta1=[0.1, 1.0])
