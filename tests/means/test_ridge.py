"""Ridge regression as a cross-fitted mean: against scikit-learn, gaps and far rows, saving."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge as SklearnRidge

import duogp
from duogp.io.learned import learned_from_state, learned_state
from duogp.means.affine import REACH, Ridge
from duogp.means.crossfit import Goal, cross_fit
from duogp.posterior.learned import LearnedMean

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 4))
LINE = X @ [1.0, -0.5, 0.2, 0.0] + 3.0
FOLD = np.arange(200) % 5


def unseen_by(models, rows):
    """What each model says of the rows of its own fold."""
    out = np.empty(len(rows))
    for k, model in enumerate(models):
        out[k == FOLD] = model(torch.as_tensor(rows[k == FOLD]))[:, 0].numpy()
    return out


def test_folds_are_those_of_scikit_learn():
    y, w = LINE + 0.1 * RNG.normal(size=200), RNG.uniform(0.5, 2.0, 200)
    models = Ridge(ridges=(1e-2,)).fit(X, y, FOLD, w)
    Z = np.clip((X - X.mean(0)) / X.std(0), -REACH, REACH)
    for k, model in enumerate(models):
        others = k != FOLD
        peer = SklearnRidge(alpha=1e-2 * w[others].sum()).fit(Z[others], y[others], sample_weight=w[others])
        np.testing.assert_allclose(model(torch.as_tensor(X))[:, 0].numpy(), peer.predict(Z), atol=1e-9)


def test_of_several_ridges_the_best_on_unseen_rows():
    y = X[:, 0] + 3 * RNG.normal(size=200)
    found = {r: unseen_by(Ridge((r,)).fit(X, y, FOLD), X) for r in (1e-4, 1.0, 1e3)}
    best = min(found, key=lambda r: np.mean((y - found[r]) ** 2))
    np.testing.assert_allclose(unseen_by(Ridge(tuple(found)).fit(X, y, FOLD), X), found[best], atol=1e-12)


@pytest.mark.parametrize("scale", [1e-120, 1.0, 1e90])
def test_constant_columns_copies_gaps_and_far_rows(scale):
    rows = np.column_stack([X, X[:, 0], np.ones(200), np.full(200, np.nan)])
    rows[3, 1] = np.nan
    models = Ridge().fit(rows, scale * LINE, FOLD)
    far = np.array([[1e300, -1e300, np.nan, 0, 0, 0, 0], [np.inf, 0, 0, 0, 0, 5, 5]])
    for model in models:
        assert model(torch.as_tensor(rows)).isfinite().all() and model(torch.as_tensor(far)).isfinite().all()
    error = unseen_by(models, rows) / scale - LINE
    assert np.sqrt(np.mean(error[FOLD != 3] ** 2)) < 0.2


def test_two_rows_and_rows_without_weight():
    (one, other) = Ridge().fit(X[:2], LINE[:2], np.array([0, 1]))
    assert one(torch.as_tensor(X[:2]))[:, 0].tolist() == pytest.approx([LINE[1], LINE[1]])
    assert other(torch.as_tensor(X[:2]))[:, 0].tolist() == pytest.approx([LINE[0], LINE[0]])
    weights = (FOLD == 0).astype(float)
    assert all(m(torch.as_tensor(X)).isfinite().all() for m in Ridge().fit(X, LINE, FOLD, weights))


def test_it_is_saved_as_arrays():
    y = np.stack([LINE, X[:, 2]], 1)
    fit = cross_fit(Ridge(), X, y, Goal("real", outputs=2))
    described, tensors = learned_state(LearnedMean(fit))
    again = learned_from_state(described, tensors)
    for before, after in zip(fit.at(X), again.fit.at(X), strict=True):
        np.testing.assert_allclose(after, before, atol=1e-12)


def test_the_mean_of_any_method_by_name(tmp_path):
    y = LINE + 0.05 * RNG.normal(size=200)
    gp = duogp.fit(X, y, "svgp", mean="ridge", num_inducing=10)
    assert np.sqrt(np.mean((gp.predict(X).mean - LINE) ** 2)) < 0.05
    gp.save(tmp_path / "model")
    np.testing.assert_allclose(duogp.load(tmp_path / "model").predict(X).mean, gp.predict(X).mean)
    with pytest.raises(TypeError, match="ridge regression"):
        duogp.fit(X, (y > 3).astype(int), "svgp", likelihood="classes", mean="ridge", num_inducing=10)
