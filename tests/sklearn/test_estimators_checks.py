"""Scikit-learn's own checks of an estimator, and the tools of scikit-learn around ours."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from duogp import GPClassifier, GPRegressor
from duogp.errors import DataWarning

#: Few steps and points: the checks ask for manners, and for the beginnings of a fit.
SMALL = [
    GPRegressor(num_inducing=8, epochs=15, learning_rate=0.2),
    GPClassifier(num_inducing=8, learning_rate=0.2, settings={"steps": 25, "natural_rate": 0.3}),
]
#: The default settings pass too; they take two minutes, so `make fuzz` runs them.
DEFAULTS = [GPRegressor(), GPClassifier()] if os.environ.get("DUOGP_SLOW_TESTS") else []


@parametrize_with_checks([*SMALL, *DEFAULTS])
def test_scikit_learn_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # fewer rows than inducing points, constant columns
        check(estimator)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=60)


def test_grid_search_chooses_a_kernel_and_a_setting(table):
    grid = {"kernel": ["rbf", "matern12"], "num_inducing": [2, 15], "mean": ["constant", "zero"]}
    search = GridSearchCV(GPRegressor(epochs=15, learning_rate=0.2, random_state=0), grid, cv=2).fit(*table)
    assert search.best_params_["num_inducing"] == 15
    assert search.best_score_ > 0.8


def test_grid_search_over_mean_and_method(table):
    grid = {"mean": ["zero", "constant", "linear"], "method": ["svgp", "dcsvgp"]}
    model = GPRegressor(num_inducing=8, epochs=10, learning_rate=0.2, random_state=0)
    search = GridSearchCV(model, grid, cv=2, error_score="raise").fit(*table)
    assert len(search.cv_results_["params"]) == 6
    assert search.best_estimator_.gp_.settings.mean == search.best_params_["mean"]
    assert search.best_estimator_.method_ == search.best_params_["method"]


def test_a_pipeline_names_the_parameters(table):
    pipeline = make_pipeline(StandardScaler(), GPRegressor(random_state=0))
    pipeline.set_params(gpregressor__epochs=15, gpregressor__learning_rate=0.2)
    assert pipeline.fit(*table).score(*table) > 0.9
    mean, std = pipeline.predict(table[0], return_std=True)
    assert mean.shape == std.shape == (60,)


@pytest.mark.slow
def test_cross_validation_in_two_processes_is_that_of_one(table):
    model = GPRegressor("svgp", num_inducing=10, epochs=10, learning_rate=0.2, random_state=0)
    here = cross_val_score(model, *table, cv=2)
    there = cross_val_score(model, *table, cv=2, n_jobs=2)
    np.testing.assert_allclose(here, there, rtol=1e-6)


def test_probabilities_can_be_calibrated_by_scikit_learn(table):
    X, y = table
    labels = np.where(y > 0, "high", "low")
    model = CalibratedClassifierCV(clone(SMALL[1]).set_params(random_state=0), cv=2).fit(X, labels)
    assert model.score(X, labels) > 0.9
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
