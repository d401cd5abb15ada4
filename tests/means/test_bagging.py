"""Bagged trees: their arrays predict as they do, out-of-bag rows are unseen, and the blend is no worse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from sklearn.ensemble import ExtraTreesRegressor, RandomForestClassifier

from duogp.errors import SavedModelError
from duogp.io.learned import learned_from_state, learned_state
from duogp.means.bagging import Bagged, blend_share
from duogp.means.crossfit import TINY, CrossFit, Goal, Trees, cross_fit, latent_values
from duogp.means.forest import Forest, LogAverage
from duogp.posterior.learned import LearnedMean

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 4))
SIGNAL = np.sin(2 * X[:, 0]) + X[:, 1]
LABELS = np.digitize(SIGNAL, [-0.7, 0.7])
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


@pytest.mark.parametrize("device", DEVICES)
def test_arrays_of_a_forest_predict_as_it_does(device):
    model = ExtraTreesRegressor(20, bootstrap=True, random_state=0).fit(X, SIGNAL)
    form = Forest.of_bagged([model]).to(torch.device(device))
    rows = torch.as_tensor(X.astype(np.float32).astype(float), device=device)
    np.testing.assert_allclose(form(rows)[:, 0].cpu(), model.predict(X), rtol=1e-10)


@pytest.mark.parametrize("classes", [2, 3])
def test_arrays_of_labels_give_the_logs_of_averaged_probabilities(classes):
    labels = LABELS.clip(0, classes - 1)
    model = RandomForestClassifier(25, random_state=0).fit(X, labels)
    form = LogAverage.of_labels([model], classes)
    latent = form(torch.as_tensor(X.astype(np.float32).astype(float))).numpy()
    p = (
        softmax(latent, axis=1)
        if classes > 2
        else np.stack([1 - expit(latent[:, 0]), expit(latent[:, 0])], 1)
    )
    expected = (25 * model.predict_proba(X) + 1 / classes) / 26
    np.testing.assert_allclose(p, expected, rtol=1e-6)
    again = LogAverage.from_arrays(form.arrays(), form.depth, form.inputs)
    assert torch.equal(again(torch.as_tensor(X)), form(torch.as_tensor(X)))


def test_a_class_without_rows_has_a_small_probability():
    form, unseen = Bagged(20).fit(X, np.where(LABELS == 1, 2, 0), 3, None, 0)
    p = softmax(form(torch.as_tensor(X)).numpy(), axis=1)
    assert p.shape == unseen.shape == (200, 3)
    assert (p[:, 1] > 0).all() and p[:, 1].max() < 0.05


def test_rows_out_of_bag_are_unseen():
    """Deep trees know noise by heart; out of bag they know nothing about it."""
    noise = np.random.default_rng(1).normal(size=200)
    form, unseen = Bagged(50).fit(X, noise, None, None, 0)
    assert abs(np.corrcoef(unseen[:, 0], noise)[0, 1]) < 0.3
    assert np.corrcoef(form(torch.as_tensor(X))[:, 0], noise)[0, 1] > 0.8


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_targets_and_inputs_of_any_size(scale):
    form, unseen = Bagged(10).fit(X * scale, SIGNAL * scale, None, None, 0)
    assert np.isfinite(unseen).all() and torch.isfinite(form(torch.as_tensor(X * scale))).all()
    assert np.corrcoef(form(torch.as_tensor(X * scale))[:, 0] / scale, SIGNAL)[0, 1] > 0.8
    assert np.corrcoef(unseen[:, 0] / scale, SIGNAL)[0, 1] > 0.5


def test_missing_entries_have_a_place():
    gaps = np.where(RNG.random(X.shape) < 0.2, np.nan, X)
    form, _ = Bagged(10).fit(gaps, SIGNAL, None, None, 0)
    assert torch.isfinite(form(torch.as_tensor(gaps))).all()


def test_the_share_of_a_blend():
    y, first = SIGNAL, SIGNAL + 0.3 * RNG.normal(size=200)
    second = SIGNAL + 0.3 * RNG.normal(size=200)
    a = blend_share(y, first, second)
    errors = [np.mean((y - (1 - b) * first - b * second) ** 2) for b in (a, a - 0.01, a + 0.01, 0.0, 1.0)]
    assert 0.3 < a < 0.7 and errors[0] == min(errors)
    assert blend_share(y, y, second) == 0.0 and blend_share(y, first, y) == 1.0
    assert blend_share(y, first, first) == 0.0
    assert blend_share(y, first, second, np.ones(200)) == pytest.approx(a)


def _blend() -> CrossFit:
    y = np.stack([SIGNAL + 0.1 * RNG.normal(size=200), X[:, 2]], 1)
    return cross_fit(Trees(max_trees=20, bagged=30), X, y, Goal("real", outputs=2))


def test_a_blend_is_no_worse_on_unseen_rows_than_its_boosted_part():
    y = SIGNAL[:, None] + 0.1 * RNG.normal(size=(200, 1))
    alone = cross_fit(Trees(max_trees=20, bagged=0), X, y, Goal("real"))
    blend = cross_fit(Trees(max_trees=20, bagged=30), X, y, Goal("real"))
    assert np.mean((y - blend.held_out) ** 2) <= np.mean((y - alone.held_out) ** 2)
    value, spread = blend.at(X[:9])
    boosted, own = alone.at(X[:9])
    bagged = blend.bagged[0](torch.as_tensor(X[:9])).numpy()
    np.testing.assert_allclose(value, (1 - blend.share) * boosted + blend.share * bagged)
    np.testing.assert_allclose(spread, (1 - blend.share) ** 2 * own)


def test_a_blend_is_saved_as_arrays():
    fit = _blend()
    described, tensors = learned_state(LearnedMean(fit))
    again = learned_from_state(described, tensors)
    for before, after in zip(fit.at(X), again.fit.at(X), strict=True):
        np.testing.assert_allclose(after, before, atol=1e-12)
    with pytest.raises(SavedModelError, match="bagged"):
        learned_from_state(described, {**tensors, "learned.share": tensors["learned.share"][:1]})
    with pytest.raises(SavedModelError, match="damaged"):
        learned_from_state(described, {n: t for n, t in tensors.items() if n != "learned.bagged.0.value"})


def test_labels_are_saved_as_arrays():
    fit = cross_fit(Bagged(10), X, LABELS[:, None].astype(float), Goal("classes", 3))
    described, tensors = learned_state(LearnedMean(replace(fit, held_out=None)))
    again = learned_from_state(described, tensors)
    np.testing.assert_array_equal(again.fit.at(X)[0], fit.at(X)[0])
    name = "learned.0.0.value"
    with pytest.raises(SavedModelError, match="damaged"):
        learned_from_state(described, {**tensors, name: tensors[name] + 2})


def test_bagged_trees_alone_are_for_classes():
    with pytest.raises(TypeError, match="classes"):
        cross_fit(Bagged(10), X, SIGNAL[:, None], Goal("real"))


@pytest.mark.parametrize("device", DEVICES)
def test_logs_of_trees_have_the_same_bounds_in_every_form(device):
    """Boosting logs of squares can overshoot by far: its arrays must say what `predict` says."""
    y = np.where(RNG.random(200) < 0.02, 1e2, 1e-3)[:, None]
    goal = Goal("positive")
    fit = cross_fit(Trees(learning_rate=1.0, l2=0.0, min_leaf=5, max_trees=30), X, y, goal)
    value = fit.at(X)[0]
    fit.memo.clear()
    arrays = CrossFit(fit.arrays(), goal, 4).at(X, torch.device(device))[0]
    np.testing.assert_allclose(arrays, value, atol=1e-6)
    form = Forest.of(fit.models[0][0])
    low = replace(form, baseline=form.baseline - 100)
    assert latent_values(low, X, goal).min() == pytest.approx(np.log(TINY))
