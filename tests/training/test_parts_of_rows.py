"""Rows in parts: noise, weights and validation scores are those of all rows together, whatever the parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import duogp
from duogp.models.model import Batch
from duogp.sklearn.training_rows import FARTHEST, FARTHEST_UNSCALED, within_reach
from duogp.training import validation
from duogp.training.validation import mean_nll, weighted_nll

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=60)
NOISE = RNG.uniform(0.01, 1.0, size=60)
WEIGHT = RNG.uniform(0.2, 3.0, size=60)
QUICK = {"num_inducing": 10, "device": "cpu", "random_state": 0}


@pytest.fixture(scope="module")
def noisy() -> duogp.GP:
    return duogp.fit(X, Y, "svgp", noise=NOISE, epochs=5, **QUICK)


@pytest.mark.parametrize("rows", [1, 7, 59])
def test_row_noise_of_every_chunk_is_its_own(
    noisy: duogp.GP, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise of a prediction and of a density, in chunks and at once."""
    expected, density = noisy.predict(X, noise=NOISE), noisy.log_density(X, Y, noise=NOISE)
    np.testing.assert_allclose(expected.noise, NOISE, rtol=1e-6)
    monkeypatch.setattr(type(noisy), "_chunk_rows", lambda self, matrices=4: rows)
    np.testing.assert_allclose(noisy.predict(X, noise=NOISE).noise, NOISE, rtol=1e-6)
    np.testing.assert_allclose(noisy.log_density(X, Y, noise=NOISE), density, rtol=1e-9)


def batch_of(weight: bool, noise: bool = False) -> Batch:
    def tensor(values: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(values)[None]

    return Batch(
        tensor(X), tensor(Y[None]), tensor(NOISE[None]) if noise else None, tensor(WEIGHT) if weight else None
    )


@pytest.mark.parametrize("size", [1, 7, 60, 100])
def test_parts_of_a_batch_are_all_of_it(size: int) -> None:
    whole = batch_of(True, True)
    parts = whole.split(size)
    assert max(part.x.shape[-2] for part in parts) <= size
    for name in Batch._fields:
        dim = -2 if name == "x" else -1
        joined = torch.cat([getattr(part, name) for part in parts], dim)
        assert torch.equal(joined, getattr(whole, name))


@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("size", [1, 7, 60])
def test_validation_scores_have_every_row_and_its_weight(size: int, weight: bool) -> None:
    log_p = torch.as_tensor(RNG.normal(size=(1, 60)))
    place = {tuple(row): i for i, row in enumerate(X.tolist())}

    def density(part: Batch) -> torch.Tensor:
        return log_p[:, [place[tuple(row)] for row in part.x[0].tolist()]]

    found = weighted_nll(density, batch_of(weight), size)
    expected = -np.average(log_p[0].numpy(), weights=WEIGHT if weight else None)
    np.testing.assert_allclose(found.item(), expected, rtol=1e-12)


@pytest.mark.parametrize("weight", [False, True])
def test_the_validation_score_of_a_model(weight: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    gp = duogp.fit(X, Y, "svgp", epochs=5, standardize=False, **QUICK)
    monkeypatch.setattr(validation, "CHUNK", 13)
    expected = -np.average(gp.log_density(X, Y), weights=WEIGHT if weight else None)
    np.testing.assert_allclose(mean_nll(gp.model, batch_of(weight)).item(), expected, rtol=1e-6)


def test_weights_of_rows_that_decide_when_to_stop() -> None:
    """Weighted rows are held out: the score in the history is their weighted mean."""
    given = {"validation_fraction": 0.5, "refit": False, "epochs": 3, "solver": "stochastic", **QUICK}
    gp = duogp.fit(X, Y, "svgp", sample_weight=WEIGHT, **given)
    rows = duogp.plan(X, Y, "svgp", sample_weight=WEIGHT, **given).validation
    assert rows is not None
    density = gp.log_density(X[rows[0]], Y[rows[0]]) + np.log(gp.y_scaler.scale)  # in scaled units
    expected = -np.average(density, weights=WEIGHT[rows[0]])
    np.testing.assert_allclose(gp.history.validation_nll, expected, rtol=1e-6)


@pytest.mark.parametrize("solver", ["stochastic", "natural"])
def test_weights_of_minibatches(solver: str) -> None:
    """A weight of two is a row that comes twice, and rows of almost no weight are not there."""
    given = {
        "solver": solver,
        "steps": 150,
        "learning_rate": 0.05,
        "tolerance": 0.0,
        "batch_size": 64,
        **QUICK,
    }
    wrong = np.where(np.arange(60) % 2, Y, -Y)
    weight = np.where(np.arange(60) % 2, 2.0, 1e-6)
    found = duogp.fit(X, wrong, "svgp", sample_weight=weight, **given).predict(X).mean
    even = duogp.fit(X, wrong, "svgp", **given).predict(X).mean
    assert np.sqrt(np.mean((found - Y) ** 2)) < 0.5 * np.sqrt(np.mean((even - Y) ** 2))


@pytest.mark.parametrize("standardize", [True, False])
def test_far_rows_are_moved_to_where_distances_have_digits(standardize: bool) -> None:
    gp = duogp.fit(X, Y, "svgp", epochs=2, standardize=standardize, **QUICK)
    shift, scale = gp.x_scaler.shift, gp.x_scaler.scale
    reach = FARTHEST if standardize else FARTHEST_UNSCALED
    rows = np.array([[1e300, -1e300], [0.5, 2.0], [0.5 * reach, -0.5 * reach]])
    found = within_reach(rows, gp)
    np.testing.assert_allclose(found[0], shift + reach * scale * [1, -1], rtol=1e-12)
    np.testing.assert_array_equal(found[1:], rows[1:])
    assert rows[0, 0] == 1e300  # the caller's rows stay as they are
    model = duogp.GPRegressor("svgp", epochs=2, standardize=standardize, **QUICK).fit(X, Y)
    mean, std = model.predict(rows[:1], return_std=True)
    assert np.isfinite(mean).all() and np.isfinite(std).all()


def test_far_rows_of_a_gp_are_clipped_before_they_are_squared() -> None:
    gp = duogp.fit(X * 1e-200, Y, "svgp", epochs=2, **QUICK)
    prediction = gp.predict(np.array([[1e200, 1e200], [1e300, -1e300]]))
    assert np.isfinite(prediction.mean).all() and np.isfinite(prediction.variance).all()
    far = gp._inputs(np.array([[1e300, -1e300]]))
    assert torch.equal(far.abs(), torch.full_like(far, 1e100)) and far[0, 1] < 0


@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "odsvgp", "exact", "map", "ppgpr-mf"])
def test_far_rows_of_columns_of_no_spread_have_the_prior(method):
    """Unscaled columns of subnormal numbers have lengthscales of 1e-140: everything else is far away."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 5, size=20) * 5e-324, rng.normal(size=20)])
    given = {} if method == "exact" else {"num_inducing": 4}
    gp = duogp.fit(X, rng.normal(size=20), method, epochs=2, standardize=False, device="cpu", **given)
    far = np.array([[1.0, 0.0], [1e100, 0.0], [1e300, 1e300], [-1.7e308, 1e160]])
    prediction = gp.predict(far)
    np.testing.assert_allclose(prediction.mean, prediction.mean[0], rtol=1e-9)
    np.testing.assert_allclose(prediction.residual, prediction.residual[0], rtol=1e-9)
    np.testing.assert_allclose(prediction.explained, 0.0, atol=1e-12)
    assert np.isfinite(prediction.std).all()
