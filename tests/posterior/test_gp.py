"""A fitted model: predictions, densities and samples in the user's units."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import trapezoid

import duogp
from duogp.posterior import gp as gp_module
from duogp.posterior import incoming


def table(n: int = 60, d: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, 30 + 5 * np.sin(2 * X[:, 0]) + rng.normal(size=n)


@pytest.fixture(scope="module")
def data():
    return table()


@pytest.fixture(scope="module", params=["svgp", "dcsvgp", "ppgpr-mfd", "map"])
def gp(request, data):
    return duogp.fit(*data, request.param, num_inducing=12, epochs=15, learning_rate=0.05)


@pytest.fixture(scope="module")
def two_outputs(data):
    X, y = data
    return duogp.fit(X, np.column_stack([y, -100 * y]), "svgp", num_inducing=12, epochs=10)


# -- predictions -----------------------------------------------------------------------------------------


def test_prediction_is_in_the_users_units(gp, data):
    X, y = data
    p = gp.predict(X)
    assert p.mean.shape == p.residual.shape == p.explained.shape == p.noise.shape == y.shape
    assert p.mean.dtype == np.float64
    assert abs(p.mean.mean() - y.mean()) < 1.5
    assert np.allclose(p.variance, p.residual + p.explained + p.noise)
    assert np.allclose(p.function_variance, p.variance - p.noise)
    assert np.allclose(p.std**2, p.variance)
    assert (p.residual > 0).all() and (p.explained >= 0).all() and (p.noise > 0).all()
    assert len(p) == len(y)


def test_a_useful_model_beats_the_mean(gp, data):
    X, y = data
    if gp.history.solver == "closed-form":
        assert np.mean((gp.predict(X).mean - y) ** 2) < 0.4 * y.var()


def test_far_from_the_data_the_prior_returns(data):
    X, y = data
    gp = duogp.fit(X, y, "svgp", num_inducing=12, epochs=10)
    far = gp.predict(np.full((1, 2), 1e6))
    constant = gp.hyperparameters()["mean"]["constant"]
    assert far.mean[0] == pytest.approx(constant * gp.y_scaler.scale[0] + gp.y_scaler.shift[0])
    near = gp.predict(X)
    assert far.residual[0] > 3 * near.residual.mean()
    assert far.explained[0] == pytest.approx(0.0, abs=1e-10)


def test_interval_holds_its_share():
    p = duogp.Prediction(*(np.array([v]) for v in (10.0, 1.0, 2.0, 1.0)))
    low, high = p.interval(0.9)
    assert (low[0], high[0]) == pytest.approx(stats.norm(10.0, 2.0).interval(0.9))
    for level in (0.0, 1.0, 95, -0.1):
        with pytest.raises(ValueError, match=r"level must be in \(0, 1\)"):
            p.interval(level)


def test_a_row_alone_and_among_many_is_the_same(gp, data):
    X, _ = data
    many = gp.predict(X)
    one = gp.predict(X[7:8])
    assert one.mean[0] == pytest.approx(many.mean[7], rel=1e-10)
    assert one.variance[0] == pytest.approx(many.variance[7], rel=1e-9)


def test_prediction_does_not_depend_on_chunks(gp, monkeypatch):
    X, _ = table(600, seed=1)
    whole = gp.predict(X)
    draws = gp.sample(X, 2, seed=3, kind="pathwise")
    monkeypatch.setattr(incoming, "CHUNK_BYTES", 1)
    assert gp._chunk_rows() == 256
    pieces = gp.predict(X)
    for name in ("mean", "residual", "explained", "noise"):
        np.testing.assert_allclose(getattr(pieces, name), getattr(whole, name), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(gp.sample(X, 2, seed=3, kind="pathwise"), draws, rtol=1e-9, atol=1e-9)


def test_predicting_twice_changes_nothing(gp, data):
    X, _ = data
    first = gp.predict(X).mean
    gp.sample(X[:3], 2)
    assert np.array_equal(gp.predict(X).mean, first)


@pytest.mark.parametrize("columns", [1, 3])
def test_the_wrong_number_of_columns_is_named(gp, columns):
    with pytest.raises(ValueError, match=f"X has {columns} columns, but the model was fitted on 2"):
        gp.predict(np.zeros((4, columns)))


def test_bad_rows_are_refused(gp):
    with pytest.raises(ValueError, match=r"X.*Reshape your data"):
        gp.predict(np.zeros(2))
    with pytest.raises(ValueError, match=r"X.*empty"):
        gp.predict(np.zeros((0, 2)))
    with pytest.raises(ValueError, match=r"X contains 1 value.*row 1, column 0"):
        gp.predict([[0.0, 1.0], [np.nan, 1.0]])


def test_dropped_columns_may_hold_anything_later():
    X, y = table()
    X = np.column_stack([np.full(len(X), 7.0), X])
    with pytest.warns(duogp.DataWarning, match="1 constant column"):
        gp = duogp.fit(X, y, "svgp", num_inducing=8, epochs=3)
    other = X.copy()
    other[:, 0] = 1e9
    assert np.array_equal(gp.predict(X).mean, gp.predict(other).mean)
    with pytest.raises(ValueError, match="fitted on 3"):
        gp.predict(X[:, 1:])


# -- densities -------------------------------------------------------------------------------------------


def test_log_density_is_the_normal_of_the_prediction(gp, data):
    X, y = data
    p = gp.predict(X)
    np.testing.assert_allclose(gp.log_density(X, y), stats.norm(p.mean, p.std).logpdf(y), rtol=1e-12)


def test_the_density_integrates_to_one(gp, data):
    X, _ = data
    p = gp.predict(X[:1])
    grid = np.linspace(p.mean[0] - 12 * p.std[0], p.mean[0] + 12 * p.std[0], 2001)
    density = np.exp(gp.log_density(np.repeat(X[:1], len(grid), 0), grid))
    assert trapezoid(density, grid) == pytest.approx(1.0, abs=1e-9)


def test_log_density_sums_over_outputs_and_checks_shapes(two_outputs, gp, data):
    X, y = data
    Y = np.column_stack([y, -100 * y])
    p = two_outputs.predict(X)
    expected = stats.norm(p.mean, p.std).logpdf(Y).sum(1)
    np.testing.assert_allclose(two_outputs.log_density(X, Y), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="y has shape"):
        two_outputs.log_density(X, y)
    with pytest.raises(ValueError, match="y has shape"):
        gp.log_density(X, Y)
    with pytest.raises(ValueError, match="y has 5 rows"):
        gp.log_density(X, y[:5])


def test_fixed_noise_of_new_rows_is_added(gp, data):
    X, y = data
    extra = np.linspace(0.5, 2.0, len(X))
    plain, noisy = gp.predict(X), gp.predict(X, noise=extra)
    np.testing.assert_allclose(noisy.noise, plain.noise + extra)
    np.testing.assert_array_equal(noisy.mean, plain.mean)
    expected = stats.norm(noisy.mean, noisy.std).logpdf(y)
    np.testing.assert_allclose(gp.log_density(X, y, noise=extra), expected)
    with pytest.raises(ValueError, match="noise must be positive"):
        gp.predict(X, noise=-extra)


# -- samples ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "tolerance"), [("joint", 0.12), ("pathwise", 0.2)])
def test_samples_have_the_moments_of_the_prediction(gp, kind, tolerance):
    X, _ = table(5, seed=2)
    draws = gp.sample(X, 3000, seed=0, kind=kind)
    assert draws.shape == (3000, 5)
    p = gp.predict(X)
    std = np.sqrt(p.function_variance)
    np.testing.assert_allclose(draws.mean(0), p.mean, atol=tolerance * std.max())
    np.testing.assert_allclose(draws.std(0), std, rtol=tolerance)


def test_joint_samples_are_correlated_where_rows_are_close(gp):
    X = np.array([[0.3, 0.3], [0.3 + 1e-4, 0.3], [-3.0, 3.0]])
    draws = gp.sample(X, 500, seed=0, kind="joint")
    correlation = np.corrcoef(draws.T)
    assert correlation[0, 1] > 0.99
    assert abs(correlation[0, 2]) < 0.5


def test_observation_noise_widens_the_samples(gp, data):
    X, _ = data
    p = gp.predict(X[:4])
    draws = gp.sample(X[:4], 4000, seed=1, observation_noise=True)
    np.testing.assert_allclose(draws.std(0), p.std, rtol=0.1)


def test_samples_follow_their_seed(gp, data):
    X = data[0][:6]
    for kind in ("auto", "joint", "pathwise"):
        assert np.array_equal(gp.sample(X, 3, seed=5, kind=kind), gp.sample(X, 3, seed=5, kind=kind))
        assert not np.array_equal(gp.sample(X, 3, seed=5, kind=kind), gp.sample(X, 3, seed=6, kind=kind))
        assert not np.array_equal(gp.sample(X, 3, kind=kind), gp.sample(X, 3, kind=kind))


def test_many_rows_are_sampled_pathwise(gp, monkeypatch):
    X, _ = table(50, seed=4)
    monkeypatch.setattr(gp_module.GP, "JOINT_ROWS", 10)
    assert np.array_equal(gp.sample(X, 2, seed=0), gp.sample(X, 2, seed=0, kind="pathwise"))


def test_repeated_rows_can_be_sampled_jointly(gp):
    draws = gp.sample(np.zeros((20, 2)), 5, seed=0, kind="joint")
    assert np.isfinite(draws).all()
    assert np.ptp(draws, axis=1).max() < 1e-2


def test_paths_are_functions(gp, data):
    X, _ = data
    paths = gp.sample_paths(3, seed=0)
    values = paths(X)
    assert values.shape == (3, len(X))
    assert np.array_equal(paths(X), values)
    np.testing.assert_allclose(paths(X[10:20]), values[:, 10:20], rtol=1e-9)
    np.testing.assert_allclose(gp.sample_paths(3, seed=0)(X), values, rtol=1e-12)
    step = 1e-4 * np.array([1.0, 0.0])
    assert np.abs(paths(X + step) - values).max() < 0.05 * np.ptp(values)  # continuous


def test_samples_of_several_outputs(two_outputs, data):
    X, _ = data
    assert two_outputs.sample(X[:7], 4, seed=0).shape == (4, 7, 2)
    assert two_outputs.sample(X[:7], 4, seed=0, kind="pathwise").shape == (4, 7, 2)
    assert two_outputs.sample_paths(4, seed=0)(X[:7]).shape == (4, 7, 2)
    draws = two_outputs.sample(X[:3], 2000, seed=0, observation_noise=True)
    np.testing.assert_allclose(draws.std(0), two_outputs.predict(X[:3]).std, rtol=0.15)


@pytest.mark.parametrize("n", [0, -1, 2.5, True, "3"])
def test_the_number_of_samples_is_checked(gp, n):
    for call in (lambda: gp.sample([[0.0, 0.0]], n), lambda: gp.sample_paths(n)):
        with pytest.raises(ValueError, match="n must be a positive integer"):
            call()


def test_a_numpy_integer_counts(gp):
    assert gp.sample([[0.0, 0.0]], np.int64(2)).shape == (2, 1)


def test_the_kind_of_sample_is_checked(gp):
    with pytest.raises(ValueError, match="kind must be 'auto', 'joint' or 'pathwise', got 'fast'"):
        gp.sample([[0.0, 0.0]], kind="fast")


# -- what was learned ------------------------------------------------------------------------------------


def test_hyperparameters_are_plain_values(gp):
    found = json.loads(json.dumps(gp.hyperparameters()))
    assert found["noise"] > 0
    if gp.method.basis == "conditional":
        assert len(found["lengthscale_mean"]) == len(found["lengthscale_covariance"]) == 2
        assert "lengthscale" not in found
    else:
        assert len(found["lengthscale"]) == 2
        assert all(value > 0 for value in found["lengthscale"])
    assert isinstance(found["mean"]["constant"], float)


def test_hyperparameters_of_several_outputs_and_one_lengthscale(two_outputs, data):
    found = json.loads(json.dumps(two_outputs.hyperparameters()))
    assert np.shape(found["noise"]) == (2,)
    assert np.shape(found["lengthscale"]) == (2, 2)
    single = duogp.fit(*data, "svgp", num_inducing=5, epochs=1, ard=False, kernel="rbf")
    assert isinstance(single.hyperparameters()["lengthscale"], float)


def test_settings_and_history_are_plain_values(gp):
    assert json.loads(json.dumps(gp.settings.to_dict()))["num_inducing"] == 12
    assert json.loads(json.dumps(gp.history.to_dict()))["solver"] == gp.history.solver


def test_repr_says_what_it_is(gp):
    text = repr(gp)
    assert gp.method.name in text and "inputs=2" in text and "inducing=12" in text


# -- several outputs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "ppgpr-chol", "vfitc", "ppgpr-mfd"])
def test_two_outputs_come_back_as_two_columns(method, data):
    X, y = data
    Y = np.column_stack([y, 1e4 * X[:, 1] ** 2])
    gp = duogp.fit(X, Y, method, num_inducing=8, epochs=3)
    p = gp.predict(X)
    assert p.mean.shape == p.variance.shape == Y.shape
    assert np.isfinite(p.mean).all() and (p.variance > 0).all()


@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "vfitc", "map"])
def test_outputs_that_share_only_their_points_are_independent(method, data):
    X, y = data
    Y = np.column_stack([y, 1e4 * X[:, 1] ** 2])
    # L-BFGS takes steps of one length for all outputs.
    settings = {"num_inducing": 10, "epochs": 8, "learn_inducing": False, "optimizer": "adam"}
    settings["early_stopping"] = False
    both = duogp.fit(X, Y, method, **settings).predict(X)
    for j in range(2):
        alone = duogp.fit(X, Y[:, j], method, **settings).predict(X)
        np.testing.assert_allclose(both.mean[:, j], alone.mean, rtol=1e-6)
        np.testing.assert_allclose(both.variance[:, j], alone.variance, rtol=1e-6)


def test_one_output_as_a_matrix_stays_a_matrix(data):
    X, y = data
    flat = duogp.fit(X, y, "svgp", num_inducing=5, epochs=2)
    column = duogp.fit(X, y[:, None], "svgp", num_inducing=5, epochs=2)
    assert column.predict(X).mean.shape == (len(X), 1)
    assert np.array_equal(column.predict(X).mean[:, 0], flat.predict(X).mean)
    assert column.sample(X[:3], 2, seed=0).shape == (2, 3, 1)


def test_a_prediction_scores_itself():
    X, y = table()
    prediction = duogp.fit(X, y, "svgp", num_inducing=8, epochs=5).predict(X)
    expected = duogp.metrics.regression_metrics(y, prediction.mean, prediction.std, prediction.noise)
    assert prediction.metrics(y) == expected
    with pytest.raises(ValueError, match="y"):
        prediction.metrics(y[:-1])


def test_inducing_points_are_in_the_units_of_the_inputs():
    X, y = table()
    X = np.column_stack([1000 * X[:, 0] + 5e4, np.ones(len(X)), X[:, 1]])
    with pytest.warns(duogp.DataWarning):
        gp = duogp.fit(X, y, "svgp", num_inducing=6, inducing_init="random", learn_inducing=False, epochs=2)
    points = gp.inducing_points
    assert points.shape == (6, 3) and np.isnan(points[:, 1]).all()
    assert all(np.isclose(X[:, [0, 2]], p[[0, 2]]).all(1).any() for p in points)


@pytest.mark.parametrize(
    "name", ["svgp", "dcsvgp", "odsvgp", "solvegp", "exact", "decoupled", "dgp", "svgp-dkl"]
)
def test_quick_paths_give_the_same(name: str) -> None:
    """The mean alone, and the variance in one piece."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = 5 + np.sin(X[:, 0]) + 0.1 * rng.normal(size=60)
    gp = duogp.fit(X, y, name, epochs=2, **({} if name == "exact" else {"num_inducing": 10}))
    full, whole = gp.predict(X), gp.predict(X, in_parts=False)
    np.testing.assert_allclose(whole.mean, full.mean, rtol=1e-12)
    np.testing.assert_allclose(whole.std, full.std, rtol=1e-9)
    np.testing.assert_allclose(gp.predict_mean(X), full.mean, rtol=1e-12)


def test_the_mean_of_other_likelihoods_takes_their_variance_into_account() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 1))
    counts = rng.poisson(np.exp(1 + np.sin(X[:, 0])))
    gp = duogp.fit(X, counts, "svgp", likelihood="poisson", num_inducing=8, epochs=5)
    np.testing.assert_allclose(gp.predict_mean(X), gp.predict(X).mean, rtol=1e-9)


def test_labels_have_no_mean() -> None:
    X = np.linspace(-1, 1, 40)[:, None]
    gp = duogp.fit(X, np.where(X[:, 0] > 0, "a", "b"), "svgp", likelihood="classes", num_inducing=5, epochs=2)
    with pytest.raises(ValueError, match="predict_mean is for numbers"):
        gp.predict_mean(X)
