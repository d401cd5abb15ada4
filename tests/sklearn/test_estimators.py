"""The scikit-learn estimators: inputs of any kind, units, weights, streams, copies, errors with a cause."""

from __future__ import annotations

import copy
import inspect
import pickle
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
import torch
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.utils import get_tags

import duogp
from duogp import GPClassifier, GPRegressor
from duogp.kernels import RBF, Scale
from duogp.likelihoods import StudentTLikelihood
from duogp.sklearn.training_rows import TrainingRows, join_repeated

QUICK = {"num_inducing": 10, "epochs": 15, "learning_rate": 0.2, "random_state": 0}
LABELS = {
    "num_inducing": 8,
    "learning_rate": 0.2,
    "random_state": 0,
    "settings": {"steps": 20, "natural_rate": 0.3},
}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=60)


@pytest.fixture(scope="module")
def fitted(table):
    return GPRegressor(**QUICK).fit(*table)


# -- inputs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["list", "float32", "tensor", "pandas", "polars", "arrow", "masked"])
def test_tables_of_any_kind_give_one_model(table, fitted, kind):
    X, y = table
    frame = pd.DataFrame(X, columns=["a", "b"])

    def polars() -> tuple:
        pl = pytest.importorskip("polars")
        return pl.DataFrame({"a": X[:, 0], "b": X[:, 1]}), pl.Series(y)

    given_X, given_y = {
        "list": lambda: (X.tolist(), y.tolist()),
        "float32": lambda: (X.astype(np.float32), y.astype(np.float32)),
        "tensor": lambda: (torch.tensor(X), torch.tensor(y)),
        "pandas": lambda: (frame, pd.Series(y)),
        "polars": polars,
        "arrow": lambda: (pa.table({"a": X[:, 0], "b": X[:, 1]}), pa.chunked_array([y])),
        "masked": lambda: (np.ma.masked_array(X), y),
    }[kind]()
    model = GPRegressor(**QUICK).fit(given_X, given_y)
    tolerance = 1e-3 if kind == "float32" else 1e-8
    np.testing.assert_allclose(model.predict(given_X), fitted.predict(X), atol=tolerance)
    assert model.n_features_in_ == 2
    assert hasattr(model, "feature_names_in_") == (kind in ("pandas", "polars", "arrow"))
    if kind == "pandas":
        assert model.gp_.column_names == ["a", "b"]
        with pytest.raises(ValueError, match="feature names"):
            model.predict(frame[["b", "a"]])


@pytest.mark.parametrize("kind", ["csr", "coo", "torch"])
def test_sparse_input_is_made_dense(table, fitted, kind):
    X, y = table
    make = {
        "csr": scipy.sparse.csr_array,
        "coo": scipy.sparse.coo_matrix,
        "torch": lambda X: torch.tensor(X).to_sparse(),
    }[kind]
    model = GPRegressor(**QUICK).fit(make(X), y)
    np.testing.assert_allclose(model.predict(make(X)), fitted.predict(X), atol=1e-8)


def test_a_sparse_matrix_that_would_not_fit_is_refused_with_a_way_out(table):
    huge = scipy.sparse.csr_array((100_000, 100_000))
    with pytest.raises(ValueError, match=r"too large for a dense array \(75 GiB\).*TruncatedSVD"):
        GPRegressor().fit(huge, np.zeros(100_000))


def test_text_and_gaps_in_an_array_point_to_frames(table):
    X, y = table
    with pytest.raises(ValueError, match=r"the first \(nan\) .* give a frame .*, which may have gaps"):
        GPRegressor().fit(np.where(X > 1, np.nan, X), y)
    with pytest.raises(TypeError, match="give a frame"):
        GPRegressor().fit(np.array([["a", 1.0]] * 60, dtype=object), y)
    with pytest.raises(ValueError, match="categorical_features names columns of a frame"):
        GPRegressor(categorical_features=["a"]).fit(X, y)


# -- predictions ---------------------------------------------------------------------------------------------


def test_predictions_are_in_the_users_units(table, fitted):
    X, y = table
    other = GPRegressor(**QUICK).fit(1e6 * X + 1e7, 1e-3 * y - 5)
    mean, std = fitted.predict(X, return_std=True)
    other_mean, other_std = other.predict(1e6 * X + 1e7, return_std=True)
    np.testing.assert_allclose((other_mean + 5) * 1e3, mean, atol=1e-4)
    np.testing.assert_allclose(other_std * 1e3, std, rtol=1e-3)
    assert fitted.score(X, y) > 0.95


def test_the_covariance_of_observations_has_their_variance_on_its_diagonal(table, fitted):
    X, _ = table
    mean, covariance = fitted.predict(X[:20], return_cov=True)
    _, std = fitted.predict(X[:20], return_std=True)
    np.testing.assert_allclose(np.diag(covariance), std**2)
    np.testing.assert_allclose(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > 0
    draws = fitted.sample_y(X[:20], 4000, random_state=1)
    assert draws.shape == (20, 4000)
    np.testing.assert_allclose(draws.mean(1), mean, atol=5 * std.max() / np.sqrt(4000))
    np.testing.assert_allclose(np.cov(draws), covariance, atol=0.1 * covariance.max())
    with pytest.raises(ValueError, match="ask for one of them"):
        fitted.predict(X, return_std=True, return_cov=True)


def test_several_outputs(table):
    X, y = table
    model = GPRegressor(**QUICK).fit(X, np.column_stack([y, 100 * y]))
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (60, 2)
    assert model.predict(X[:5], return_cov=True)[1].shape == (5, 5, 2)
    assert model.sample_y(X[:5], 3).shape == (5, 2, 3)
    assert model.score(X, np.column_stack([y, 100 * y])) > 0.9
    mixed = GPRegressor(**QUICK, method="svgp", settings={"num_latents": 1}).fit(
        X, np.column_stack([y, 2 * y])
    )
    covariance = mixed.predict(X[:5], return_cov=True)[1]
    np.testing.assert_allclose(np.diagonal(covariance).T, mixed.predict(X[:5], return_std=True)[1] ** 2)


def test_the_variance_in_parts(table, fitted):
    X, _ = table
    parts = fitted.explain_variance(X)
    np.testing.assert_allclose(parts.total, fitted.predict(X, return_std=True)[1] ** 2)
    far = fitted.explain_variance(X + 100)
    assert (far.distributional > 5 * parts.distributional.max()).all()
    assert (far.within_data < 1e-6).all()
    labels = GPClassifier(**LABELS).fit(X, X[:, 0] > 0)
    assert (labels.explain_variance(X).noise == 0).all() and labels.explain_variance(X).total.shape == (60,)


def test_known_noise_of_rows(table):
    X, y = table
    noise = np.where(X[:, 0] > 0, 0.5, 1e-3)
    model = GPRegressor(**QUICK).fit(X, y, noise=noise)
    std = model.predict(X[:1], return_std=True, noise=[4.0])[1]
    assert std > 2
    with pytest.raises(ValueError, match="needs noise="):
        model.predict_interval(X)
    assert np.isfinite(model.predict_interval(X, noise=noise)).all()
    model.calibrate(X, y, noise=noise)
    assert np.isfinite(model.predict_interval(X, kind="conformal", noise=noise)).all()


@pytest.mark.parametrize("method", ["ppgpr", "dcsvgp", "odsvgp", "exact", "svgp-dkl"])
def test_every_method_by_name(table, method):
    X, y = table
    points = {} if method == "exact" else {"num_inducing": 8}
    model = GPRegressor(method, epochs=3, random_state=0, **points).fit(X, y)
    assert model.method_ == duogp.METHODS[method].name
    assert "chosen by the argument method=" in model.reasons_[0]
    assert np.isfinite(model.predict(X, return_std=True)).all()
    direct = duogp.fit(X, y, method, epochs=3, random_state=0, **points)
    np.testing.assert_allclose(model.predict(X), direct.predict(X).mean)


@pytest.mark.parametrize("method", ["dgp", "deep-ensemble"])
def test_mixtures_have_quantiles(table, method):
    if method not in duogp.METHODS:
        pytest.skip(f"{method} is not in the registry")
    X, y = table
    model = GPRegressor(method, epochs=2, random_state=0).fit(X, y)
    quantiles = model.predict_quantiles(X, [0.1, 0.5, 0.9])
    mean, std = model.predict(X, return_std=True)
    assert (np.diff(quantiles) > 0).all()
    assert (np.abs(quantiles[:, 1] - mean) < std).all()
    with pytest.raises(ValueError, match="no joint Gaussian"):
        model.predict(X, return_cov=True)


def test_kernels_likelihoods_and_other_settings_as_objects(table):
    X, y = table
    kernel = Scale(RBF(2))
    model = GPRegressor(**QUICK, kernel=kernel, likelihood=StudentTLikelihood(1), mean="linear")
    copied = clone(model).fit(X, y)
    assert copied.kernel is not kernel
    assert copied.score(X, y) > 0.8
    assert type(copied.gp_.model.likelihood) is StudentTLikelihood
    assert copied.gp_.settings.mean == "linear"


# -- labels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        np.array(["no", "yes"]),
        np.array(["no", "yes"], dtype=object),
        np.array([False, True]),
        np.array([-1, 1]),
        np.array([2.0, 7.0]),
        np.array(["a", "b", "ccc"]),
        np.array([10, 20, 30], dtype=np.uint8),
    ],
    ids=str,
)
def test_labels_of_any_type_come_back_as_they_were(table, names):
    X, _ = table
    y = names[np.digitize(X[:, 0], [0.0] if len(names) == 2 else [-0.5, 0.5])]
    model = GPClassifier(**LABELS).fit(X, y)
    np.testing.assert_array_equal(model.classes_, names)
    assert model.predict(X).dtype == model.classes_.dtype
    assert model.classes_.dtype.kind == names.dtype.kind
    assert model.score(X, y) > 0.8
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (60, len(names))
    np.testing.assert_allclose(probabilities.sum(1), 1)
    decision = model.decision_function(X)
    assert decision.shape == ((60,) if len(names) == 2 else (60, len(names)))
    chosen = (decision > 0).astype(int) if len(names) == 2 else decision.argmax(1)
    np.testing.assert_array_equal(model.classes_[chosen], model.predict(X))
    assert set(np.unique(model.sample_y(X, 5))) <= set(names.tolist())
    with pytest.warns(DataConversionWarning, match="column-vector"):
        GPClassifier(**LABELS).fit(X, y[:, None])


def test_numbers_are_no_labels_and_labels_no_numbers(table):
    X, y = table
    with pytest.raises(ValueError, match="Unknown label type"):
        GPClassifier().fit(X, y)
    with pytest.raises(ValueError, match="only one class"):
        GPClassifier().fit(X, np.zeros(60))
    with pytest.raises(ValueError, match=r"likelihood='bernoulli' is for class labels: use GPClassifier"):
        GPRegressor(likelihood="bernoulli").fit(X, y)
    with pytest.raises(ValueError, match=r"likelihood='poisson' is for numbers, not for labels"):
        GPClassifier(likelihood="poisson").fit(X, y > 0)


# -- weights and repeated rows -------------------------------------------------------------------------------


def test_a_weight_is_so_many_rows_whatever_the_method(table):
    X, y = table
    weight = np.random.default_rng(0).integers(0, 4, size=60)
    for method in ("auto", "ppgpr"):
        settings = {**QUICK, "validation_fraction": 0.2}
        weighted = GPRegressor(method, **settings).fit(X, y, sample_weight=weight)
        repeated = GPRegressor(method, **settings).fit(np.repeat(X, weight, 0), np.repeat(y, weight))
        np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-9, atol=1e-9)
    removed = GPRegressor(**QUICK).fit(X[weight > 0], y[weight > 0])
    zeroed = GPRegressor(**QUICK).fit(X, y, sample_weight=(weight > 0).astype(float))
    np.testing.assert_allclose(removed.predict(X), zeroed.predict(X), rtol=1e-9, atol=1e-9)


def test_rows_are_joined_only_where_they_are_equal():
    X = np.array([[1.0, 2.0], [0.0, 1.0], [1.0, 2.0], [-0.0, 1.0], [1.0, 2.0]])
    y = np.array([1.0, 2.0, 1.0, 2.0, 3.0])
    joined = join_repeated(TrainingRows(X, y, None, None))
    np.testing.assert_array_equal(joined.X, [[0, 1], [1, 2], [1, 2]])
    np.testing.assert_array_equal(joined.y, [2, 1, 3])
    np.testing.assert_array_equal(joined.weight, [2, 2, 1])
    alone = join_repeated(TrainingRows(X[:2], y[:2], np.ones(2), None))
    assert alone.weight is None
    np.testing.assert_array_equal(alone.X, X[:2])  # nothing to join: as it came
    known = join_repeated(TrainingRows(X, y, None, np.arange(1.0, 6.0)))
    assert len(known.X) == 5  # measured with different noise


# -- parameters ----------------------------------------------------------------------------------------------


def test_nothing_is_checked_before_fit_and_errors_name_the_parameter(table):
    X, y = table
    for name, value, found in (
        ("method", "svpg", "unknown method 'svpg'; did you mean 'svgp'"),
        ("num_inducing", -1, "num_inducing must be a positive integer"),
        ("kernel", "mattern", "kernel"),
        ("epochs", 1.5, "epochs must be a positive integer"),
        ("solver", "magic", "solver must be one of"),
        ("random_state", "x", "random_state must be None, an integer"),
        ("random_state", -1, "random_state must be from 0"),
        ("time_budget", 0, "time_budget must be a positive number"),
        ("compile", "yes", "compile must be 'auto', True or False"),
        ("device", "tpu", "device must name a torch device"),
        ("validation_fraction", 1, "validation_fraction must be in"),
        ("settings", {"epochs": 3}, "settings holds 'epochs', for which there is the parameter 'epochs'"),
        ("settings", {"mean": "zero"}, "settings holds 'mean', for which there is the parameter 'mean'"),
        ("settings", {"backend": "eager"}, "for which there is the parameter 'compile'"),
        ("settings", {"num_indcing": 3}, "unknown setting 'num_indcing'; did you mean 'num_inducing'"),
        ("settings", [1], "settings must be a dict"),
        ("likelihood", "gausian", "unknown likelihood 'gausian'; did you mean 'gaussian'"),
    ):
        model = GPRegressor().set_params(**{name: value})
        with pytest.raises((ValueError, TypeError), match=found.replace("(", r"\(")):
            model.fit(X, y)


def test_a_setting_without_a_parameter_is_told_where_it_goes():
    for name, found in (
        ("num_layers", r"settings=\{'num_layers': ...\} hands it to duogp.fit"),
        ("backend", "here it is the parameter 'compile'"),
        ("num_inducin", "did you mean 'num_inducing'"),
        ("num_layer", r"did you mean settings=\{'num_layers'"),
    ):
        with pytest.raises(TypeError, match=found):
            GPRegressor(**{name: 2})
        with pytest.raises(ValueError, match=found):
            GPRegressor().set_params(**{name: 2})
    assert "num_inducing" in str(inspect.signature(GPRegressor))


def test_random_states_are_those_of_scikit_learn(table):
    X, y = table

    def predictions(state):
        return GPRegressor("ppgpr", **{**QUICK, "random_state": state, "epochs": 3}).fit(X, y).predict(X)

    np.testing.assert_array_equal(predictions(3), predictions(3))
    np.testing.assert_array_equal(predictions(np.int64(3)), predictions(3))
    np.testing.assert_array_equal(
        predictions(np.random.RandomState(1)), predictions(np.random.RandomState(1))
    )
    shared = np.random.RandomState(1)
    assert not np.array_equal(predictions(shared), predictions(shared))  # it moves on
    assert not np.array_equal(predictions(None), predictions(None))


def test_tags_say_what_the_estimators_are():
    regressor, classifier = GPRegressor(), GPClassifier()
    assert is_regressor(regressor) and is_classifier(classifier)
    assert get_tags(regressor).target_tags.multi_output and not get_tags(classifier).target_tags.multi_output
    assert get_tags(GPRegressor(likelihood="poisson")).target_tags.positive_only
    assert get_tags(regressor).input_tags.sparse and not get_tags(regressor).input_tags.allow_nan


def test_training_ends_in_time(table):
    X, y = table
    model = GPRegressor("svgp", solver="stochastic", num_inducing=10, epochs=10**6, time_budget=0.3)
    start = time.perf_counter()
    model.fit(X, y)
    assert time.perf_counter() - start < 5
    assert 0 < model.n_iter_ < 10**6


def test_auto_says_what_it_chose_and_why(fitted):
    assert fitted.method_ == "stack"
    assert fitted.reasons_[0].startswith("a stack of ")
    assert all(label in fitted.reasons_[0] for label in fitted.gp_.labels)


def test_auto_hands_everything_on(table, monkeypatch):
    X, y = table
    seen = {}

    def fit(X, y, method, **given):
        assert method == "auto"
        seen.update(given)
        gp = duogp.fit(X, y, "svgp", epochs=1, num_inducing=5)
        gp.history.notes[:] = ["svgp: it won"]
        return gp

    monkeypatch.setattr("duogp.sklearn.base.fit", fit)
    model = GPRegressor(time_budget=7, num_inducing=5, random_state=3)
    model.fit(X, y, sample_weight=np.arange(60) + 1)
    assert model.reasons_ == ["svgp: it won"] and model.method_ == "svgp"
    assert seen.pop("sample_weight").shape == (60,)
    assert 0.7 <= seen.pop("time_budget") <= 7  # less what it took to read the rows
    assert seen == {"validation": None, "noise": None, "num_inducing": 5, "random_state": 3}


def test_validation_rows_of_the_users(table):
    X, y = table
    model = GPRegressor("svgp", **QUICK, early_stopping=True).fit(X[:40], y[:40], validation=(X[40:], y[40:]))
    assert model.history_.validation_nll is not None
    with pytest.raises(TypeError, match="validation must be a pair"):
        GPRegressor().fit(X, y, validation=X)


# -- copies, files, streams ----------------------------------------------------------------------------------


def test_copies_predict_what_the_original_predicts(table, fitted):
    X, y = table
    for other in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        np.testing.assert_array_equal(other.predict(X), fitted.predict(X))
    assert not hasattr(clone(fitted), "n_iter_")
    with pytest.raises(NotFittedError):
        clone(fitted).predict(X)
    np.testing.assert_array_equal(clone(fitted).fit(X, y).predict(X), fitted.predict(X))


def test_saved_estimators_come_back_whole(table, tmp_path):
    X, y = table
    frame = pd.DataFrame(X, columns=["a", "b"])
    model = GPRegressor(**QUICK, kernel=Scale(RBF(2)), mean="linear", calibration_fraction=0.3)
    model.fit(frame, y).save(tmp_path / "numbers")
    loaded = duogp.load(tmp_path / "numbers")
    assert type(loaded) is GPRegressor
    np.testing.assert_allclose(loaded.predict(frame), model.predict(frame), rtol=1e-6)
    ends = model.predict_interval(frame, kind="conformal")
    np.testing.assert_allclose(loaded.predict_interval(frame, kind="conformal"), ends, rtol=1e-6)
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(frame[["b", "a"]])
    for name in ("method", "num_inducing", "epochs", "settings", "random_state", "calibration_fraction"):
        assert getattr(loaded, name) == getattr(model, name)
    assert type(loaded.kernel) is Scale
    assert (loaded.method_, loaded.reasons_, loaded.n_iter_) == (model.method_, model.reasons_, model.n_iter_)
    labels = np.array(["no", "yes"], dtype=object)[(y > 0).astype(int)]
    folder = tmp_path / "labels"
    classifier = GPClassifier(**LABELS, checkpoint_dir=folder).fit(X, labels)  # saved by fit itself
    other = duogp.load(folder)
    np.testing.assert_allclose(other.predict_proba(X), classifier.predict_proba(X), rtol=1e-6)
    assert other.classes_.dtype == object and other.predict(X)[0] in ("no", "yes")
    assert other.partial_fit(X, labels).score(X, labels) > 0.8


def test_a_stream_of_numbers(table):
    X, y = table
    model = GPRegressor(num_inducing=20, learning_rate=0.05, random_state=0)
    for _ in range(5):
        for start in range(0, 60, 20):
            model.partial_fit(X[start : start + 20], y[start : start + 20])
    assert model.method_ == "ivsgpr"
    assert model.n_iter_ == 15
    assert model.score(X, y) > 0.7
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :1], y)


def test_a_stream_goes_on_after_a_fit(table, fitted):
    X, y = table
    model = copy.deepcopy(fitted).calibrate(X, y)
    before = model.predict(X)
    model.partial_fit(X, y)
    assert np.abs(model.predict(X) - before).max() < 1  # of one member, whose points are ten
    assert model.calibration_ is None  # of a model that is no more
    assert model.n_iter_ == 1
    model.fit(X, y)
    np.testing.assert_array_equal(model.predict(X), fitted.predict(X))
    exact = GPRegressor("exact", epochs=2).fit(X, y)
    with pytest.raises(ValueError, match="keeps all rows"):
        exact.partial_fit(X, y)
    with pytest.raises(ValueError, match="closed form"):
        GPRegressor("sgpr").partial_fit(X, y)


def test_a_stream_of_labels(table):
    X, _ = table
    y = np.where(X[:, 0] > 0, "right", "left")
    model = GPClassifier(num_inducing=20, learning_rate=0.05, random_state=0)
    model.partial_fit(X[:2], np.array(["left", "left"]), classes=["left", "right"])
    for _ in range(10):
        model.partial_fit(X, y)
    assert model.classes_.tolist() == ["left", "right"]
    assert model.score(X, y) > 0.8
    with pytest.raises(ValueError, match="not announced"):
        model.partial_fit(X[:2], np.array(["left", "up"]))
    with pytest.raises(ValueError, match="classes="):
        GPClassifier().partial_fit(X[:2], np.array(["left", "left"]))


def test_a_stream_that_still_collects_rows_is_not_fitted_yet(table):
    X, y = table
    model = GPRegressor("svi", num_inducing=50).partial_fit(X[:10], y[:10])
    with pytest.raises(NotFittedError, match="40 more are needed"):
        model.predict(X)
