"""Tables and numbers that break lesser libraries: finite predictions come back, or an error that explains."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import duogp
from duogp.errors import DataWarning, DuoGPWarning, NumericalWarning
from duogp.methods import METHODS

ALL = list(METHODS)
SOME = ["svgp", "dcsvgp", "ppgpr-chol", "ppgpr-mfd", "vfitc", "gamma-robust"]
QUICK = {"num_inducing": 8, "epochs": 3}


def table(n: int = 40, d: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)


def assert_sound(gp: duogp.GP, X: np.ndarray) -> duogp.Prediction:
    prediction = gp.predict(X)
    for part in (prediction.mean, prediction.residual, prediction.explained, prediction.noise):
        assert np.isfinite(part).all()
    assert (prediction.residual >= 0).all() and (prediction.explained >= 0).all()
    assert (prediction.variance > 0).all()
    return prediction


# -- scales ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e-12, 1e12])
@pytest.mark.parametrize("method", SOME)
def test_predictions_scale_with_the_targets(method, scale, dtype):
    X, y = table()
    # A start of few steps: hundreds of them would amplify the rounding of the scaled targets.
    short = {**QUICK, "warm_start": 30} if METHODS[method].recipe.warm_start_steps else QUICK
    plain = duogp.fit(X, y, method, dtype=dtype, **short).predict(X)
    scaled = duogp.fit(X, scale * y, method, dtype=dtype, **short).predict(X)
    tolerance = 1e-9 if dtype == "float64" else 1e-3
    np.testing.assert_allclose(scaled.mean / scale, plain.mean, rtol=tolerance, atol=tolerance)
    for part in ("residual", "explained", "noise"):
        np.testing.assert_allclose(
            getattr(scaled, part) / scale**2, getattr(plain, part), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("method", SOME)
def test_predictions_follow_the_offset_of_the_targets(method):
    X, y = table()
    # The offset costs the targets six digits, and a long warm start would make more of it.
    few = QUICK | ({"warm_start": 20} if method == "dcsvgp" else {})
    plain = duogp.fit(X, y, method, **few).predict(X)
    moved = duogp.fit(X, y + 1e6, method, **few).predict(X)
    np.testing.assert_allclose(moved.mean - 1e6, plain.mean, atol=1e-6)
    np.testing.assert_allclose(moved.std, plain.std, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("scale", "offset"),
    [([1e-9, 1e9], [0.0, 0.0]), ([1.0, 1.0], [1e6, -1e6]), ([1e-9, 1e9], [1e-3, 1e15])],
)
@pytest.mark.parametrize("method", ["svgp", pytest.param("dcsvgp", marks=pytest.mark.slow), "ppgpr-chol"])
def test_units_of_the_inputs_do_not_matter(method, scale, offset, dtype):
    X, y = table()
    other = X * scale + offset
    given = {"dtype": dtype, **QUICK} | ({} if method == "ppgpr-chol" else {"optimizer": "adam"})
    plain = duogp.fit(X, y, method, **given).predict(X)
    found = duogp.fit(other, y, method, **given).predict(other)
    tolerance = 1e-7 if dtype == "float64" else 1e-3
    np.testing.assert_allclose(found.mean, plain.mean, atol=tolerance)
    np.testing.assert_allclose(found.std, plain.std, atol=tolerance)


@pytest.mark.parametrize("value", [1e-300, 1e15, 1e100])
@pytest.mark.parametrize("method", ["svgp", "ppgpr-chol"])
def test_extreme_inputs_at_prediction_are_finite(method, value):
    gp = duogp.fit(*table(), method, **QUICK)
    assert_sound(gp, np.array([[value, -value]]))


@pytest.mark.parametrize("value", [1e6, 1e9, 1e15])
@pytest.mark.parametrize("method", ["svgp", "dcsvgp"])
def test_an_extreme_row_does_not_disturb_its_neighbours(method, value):
    X, y = table()
    gp = duogp.fit(X, y, method, **QUICK)
    alone = gp.predict(X)
    beside = gp.predict(np.concatenate([X, [[value, 0.0]]]))
    np.testing.assert_allclose(beside.mean[:-1], alone.mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(beside.variance[:-1], alone.variance, rtol=1e-6)


# -- degenerate tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", ALL)
def test_all_rows_identical_with_conflicting_targets(method, dtype):
    X, y = np.tile([[1.0, 2.0]], (20, 1)), np.arange(20.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gp = duogp.fit(X, y, method, dtype=dtype, **QUICK)
    # A stream keeps every column: what is constant at first may vary later.
    online = METHODS[method].defaults.get("online")
    assert online or any("constant columns" in str(w.message) for w in caught)
    prediction = assert_sound(gp, X)
    assert abs(prediction.mean - y.mean()).max() < 2
    assert 0.3 * y.std() < prediction.std[0] < 3 * y.std()


@pytest.mark.parametrize("method", ALL)
def test_duplicate_rows_with_conflicting_targets(method):
    X, y = table(10)
    X, y = np.repeat(X, 4, 0), np.repeat(y, 4) + np.tile([1.0, -1.0, 2.0, -2.0], 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        assert_sound(duogp.fit(X, y, method, num_inducing=20, epochs=3), X)


@pytest.mark.parametrize("constant", [0.0, 3.0, -1e12, 1e-12])
@pytest.mark.parametrize("method", SOME)
def test_constant_targets(method, constant):
    X, _ = table()
    prediction = assert_sound(duogp.fit(X, np.full(40, constant), method, **QUICK), X)
    np.testing.assert_allclose(prediction.mean, constant, atol=0.1)


@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "ppgpr-chol"])
def test_constant_columns_are_dropped_with_a_warning(method):
    X, y = table()
    padded = np.column_stack([np.full(40, 5.0), X[:, 0], np.zeros(40), X[:, 1]])
    with pytest.warns(DataWarning, match="2 constant columns of X are ignored"):
        gp = duogp.fit(padded, y, method, **QUICK)
    assert gp.columns.tolist() == [False, True, False, True]
    expected = duogp.fit(X, y, method, **QUICK).predict(X)
    np.testing.assert_allclose(gp.predict(padded).mean, expected.mean, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", SOME)
def test_all_columns_constant(method):
    X, y = np.ones((30, 3)), np.arange(30.0)
    with pytest.warns(DataWarning, match="constant columns"):
        gp = duogp.fit(X, y, method, **QUICK)
    assert abs(assert_sound(gp, X).mean - y.mean()).max() < 3


def test_a_column_constant_in_one_replicate_only():
    X, y = table()
    X[:20, 1] = 3.0
    for gp in duogp.fit_replicates(X, y, [np.arange(20), np.arange(20, 40)], "dcsvgp", **QUICK):
        assert_sound(gp, X)


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("method", ALL)
def test_very_few_rows(method, n):
    X, y = table(n)
    told = f"there are {n} training rows|the first {n} rows alone|no use for num_inducing"
    with pytest.warns(DataWarning, match=told):
        gp = duogp.fit(X, y, method, num_inducing=50, epochs=3)
    assert_sound(gp, X)


def test_two_identical_rows():
    with pytest.warns(DataWarning):
        gp = duogp.fit([[1.0], [1.0]], [0.0, 1.0], "dcsvgp", num_inducing=2, epochs=3)
    assert_sound(gp, np.array([[1.0], [2.0]]))


def test_more_columns_than_rows():
    X, _ = table(8, 50)
    assert_sound(duogp.fit(X, X[:, 0], "dcsvgp", num_inducing=4, epochs=3), X)


@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "gamma-robust"])
def test_one_absurd_outlier(method):
    X, y = table()
    y[3] = 1e9
    assert_sound(duogp.fit(X, y, method, num_inducing=10, epochs=10), X)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "ppgpr-chol"])
def test_noiseless_smooth_functions_in_either_precision(method, dtype):
    """The hardest case for a Cholesky: many points, long lengthscales, no noise."""
    X = np.linspace(0, 1, 60)[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DuoGPWarning)
        gp = duogp.fit(X, X[:, 0] ** 2, method, kernel="rbf", dtype=dtype, num_inducing=40, epochs=30)
    assert_sound(gp, X)


# -- Cholesky failures -----------------------------------------------------------------------------------

IMPOSSIBLE = {
    "jitter": 1e-300,
    "kernel": "rbf",
    "initial_lengthscale": 1e4,
    "learn_inducing": False,
    "inducing_init": "random",
    "num_inducing": 25,
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("solver", ["stochastic", "auto"])
@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "ppgpr-mfd", "map", "vfitc"])
def test_a_cholesky_failure_never_ends_a_fit(method, solver, dtype):
    X, y = table()
    settings = {**IMPOSSIBLE, "solver": solver, "dtype": dtype, "batch_size": 20}
    with pytest.warns(NumericalWarning, match="numerical difficulties") as caught:
        gp = duogp.fit(X, y, method, epochs=12, **settings)
    assert len([w for w in caught if issubclass(w.category, NumericalWarning)]) == 1
    assert_sound(gp, X)
    assert 0 < gp.history.rollbacks <= 25
    assert gp.history.jitter > 1e-300
    assert np.isfinite(gp.history[-1].loss)  # it was trained in the end, not only made finite


@pytest.mark.parametrize("method", ["svgp", "dcsvgp"])
def test_an_impossible_start_with_a_single_epoch(method):
    X, y = table()
    with pytest.warns(NumericalWarning):
        gp = duogp.fit(X, y, method, epochs=1, **IMPOSSIBLE)
    assert_sound(gp, X)


@pytest.mark.parametrize("kernel", ["linear", "constant"])
@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "ppgpr-chol"])
def test_kernels_of_low_rank(method, kernel):
    X, y = table()
    with pytest.warns(NumericalWarning):
        gp = duogp.fit(X, y, method, kernel=kernel, num_inducing=20, jitter=1e-300, epochs=12)
    assert_sound(gp, X)
    assert_sound(duogp.fit(X, y, method, kernel=kernel, num_inducing=20, epochs=12), X)  # quietly


@pytest.mark.slow
def test_the_default_jitter_is_quiet_on_ordinary_tables():
    X, y = table(60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DataWarning)  # of settings that a method has no use for
        for method in ALL:
            for dtype in ("float32", "float64"):
                gp = duogp.fit(X, y, method, dtype=dtype, num_inducing=30, epochs=5)
                assert gp.history.rollbacks == 0


# -- anything at all -------------------------------------------------------------------------------------


@st.composite
def tables(draw):
    n, d = draw(st.integers(2, 30)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    X = rng.normal(size=(n, d)) * 10.0 ** rng.integers(-6, 7, size=d) + rng.normal(size=d)
    y = rng.normal(size=n) * 10.0 ** draw(st.integers(-6, 6)) + draw(st.sampled_from([0.0, 1.0, -1e3]))
    if draw(st.booleans()):  # duplicates, with conflicting targets
        X = X[rng.integers(0, max(1, n // 2), size=n)]
    if draw(st.booleans()):
        X[:, rng.integers(d)] = draw(st.sampled_from([0.0, 1.0, 1e6]))
    if draw(st.booleans()):
        X = np.round(X)
    return X, y


@given(
    data=tables(),
    method=st.sampled_from(ALL),
    num_inducing=st.integers(1, 40),
    dtype=st.sampled_from(["float32", "float64"]),
    init=st.sampled_from(["random", "kmeans", "greedy"]),
    solver=st.sampled_from(["auto", "stochastic"]),
)
@hypothesis_settings(max_examples=25, deadline=None, derandomize=True)
def test_any_table_gives_finite_predictions(data, method, num_inducing, dtype, init, solver):
    X, y = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DuoGPWarning)
        gp = duogp.fit(
            X, y, method, num_inducing=num_inducing, dtype=dtype, inducing_init=init, solver=solver,
            epochs=2, batch_size=8,
        )  # fmt: skip
    assert_sound(gp, X)
    assert np.isfinite(gp.log_density(X, y)).all()
    assert np.isfinite(gp.sample(X, 2, seed=0)).all()


def test_huge_values_with_weights_have_a_scale():
    X = np.array([[1.3], [6.4], [-1.3]]) * 1e306
    p = duogp.fit(X, [1.0, 2, 3], "sgpr", sample_weight=[1, 2, 1], steps=2).predict(X)
    assert np.isfinite(p.mean).all() and np.isfinite(p.std).all()


def test_subnormal_rows_without_scaling_can_be_told_apart():
    X = np.array([0, 1, 2, 3, 1, 2.0])[:, None] * 5e-324
    with warnings.catch_warnings():  # of repeated points, and of all the jitter that they need
        warnings.simplefilter("ignore", duogp.DuoGPWarning)
        gp = duogp.fit(X, np.arange(6.0), "sgpr", steps=2, standardize=False, num_inducing=6)
    assert np.isfinite(gp.predict(X).mean).all()


def test_rows_whose_distance_overflows_are_answered_by_the_prior():
    X, y = table()
    p = duogp.fit(1e-31 * X, y, "svgp", **QUICK).predict([[1e300, -1e300]])
    assert np.isfinite(p.mean).all() and p.explained < 1e-6


def test_a_model_in_the_space_of_features_can_be_printed():
    X, y = table()
    gp = duogp.fit(X, y, "svgp-dkl", inducing_space="feature", widths=[4, 2], **QUICK)
    assert "inducing=8" in repr(gp)
