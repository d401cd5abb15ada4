"""Deep GPs with replicates, in float32, under every likelihood; predictions of fitted ones."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from duogp.likelihoods import GaussianLikelihood, make_named
from duogp.models.model import take_replicate
from duogp.objectives import elbo, predictive
from duogp.posterior.prediction import ClassPrediction
from duogp.training.validation import mean_nll
from helpers.conformance import assert_gradient_is_that_of_differences
from helpers.deep_models import close, deep, every_kind, gp_of, gradients, rows
from helpers.random_models import learned

# -- replicates, precision, likelihoods ---------------------------------------------------------------------


@every_kind
def test_replicates_are_single_models(kind: str) -> None:
    both = deep(kind, replicates=2, layers=3)
    batch = rows(both)
    both.draw([torch.Generator().manual_seed(7 + s) for s in range(2)])
    loss, found = both.loss(batch), gradients(both, batch)
    for r in range(2):
        one = deep(kind, layers=3, seeds=[r])
        one.draw([torch.Generator().manual_seed(7 + r)])
        own = rows(one, seeds=[r])
        close(one.loss(own), loss[r : r + 1])
        for name, value in gradients(one, own).items():
            close(value, found[name][r : r + 1])
        taken = take_replicate(both, r)
        assert taken.replicates == 1
        close(taken.loss(own), loss[r : r + 1])
        close(taken.eval().log_predictive(own), one.eval().log_predictive(own))


@every_kind
def test_float32_is_close_to_float64(kind: str) -> None:
    models = {dtype: deep(kind, dtype=dtype, jitter=1e-4) for dtype in (torch.float32, torch.float64)}
    single, double = models.values()
    with torch.no_grad():
        for (name, p), (_, q) in zip(double.named_parameters(), single.named_parameters(), strict=True):
            assert q.dtype == torch.float32, name
            p.copy_(q)
        double.draws.training_draws.copy_(single.draws.training_draws)
    x = rows(double).x.float()
    assert_close(single.marginals(x).mean.double(), double.marginals(x.double()).mean, rtol=1e-3, atol=1e-3)
    batch = rows(single)
    loss = single.loss(batch).sum()
    loss.backward()
    assert torch.isfinite(loss) and all(torch.isfinite(p.grad).all() for _, p in learned(single))


CLASSES = {"bernoulli": 2, "logit": 2, "robust-max": 3, "softmax": 3}
LIKELIHOODS = [*CLASSES, "gaussian", "poisson", "student-t", "heteroscedastic"]


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood_trains_and_predicts(name: str) -> None:
    classes = CLASSES.get(name)
    likelihood = make_named(name, outputs=1, classes=classes, noise=0.2, noise_floor=1e-6, learn_noise=True)
    for objective in (elbo, predictive):
        model = deep(likelihood=likelihood, objective=objective, replicates=2)
        batch = rows(model)
        model.draw([torch.Generator().manual_seed(s) for s in range(2)])
        loss = model.loss(batch)
        loss.sum().backward()
        assert loss.shape == (2,) and torch.isfinite(loss).all()
        assert all(torch.isfinite(p.grad).all() for _, p in learned(model) if p.grad is not None)
    gp = gp_of(take_replicate(model, 0), classes=None if classes is None else np.arange(classes))
    X = 2 * batch.x[0].numpy() + 0.1
    prediction = gp.predict(X)
    if classes is not None:
        assert isinstance(prediction, ClassPrediction)
        np.testing.assert_allclose(prediction.probabilities.sum(-1), 1)
        expected = np.log(prediction.probabilities[np.arange(10), batch.y[0, 0].int().numpy()])
        np.testing.assert_allclose(gp.log_density(X, batch.y[0, 0].int().numpy()), expected, rtol=1e-5)
        assert prediction.latent_mean.shape == prediction.explained.shape
        assert set(gp.sample(X, 3, seed=0, observation_noise=True).ravel()) <= set(range(classes))
    else:
        assert (prediction.explained > 0).all() and (prediction.noise > 0).all()
        assert gp.sample(X, 3, seed=0, observation_noise=True).shape == (3, 10)


def test_several_outputs_and_mixing() -> None:
    model = deep(outputs=3, mixing=True, likelihood=GaussianLikelihood(3, noise=0.2))
    batch = rows(model, outputs=3)
    assert_gradient_is_that_of_differences(model, batch)
    gp = gp_of(model)
    X = batch.x[0].numpy()
    assert gp.predict(X).mean.shape == (10, 3)
    assert gp.sample(X, 2, seed=0).shape == gp.sample(X, 2, seed=0, kind="pathwise").shape == (2, 10, 3)


# -- fitted models ------------------------------------------------------------------------------------------


@every_kind
def test_predictions_are_mixtures_deterministic_and_row_by_row(kind: str) -> None:
    model = deep(kind, layers=3)
    batch = rows(model, n=20)
    gp = gp_of(model)
    X, y = 2 * batch.x[0].numpy() + 0.1, 2 * batch.y[0, 0].numpy() + 3  # in the user's units
    prediction = gp.predict(X)
    f = model.sample_marginals(batch.x)  # live, in the mode of evaluation
    assert f.mean.shape[0] == 32
    np.testing.assert_allclose(prediction.mean, 3 + 2 * f.mean.mean(0)[0, 0].detach(), rtol=1e-6)
    total = f.variance.mean(0) + f.mean.var(0, correction=0)
    np.testing.assert_allclose(prediction.function_variance, 4 * total[0, 0].detach(), rtol=1e-6)
    density = model.log_predictive(batch)[0].detach().numpy() - math.log(2)
    np.testing.assert_allclose(gp.log_density(X, y), density, rtol=1e-6, atol=1e-8)

    again = gp_of(model).predict(X[5:9])
    np.testing.assert_allclose(again.mean, prediction.mean[5:9], rtol=1e-10)
    np.testing.assert_allclose(again.variance, prediction.variance[5:9], rtol=1e-8)
    for twin in (copy.deepcopy(gp), pickle.loads(pickle.dumps(gp))):
        np.testing.assert_array_equal(twin.predict(X).mean, prediction.mean)
    with pytest.raises(ValueError, match="no single linear form"):
        _ = gp.posterior
    assert len(gp.layer_posteriors) == len(gp.hyperparameters()["layers"]) == 3
    assert gp.inducing_points.shape == (6, 2)
    assert "inducing=6" in repr(gp)


def test_large_requests_are_answered_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model = deep()
    batch = rows(model, n=50)
    X, y = batch.x[0].numpy(), batch.y[0, 0].numpy()
    gp = gp_of(model)
    whole, density = gp.predict(X), gp.log_density(X, y)
    with torch.no_grad():
        nll = mean_nll(model, batch)
        own = model.log_predictive(batch)
        monkeypatch.setattr("duogp.models.deep.SLAB", 1)
        assert model.rows_at_once() == 16
        close(model.log_predictive(batch), own)
        close(mean_nll(model, batch), nll)
    np.testing.assert_allclose(gp.predict(X).variance, whole.variance, rtol=1e-10)
    np.testing.assert_allclose(gp.log_density(X, y), density, rtol=1e-10)
    assert [v.mean.shape for v in gp.layer_variances(X)] == [(50, 2), (50, 1)]


def test_layer_variances_add_up() -> None:
    model = deep("ddgpc", layers=3)
    gp = gp_of(model)
    X = 2 * rows(model).x[0].numpy() + 0.1
    first, second, last = gp.layer_variances(X)
    prediction = gp.predict(X)
    np.testing.assert_allclose(last.mean[:, 0], prediction.mean, rtol=1e-9)
    np.testing.assert_allclose(last.residual[:, 0], prediction.residual, rtol=1e-9)
    np.testing.assert_allclose((last.explained + last.between)[:, 0], prediction.explained, rtol=1e-9)
    assert first.mean.shape == second.mean.shape == (10, 2)
    assert (first.between == 0).all() and (second.between > 0).all()
    far = gp.layer_variances(X + 100)[0]
    prior = model.hidden[0].basis.kernel.variance().item()
    np.testing.assert_allclose(far.residual, prior, rtol=1e-6)
    np.testing.assert_allclose(far.explained, 0, atol=1e-6)


@pytest.mark.parametrize("kind", ["joint", "pathwise"])
def test_samples_have_the_moments_of_predictions(kind: str) -> None:
    model = deep(layers=2, eval_samples=1024)
    gp = gp_of(model)
    X = 2 * rows(model, n=4).x[0].numpy() + 0.1
    prediction = gp.predict(X)
    draws = gp.sample(X, 600, seed=1, kind=kind)
    assert draws.shape == (600, 4)
    error = np.sqrt(prediction.function_variance / 600)
    bias = 0.0 if kind == "joint" else 0.15  # random features
    assert (abs(draws.mean(0) - prediction.mean) < 4.5 * error + bias).all()
    np.testing.assert_allclose(draws.var(0), prediction.function_variance, rtol=0.35)
    np.testing.assert_array_equal(draws, gp.sample(X, 600, seed=1, kind=kind))


def test_sample_paths_are_functions() -> None:
    gp = gp_of(deep(layers=3))
    X = rows(gp.model, n=12).x[0].numpy()
    paths = gp.sample_paths(5, seed=0, num_features=64)
    whole = paths(X)
    assert whole.shape == (5, 12)
    np.testing.assert_allclose(paths(X[3:5]), whole[:, 3:5], rtol=1e-8)
    with pytest.raises(ValueError, match="kind must be"):
        gp.sample(X, kind="exact")
