"""`duogp.plan`: what `fit` would do, without doing it, and why."""

from __future__ import annotations

import numpy as np
import pytest

import duogp
from duogp.fitting.auto import StackPlan
from duogp.fitting.plan import Plan
from helpers.fit_tables import table


@pytest.mark.parametrize(
    "method", ["svgp", "dcsvgp", "solvegp", "ppgpr", "coupled-nat", "exact", "svgp-dkl", "dgp"]
)
def test_the_plan_is_what_fit_does(method):
    X, y = table()
    given = {"steps": 2} | ({} if method == "exact" else {"num_inducing": 7})
    plan = duogp.plan(X, y, method, **given)
    gp = duogp.fit(X, y, method, **given)
    assert isinstance(plan, Plan)
    assert gp.history.solver == plan.solver
    assert gp.settings.solver == plan.solver
    assert gp.model.basis.inducing.shape[-2] == plan.num_inducing
    assert float(gp.model.num_data[0]) == plan.train.shape[1]
    assert [(gp.settings.beta1, gp.settings.beta2)] == plan.betas
    assert (plan.validation is not None) == (gp.history.validation_nll is not None)


@pytest.mark.parametrize(("n", "sample"), [(3999, None), (4000, 2000), (7000, 3500), (20_000, 5000)])
def test_many_rows_are_started_on_half_of_them(n, sample):
    X = np.random.default_rng(0).normal(size=(n, 1))
    lines = str(duogp.plan(X, X[:, 0], "svgp", num_inducing=5)).splitlines()
    shown = [line.split("  ")[-1] for line in lines if line.startswith("sample_start")]
    assert shown == ([] if sample is None else [f"on {sample} of the rows"])


def test_a_plan_can_be_printed_and_gives_reasons():
    X, y = table()
    text = str(duogp.plan(X, y, "dcsvgp", num_inducing=7))
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert "closed-form" in lines["solver"] and "q(u) has a formula" in lines["solver"]
    assert "to validate" in lines["rows"] and "overfits" in lines["rows"]
    assert "7 by kmeans" in lines["num_inducing"]
    assert "closed-form steps of svgp" in lines["warm_start"]
    poisson = str(duogp.plan(X, np.abs(np.round(3 * y)), "svgp", likelihood="poisson"))
    assert "natural" in poisson and "not Gaussian" in poisson


@pytest.mark.parametrize(
    ("method", "given", "looks"),
    [
        ("dcsvgp", {}, 40),  # L-BFGS
        ("svgp", {"early_stopping": True}, 40),
        ("svgp", {"early_stopping": True, "optimizer": "adam"}, 10),
        ("svgp", {"early_stopping": True, "solver": "stochastic"}, 70),
        ("svgp", {"early_stopping": True, "optimizer": "adam", "schedule": "cycles"}, 28),  # of 40 looks
        ("svgp-dkl", {}, 40),  # a network
        ("dcsvgp", {"patience": 3}, 3),
        ("svgp", {}, None),
    ],
)
def test_how_long_validation_rows_are_waited_for(method, given, looks):
    X, y = table()
    assert duogp.plan(X, y, method, num_inducing=7, **given).training.patience == looks


def test_betas_are_adams():
    """L-BFGS has none: who gives them means Adam, in the warm start too."""
    X, y = table()
    assert duogp.plan(X, y, "svgp").training.optimiser == "lbfgs"
    assert duogp.plan(X, y, "svgp", adam_betas=(0.8, 0.9)).training.optimiser == "adam"


def test_nothing_is_trained():
    X, y = table()
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("duogp.fitting.table.train", lambda *args: calls.append(args))
        duogp.plan(X, y, "dcsvgp")
    assert not calls


def test_auto_shows_its_rule_or_its_stack():
    X, y = table()
    small = duogp.plan(X, y, "auto")
    assert isinstance(small, StackPlan) and small.candidates == ["exact + trees", "exact", "exact + ridge"]
    assert small.shared.method.name == "exact"
    single = duogp.plan(X, y, "auto", beta2=0.1)
    assert isinstance(single, Plan) and "beta2" in single.reasons["method"]
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 2))
    race = duogp.plan(X, X[:, 0], "auto")
    assert isinstance(race, StackPlan)
    assert {"svgp", "svgp + trees", "ppgpr-chol"} <= set(race.candidates)
    assert f"{race.seconds:.0f} s" in str(race)


@pytest.mark.parametrize(("method", "why"), [("mc-dropout", "trains networks"), ("svdgp", "from a stream")])
def test_methods_that_are_not_fitted_to_a_table_are_refused(method, why):
    with pytest.raises(ValueError, match=why):
        duogp.plan(*table(), method)


def test_a_plan_meets_the_errors_of_the_fit():
    X, y = table()
    with pytest.raises(ValueError, match="solver='closed-form' is not possible"):
        duogp.plan(X, y, "ppgpr", solver="closed-form")
    with pytest.raises(TypeError, match="unknown setting"):
        duogp.plan(X, y, "svgp", num_inducin=3)


def test_large_tables_start_on_larger_samples(monkeypatch):
    X, y = table(240)
    n = len(y)
    for name in ("SAMPLE_ROWS", "MOST_SAMPLE_ROWS"):
        monkeypatch.setattr(f"duogp.fitting.training_plan.{name}", n // 4)
    small = duogp.fit(X, y, "svgp", num_inducing=5)
    assert f"on a sample of {n // 4} rows" in small.history.notes[-1]
    monkeypatch.setattr("duogp.fitting.training_plan.LARGE_TABLES", {n // 2: n // 8, n: n // 2})
    plan = duogp.plan(X, y, "svgp", num_inducing=5)
    assert f"on {n // 8}, then on {n // 2} of the rows" in str(plan)
    # The loss of the sample is divided by the rows of the table: a row of the sample must gain so much.
    for stage, gain in zip(plan.sample_starts, (0.01, 0.5 * plan.training.tolerance), strict=True):
        assert stage.training.tolerance * n == pytest.approx(gain * stage.rows)
    monkeypatch.setattr("duogp.fitting.training_plan.CPU_SAMPLE", n // 4)
    slow = duogp.plan(X, y, "svgp", num_inducing=5, device="cpu")
    assert [stage.rows for stage in slow.sample_starts] == [n // 8, n // 4, n // 2]
    monkeypatch.setattr("duogp.fitting.training_plan.CPU_SAMPLE", n)
    endless = duogp.plan(X, y, "svgp", num_inducing=5, tolerance=0.0)
    assert all(stage.training.tolerance > 0 for stage in endless.sample_starts)
    large = duogp.fit(X, y, "svgp", num_inducing=5)
    assert f"on a sample of {n // 2} rows" in large.history.notes[-1]
    assert abs(large.history[-1].loss - small.history[-1].loss) < 0.03
