"""Studies: ask and tell in any order, failures, several objectives, constraints, every strategy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from duogp.bo import Categorical, Integer, Real, Space, Study
from duogp.bo.studies import acquisition, proposers
from duogp.bo.studies.goals import Goals, Limit
from duogp.bo.studies.models import GrowingModel, choice, learning_rows
from duogp.bo.studies.proposers import STRATEGIES, best_points, make_proposer, non_dominated
from duogp.bo.studies.trials import History

BOX = {"x": Real(-2, 2), "y": Real(0, 4)}
MIXED = Space(
    {
        "x": Real(1e-3, 1e1, log=True),
        "n": Integer(1, 30),
        "kind": Categorical(["a", "b", "c"]),
        "z": Real(0, 1, when={"kind": "b"}),
    },
    ["2*n + x <= 50"],
)
#: Settings of a quick GP.
QUICK = {"method": "svgp", "num_inducing": 10, "steps": 5, "warm_start": 0}
QUICK_DRAWS = {"method": "svgp", "num_inducing": 10, "first_steps": 5, "warm_start": 0, "candidates": 100}


def quick(strategy: str) -> dict:
    if strategy == "model":
        pytest.importorskip("botorch")
    return {"random": {}, "model": QUICK}.get(strategy, QUICK_DRAWS) | {"strategy": strategy}


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch):
    monkeypatch.setattr(acquisition, "WIDE", 48)
    monkeypatch.setattr(acquisition, "NEAR", 48)
    monkeypatch.setattr(acquisition, "STEPS", 8)
    monkeypatch.setattr(acquisition, "MC_SAMPLES", 16)


def bowl(point) -> float:
    return (point["x"] - 1) ** 2 + (point["y"] - 3) ** 2


def mixed(point) -> float:
    categories = {"a": 1.0, "b": 0.0, "c": 2.0}
    return (math.log10(point["x"]) + 1) ** 2 + abs(point["n"] - 13) / 5 + categories[point["kind"]]


# -- ask and tell --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_in_a_mixed_space_proposes_valid_points(strategy):
    study = Study(MIXED, direction="minimise", initial=6, **quick(strategy))
    for _ in range(4):
        trials = study.ask(3)
        assert [t.number for t in trials] == list(range(len(study) - 3, len(study)))
        for trial in trials:
            assert MIXED.checked(trial.point) == trial.point
            assert type(trial["n"]) is int and type(trial["kind"]) is str
            study.tell(trial, mixed(trial.point))
    assert study.best.values["value"] == min(mixed(t.point) for t in study.trials)
    assert len({str(t.point) for t in study.trials}) == 12


@pytest.mark.parametrize("strategy", ["model", "turbo", "thompson"])
def test_strategies_find_more_than_random_points(strategy):
    settings = quick(strategy) | {"num_inducing": 20}
    study = Study(BOX, direction="minimise", initial=6, seed=1, **settings)
    for _ in range(16):
        trial = study.ask()
        study.tell(trial, bowl(trial.point))
    random = [bowl(p) for p in study.space.decode(study.space.sample(2000, np.random.default_rng(0)))]
    assert study.best.values["value"] < np.quantile(random, 0.02)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_results_come_late_and_out_of_order(strategy):
    study = Study(BOX, direction="minimise", initial=4, **quick(strategy))
    waiting = study.ask(8)
    seen = {str(t.point) for t in waiting}
    rng = np.random.default_rng(0)
    for _ in range(6):
        trial = waiting.pop(int(rng.integers(len(waiting))))
        study.tell(trial, bowl(trial.point))
        fresh = study.ask()
        assert str(fresh.point) not in seen  # no pending point is proposed again
        seen.add(str(fresh.point))
        waiting.append(fresh)
    assert len(study.pending) == 8 and len(study.done) == 6
    assert [t.number for t in study.done] != sorted(t.number for t in study.done)


def test_pending_points_push_others_away():
    """A second question without an answer between is answered elsewhere."""
    pytest.importorskip("botorch")
    study = Study(BOX, direction="minimise", initial=6, seed=2, **quick("model"))
    for trial in study.ask(8):
        study.tell(trial, bowl(trial.point))
    points = study.space.encode([t.point for t in (study.ask(), study.ask(), *study.ask(2))])
    apart = np.abs(points[:, None] - points[None]).max(-1)[np.triu_indices(4, 1)]
    assert apart.min() > 1e-3


def test_nothing_of_a_finite_space_is_proposed_twice_before_all_is_known():
    space = {"a": Integer(0, 2), "b": Categorical(["u", "v"])}
    for strategy in ("model", "thompson"):
        study = Study(space, initial=2, **quick(strategy))
        for _ in range(6):
            trial = study.ask()
            study.tell(trial, trial["a"] + (trial["b"] == "u"))
        assert len({str(t.point) for t in study.trials}) == 6
        again = study.ask()  # and then what is best is measured again
        assert study.space.checked(again.point)


def test_points_of_ones_own():
    study = Study(BOX, direction="max", initial=4, strategy="random")
    told = study.tell({"x": 1, "y": np.float64(2.0)}, 3.0)
    assert told.point == {"x": 1.0, "y": 2.0} and study.best is told
    asked = study.ask()
    assert study.tell(dict(asked.point), 1.0).number == asked.number  # by its point
    assert study.tell(asked.number, 1.0) is study.trials[asked.number]  # the same again changes nothing
    with pytest.raises(ValueError, match="has been told"):
        study.tell(asked, 2.0)
    with pytest.raises(ValueError, match="has been told"):
        study.fail(asked)
    with pytest.raises(ValueError, match="no trial 7"):
        study.tell(7, 1.0)
    with pytest.raises(ValueError, match="'x' must lie between"):
        study.tell({"x": 5, "y": 0}, 1.0)


def test_starting_with_given_points():
    first = [{"x": 0.0, "y": 1.0}, {"x": 1.0, "y": 2.0}]
    study = Study(BOX, initial=first, strategy="random")
    assert [t.point for t in study.ask(3)][:2] == first


# -- failures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_failed_evaluations_do_not_end_a_study(strategy):
    study = Study(BOX, direction="minimise", initial=4, **quick(strategy))
    for i in range(12):
        trial = study.ask()
        if i % 3 == 0:
            study.tell(trial, [math.nan, math.inf, None][i // 3 % 3])
        elif i % 3 == 1:
            study.fail(trial, "out of memory")
        else:
            study.tell(trial, bowl(trial.point))
    assert len(study.done) == 4 and len(study.history().X) == 12
    assert study.trials[0].reason == "not finite: value = nan"
    assert len({str(t.point) for t in study.trials}) == 12  # a point that failed is not tried again
    assert np.isfinite(study.history().targets()).all()


def test_a_study_of_failures_alone_goes_on():
    study = Study(BOX, initial=3, **quick("thompson"))
    for _ in range(6):
        study.fail(study.ask())
    assert study.best is None and len(study) == 6


def test_a_late_result_replaces_a_failure():
    study = Study(BOX, initial=4, patience=1e-9, strategy="random")
    first = study.ask()
    study.ask()
    assert first.state == "failed" and "no result after" in first.reason
    study.tell(first, 2.0)
    assert first.state == "done" and study.best is first and first.reason is None


def test_what_the_model_sees_of_failures_and_outliers():
    Y = np.array([[1.0], [2.0], [3.0], [4.0], [-1e12], [np.nan]])
    history = History(np.zeros((6, 1)), Y, np.zeros((6, 0)), np.zeros((0, 1)), 6)
    seen = history.targets()[:, 0]
    np.testing.assert_array_equal(seen[:4], [1, 2, 3, 4])
    assert seen[4] == 1 - 5 * 2 and seen[5] == 1.0  # cut, and the lower quartile


# -- goals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["model", "thompson", "turbo"])
def test_outcome_constraints(strategy):
    study = Study(
        BOX,
        direction={"loss": "minimise"},
        constraints={"size": "<= 2", "speed": ">= -10"},
        initial=6,
        **quick(strategy),
    )
    for _ in range(4):
        for trial in study.ask(3):
            values = {"loss": bowl(trial.point), "size": trial["x"] + trial["y"], "speed": 0.0}
            study.tell(trial, values)
    best = study.best
    assert best.values["size"] <= 2
    feasible = [t.values["loss"] for t in study.done if t.values["size"] <= 2]
    assert best.values["loss"] == min(feasible)
    assert study.history().C.shape == (12, 2)


@pytest.mark.parametrize("strategy", ["model", "thompson"])
@pytest.mark.parametrize("limits", [{}, {"c": "<= 1.5"}])
def test_several_objectives(strategy, limits):
    study = Study(
        BOX, direction={"f": "minimise", "g": "maximise"}, constraints=limits, initial=5, **quick(strategy)
    )
    for _ in range(4):
        for trial in study.ask(2):
            values = [bowl(trial.point), trial["x"]] + [trial["y"]] * len(limits)
            study.tell(trial, values)
    front = study.front
    assert front
    for trial in front:
        assert not any(
            t.values["f"] < trial.values["f"] and t.values["g"] > trial.values["g"]
            for t in study.done
            if study.goals.is_feasible(t.values)
        )
    with pytest.raises(ValueError, match="see front"):
        _ = study.best


@pytest.mark.parametrize("strategy", ["model", "thompson"])
@pytest.mark.parametrize("directions", [{"f": "min"}, {"f": "min", "g": "max"}])
def test_nothing_is_feasible_yet(strategy, directions):
    """The search goes where the violation is least."""
    settings = quick(strategy) | {"num_inducing": 20}
    study = Study(BOX, direction=directions, constraints={"c": "<= -1.8"}, initial=5, **settings)
    for trial in study.ask(5):
        study.tell(trial, {name: bowl(trial.point) for name in directions} | {"c": abs(trial["x"])})
    assert study.front == [] and not study.history().feasible.any()
    for trial in study.ask(3):
        assert study.space.checked(trial.point)


def test_goals_in_words():
    goals = Goals.of({"loss": "min", "gain": "Maximize"}, {"size": "<= 1e3"})
    assert goals.directions == {"loss": "minimise", "gain": "maximise"}
    assert goals.objectives({"loss": 2.0, "gain": 3.0, "size": 1.0}) == [-2.0, 3.0]
    assert goals.limits["size"] == Limit("<=", 1000.0)
    assert Goals.of(**goals.spec()) == goals
    for wrong, words in (
        ({"direction": "up"}, "'minimise' or 'maximise', got 'up'"),
        ({"direction": {"a": "min"}, "constraints": {"a": "<= 1"}}, "not both"),
        ({"direction": "min", "constraints": {"a": "< 1"}}, "must be text such as"),
        ({"direction": "min", "constraints": {"a": "<= nan"}}, "must be text such as"),
        ({"direction": {}}, "at least one"),
    ):
        with pytest.raises(ValueError, match=words):
            Goals.of(**wrong)
    for told, words in (
        ([1.0], "3 values are needed"),
        ({"loss": 1.0}, "missing or unknown: gain, size"),
    ):
        with pytest.raises(ValueError, match=words):
            goals.values(told)
    with pytest.raises(TypeError, match="'loss' must be a number"):
        goals.values(["a", 1, 2])


def test_mistakes():
    with pytest.raises(ValueError, match="strategy must be one of"):
        Study(BOX, strategy="magic")
    with pytest.raises(ValueError, match="turbo is for one objective"):
        Study(BOX, strategy="turbo", direction={"a": "min", "b": "min"})
    with pytest.raises(ValueError, match="have no model"):
        Study(BOX, strategy="random", num_inducing=3)
    with pytest.raises(ValueError, match="initial must be"):
        Study(BOX, initial=0)
    with pytest.raises(ValueError, match="patience"):
        Study(BOX, patience=0)
    with pytest.raises(ValueError, match="q must be"):
        Study(BOX).ask(0)


# -- proposers -----------------------------------------------------------------------------------------------


def test_a_trust_region_follows_the_evaluations_and_starts_again():
    space = Space(BOX)
    turbo = make_proposer("turbo", space, seed=0, initial=4, objectives=1, **QUICK_DRAWS)
    X = space.sample(60, np.random.default_rng(0))
    falling = History(X, -np.arange(60.0)[:, None], np.zeros((60, 0)), np.zeros((0, 2)), 60)
    region, current = turbo._current(falling)
    assert region.generation == 1 and len(current.X) == 60 - 4 - 7 * 4  # seven halvings of four failures each
    again = turbo.propose(falling, 2)
    assert again.shape == (2, 2)
    rising = History(X[:7], np.arange(7.0)[:, None], np.zeros((7, 0)), np.zeros((0, 2)), 7)
    assert turbo._current(rising)[0].length == 1.6


def test_non_dominated_rows():
    Y = np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0], [0.5, 0.5], [2.0, 0.0]])
    assert non_dominated(Y).tolist() == [True, True, True, False, True]
    history = History(np.arange(5.0)[:, None], Y, np.zeros((5, 0)), np.zeros((0, 1)), 5)
    assert best_points(history)[:, 0].tolist() == [0, 1, 2, 4]


def test_without_botorch_the_model_draws(monkeypatch):
    monkeypatch.setattr(proposers, "find_spec", lambda name: None)
    assert isinstance(Study(BOX).proposer, proposers.Thompson)


def test_when_hyperparameters_are_learned():
    rows = [learning_rows(n) for n in range(1, 2000)]
    assert rows[:30] == list(range(1, 31)) and all(r <= n for n, r in enumerate(rows, 1))
    assert all(n < 1.11 * r + 1 for n, r in enumerate(rows, 1))
    assert choice(10, None, {})[0] == "exact" and choice(5000, None, {})[0] == "svgp"
    assert choice(5000, "dcsvgp", {"num_inducing": 3}) == ("dcsvgp", {"num_inducing": 3})


def test_a_growing_model_keeps_its_hyperparameters_between_the_steps_of_its_schedule():
    pytest.importorskip("botorch")
    rng = np.random.default_rng(0)
    X = rng.random((40, 2))
    Y = X.sum(1, keepdims=True)
    quick_one = {"num_inducing": 10, "steps": 5, "warm_start": 0}
    growing = GrowingModel("svgp", **quick_one)
    first = growing.of(X[:33], Y[:33])
    assert growing.of(X[:33], Y[:33]) is first
    after = growing.of(X[:35], Y[:35])
    assert after.gp.hyperparameters() == first.gp.hyperparameters() and len(after.train_X) == 35
    anew = GrowingModel("svgp", **quick_one).of(X[:35], Y[:35])  # as in a study that was opened again
    at = after.train_X[:3] + 0.01
    np.testing.assert_allclose(anew.posterior(at).mean.numpy(), after.posterior(at).mean.numpy(), rtol=1e-6)
    assert growing.of(X[:37], Y[:37]).gp.hyperparameters() != first.gp.hyperparameters()


def test_discrete_neighbours_are_valid_and_differ_in_one_choice():
    rng = np.random.default_rng(0)
    for point in MIXED.sample(5, rng):
        here = MIXED.decode(point[None])[0]
        for other in MIXED.decode(acquisition.neighbours(MIXED, point)):
            assert MIXED.checked(other) == other
            assert sum(here[name] != other[name] for name in ("n", "kind")) == 1
