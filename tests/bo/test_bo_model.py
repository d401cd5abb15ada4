"""`DuoGPModel` as BoTorch sees it: the posterior, joint laws, gradients, transforms, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("botorch")

from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling import SobolQMCNormalSampler

import duogp
from duogp.bo import DuoGPModel, thompson
from helpers.botorch_models import QUICK, data, fitted

#: One method for each kind of basis; solvers of all kinds.
METHODS = (
    "svgp", "dcsvgp", "ppgpr", "dcppgpr", "odsvgp", "solvegp", "decoupled-s", "hybrid", "decoupled", "exact",
    "ppgpr-dcdkl", "nnsvgp", "orthnat",
)  # fmt: skip


# -- the posterior -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_the_posterior_is_that_of_the_gp(method):
    model = fitted(method)
    X = torch.rand(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    posterior = model.posterior(X)
    expected = model.gp.predict(X.numpy())
    np.testing.assert_allclose(posterior.mean[:, 0].numpy(), expected.mean, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(posterior.variance[:, 0].numpy(), expected.function_variance, rtol=1e-6)
    noisy = model.posterior(X, observation_noise=True)
    np.testing.assert_allclose(noisy.variance[:, 0].numpy(), expected.variance, rtol=1e-6)
    _, residual, explained = model.gp.posterior.joint(model.gp._inputs(X.numpy())[None, None])
    dense = (residual + explained)[0, 0].detach() * float(model.gp.y_scaler.scale[0]) ** 2
    joint = posterior.distribution.covariance_matrix
    torch.testing.assert_close(joint, dense.double(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("method", ["dcsvgp", "solvegp", "exact", "ppgpr-dcdkl"])
def test_gradients_agree_with_finite_differences(method):
    model = fitted(method, **({"activation": "silu"} if "dkl" in method else {}))
    X = torch.rand(2, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def mean(x: torch.Tensor) -> torch.Tensor:
        return model.posterior(x).mean

    def covariance(x: torch.Tensor) -> torch.Tensor:
        return model.posterior(x).distribution.covariance_matrix

    X.requires_grad_(True)
    assert torch.autograd.gradcheck(mean, (X,), eps=1e-6, atol=1e-5)
    assert torch.autograd.gradcheck(covariance, (X,), eps=1e-6, atol=1e-5)


@pytest.mark.parametrize("batch", [(), (1,), (4,), (2, 3)])
@pytest.mark.parametrize("outputs", [1, 2])
def test_batches_and_shapes(model, double, batch, outputs):
    of = model if outputs == 1 else double
    X = torch.rand(*batch, 5, 2, dtype=torch.float64)
    posterior = of.posterior(X)
    assert isinstance(posterior, GPyTorchPosterior)
    assert posterior.mean.shape == posterior.variance.shape == (*batch, 5, outputs)
    assert posterior.rsample(torch.Size([3])).shape == (3, *batch, 5, outputs)
    assert posterior.dtype == torch.float64
    assert of.num_outputs == outputs and of.batch_shape == torch.Size()
    if batch:
        one = of.posterior(X[(0,) * len(batch)])
        torch.testing.assert_close(posterior.mean[(0,) * len(batch)], one.mean)
        torch.testing.assert_close(posterior.variance[(0,) * len(batch)], one.variance)
    assert of.posterior(X.float()).mean.dtype == torch.float32


def test_some_outputs(double):
    X = torch.rand(3, 4, 2, dtype=torch.float64)
    both = double.posterior(X)
    for of in (double.subset_output([1]).posterior(X), double.posterior(X, output_indices=[1])):
        torch.testing.assert_close(of.mean, both.mean[..., 1:])
        torch.testing.assert_close(of.variance, both.variance[..., 1:])
    swapped = double.subset_output([1, 0])
    torch.testing.assert_close(swapped.posterior(X).mean, both.mean.flip(-1))
    torch.testing.assert_close(
        swapped.posterior(X, observation_noise=True).variance,
        double.posterior(X, observation_noise=True).variance.flip(-1),
    )
    assert double.num_outputs == 2  # is what it was


def test_outputs_of_one_gp_are_those_of_two(double):
    X = torch.rand(4, 2, dtype=torch.float64)
    joint = double.posterior(X).distribution.covariance_matrix.reshape(2, 4, 2, 4)  # not interleaved
    for i in (0, 1):
        alone = double.subset_output([i]).posterior(X).distribution.covariance_matrix
        torch.testing.assert_close(joint[i, :, i], alone)
    assert not joint[0, :, 1].any()


def test_mixed_outputs_are_correlated():
    mixed = fitted("svgp", outputs=2, num_latents=1, solver="stochastic")
    X = torch.rand(3, 4, 2, dtype=torch.float64)
    posterior = mixed.posterior(X)
    np.testing.assert_allclose(
        posterior.variance[0].numpy(), mixed.gp.predict(X[0].numpy()).function_variance, rtol=1e-6
    )
    covariance = posterior.distribution.covariance_matrix[0].reshape(4, 2, 4, 2)
    correlation = covariance[0, 0, 0, 1] ** 2 / (covariance[0, 0, 0, 0] * covariance[0, 1, 0, 1])
    assert correlation == pytest.approx(1.0)  # there is one latent function
    torch.testing.assert_close(mixed.subset_output([1]).posterior(X).mean, posterior.mean[..., 1:])
    with pytest.raises(NotImplementedError, match="refit"):
        mixed.condition_on_observations(X[0], torch.zeros(4, 2, dtype=torch.float64))


def test_observation_noise_as_numbers(model):
    X = torch.rand(3, 4, 2, dtype=torch.float64)
    noise = torch.rand(3, 4, 1, dtype=torch.float64)
    noisy, plain = model.posterior(X, observation_noise=noise), model.posterior(X)
    torch.testing.assert_close(noisy.variance, plain.variance + noise)


@pytest.mark.parametrize("likelihood", ["student-t", "heteroscedastic"])
def test_noise_of_other_likelihoods(likelihood):
    model = fitted("svgp", likelihood=likelihood, steps=20)
    X = torch.rand(2, 3, 2, dtype=torch.float64)
    noisy = model.posterior(X, observation_noise=True).variance
    expected = np.stack([model.gp.predict(x.numpy()).variance for x in X])
    np.testing.assert_allclose(noisy[..., 0].numpy(), expected, rtol=1e-6)
    with pytest.raises(NotImplementedError):
        model.condition_on_observations(X[0], torch.zeros(3, 1, dtype=torch.float64))


def test_known_noise():
    X, Y = data()
    model = DuoGPModel.fit(X, Y, "svgp", Yvar=torch.full_like(Y, 0.04), **QUICK)
    at = torch.rand(3, 2, dtype=torch.float64)
    difference = model.posterior(at, observation_noise=True).variance - model.posterior(at).variance
    torch.testing.assert_close(difference, torch.full_like(difference, 0.04))
    again = model.refit(X, Y, torch.full_like(Y, 0.04), steps=2)
    assert again.posterior(at).mean.shape == (3, 1)
    assert model.fantasize(at, SobolQMCNormalSampler(torch.Size([2]))).batch_shape == torch.Size([2])


# -- transforms ----------------------------------------------------------------------------------------------


def test_scaling_transforms_change_nothing_of_substance():
    X, Y = data()
    plain = DuoGPModel.fit(X, Y, "svgp", **QUICK)
    wrapped = DuoGPModel.fit(
        X, Y, "svgp", input_transform=Normalize(2), outcome_transform=Standardize(1), **QUICK
    )
    at = torch.rand(4, 3, 2, dtype=torch.float64)
    torch.testing.assert_close(wrapped.posterior(at).mean, plain.posterior(at).mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        wrapped.posterior(at).variance, plain.posterior(at).variance, rtol=1e-4, atol=1e-8
    )
    paths, same = wrapped.sample_paths(2, seed=3), plain.sample_paths(2, seed=3)
    torch.testing.assert_close(paths(at), same(at), rtol=1e-4, atol=1e-5)
    more = wrapped.condition_on_observations(at[0], torch.ones(3, 1, dtype=torch.float64))
    less = plain.condition_on_observations(at[0], torch.ones(3, 1, dtype=torch.float64))
    torch.testing.assert_close(more.posterior(at).mean, less.posterior(at).mean, rtol=1e-3, atol=1e-4)


def test_outcomes_on_a_logarithmic_scale():
    X, Y = data()
    model = DuoGPModel.fit(X, Y.exp(), "svgp", outcome_transform=Log(), **QUICK)
    draws = model.posterior(torch.rand(5, 2, dtype=torch.float64)).rsample(torch.Size([8]))
    assert bool((draws > 0).all())
    assert bool((model.sample_paths(3, seed=0)(X) > 0).all())


def test_a_posterior_transform(double):
    X = torch.rand(3, 4, 2, dtype=torch.float64)
    weights = torch.tensor([1.0, -2.0], dtype=torch.float64)
    scalar = double.posterior(X, posterior_transform=ScalarizedPosteriorTransform(weights))
    torch.testing.assert_close(scalar.mean[..., 0], double.posterior(X).mean @ weights)


# -- what is refused -----------------------------------------------------------------------------------------


def test_refusals(model):
    X, Y = data()
    with pytest.raises(ValueError, match="no Gaussian"):
        DuoGPModel.fit(X, Y, "dgp")
    with pytest.raises(ValueError, match="no GP"):
        DuoGPModel.fit(X, Y, "deep-ensemble")
    with pytest.raises(ValueError, match=r"X must be \[n, d\]"):
        DuoGPModel.fit(X, Y[:, 0], "svgp")
    with pytest.raises(ValueError, match="real outcomes"):
        DuoGPModel.fit(X, Y.exp(), "svgp", likelihood="gamma", **QUICK)
    with pytest.raises(ValueError, match="2 columns"):
        model.posterior(torch.rand(3, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="outputs"):
        thompson(fitted("svgp", outputs=2), X)


def test_a_gp_that_is_there_already():
    X, Y = data()
    gp = duogp.fit(X.numpy(), Y[:, 0].numpy(), "svgp", num_inducing=10, steps=10)
    model = DuoGPModel.from_gp(gp, X, Y)
    np.testing.assert_allclose(model.posterior(X).mean[:, 0].numpy(), gp.predict(X.numpy()).mean, rtol=1e-9)
