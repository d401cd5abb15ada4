"""Columns, targets, numbers of draws and folders that are none: an error of ours that names the argument."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import duogp
from duogp import GPClassifier, GPRegressor
from duogp.errors import DataWarning

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=40)
QUICK: dict[str, Any] = {"num_inducing": 8, "epochs": 3, "device": "cpu", "random_state": 0}


def regressor() -> GPRegressor:
    return GPRegressor("svgp", **QUICK)


@pytest.fixture(scope="module")
def fitted() -> GPRegressor:
    return regressor().fit(X, Y)


# -- arrow columns -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [pa.array, lambda v: pa.chunked_array([v[:7], v[7:]], pa.float64())])
@pytest.mark.parametrize("place", ["y", "sample_weight", "noise"])
def test_gaps_in_arrow_columns(place: str, form: Any, fitted: GPRegressor) -> None:
    gaps = form([None] + [1.0] * 39)
    given = {"y": Y} | {place: gaps}
    with pytest.raises(ValueError, match=rf"^{place} contains 1 value.* at row 0"):
        duogp.fit(X, given.pop("y"), "svgp", **given, **QUICK)
    given = {"y": Y} | {place: gaps}
    with pytest.raises(ValueError, match=rf"^{place} contains 1 value.* at row 0"):
        regressor().fit(X, **given)
    if place != "noise":
        with pytest.raises(ValueError, match=rf"^{place} contains 1 value"):
            fitted.score(X, **({"y": Y} | {place: gaps}))


def test_arrow_columns_are_read_as_arrays_are(fitted: GPRegressor) -> None:
    weight = pa.array([1, 2] * 20)
    found = duogp.fit(X, pa.array(Y), "svgp", sample_weight=weight, **QUICK).predict(X)
    expected = duogp.fit(X, Y, "svgp", sample_weight=[1.0, 2.0] * 20, **QUICK).predict(X)
    np.testing.assert_array_equal(found.mean, expected.mean)
    labels = ["a" if value else "b" for value in Y > 0]
    model = GPClassifier("svgp", **QUICK).fit(X, pa.array(labels))
    assert model.score(X, pa.chunked_array([labels])) == model.score(X, labels)
    assert duogp.fit(X, pa.array(labels), "svgp", likelihood="classes", **QUICK).classes.tolist() == [
        "a",
        "b",
    ]


# -- names of columns ----------------------------------------------------------------------------------------


def test_columns_of_one_name_get_their_place() -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "a"])
    table = pa.Table.from_arrays([pa.array(column) for column in X.T], names=["a", "b", "a"])
    expected = regressor().fit(X, Y).predict(X)
    for own in (frame, table):
        model = regressor().fit(own, Y)
        assert model.feature_names_in_.tolist() == ["a (column 0)", "b", "a (column 2)"]
        np.testing.assert_array_equal(model.predict(own), expected)
    model = regressor().fit(pd.DataFrame(X, columns=["a", "b", "c"]), Y)
    for own in (frame, table):
        with pytest.raises(ValueError, match="feature names should match"):
            model.predict(own)


def test_columns_of_arrays() -> None:
    pl = pytest.importorskip("polars")
    pairs = pl.Series([[1.0, float("nan")]] * 40, dtype=pl.Array(pl.Float64, 2))
    frame = pl.DataFrame({"pair": pairs, "b": X[:, 0]})
    with pytest.raises(TypeError, match=r"X, column 'pair': found arrays of shape \(2,\)"):
        duogp.fit(frame, Y, "svgp", **QUICK)
    with pytest.warns(duogp.DataWarning, match="'pair' is left out"):
        regressor().fit(frame, Y)


# -- tensors -------------------------------------------------------------------------------------------------


def test_tensors_that_require_gradients(fitted: GPRegressor) -> None:
    def tensor(values: Any) -> torch.Tensor:
        return torch.tensor(values, requires_grad=True)

    assert fitted.score(tensor(X), tensor(Y), tensor(np.ones(40))) == fitted.score(X, Y)
    labels = GPClassifier("svgp", **QUICK).fit(X, Y > 0)
    weight = np.arange(1.0, 41)
    assert labels.score(tensor(X), Y > 0, tensor(weight)) == labels.score(X, Y > 0, weight)


def test_scores_are_those_of_scikit_learn(fitted: GPRegressor) -> None:
    from sklearn.metrics import accuracy_score, r2_score

    weight = np.arange(1.0, 41)
    assert fitted.score(X, Y, weight) == pytest.approx(r2_score(Y, fitted.predict(X), sample_weight=weight))
    labels = GPClassifier("svgp", **QUICK).fit(X[:20], Y[:20] > 0)
    expected = accuracy_score(Y > 0, labels.predict(X), sample_weight=weight)
    assert labels.score(X, Y > 0, weight) == pytest.approx(expected)


# -- draws, seeds, folders -----------------------------------------------------------------------------------


def test_more_draws_than_there_is_memory(fitted: GPRegressor) -> None:
    for draw in (
        lambda: fitted.gp_.sample(X, 10**12),
        lambda: fitted.gp_.sample(X, 10**12, kind="pathwise"),
        lambda: fitted.sample_y(X, 10**12),
        lambda: GPClassifier("svgp", **QUICK).fit(X, Y > 0).sample_y(X, 10**12),
    ):
        with pytest.raises(ValueError, match="n=1000000000000 draws take"):
            draw()


@pytest.mark.parametrize("seed", ["seven", 1.5, True, [1]])
def test_seeds_that_are_none(seed: Any, fitted: GPRegressor) -> None:
    for draw in (fitted.gp_.sample, lambda X, seed: fitted.gp_.sample_paths(seed=seed)):
        with pytest.raises(TypeError, match="seed must be an integer or None, got"):
            draw(X, seed=seed)
    with pytest.raises(ValueError, match="seed must be from 0"):
        fitted.gp_.sample(X, seed=-1)


@pytest.mark.parametrize("path", [None, 3, b"model"])
def test_paths_that_are_none(path: Any, fitted: GPRegressor) -> None:
    for use in (duogp.load, fitted.save, fitted.gp_.save):
        with pytest.raises(TypeError, match="expected the path of a model's folder, got"):
            use(path)


# -- numbers out of range ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e308, 1e154])
def test_targets_whose_squares_are_no_floats(size: float) -> None:
    for fit in (
        lambda: duogp.fit(X, size * np.sign(Y), "svgp", **QUICK),
        lambda: regressor().fit(X, size * Y),
    ):
        with pytest.raises(ValueError, match=r"y holds numbers as large as .* use other units"):
            fit()


@pytest.mark.parametrize("name", ["initial_scale", "initial_noise", "initial_lengthscale"])
@pytest.mark.parametrize("value", [1e300, 1e-300])
def test_first_values_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a number from 1e-100 to 1e100"):
        duogp.fit(X, Y, "svgp", **QUICK, **{name: value})


@pytest.mark.filterwarnings("ignore::duogp.NumericalWarning")
def test_a_fit_that_ends_in_nan_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"'svgp' has no finite predictions.*float64"):
        duogp.fit(X, Y, "svgp", initial_scale=1e50, dtype="float32", **QUICK)


# -- weights, budgets, columns -------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [np.full(40, 10.0), RNG.uniform(50, 90, 40), np.full(40, 0.01)])
def test_weights_that_are_hardly_counts_are_asked_about(weight: Any) -> None:
    with pytest.warns(DataWarning, match="counts as w rows: divide it by its mean"):
        regressor().fit(X, Y, sample_weight=weight)


@pytest.mark.parametrize("weight", [np.ones(40), RNG.integers(0, 30, 40), RNG.uniform(0, 2, 40)])
def test_counts_and_weights_of_mean_one_are_taken_as_they_are(weight: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        regressor().fit(X, Y, sample_weight=weight)


def test_one_row_with_a_weight_is_too_few() -> None:
    with pytest.raises(ValueError, match="sample_weight is zero but for 1 of 40 rows"):
        regressor().fit(X, Y, sample_weight=np.eye(40)[3])


def test_a_budget_that_is_none_is_named_as_it_was_given() -> None:
    with pytest.raises(ValueError, match="time_budget must be a positive number, got -1"):
        GPRegressor(time_budget=-1).fit(X, Y)


def test_a_setting_of_cells_is_sent_to_where_it_goes() -> None:
    with pytest.raises(TypeError, match=r"reading=\{'decimal': \.\.\.\}"):
        GPRegressor(decimal=",").fit(X, Y)


def test_constant_columns_are_named() -> None:
    constant = X.copy()
    constant[:, 1] = 7.0
    with pytest.warns(DataWarning, match=r"1 constant columns of X are ignored .*: 1, counted from 0"):
        regressor().fit(constant, Y)


def test_a_constant_target_is_no_matter_for_warnings_of_scipy() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model = GPRegressor(random_state=0).fit(X, np.full(40, 3.0))
    np.testing.assert_allclose(model.predict(X[:3]), 3.0, atol=1e-6)


def test_two_classes_of_which_one_has_a_single_row() -> None:
    labels = np.array(["no"] * 39 + ["yes"])
    model = GPClassifier(random_state=0).fit(X, labels)
    assert list(model.classes_) == ["no", "yes"]
    assert model.predict_proba(X)[:, 1].mean() < 0.2
