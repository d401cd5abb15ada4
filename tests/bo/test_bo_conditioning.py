"""`DuoGPModel` given more observations: exactly, as fantasies, with gradients."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("botorch")

from botorch.posteriors import GPyTorchPosterior
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.testing import BotorchTestCase, get_random_data

from duogp.bo import DuoGPModel
from duogp.bo.processes import Conditioned
from helpers.botorch_models import data, fitted


def test_conditioning_is_that_of_the_exact_gp():
    """The exact GP with fixed hyperparameters, told some rows later, is the GP told all of them."""
    X, Y = data(40)
    model = DuoGPModel.fit(X[:30], Y[:30], "exact", steps=10)
    at = torch.rand(2, 6, 2, dtype=torch.float64)
    told = model.condition_on_observations(X[30:], Y[30:]).posterior(at)
    expected = model.refit(X, Y, steps=0).posterior(at)
    torch.testing.assert_close(told.mean, expected.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        told.distribution.covariance_matrix, expected.distribution.covariance_matrix, rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "solvegp"])
def test_conditioning_in_two_steps_is_conditioning_once(method):
    model = fitted(method)
    X, Y = data(8, seed=5)
    at = torch.rand(3, 2, dtype=torch.float64)
    once = model.condition_on_observations(X, Y).posterior(at)
    twice = model.condition_on_observations(X[:5], Y[:5]).condition_on_observations(X[5:], Y[5:])
    torch.testing.assert_close(twice.posterior(at).mean, once.mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(twice.posterior(at).variance, once.variance, rtol=1e-5, atol=1e-9)
    assert twice.train_inputs[0].shape == (38, 2) and twice.train_targets.shape == (38,)


def test_fantasies(model):
    X = torch.rand(5, 2, 2, dtype=torch.float64)  # five batches of two points
    fantasies = model.fantasize(X, SobolQMCNormalSampler(torch.Size([4]), seed=0))
    assert fantasies.batch_shape == (4, 5)
    at = torch.rand(4, 5, 3, 2, dtype=torch.float64)
    posterior = fantasies.posterior(at)
    assert posterior.mean.shape == (4, 5, 3, 1)
    # Each of them is the model told one fantasy.
    process = fantasies._process
    assert isinstance(process, Conditioned)
    y = process.target[2, 3].mT * model._scale + model._shift
    alone = model.condition_on_observations(X[3], y).posterior(at[2, 3])
    torch.testing.assert_close(posterior.mean[2, 3], alone.mean)
    torch.testing.assert_close(posterior.variance[2, 3], alone.variance)
    assert fantasies.posterior(at[0, 0]).mean.shape == (4, 5, 3, 1)
    assert bool((posterior.variance <= model.posterior(at).variance + 1e-9).all())
    assert model.batch_shape == torch.Size()


def test_conditioning_several_outputs(double):
    X, Y = data(4, outputs=2, seed=7)
    told = double.condition_on_observations(X, Y)
    assert told.posterior(X).mean.shape == (4, 2)
    first = double.subset_output([0]).condition_on_observations(X, Y[:, :1])
    torch.testing.assert_close(told.posterior(X).mean[:, :1], first.posterior(X).mean)
    with pytest.raises(ValueError, match=r"Y must be \[..., 4, 2\]"):
        double.condition_on_observations(X, Y[:, :1])


def test_gradients_flow_through_fantasies(model):
    X, Y = data(3, seed=8)
    at = torch.rand(2, 2, dtype=torch.float64)

    def told(x: torch.Tensor, y: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        posterior = model.condition_on_observations(x, y).posterior(where)
        return torch.cat([posterior.mean, posterior.variance])

    leaves = tuple(t.clone().requires_grad_(True) for t in (X, Y, at))
    assert torch.autograd.gradcheck(told, leaves, eps=1e-6, atol=1e-4)


class TestAsBoTorchDoes(BotorchTestCase):
    """What BoTorch checks of its own models, with its own random data."""

    def test_posterior_and_conditioning(self):
        for m in (1, 2):
            tkwargs = {"device": self.device, "dtype": torch.float64}
            X, Y = get_random_data(batch_shape=torch.Size(), m=m, d=2, **tkwargs)
            model = DuoGPModel.fit(X, Y, "svgp", num_inducing=8, steps=10)
            test_X = torch.rand(2, 3, 2, **tkwargs)
            posterior = model.posterior(test_X)
            assert isinstance(posterior, GPyTorchPosterior)
            assert posterior.mean.shape == torch.Size([2, 3, m])
            assert posterior.variance.shape == torch.Size([2, 3, m])
            noisy = model.posterior(test_X, observation_noise=True)
            assert bool((noisy.variance > posterior.variance).all())
            new_X, new_Y = torch.rand(2, 5, 2, **tkwargs), torch.rand(2, 5, m, **tkwargs)
            conditioned = model.condition_on_observations(new_X, new_Y)
            assert isinstance(conditioned, DuoGPModel)
            assert conditioned.batch_shape == torch.Size([2])
            self.assertAllClose(
                conditioned.posterior(test_X).mean[1],
                model.condition_on_observations(new_X[1], new_Y[1]).posterior(test_X[1]).mean,
            )
            fantasy = model.fantasize(test_X, SobolQMCNormalSampler(torch.Size([3])))
            assert fantasy.posterior(test_X).mean.shape == torch.Size([3, 2, 3, m])
            empty = model.fantasize(torch.empty(0, 2, **tkwargs), SobolQMCNormalSampler(torch.Size([3])))
            assert empty.posterior(test_X[0]).mean.shape[-2:] == torch.Size([3, m])
