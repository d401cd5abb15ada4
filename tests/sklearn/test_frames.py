"""Frames of three libraries straight into the estimators: categories, text, booleans, dates, gaps."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.compose import make_column_transformer
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import duogp
from duogp import GPClassifier, GPRegressor
from duogp.errors import DataWarning
from sklearn import config_context

pl = pytest.importorskip("polars")

QUICK = {"method": "svgp", "num_inducing": 30, "epochs": 30, "learning_rate": 0.1, "random_state": 0}
ROWS = 200


def make_frame() -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=ROWS)
    city = rng.choice(["Ulm", "Rom", "Paris"], ROWS)
    frame = pd.DataFrame(
        {
            "x": x,
            "city": pd.Categorical(city),
            "size": rng.choice(["small", "large"], ROWS),
            "open": pd.array(rng.random(ROWS) < 0.5, dtype="boolean"),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, ROWS), "D"),
            "count": pd.array(rng.integers(0, 9, ROWS), dtype="Int64"),
            "gappy": np.where(rng.random(ROWS) < 0.2, np.nan, rng.normal(size=ROWS)),
        }
    )
    frame.loc[[3, 40], "count"] = pd.NA
    frame.loc[[5, 50], "open"] = pd.NA
    frame.loc[[7, 70], "size"] = None
    return frame, np.sin(2 * x) + 2 * (city == "Rom") - (city == "Ulm") + 0.1 * rng.normal(size=ROWS)


FRAME, Y = make_frame()
LIBRARIES = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "lazy": lambda frame: pl.from_pandas(frame).lazy(),
    "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
}


@pytest.fixture(scope="module")
def fitted():
    return GPRegressor(**QUICK).fit(FRAME, Y)


# -- fit, predict, save, load, explain -----------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_frame_is_fitted_predicted_saved_loaded_and_explained(fitted, library, tmp_path):
    X = LIBRARIES[library](FRAME)
    model = GPRegressor(**QUICK).fit(X, Y)
    np.testing.assert_allclose(model.predict(X), fitted.predict(FRAME), atol=1e-8)
    assert model.score(X, Y) > 0.7
    assert model.n_features_in_ == 7
    assert model.feature_names_in_.tolist() == FRAME.columns.tolist()
    assert "city=Rom" in model.gp_.column_names and "gappy (missing)" in model.gp_.column_names
    model.save(tmp_path / "m")
    loaded = duogp.load(tmp_path / "m")
    mean, std = model.predict(X, return_std=True)
    again, again_std = loaded.predict(X, return_std=True)
    np.testing.assert_allclose(again, mean, rtol=1e-6)
    np.testing.assert_allclose(again_std, std, rtol=1e-6)
    assert loaded.feature_names_in_.tolist() == FRAME.columns.tolist()
    assert loaded.n_features_in_ == 7
    np.testing.assert_allclose(loaded.feature_importances_, model.feature_importances_, rtol=1e-5)
    np.testing.assert_allclose(loaded.explain_variance(X).total, std**2, rtol=1e-5)
    other = LIBRARIES["polars" if library == "pandas" else "pandas"](FRAME)
    np.testing.assert_allclose(loaded.predict(other), mean, rtol=1e-6)


def test_labels_from_a_frame(tmp_path):
    labels = pd.Series(np.where(Y > 0.5, "high", "low"))
    model = GPClassifier(num_inducing=20, random_state=0, settings={"steps": 60, "natural_rate": 0.3})
    model.fit(FRAME, labels)
    assert model.score(FRAME, labels) > 0.85
    model.save(tmp_path / "m")
    np.testing.assert_allclose(
        duogp.load(tmp_path / "m").predict_proba(FRAME), model.predict_proba(FRAME), rtol=1e-5
    )
    assert model.feature_importances_.argmax() in (0, 1)
    new = FRAME.assign(city="Oslo")
    assert np.abs(model.predict_proba(new) - 0.5).mean() < np.abs(model.predict_proba(FRAME) - 0.5).mean()


def test_every_question_takes_frames(fitted):
    X = FRAME[:20]
    low, high = fitted.predict_interval(X)
    assert (low < high).all()
    assert fitted.predict_quantiles(X).shape == (20, 3)
    assert fitted.sample_y(X, 3).shape == (20, 3)
    assert np.isfinite(fitted.log_density(X, Y[:20])).all()
    assert fitted.predict(X, return_cov=True)[1].shape == (20, 20)
    model = copy.deepcopy(fitted).calibrate(FRAME, Y)
    low, high = model.predict_interval(X, kind="conformal")
    assert (low < high).all()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))


def test_validation_rows_and_streams_of_frames():
    model = GPRegressor(**QUICK, early_stopping=True)
    model.fit(FRAME[:150], Y[:150], validation=(FRAME[150:], Y[150:]))
    assert model.history_.validation_nll is not None
    stream = GPRegressor(num_inducing=20, random_state=0)
    for start in range(0, ROWS, 50):
        stream.partial_fit(FRAME[start : start + 50], Y[start : start + 50])
    assert stream.predict(FRAME).shape == (ROWS,)
    assert stream.feature_importances_.shape == (7,)


def test_a_frame_of_numbers_is_the_array_of_its_numbers():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(50, 2))
    frame = pd.DataFrame(X, columns=["a", "b"])
    model = GPRegressor(**QUICK).fit(frame, X[:, 0])
    np.testing.assert_allclose(
        model.predict(frame), GPRegressor(**QUICK).fit(X, X[:, 0]).predict(X), atol=1e-9
    )
    unnamed = GPRegressor(**QUICK).fit(pd.DataFrame(X), X[:, 0])  # names are 0 and 1
    assert not hasattr(unnamed, "feature_names_in_")
    np.testing.assert_allclose(unnamed.predict(X), model.predict(frame), atol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        constant = GPRegressor(**QUICK).fit(pd.DataFrame({"a": [1.0] * 50}), X[:, 0])
    assert np.isfinite(constant.predict(pd.DataFrame({"a": [1.0]}))).all()


def test_names_and_order_are_those_of_scikit_learn(fitted):
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(FRAME[FRAME.columns[::-1]])
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(FRAME.drop(columns="city"))
    more = FRAME.assign(extra=1)
    for library in ("pandas", "polars", "arrow"):
        np.testing.assert_allclose(fitted.predict(LIBRARIES[library](more)), fitted.predict(FRAME), atol=1e-8)


def test_arrays_of_objects_are_read_by_the_order_of_the_columns(fitted):
    with pytest.warns(UserWarning, match="valid feature names"):
        found = fitted.predict(FRAME.to_numpy(dtype=object))
    np.testing.assert_allclose(found, fitted.predict(FRAME), atol=1e-8)


def test_what_is_left_out_is_said():
    frame = FRAME[["x"]].assign(name=[f"n{i}" for i in range(ROWS)], one=1.0)
    with pytest.warns(DataWarning, match=r"'name' is left out: .*names or prose.*'one' is left out"):
        model = GPRegressor(**QUICK).fit(frame, Y)
    assert model.n_features_in_ == 3
    assert model.feature_importances_.tolist() == [1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="no column to predict from"):
        GPRegressor().fit(frame[["name"]], Y)


def test_gaps_can_be_refused_and_infinity_always_is():
    with pytest.raises(ValueError, match=r"missing in .*'gappy'"):
        GPRegressor(missing="refuse").fit(FRAME, Y)
    frame = FRAME[["x", "city"]].copy()
    frame.loc[4, "x"] = np.inf
    with pytest.raises(ValueError, match="column 'x' holds inf in row 4"):
        GPRegressor().fit(frame, Y)
    with pytest.raises(ValueError, match="missing must be"):
        GPRegressor(missing="whatever").fit(FRAME, Y)


def test_numbers_can_be_categories():
    frame = pd.DataFrame({"code": np.arange(ROWS) % 5, "x": FRAME["x"]})
    model = GPRegressor(**QUICK, categorical_features=["code"]).fit(frame, Y)
    assert model.gp_.column_names == [*(f"code={i}" for i in range(5)), "x"]
    with pytest.raises(ValueError, match="did you mean 'code'"):
        GPRegressor(categorical_features=["cod"]).fit(frame, Y)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pd.Series(pd.to_timedelta(np.arange(ROWS), "h")), ["c"]),
        (pd.Series(pd.period_range("2020-01-01", periods=ROWS, freq="D")), ["c", "c (day of week, sine)"]),
        (pd.Series(pd.cut(np.arange(ROWS), 2)), ["c=(-0.199, 99.5]", "c=(99.5, 199.0]"]),
        (pd.Series(pd.arrays.SparseArray((np.arange(ROWS) % 2).astype(float))), ["c"]),
        (pd.Series(pd.date_range("2020", periods=ROWS, tz="Europe/Berlin")), ["c", "c (day of week, sine)"]),
        (pd.Series(pd.Categorical([1, 2] * (ROWS // 2))), ["c=1", "c=2"]),
        (pd.Series(["a", None] * (ROWS // 2), dtype="string"), ["c=a", "c (missing)"]),
        (pd.Series(["a", "b"] * (ROWS // 2), dtype=pd.ArrowDtype(pa.string())), ["c=a", "c=b"]),
        (pd.Series(np.arange(ROWS).astype(np.float16)), ["c"]),
    ],
    ids=["duration", "period", "interval", "sparse", "zone", "numbered", "string", "arrow", "half"],
)
def test_types_of_pandas(column, expected):
    frame = pd.DataFrame({"c": column, "x": FRAME["x"]})
    model = GPRegressor(num_inducing=5, epochs=2, random_state=0).fit(frame, Y)
    assert model.gp_.column_names[: len(expected)] == expected
    assert np.isfinite(model.predict(frame)).all()


def test_frames_that_are_no_table():
    for frame, message in (
        (FRAME[:0], "no samples"),
        (FRAME[:1], "1 sample"),
        (FRAME[[]], r"0 feature\(s\)"),
        (FRAME[["x"]].astype(complex), "cannot be read as one type"),
    ):
        with pytest.raises(ValueError, match=message):
            GPRegressor().fit(frame, Y[: len(frame)])


@pytest.mark.parametrize("make", [pl.Series, pa.array, pd.Series, lambda y: pa.chunked_array([y.tolist()])])
def test_targets_of_any_library(make):
    X = FRAME[["x"]]
    labels = np.where(FRAME["x"] > 0, "right", "left")
    model = GPClassifier(num_inducing=8, random_state=0, settings={"steps": 20, "natural_rate": 0.3})
    assert model.fit(X, make(labels)).score(X, labels) > 0.9
    assert np.isfinite(GPRegressor(num_inducing=5, epochs=2).fit(X, make(Y)).predict(X)).all()


# -- what the training rows did not have ---------------------------------------------------------------------

METHODS = ["auto", "svgp", "dcsvgp", "ppgpr-chol", "svgp-dkl", "deep-ensemble"]


@pytest.mark.parametrize("method", METHODS)
def test_new_levels_and_new_gaps_widen_the_interval(method):
    own = {"epochs": 30, "random_state": 0} if method == "deep-ensemble" else QUICK
    model = GPRegressor(**{**own, "method": method}).fit(FRAME, Y)
    known = model.predict(FRAME, return_std=True)[1]
    for changed, least in (({"city": "Oslo"}, 1.5), ({"city": None}, 1.5), ({"x": np.nan}, 1.02)):
        new = FRAME.assign(**changed)
        std = model.predict(new, return_std=True)[1]
        assert std.mean() > least * known.mean(), changed
        low, high = model.predict_interval(new[:10], 0.9)
        old_low, old_high = model.predict_interval(FRAME[:10], 0.9)
        assert (high - low).mean() > (old_high - old_low).mean()
    np.testing.assert_allclose(model.explain_variance(new).total, std**2, rtol=1e-6)
    seen = model.predict(FRAME.assign(gappy=np.nan), return_std=True)[1]  # the training rows had such gaps
    assert seen.mean() < 1.3 * known.mean()


def test_a_level_of_a_column_without_effect_widens_nothing():
    frame = FRAME.assign(idle=np.arange(ROWS) % 3).astype({"idle": str})
    model = GPRegressor(**QUICK).fit(frame, Y)
    known = model.predict(frame, return_std=True)[1]
    new = model.predict(frame.assign(idle="new"), return_std=True)[1]
    assert known.mean() < new.mean() < 1.3 * known.mean()


def test_mixtures_over_unknown_values_are_those_of_their_parts(fitted):
    rows = FRAME[:4].assign(city=["Oslo", "Rom", "Oslo", "Ulm"])
    each = np.stack([fitted.predict(FRAME[:4].assign(city=city)) for city in ("Ulm", "Rom", "Paris")])
    mean = fitted.predict(rows)
    np.testing.assert_allclose(mean[[0, 2]], each[:, [0, 2]].mean(0), atol=1e-8)
    np.testing.assert_allclose(mean[1], each[1, 1], atol=1e-8)
    stds = np.stack(
        [fitted.predict(FRAME[:4].assign(city=c), return_std=True)[1] for c in ("Ulm", "Rom", "Paris")]
    )
    total = (stds**2).mean(0) + 2 * each.var(0)  # (K + 1)/(K − 1) of three levels
    np.testing.assert_allclose(
        fitted.predict(rows, return_std=True)[1][[0, 2]], np.sqrt(total)[[0, 2]], rtol=1e-6
    )
    density = np.stack([fitted.log_density(FRAME[:4].assign(city=c), Y[:4]) for c in ("Ulm", "Rom", "Paris")])
    np.testing.assert_allclose(
        fitted.log_density(rows, Y[:4])[0], np.log(np.exp(density[:, 0]).mean()), rtol=1e-6
    )
    draws = fitted.sample_y(rows, 2400)
    np.testing.assert_allclose(draws.mean(1), mean, atol=0.15)
    median = fitted.predict_quantiles(rows, 0.5)
    assert (each[:, 0].min() < median[0] < each[:, 0].max()).all()


def test_categories_of_many_levels_are_told_by_their_mean_target():
    rng = np.random.default_rng(3)
    effect = rng.normal(size=60)
    place = rng.integers(0, 60, 900)
    x = rng.normal(size=900)
    y = effect[place] + 0.3 * x + 0.2 * rng.normal(size=900)
    frame = pd.DataFrame({"x": x, "place": [f"p{i}" for i in place]})
    model = GPRegressor(**{**QUICK, "num_inducing": 60}).fit(frame[:600], y[:600])
    assert {"place (log frequency)", "place (mean target)"} <= set(model.gp_.column_names)
    assert model.score(frame[600:], y[600:]) > 0.6  # without the column it is 0.1
    known = model.predict(frame[600:], return_std=True)[1]
    new = model.predict(frame[600:].assign(place="elsewhere"), return_std=True)[1]
    assert new.mean() > known.mean()
    noise = GPRegressor(**QUICK).fit(frame.assign(place=rng.permutation(frame["place"])), 0.3 * x)
    assert noise.feature_importances_[1] < 0.2  # no leak of a row's own target


# -- scikit-learn around it ----------------------------------------------------------------------------------


def test_importances_are_shares_and_find_the_columns_that_matter(fitted):
    shares = fitted.feature_importances_
    assert shares.sum() == pytest.approx(1)
    assert FRAME.columns[np.argsort(-shares)[:2]].tolist() == ["city", "x"]
    assert not hasattr(GPRegressor(), "feature_importances_")
    X = FRAME[["x", "gappy"]].fillna(0).to_numpy()
    assert GPRegressor(**QUICK).fit(X, X[:, 0]).feature_importances_[0] > 0.9


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow"])
def test_permutation_importance(library):
    X = LIBRARIES[library](FRAME)
    model = GPRegressor(**QUICK).fit(X, Y)
    given = X if library != "arrow" else FRAME  # scikit-learn makes an array of an arrow table
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = permutation_importance(model, given, Y, n_repeats=2, random_state=0)
    assert found.importances_mean.argmax() == 1


def test_partial_dependence(fitted):
    for column in ("x", "city"):
        kinds = {"categorical_features": ["city", "size"]}
        found = partial_dependence(fitted, FRAME, [column], kind="average", grid_resolution=8, **kinds)
        assert np.isfinite(found["average"]).all()
        assert np.ptp(found["average"]) > 0.5


def test_grid_search_and_cross_validation_over_frames():
    model = GPRegressor(num_inducing=15, epochs=8, learning_rate=0.2, random_state=0)
    grid = {"mean": ["constant", "linear"], "method": ["svgp", "ppgpr-chol"]}
    search = GridSearchCV(model, grid, cv=2, error_score="raise").fit(FRAME, Y)
    assert search.best_score_ > 0.3
    assert search.predict(FRAME).shape == (ROWS,)
    assert len(cross_val_score(model, pl.from_pandas(FRAME), Y, cv=2, error_score="raise")) == 2


@pytest.mark.parametrize("output", ["default", "pandas", "polars"])
def test_a_pipeline_with_an_encoder_and_set_output(output):
    encoder = make_column_transformer(
        (OneHotEncoder(sparse_output=output == "default"), ["city", "size"]),
        (StandardScaler(), ["x"]),
        sparse_threshold=1.0,
    )
    pipeline = make_pipeline(encoder, GPRegressor(**QUICK)).set_output(transform=output)
    pipeline.fit(FRAME, Y)
    assert pipeline.score(FRAME, Y) > 0.7
    last = pipeline[-1]
    assert hasattr(last, "feature_names_in_") == (output != "default")


def test_metadata_are_routed_to_fit():
    with config_context(enable_metadata_routing=True):
        model = GPRegressor(num_inducing=15, epochs=8, random_state=0)
        model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        weights = np.linspace(0.5, 2, ROWS)
        found = cross_validate(model, FRAME, Y, cv=2, params={"sample_weight": weights}, error_score="raise")
        assert np.isfinite(found["test_score"]).all()
        request = GPRegressor().set_predict_request(return_std=True).get_metadata_routing()
        assert request.predict.requests["return_std"] is True
