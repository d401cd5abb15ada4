"""Cross-fitted means: no row is predicted by a model that has seen it, and trees survive as arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import KNeighborsRegressor

from duogp.means.affine import Affine, Logistic
from duogp.means.columns import KEPT, OnColumns, telling_columns
from duogp.means.crossfit import Goal, Trees, _some, assign_folds, cross_fit, latent_values
from duogp.means.forest import Forest

QUICK = Trees(max_trees=30)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
SIGNAL = np.sin(2 * X[:, 0]) + X[:, 1]

TARGETS = {
    "real": (Goal("real"), SIGNAL[:, None]),
    "two outputs": (Goal("real", outputs=2), np.stack([SIGNAL, X[:, 2]], 1)),
    "count": (Goal("count"), RNG.poisson(np.exp(SIGNAL)).astype(float)[:, None]),
    "positive": (Goal("positive"), np.exp(SIGNAL)[:, None]),
    "unit": (Goal("unit"), 1 / (1 + np.exp(-SIGNAL))[:, None]),
    "two classes": (Goal("classes", 2), (SIGNAL > 0).astype(float)[:, None]),
    "three classes": (Goal("classes", 3), np.digitize(SIGNAL, [-0.7, 0.7]).astype(float)[:, None]),
}


@pytest.mark.parametrize("name", TARGETS)
def test_predictions_are_in_the_space_of_the_latent_function(name):
    goal, y = TARGETS[name]
    fit = cross_fit(QUICK, X, y, goal)
    value, spread = fit.at(X[:7])
    assert fit.held_out.shape == (200, goal.columns)
    assert value.shape == spread.shape == (7, goal.columns)
    assert (spread >= 0).all() and np.isfinite(value).all()
    latent = fit.held_out[:, -1 if goal.kind == "classes" else 0]
    assert np.corrcoef(latent, SIGNAL)[0, 1] > 0.6
    if goal.kind == "classes" and goal.classes > 2:
        np.testing.assert_allclose(value.sum(1), 0, atol=1e-8)


def test_a_row_is_predicted_by_models_that_have_not_seen_it():
    """A nearest neighbour knows by heart what it has seen, and nothing about noise that it has not."""
    noise = np.random.default_rng(1).normal(size=(200, 1))
    fit = cross_fit(KNeighborsRegressor(1), X, noise, Goal("real"))
    assert abs(np.corrcoef(fit.held_out[:, 0], noise[:, 0])[0, 1]) < 0.3
    assert np.corrcoef(fit.at(X)[0][:, 0], noise[:, 0])[0, 1] > 0.9


@pytest.mark.parametrize("name", ["two classes", "three classes"])
def test_logistic_regression_is_an_affine_map(name):
    goal, y = TARGETS[name]
    fit = cross_fit(Logistic(), X, y, goal)
    assert np.mean(np.digitize(fit.held_out[:, 0], [0]) == y[:, 0]) > 0.8 if goal.classes == 2 else True
    first = fit.models[0][0]
    again = Affine.from_arrays(first.arrays(), 3)
    rows = torch.as_tensor(X)
    torch.testing.assert_close(again(rows), first(rows))
    with pytest.raises(ValueError, match="do not fit together"):
        Affine.from_arrays({**first.arrays(), "bias": first.bias[:0]}, 3)
    one = Logistic().fit(X, np.zeros(200, dtype=int), goal.classes, None)
    assert np.isfinite(one(rows)).all()


@pytest.mark.parametrize("name", TARGETS)
def test_arrays_predict_as_the_trees_do(name):
    goal, y = TARGETS[name]
    fit = cross_fit(QUICK, X, y, goal)
    forests = fit.arrays()
    assert forests is not None
    again = replace(fit, models=forests, memo={})
    np.testing.assert_allclose(again.at(X)[0], fit.at(X)[0], atol=1e-5)  # classes: probabilities are clipped
    first = forests[0][0]
    saved = Forest.from_arrays(first.arrays(), first.depth, 3)
    rows = torch.as_tensor(X)
    torch.testing.assert_close(saved(rows), first(rows), rtol=0, atol=0)


def test_a_missing_entry_goes_where_the_trees_send_it():
    holes = np.where(np.random.default_rng(2).random(X.shape) < 0.3, np.nan, X)
    model = HistGradientBoostingRegressor(max_iter=20).fit(holes, SIGNAL)
    forest = Forest.of(model)
    np.testing.assert_allclose(forest(torch.as_tensor(holes))[:, 0], model.predict(holes), atol=1e-10)


def test_forests_that_are_none():
    assert Forest.of(LinearRegression().fit(X, SIGNAL)) is None
    assert cross_fit(LinearRegression(), X, SIGNAL[:, None], Goal("real")).arrays() is None
    model = HistGradientBoostingRegressor(max_iter=3).fit(X, SIGNAL)
    arrays = Forest.of(model).arrays()
    for name, broken in (("left", arrays["left"] + 10**6), ("value", arrays["value"][:-1])):
        with pytest.raises(ValueError, match="do not fit together"):
            Forest.from_arrays({**arrays, name: broken}, 5, 3)
    with pytest.raises(ValueError, match="has the vectors"):
        Forest.from_arrays({"left": arrays["left"]}, 5, 3)


def test_folds_are_even_and_hold_every_class():
    labels = np.repeat([0, 1, 2], [100, 37, 13])
    fold = assign_folds(labels, 150, 5, seed=3)
    assert np.bincount(fold).tolist() == [30] * 5
    for c in range(3):
        counts = np.bincount(fold[labels == c], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert assign_folds(None, 3, 5, seed=0).max() == 2  # no more folds than rows


def test_groups_share_a_fold_unless_one_class_would_be_left():
    groups = np.repeat(np.arange(30), 4)
    fold = assign_folds(None, 120, 5, 0, groups)
    assert all(len(set(fold[groups == g])) == 1 for g in range(30)) and fold.max() == 4
    labels = np.repeat([0, 1], 60)
    two = assign_folds(labels, 120, 5, 0, labels)  # without either group there is one class
    assert two.max() == 4 and all(len(set(labels[two != k])) == 2 for k in range(5))


def test_a_class_of_one_row_has_finite_values_under_any_classifier():
    y = np.zeros((60, 1))
    y[:20] = 1
    y[59] = 2
    fit = cross_fit(RandomForestClassifier(5, random_state=0), X[:60], y, Goal("classes", 3))
    assert np.isfinite(fit.held_out).all() and np.isfinite(fit.at(X[:5])[0]).all()


def test_weights_reach_the_models():
    y = SIGNAL[:, None]
    weights = np.where(X[:, 2] > 0, 1.0, 1e-9)
    fit = cross_fit(QUICK, X, np.where(X[:, 2:] > 0, y, 50.0), Goal("real"), weights=weights)
    assert fit.at(X)[0].max() < 10
    with pytest.raises(ValueError, match="takes no sample_weight"):
        cross_fit(KNeighborsRegressor(), X, y, Goal("real"), weights=weights)


def test_models_of_the_wrong_kind_are_refused():
    with pytest.raises(TypeError, match="must be a regressor"):
        cross_fit(RandomForestClassifier(), X, SIGNAL[:, None], Goal("real"))
    with pytest.raises(TypeError, match="must be a classifier"):
        cross_fit(LinearRegression(), X, (SIGNAL > 0).astype(float)[:, None], Goal("classes", 2))


def test_the_last_answer_is_kept_and_not_shared():
    fit = cross_fit(QUICK, X, SIGNAL[:, None], Goal("real"))
    first, _ = fit.at(X[:4])
    first += 1
    np.testing.assert_allclose(fit.at(X[:4])[0], first - 1)
    assert not np.allclose(fit.at(X[4:8])[0], first - 1)


def test_log_rates_of_a_regressor_that_predicts_nonsense_are_finite():
    class Negative(LinearRegression):
        def predict(self, X):
            return np.full(len(X), -3.0)

    values = latent_values(Negative().fit(X, SIGNAL), X, Goal("count"))
    assert np.isfinite(values).all()


@pytest.mark.parametrize("name", ["real", "count", "two classes", "three classes"])
def test_trees_of_wide_tables_see_the_columns_that_tell(name):
    """More columns than rows: some are kept, by the rows that a model learns from; places are the table's."""
    goal, y = TARGETS[name]
    wide = np.random.default_rng(1).normal(size=(200, 1200))
    wide[:, [7, 900, 1100]] = X
    fit = cross_fit(replace(QUICK, bagged=0), wide, y, goal)
    assert all(isinstance(model, OnColumns) and len(model.columns) == KEPT for (model,) in fit.models)
    assert all({7, 900} <= set(model.columns.tolist()) for (model,) in fit.models)
    assert len({tuple(model.columns) for (model,) in fit.models}) == len(fit.models)  # each by its own rows
    arrays = fit.arrays()
    assert arrays is not None
    found = replace(fit, models=arrays, memo={}).at(wide)
    np.testing.assert_allclose(found[0], fit.at(wide)[0], atol=1e-9)


def test_columns_that_tell_of_tables_of_any_scale():
    y = np.arange(50.0)
    wide = np.random.default_rng(1).normal(size=(50, 1200)) * 1e200
    wide[:, 3], wide[:, 4], wide[:, 5] = y * 1e-200, -y * 1e250, 7.0
    found = telling_columns(wide, y * 1e90, False)
    assert {3, 4} <= set(found.tolist()) and 5 not in found and (np.diff(found) > 0).all()


@pytest.mark.parametrize("labels", [[0] * 39 + [1], [1] * 39 + [0], [0, 1] * 19 + [0, 2], [0, 1], [0, 1, 1]])
def test_a_class_of_one_row_is_among_the_training_rows_of_every_fold(labels):
    """Boosted trees of one class would not know which; of fewer classes they have fewer outputs."""
    y = np.array(labels)
    X = np.random.default_rng(0).normal(size=(len(y), 3))
    classes = int(y.max()) + 1
    goal = Goal("classes", classes=classes)
    fit = cross_fit(Trees(), X, y[:, None], goal)
    assert all(len(model.classes_) == classes for (model,) in fit.models)
    arrays = fit.arrays()
    assert arrays is not None
    for (model,), (forest,) in zip(fit.models, arrays, strict=True):
        expected, found = latent_values(model, X, goal), latent_values(forest, X, goal)
        np.testing.assert_allclose(found, expected, atol=1e-8)
    assert fit.held_out is not None and np.isfinite(fit.held_out).all()


def test_a_sample_of_the_rows_has_every_class():
    labels = np.zeros(1000, dtype=int)
    labels[17] = 1
    rows = np.arange(1000)
    chosen = _some(rows, 10, 0, labels)
    assert len(chosen) in (10, 11) and 17 in chosen and (np.diff(chosen) > 0).all()
    np.testing.assert_array_equal(np.setdiff1d(chosen, [17]), np.setdiff1d(_some(rows, 10, 0, None), [17]))
