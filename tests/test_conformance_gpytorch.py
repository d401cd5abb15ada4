"""The coupled basis is gpytorch 1.15's VariationalStrategy: values, gradients, predictions, to 1e-6."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from gpytorch.mlls import PredictiveLogLikelihood, VariationalELBO
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    DeltaVariationalDistribution,
    MeanFieldVariationalDistribution,
    VariationalStrategy,
)
from torch import Tensor
from torch.testing import assert_close

from duogp.bases import Coupled
from duogp.variational import CholeskyQ, DiagonalQ
from random_models import Problem, random_problem

DISTRIBUTIONS = {
    "full": CholeskyVariationalDistribution,
    "diagonal": MeanFieldVariationalDistribution,
    "point": DeltaVariationalDistribution,
}
OBJECTIVES = {"elbo": VariationalELBO, "predictive": PredictiveLogLikelihood}
NUM_DATA = 50


class TheirModel(gpytorch.models.ApproximateGP):
    def __init__(self, z: Tensor, distribution: type, jitter: float) -> None:
        strategy = VariationalStrategy(
            self, z.clone(), distribution(z.shape[-2]), learn_inducing_locations=True, jitter_val=jitter
        )
        super().__init__(strategy)
        self.mean_module = gpytorch.means.LinearMean(z.shape[-1])
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=z.shape[-1]))

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def coupled_problem(q: str, objective: str, jitter: float) -> Problem:
    return random_problem(
        lambda p: Coupled(p.kernel(), p.z, p.q()), q, objective, jitter=jitter, num_data=NUM_DATA, n=12
    )


@torch.no_grad()
def theirs_like(ours: torch.nn.Module, q: str, jitter: float) -> tuple[TheirModel, torch.nn.Module]:
    basis = ours.basis
    # Their jitter is absolute, ours relative to the prior variance.
    model = TheirModel(
        basis.inducing[0, 0], DISTRIBUTIONS[q], jitter * float(basis.kernel.variance())
    ).double()
    likelihood = gpytorch.likelihoods.GaussianLikelihood(
        noise_constraint=gpytorch.constraints.GreaterThan(1e-6)
    ).double()
    likelihood.noise = ours.likelihood.noise()[0]
    model.covar_module.outputscale = basis.kernel.variance()[0, 0]
    model.covar_module.base_kernel.lengthscale = basis.kernel.kernel.lengthscale()[0]
    model.mean_module.weights.copy_(ours.mean.weights[0, 0, :, None])
    model.mean_module.bias.copy_(ours.mean.bias[0])
    strategy = model.variational_strategy
    strategy.variational_params_initialized.fill_(1)
    distribution = strategy._variational_distribution
    distribution.variational_mean.copy_(basis.q.mean[0, 0])
    if isinstance(basis.q, CholeskyQ):
        distribution.chol_variational_covar.copy_(basis.q.raw_root[0, 0])
    elif isinstance(basis.q, DiagonalQ):
        distribution._variational_stddev.copy_(basis.q.std[0, 0])
    return model, likelihood


def their_parameters(model: TheirModel, likelihood: torch.nn.Module, q: str) -> dict[str, Tensor]:
    """By our names."""
    distribution = model.variational_strategy._variational_distribution
    out = {
        "basis.inducing": model.variational_strategy.inducing_points,
        "basis.kernel.variance.raw": model.covar_module.raw_outputscale,
        "basis.kernel.kernel.lengthscale.raw": model.covar_module.base_kernel.raw_lengthscale,
        "likelihood.noise.raw": likelihood.noise_covar.raw_noise,
        "mean.weights": model.mean_module.weights,
        "mean.bias": model.mean_module.bias,
        "basis.q.mean": distribution.variational_mean,
    }
    if q == "full":
        out["basis.q.raw_root"] = distribution.chol_variational_covar
    elif q == "diagonal":
        out["basis.q.std"] = distribution._variational_stddev
    return out


def constant_of(q: str, size: int) -> float:
    """gpytorch's Delta distribution reports −log N(m; 0, I) with its constant, which ours drops."""
    return 0.5 * size * torch.tensor(2 * torch.pi).log().item() if q == "point" else 0.0


@pytest.mark.parametrize("jitter", [0.0, 1e-7])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("q", DISTRIBUTIONS)
def test_values_and_gradients_are_gpytorchs(q: str, objective: str, jitter: float) -> None:
    """Loss, and its gradient in Z, lengthscales, output scale, noise, prior mean, m and S."""
    model, batch, _ = coupled_problem(q, objective, jitter)
    theirs, likelihood = theirs_like(model, q, jitter)
    mll = OBJECTIVES[objective](likelihood, theirs, num_data=NUM_DATA, beta=float(model.beta1[0]))
    theirs.train()
    their_loss = -mll(theirs(batch.x[0]), batch.y[0, 0])
    their_loss.backward()
    loss = model.loss(batch)
    loss.sum().backward()
    shift = float(model.beta1[0]) * constant_of(q, model.basis.q.size) / NUM_DATA
    # They also add the jitter to k(x, x), we do not (MATH §11 C1): 1e-7 of a variance.
    tolerance = {"rtol": 1e-6, "atol": 1e-6} if jitter else {"rtol": 1e-9, "atol": 1e-9}
    assert_close(loss[0] + shift, their_loss, **tolerance)
    ours = dict(model.named_parameters())
    expected = their_parameters(theirs, likelihood, q)
    assert ours.keys() == expected.keys()
    for name, p in expected.items():
        found = ours[name].grad.reshape(p.shape)
        assert_close(found, p.grad, msg=lambda m, name=name: f"{name}: {m}", **tolerance)


@pytest.mark.parametrize("jitter", [0.0, 1e-7])
@pytest.mark.parametrize("q", DISTRIBUTIONS)
def test_predictions_are_gpytorchs(q: str, jitter: float) -> None:
    """Latent mean and joint covariance, and the noisy predictive, at new rows."""
    model, _, x = coupled_problem(q, "elbo", jitter)
    theirs, likelihood = theirs_like(model, q, jitter)
    theirs.eval(), likelihood.eval()
    with torch.no_grad():
        f, y = theirs(x[0]), likelihood(theirs(x[0]))
        mean, residual, explained = model.linear_form().joint(x.unsqueeze(-3))
        tolerance = {"rtol": 1e-6, "atol": 1e-6} if jitter else {"rtol": 1e-9, "atol": 1e-9}
        assert_close((mean + model.mean(x.unsqueeze(-3)))[0, 0], f.mean, **tolerance)
        if q != "point":  # their covariance of a point q is a constant diagonal of the strategy's own
            assert_close((residual + explained)[0, 0], f.covariance_matrix, **tolerance)
            noisy = model.marginals(x).variance + model.likelihood.bind().noise
            assert_close(noisy[0, 0], y.variance, **tolerance)


def test_divergence_is_gpytorchs() -> None:
    for q in ("full", "diagonal"):
        model, _, _ = coupled_problem(q, "elbo", 0.0)
        theirs, _ = theirs_like(model, q, 0.0)
        kl = model.basis.kl(model.factors(), model.basis.q)
        assert_close(kl[0, 0], theirs.variational_strategy.kl_divergence(), rtol=1e-10, atol=1e-10)
