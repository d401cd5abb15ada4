"""Statistics of chunks, merged in any order, solve and bound like all rows at once."""

from __future__ import annotations

import pickle
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import duogp
from duogp.inference import sufficient
from duogp.inference.closed_form import CollapsedObjective
from duogp.posterior.statistics import bound, user_batch

#: The sums of 60 rows round at 1e-14, the solve multiplies that by the condition of I + G/s²: below 1e4 here.
TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}
METHODS = ["svgp", "sgpr", "vfitc", "fitc", "dtc", "map", "odsvgp", "solvegp", "dcsvgp"]


def table(n: int = 60, seed: int = 0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=n), rng


def fitted(method: str, **more):
    X, y, _ = table()
    given = {"solver": "closed-form", "num_inducing": 8, "epochs": 5, "validation_fraction": 0.0}
    if method == "dcsvgp":
        given["beta2"] = 0.0
    return duogp.fit(X, y, method, dtype="float64", **given, **more)


@pytest.fixture(scope="module", params=METHODS)
def gp(request):
    return fitted(request.param)


def merged(gp, parts):
    return reduce(duogp.merge, (duogp.statistics(gp, part) for part in parts))


def cut(X, y, order, cuts):
    return [(X[rows], y[rows]) for rows in np.split(order, sorted(cuts)) if len(rows)]


@settings(max_examples=15, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 59), max_size=8, unique=True),
    seed=st.integers(0, 2**32 - 1),
    backwards=st.booleans(),
)
def test_any_split_solves_like_all_rows(gp, cuts, seed, backwards):
    X, y, _ = table()
    parts = cut(X, y, np.random.default_rng(seed).permutation(len(X)), cuts)
    sums = merged(gp, parts[::-1] if backwards else parts)
    batch = user_batch(gp, (X, y))
    direct = CollapsedObjective(gp.model, [lambda: batch])
    best, found = direct.solve(), sufficient.solve(gp.model, sums)
    assert_close(found.mean, best.mean, **TOLERANCE)
    assert_close(found.root @ found.root.mT, best.root @ best.root.mT, **TOLERANCE)
    loss = direct.backward()
    assert_close(sufficient.bound(gp.model, sums), -loss * gp.model.num_data, **TOLERANCE)


def test_a_solved_gp_predicts_what_the_fit_predicts(gp):
    X, y, _ = table()
    again = duogp.solve(gp, merged(gp, cut(X, y, np.arange(60), [7, 30])))
    for part in ("mean", "variance"):
        np.testing.assert_allclose(
            getattr(again.predict(X), part), getattr(gp.predict(X), part), rtol=1e-9, atol=1e-9
        )
    assert "60 rows" in again.history.notes[0]


def test_noise_and_weights_of_rows_are_in_the_sums():
    X, y, rng = table()
    noise, weight = rng.uniform(0.05, 0.3, 60), rng.uniform(0.5, 2.0, 60)
    gp = duogp.fit(X, y, "svgp", noise=noise, sample_weight=weight, num_inducing=8, epochs=5, dtype="float64")
    rows = np.split(np.arange(60), [11, 40])
    sums = merged(gp, [(X[r], y[r], noise[r], weight[r]) for r in rows])
    again = duogp.solve(gp, sums)
    np.testing.assert_allclose(again.predict(X).mean, gp.predict(X).mean, rtol=1e-9, atol=1e-9)
    assert_close(sums.rows, torch.tensor([60.0], dtype=torch.float64))
    assert_close(float(sums.weight[0]), float(weight.sum()))
    batch = user_batch(gp, (X, y, noise, weight))
    loss = CollapsedObjective(gp.model, [lambda: batch]).backward()
    assert_close(bound(gp, sums), float(-loss * gp.model.num_data), **TOLERANCE)


def test_several_outputs():
    X, y, _ = table()
    Y = np.stack([y, y**2], 1)
    gp = duogp.fit(X, Y, "sgpr", num_inducing=8, epochs=5, dtype="float64")
    sums = merged(gp, [(X[:20], Y[:20]), (X[20:], Y[20:])])
    again = duogp.solve(gp, sums)
    np.testing.assert_allclose(again.predict(X).mean, gp.predict(X).mean, rtol=1e-9, atol=1e-9)
    batch = user_batch(gp, (X, Y))
    loss = CollapsedObjective(gp.model, [lambda: batch]).backward()
    assert_close(bound(gp, sums), float(-loss * gp.model.num_data), **TOLERANCE)


def test_statistics_are_plain_tensors_that_survive_a_pickle():
    gp = fitted("svgp")
    X, y, _ = table()
    sums = duogp.statistics(gp, (X, y))
    assert all(s is None or (s.dtype == torch.float64 and not s.requires_grad) for s in sums)
    again = pickle.loads(pickle.dumps(sums))
    assert_close(
        sufficient.solve(gp.model, again).mean, sufficient.solve(gp.model, sums).mean, rtol=0, atol=0
    )


def test_the_arguments_stay_as_they_were():
    gp = fitted("svgp")
    X, y, _ = table()
    before = [p.detach().clone() for p in gp.model.parameters()]
    a, b = duogp.statistics(gp, (X[:20], y[:20])), duogp.statistics(gp, (X[20:], y[20:]))
    kept = [s.clone() for s in a if s is not None]
    duogp.solve(gp, duogp.merge(a, b))
    assert all(torch.equal(s, t) for s, t in zip(kept, (s for s in a if s is not None), strict=True))
    assert all(torch.equal(p, q) for p, q in zip(before, gp.model.parameters(), strict=True))


def test_models_without_sums_are_refused():
    X, y, _ = table()
    predictive = duogp.fit(X, y, "ppgpr-chol", num_inducing=5, epochs=2)
    with pytest.raises(ValueError, match="not quadratic"):
        duogp.statistics(predictive, (X, y))
    with pytest.raises(TypeError, match="fitted GP"):
        duogp.statistics(None, (X, y))
    small, large = fitted("svgp"), fitted("svgp")
    sums = duogp.statistics(small, (X, y))
    other = duogp.fit(X, y, "svgp", num_inducing=5, epochs=2, dtype="float64")
    with pytest.raises(ValueError, match="different models"):
        duogp.merge(sums, duogp.statistics(other, (X, y)))
    with pytest.raises(TypeError, match="pair"):
        duogp.statistics(large, X)
