"""`duogp.fit`: replicates, weights and noise of rows, categories, copies, columns by name."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pandas as pd
import pytest

import duogp
from duogp.errors import DataWarning
from duogp.kernels import RBF, ActiveDims, Hamming, make_kernel
from duogp.methods import METHODS
from duogp.training import Stochastic, TrainingPlan, train
from helpers.fit_tables import predictions, table

# -- replicates ------------------------------------------------------------------------------------------

ROWS = [np.arange(0, 20), np.arange(20, 40), np.arange(10, 30)]


@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "ppgpr", "ppgpr-mfd", "map"])
@pytest.mark.parametrize("solver", ["stochastic", "auto"])
def test_replicates_are_the_single_fits_with_the_next_seeds(method, solver):
    X, y = table()
    X = X * [1.0, 100.0]
    settings = {"num_inducing": 6, "epochs": 6, "batch_size": 7, "solver": solver, "random_state": 5}
    together = duogp.fit_replicates(X, y, ROWS, method, **settings)
    assert len(together) == 3
    for r, rows in enumerate(ROWS):
        alone = duogp.fit(X[rows], y[rows], method, **{**settings, "random_state": 5 + r})
        one, other = together[r].predict(X), alone.predict(X)
        np.testing.assert_allclose(one.mean, other.mean, rtol=1e-6, atol=1e-6 * np.abs(other.mean).max())
        np.testing.assert_allclose(one.variance, other.variance, rtol=1e-6)
        assert together[r].history[-1].loss == pytest.approx(alone.history[-1].loss, rel=1e-6)


def test_each_replicate_has_its_own_scaling():
    X, y = table()
    y = y + 100 * (np.arange(40) >= 20)
    first, second, _ = duogp.fit_replicates(X, y, ROWS, "svgp", num_inducing=6, epochs=2)
    for gp, rows in ((first, ROWS[0]), (second, ROWS[1])):
        np.testing.assert_allclose(gp.x_scaler.shift, X[rows].mean(0))
        np.testing.assert_allclose(gp.x_scaler.scale, X[rows].std(0, ddof=1))
        np.testing.assert_allclose(gp.y_scaler.shift, y[rows].mean())
        assert abs(gp.predict(X[rows]).mean.mean() - y[rows].mean()) < 0.5


def test_replicates_take_seeds_noise_weights_and_validation_rows():
    X, y = table()
    rows, held = [np.arange(15), np.arange(15)], [np.arange(15, 30), np.arange(15, 30)]
    fits = duogp.fit_replicates(
        X, y, rows, "dcsvgp", validation_rows=held, noise=0.01, sample_weight=np.arange(1.0, 41.0),
        random_states=[7, 7], num_inducing=5, epochs=3,
    )  # fmt: skip
    # Equal numbers side by side: one may sit in a vector register, the other in the remainder.
    np.testing.assert_allclose(fits[0].predict(X).mean, fits[1].predict(X).mean, rtol=1e-9, atol=1e-9)
    first, second = (np.array(fit.history.series("validation_nll"), dtype=float) for fit in fits)
    np.testing.assert_allclose(first, second, rtol=1e-9)


def test_replicates_choose_their_betas_apart():
    X, y = table(90)
    rows = [np.arange(0, 60), np.arange(30, 90), np.arange(15, 75)]
    fits = duogp.fit_replicates(
        X, y, rows, "svgp", beta1=[1e4, 1.0], num_inducing=10, epochs=3, validation_fraction=0.3
    )
    assert [gp.settings.beta1 for gp in fits] == [1.0] * 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0, 1, 2], [3, 4]], r"rows must be sets of one size, got sizes \[2, 3\]"),
        ([], "rows must hold at least one set"),
        ([[0], [1]], "rows must be sets of at least 2 rows"),
        ([[0, 40]], "rows must hold row numbers from 0 to 39"),
        ([[-1, 3]], "rows must hold row numbers from 0 to 39"),
        ([[0.0, 1.0]], "rows must hold vectors of row numbers"),
        ([np.ones(39, bool)], "rows must hold vectors of row numbers"),
    ],
)
def test_bad_rows_are_explained(rows, message):
    with pytest.raises(ValueError, match=message):
        duogp.fit_replicates(*table(), rows, "svgp", num_inducing=2, epochs=1)


def test_bad_validation_rows_are_explained():
    with pytest.raises(ValueError, match="validation_rows must be 2 sets of one size"):
        duogp.fit_replicates(*table(), ROWS[:2], "svgp", validation_rows=[[1, 2]])


# -- weights and noise of rows ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["svgp", "vfitc", "map"])
def test_integer_weights_are_repeated_rows(method):
    X, y = table(12)
    weights = np.arange(12) % 3 + 1
    settings = {
        "num_inducing": 12, "inducing_init": "random", "learn_inducing": False, "standardize": False,
        "solver": "closed-form", "epochs": 5, "at": X,
    }  # fmt: skip
    weighed = predictions(X, y, method, sample_weight=weights, **settings)
    repeated = predictions(np.repeat(X, weights, 0), np.repeat(y, weights), method, **settings)
    np.testing.assert_allclose(weighed, repeated, rtol=1e-5, atol=1e-6)
    assert not np.allclose(weighed, predictions(X, y, method, **settings), rtol=1e-3)


@pytest.mark.parametrize("method", ["svgp", "dcsvgp"])
def test_a_row_of_weight_zero_is_not_there(method):
    X, y = table(12)
    wild_X, wild_y = np.concatenate([X, X[:2]]), np.concatenate([y, [1e3, -1e3]])
    settings = {
        "num_inducing": 12, "inducing_init": "random", "learn_inducing": False, "standardize": False,
        "solver": "closed-form", "epochs": 5, "at": X, "beta2": 0.0, "early_stopping": False,
    }  # fmt: skip
    weights = np.r_[np.ones(12), np.zeros(2)]
    found = predictions(wild_X, wild_y, method, sample_weight=weights, **settings)
    np.testing.assert_allclose(found, predictions(X, y, method, **settings), rtol=1e-5, atol=1e-6)


def test_weights_matter_in_minibatches_too():
    X, y = table(40)
    weights = np.where(X[:, 0] > 0, 1.0, 0.0)
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    gp = duogp.fit(
        X, y, "svgp", solver="stochastic", num_inducing=10, epochs=60, learning_rate=0.05, batch_size=16,
        sample_weight=weights, standardize=False,
    )  # fmt: skip
    assert gp.predict(X).mean.mean() > 0.3


@pytest.mark.parametrize("solver", ["stochastic", "closed-form"])
def test_rows_with_huge_noise_are_ignored(solver):
    X, y = table(12)
    wild_X, wild_y = np.concatenate([X, X[:2]]), np.concatenate([y, [1e3, -1e3]])
    settings = {
        "num_inducing": 12, "inducing_init": "random", "learn_inducing": False, "standardize": False,
        "solver": solver, "epochs": 5, "batch_size": 100, "at": X, "initial_lengthscale": 1.0,
    }  # fmt: skip
    noise = np.r_[np.full(12, 0.1), np.full(2, 1e14)]
    found = predictions(wild_X, wild_y, noise=noise, **settings)
    expected = predictions(X, y, noise=0.1, **settings)
    tolerance = 1e-5 if solver == "closed-form" else 0.05  # the order of Z, and so of q's start, differs
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_known_noise_replaces_the_learned_one():
    X, y = table()
    gp = duogp.fit(100 * X, 100 * y, "svgp", noise=np.full(40, 100.0), num_inducing=10, epochs=5)
    assert gp.predict(X).noise.max() < 1e-3
    assert gp.predict(X, noise=100.0).noise == pytest.approx(100.0, rel=1e-4)
    both = duogp.fit(100 * X, 100 * y, "svgp", noise=np.full(40, 100.0), learn_noise=True, epochs=5)
    assert both.predict(X).noise.min() > 1.0


def test_known_noise_is_in_the_units_of_every_output():
    X, y = table()
    settings = {"num_inducing": 8, "epochs": 5, "learn_inducing": False, "noise": np.full(40, 0.5)}
    both = duogp.fit(X, np.column_stack([y, 100 * y]), "svgp", **settings).predict(X)
    alone = duogp.fit(X, 100 * y, "svgp", **settings).predict(X)
    np.testing.assert_allclose(both.variance[:, 1], alone.variance, rtol=1e-6)


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("sample_weight", np.zeros(40), "sample_weight must not be zero for every row"),
        ("sample_weight", -np.ones(40), "sample_weight must not be negative"),
        ("sample_weight", np.ones(39), "sample_weight has 39 rows"),
        ("sample_weight", np.full(40, np.nan), "sample_weight contains"),
        ("noise", np.zeros(40), "noise must be positive"),
        ("noise", np.ones((40, 2)), "noise: expected one number per row"),
        ("noise", np.full(40, np.inf), "noise contains"),
    ],
)
def test_bad_row_vectors_are_explained(argument, value, message):
    with pytest.raises(ValueError, match=message):
        duogp.fit(*table(), "svgp", **{argument: value})


# -- categories ------------------------------------------------------------------------------------------


def test_category_codes_are_neither_scaled_nor_averaged():
    rng = np.random.default_rng(0)
    codes, x = rng.integers(0, 40, 120) * 10.0, rng.normal(size=120)
    y = np.sin(codes) + 0.1 * x
    X = np.column_stack([x, codes])
    kernel = ActiveDims(RBF(1), 0) + ActiveDims(Hamming(1), 1)
    gp = duogp.fit(X, y, "svgp", kernel=kernel, num_inducing=60, epochs=30)
    assert (gp.x_scaler.shift[1], gp.x_scaler.scale[1]) == (0.0, 1.0)
    assert set(gp.model.basis.inducing[0, 0, :, 1].tolist()) <= set(codes.tolist())
    assert np.abs(gp.predict(X).mean - y).mean() < 0.3
    assert make_kernel("hamming", 3).categorical_columns(3) == {0, 1, 2}


def test_a_kernel_object_keeps_the_columns_it_was_made_for():
    X, y = table()
    X = np.column_stack([np.ones(len(X)), X])
    gp = duogp.fit(X, y, "svgp", kernel=ActiveDims(RBF(1), 2), num_inducing=8, epochs=3)
    assert gp.columns.all()


# -- what a review found -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_fitted_model_can_be_copied_and_pickled(method):
    X, y = table()
    baseline = duogp.METHODS[method].is_baseline
    gp = duogp.fit(X, y, method, epochs=2, **({"widths": [6]} if baseline else {"num_inducing": 6}))
    assert all(p.grad is None for p in (gp.network if baseline else gp.model).parameters())
    for twin in (copy.deepcopy(gp), pickle.loads(pickle.dumps(gp))):
        np.testing.assert_array_equal(twin.predict(X).variance, gp.predict(X).variance)


def test_beta_is_chosen_by_the_state_that_is_kept():
    X, y = table(60)
    settings = {
        "num_inducing": 8,
        "epochs": 30,
        "patience": 2,
        "learning_rate": 0.05,
        "validation_fraction": 0.2,
    }
    grid = [0.01, 0.1, 1.0, 10.0]
    for seed in range(3):
        chosen = duogp.fit(X, y, "ppgpr", beta1=grid, random_state=seed, **settings)
        alone = [duogp.fit(X, y, "ppgpr", beta1=b, random_state=seed, **settings) for b in grid]
        best = min(alone, key=lambda gp: gp.history.validation_nll)
        assert chosen.history.validation_nll == pytest.approx(best.history.validation_nll, rel=1e-6)
        assert chosen.settings.beta1 == best.settings.beta1


def test_outliers_of_no_weight_are_as_good_as_removed():
    X, y = table(60)
    wild = y.copy()
    wild[::3] += 100.0
    weights = np.where(np.arange(60) % 3, 1.0, 0.0)
    kept = np.flatnonzero(weights)
    weighed = duogp.fit(X, wild, "svgp", sample_weight=weights, num_inducing=8, epochs=5)
    removed = duogp.fit(X[kept], y[kept], "svgp", num_inducing=8, epochs=5)
    np.testing.assert_allclose(weighed.predict(X).mean, removed.predict(X).mean, rtol=1e-6, atol=1e-8)


def test_weighted_scaling_is_that_of_repeated_rows():
    X, y = table(20)
    weights = np.arange(20) % 3 + 1
    weighed = duogp.fit(X, y, "svgp", sample_weight=weights, num_inducing=5, epochs=1)
    repeated = duogp.fit(np.repeat(X, weights, 0), np.repeat(y, weights), "svgp", num_inducing=5, epochs=1)
    np.testing.assert_allclose(weighed.x_scaler.scale, repeated.x_scaler.scale)
    np.testing.assert_allclose(weighed.y_scaler.shift, repeated.y_scaler.shift)


def test_a_model_with_known_noise_asks_for_it():
    X, y = table()
    gp = duogp.fit(X, y, "svgp", noise=0.04, num_inducing=8, epochs=5)
    with pytest.raises(ValueError, match=r"log_density needs noise="):
        gp.log_density(X, y)
    with pytest.raises(ValueError, match=r"observation_noise=True\) needs noise="):
        gp.sample(X, 2, observation_noise=True)
    draws = gp.sample(X[:3], 4000, seed=0, observation_noise=True, noise=0.04)
    np.testing.assert_allclose(draws.var(0), gp.predict(X[:3], noise=0.04).variance, rtol=0.15)


def test_columns_are_matched_by_name():
    X, y = table()
    frame = pd.DataFrame(X, columns=["a", "b"])
    gp = duogp.fit(frame, y, "svgp", num_inducing=5, epochs=2)
    np.testing.assert_allclose(gp.predict(X).mean, gp.predict(frame).mean, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match=r"in another order; expected a, b"):
        gp.predict(frame[["b", "a"]])
    with pytest.raises(ValueError, match=r"missing b; unknown c"):
        gp.predict(frame.rename(columns={"b": "c"}))


def test_with_everything_given_there_is_only_q_to_solve():
    X, y = table()
    kernel = RBF(2)
    kernel.lengthscale.raw.requires_grad_(False)
    settings = {"kernel": kernel, "mean": "zero", "noise": 0.1, "learn_inducing": False, "num_inducing": 8}
    gp = duogp.fit(X, y, "svgp", **settings)
    assert np.isfinite(gp.predict(X).mean).all()
    for p in gp.model.parameters():
        p.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to train"):
        train(gp.model, Stochastic.__new__(Stochastic), TrainingPlan(epochs=1, learning_rate=0.1))


def test_settings_without_effect_are_named():
    X, y = table()
    with pytest.raises(ValueError, match="beta2 weighs Ω"):
        duogp.fit(X, y, "svgp", beta2=0.5)
    with pytest.warns(DataWarning, match="no use for num_extra"):
        duogp.fit(X, y, "svgp", num_extra=4, num_inducing=4, epochs=1)


def test_the_first_lengthscale_follows_the_spread_of_the_inputs():
    X, y = table()
    given = {"standardize": False, "num_inducing": 8, "epochs": 20, "optimizer": "adam"}
    raw = duogp.fit(1e4 * X, y, "svgp", **given).predict(1e4 * X)
    scaled = duogp.fit(X, y, "svgp", **given).predict(X)
    assert raw.metrics(y)["rmse"] < 2.5 * scaled.metrics(y)["rmse"]  # it was stuck at the prior


def test_no_seed_is_a_new_seed():
    X, y = table()
    first, second = (duogp.fit(X, y, "svgp", random_state=None, num_inducing=4, epochs=1) for _ in range(2))
    assert first.settings.random_state != second.settings.random_state


def test_labels_that_only_validation_rows_have_are_refused():
    X, y = table(60)
    labels = np.where(y > 0, "up", "down").astype(object)
    strange = labels[40:].copy()
    strange[0] = "sideways"
    with pytest.raises(ValueError, match="validation y holds the label 'sideways'"):
        duogp.fit(X[:40], labels[:40], "svgp", validation=(X[40:], strange), likelihood="classes")


def test_two_blocks_share_the_rows_where_there_are_too_few():
    X, y = table(40)
    with pytest.warns(duogp.DataWarning, match="60 points in two blocks .* of 40 training rows: shared out"):
        gp = duogp.fit(X, y, "odsvgp", num_inducing=20, num_extra=40, epochs=1)
    assert len(gp.inducing_points) == 20 == gp.model.basis.orthogonal_inducing.shape[-2]
    gp = duogp.fit(X, y, "odsvgp", epochs=1)
    assert len(gp.inducing_points) == 20 == gp.model.basis.orthogonal_inducing.shape[-2]


def test_settings_of_another_solver_are_named():
    X, y = table(40)
    with pytest.warns(duogp.DataWarning, match="no use for natural_rate"):
        duogp.fit(X, y, "svgp", num_inducing=5, epochs=1, solver="stochastic", natural_rate=0.1)


# -- a budget of time --------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["closed-form", "stochastic", "natural"])
def test_training_ends_when_its_time_is_up(solver):
    X, y = table(60)
    gp = duogp.fit(X, y, "svgp", num_inducing=8, solver=solver, epochs=10**6, time_budget=0.3)
    assert 0.2 < gp.history.seconds < 5
    assert any("the time was up" in note for note in gp.history.notes)
    assert np.isfinite(gp.predict(X).std).all()
    with pytest.raises(ValueError, match="time_budget must be a positive number"):
        duogp.fit(X, y, "svgp", time_budget=-1)


def test_a_warm_start_may_look_at_a_sample():
    X, y = table(80)
    settings = {"num_inducing": 10, "solver": "stochastic", "steps": 1, "learning_rate": 1e-9}
    few = duogp.fit(X, y, "ppgpr", warm_start=20, warm_start_rows=30, **settings)
    every = duogp.fit(X, y, "ppgpr", warm_start=20, **settings)
    assert few.predict(X).metrics(y)["rmse"] < 2 * every.predict(X).metrics(y)["rmse"]
    assert few.hyperparameters()["noise"] != every.hyperparameters()["noise"]
