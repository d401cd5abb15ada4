"""`DuoGPSampler` in studies of the real Optuna."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest

from duogp.bo.studies import acquisition

optuna = pytest.importorskip("optuna")
pytest.importorskip("botorch")

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: E402

from duogp.bo.optuna import DuoGPSampler, _KnownSpace  # noqa: E402

QUICK = {"method": "svgp", "num_inducing": 10, "steps": 5, "warm_start": 0}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for name, value in {"WIDE": 48, "NEAR": 48, "STEPS": 8, "MC_SAMPLES": 16}.items():
        monkeypatch.setattr(acquisition, name, value)


def sampler(**options) -> DuoGPSampler:
    return DuoGPSampler(seed=0, n_startup_trials=6, **QUICK | options)


def mixed(trial) -> float:
    x = trial.suggest_float("x", 1e-4, 1.0, log=True)
    n = trial.suggest_int("n", 1, 9)
    width = trial.suggest_int("width", 16, 128, step=16)
    rate = trial.suggest_float("rate", 0.0, 0.5, step=0.1)
    kind = trial.suggest_categorical("kind", ["a", None, 3, True])
    fixed = trial.suggest_float("fixed", 2.0, 2.0)
    assert width % 16 == 0 and 16 <= width <= 128 and fixed == 2.0
    assert min(abs(rate - 0.1 * i) for i in range(6)) < 1e-9
    return (np.log10(x) + 2) ** 2 + abs(n - 3) / 4 + width / 64 + rate + (kind is not None)


def test_a_mixed_space():
    study = optuna.create_study(sampler=sampler())
    study.optimize(mixed, n_trials=14)
    values = [trial.value for trial in study.trials]
    assert min(values[6:]) < min(values[:6])
    assert len({str(trial.params) for trial in study.trials}) == 14
    relative = [t for t in study.trials if t.number >= 6]
    assert all(isinstance(t.params["n"], int) and isinstance(t.params["x"], float) for t in relative)


def test_it_finds_a_minimum_and_a_maximum():
    for sign, direction in ((1.0, "minimize"), (-1.0, "maximize")):
        study = optuna.create_study(sampler=sampler(num_inducing=20), direction=direction)

        def bowl(trial, sign=sign):
            x, y = trial.suggest_float("x", -5, 5), trial.suggest_float("y", -5, 5)
            return sign * ((x - 1) ** 2 + (y + 2) ** 2)

        study.optimize(bowl, n_trials=20)
        assert abs(study.best_value) < 1.5  # of 50; a random point is below with probability 0.05


@pytest.mark.parametrize("strategy", ["turbo", "thompson"])
def test_other_strategies(strategy):
    settings = {"first_steps": 5, "candidates": 100, "num_inducing": 10, "warm_start": 0, "method": "svgp"}
    chosen = DuoGPSampler(seed=0, n_startup_trials=5, strategy=strategy, **settings)
    study = optuna.create_study(sampler=chosen)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1) ** 2, n_trials=8)
    assert len(study.trials) == 8


def test_seeds_repeat():
    def run() -> list:
        study = optuna.create_study(sampler=sampler())
        study.optimize(mixed, n_trials=9)
        return [trial.params for trial in study.trials]

    assert run() == run()


def test_several_objectives():
    study = optuna.create_study(sampler=sampler(), directions=["minimize", "maximize"])

    def both(trial):
        x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
        return x**2 + y, x - y

    study.optimize(both, n_trials=10)
    assert len(study.trials) == 10 and study.best_trials


def constrained(trial) -> float:
    x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
    trial.set_user_attr("excess", x + y - 0.7)
    if hasattr(trial, "set_constraint") and trial.study.user_attrs.get("by_trial"):
        trial.set_constraint("total", x + y - 0.7)
    return -x - 2 * y


@pytest.mark.parametrize("by_trial", [False, True])
def test_constraints(by_trial):
    if by_trial and not hasattr(optuna.trial.Trial, "set_constraint"):
        pytest.skip("constraints of trials came with Optuna 5")
    function = None if by_trial else lambda trial: (trial.user_attrs["excess"],)
    study = optuna.create_study(sampler=sampler(constraints_func=function))
    study.set_user_attr("by_trial", by_trial)
    study.optimize(constrained, n_trials=16)
    known = _KnownSpace({"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)})
    history = known.history(study, study.ask()._cached_frozen_trial, {})
    assert history.C.shape == (16, 1)
    np.testing.assert_allclose(
        sorted(history.C[:, 0]), sorted(t.user_attrs["excess"] for t in study.trials[:16])
    )
    excess = [t.user_attrs["excess"] for t in study.trials[6:16]]
    assert np.mean(np.array(excess) <= 0.1) > 0.5  # a random point: 0.3


def test_pruned_failed_and_infinite_trials():
    study = optuna.create_study(sampler=sampler(), pruner=optuna.pruners.NopPruner())

    def fragile(trial):
        x = trial.suggest_float("x", 0, 1)
        trial.report(x, 0)
        if trial.number % 4 == 1:
            raise optuna.TrialPruned
        if trial.number % 4 == 2:
            raise ValueError("broken")
        return float("inf") if trial.number % 8 == 3 else x

    study.optimize(fragile, n_trials=24, catch=(ValueError,))
    known = _KnownSpace({"x": FloatDistribution(0, 1)})
    history = known.history(study, study.ask()._cached_frozen_trial, {})
    assert len(history.X) == 24 and history.known.sum() == 9
    assert np.isfinite(history.targets()).all()


def test_running_trials_are_not_proposed_again():
    study = optuna.create_study(sampler=sampler())
    space = {"n": IntDistribution(0, 30), "kind": CategoricalDistribution(["a", "b"])}
    for i in range(8):
        study.add_trial(
            optuna.create_trial(params={"n": i, "kind": "a"}, distributions=space, value=(i - 12) ** 2)
        )
    asked = [study.ask(space) for _ in range(6)]
    assert len({str(trial.params) for trial in asked}) == 6
    for trial in reversed(asked):  # late and out of order
        study.tell(trial, (trial.params["n"] - 12) ** 2)
    assert str(study.ask(space).params) not in {str(trial.params) for trial in asked}


def test_threads():
    study = optuna.create_study(sampler=sampler())
    study.optimize(mixed, n_trials=12, n_jobs=3)
    assert len(study.trials) == 12 and all(t.value is not None for t in study.trials)


def test_branching_spaces_are_sampled_independently():
    study = optuna.create_study(sampler=sampler())

    def branching(trial):
        kind = trial.suggest_categorical("kind", ["a", "b"])
        return trial.suggest_float(f"x_{kind}", 0, 1) + (kind == "a")

    study.optimize(branching, n_trials=12)
    assert len(study.trials) == 12


def test_bounds_that_change_and_copies():
    study = optuna.create_study(sampler=pickle.loads(pickle.dumps(sampler())))
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=8)
    study.optimize(lambda trial: trial.suggest_float("x", 0.2, 2), n_trials=3)
    assert all(trial.params["x"] >= 0.2 for trial in study.trials[8:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study.sampler.reseed_rng()


def test_mistakes():
    with pytest.raises(ValueError, match="at least 2"):
        DuoGPSampler(n_startup_trials=1)
    with pytest.raises(ValueError, match="strategy must be one of"):
        DuoGPSampler(strategy="magic")
