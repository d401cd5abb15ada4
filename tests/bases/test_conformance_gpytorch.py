"""The coupled basis is gpytorch 1.15's VariationalStrategy: values, gradients, predictions, to 1e-6.

The orthogonal basis is not its OrthogonallyDecoupledVariationalStrategy, which is no bound (MATH §3.7).
"""

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
from duogp.inference.closed_form import CollapsedObjective
from duogp.variational import CholeskyQ, DiagonalQ
from helpers import dense
from helpers.conformance import orthogonal
from helpers.dense import Gaussian, inv, k, quadratic, t
from helpers.gpytorch_models import TheirOrthogonal, orthogonal_at_the_data
from helpers.random_models import Problem, random_problem

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
        mean, residual, explained = model.frozen().joint(x.unsqueeze(-3))
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


def test_their_orthogonal_strategy_is_ours_with_another_penalty() -> None:
    """Their process is ORTH with m_b = m + S K_Z⁻¹K_Zγ a, but what they report is not its KL; nor is the
    difference of one sign:  true − reported = mᵀK⁻¹S b + ½(bᵀS K⁻¹S b − bᵀS b),  b = K_Z⁻¹K_Zγ a.
    """
    signs = set()
    for seed in range(20):
        model, _, x = random_problem(orthogonal(+1), seed=seed)
        basis = model.basis
        theirs = TheirOrthogonal(basis.kernel, basis.inducing[0, 0], basis.orthogonal_inducing[0, 0])
        prior = dense.two_block_prior(model, x.unsqueeze(1))
        L = torch.linalg.cholesky(prior.u)
        q, size = basis.q, basis.q.size
        a = 2 * q.mean[..., size:].detach()  # any
        mean, root = q.mean[..., :size].detach(), q.root().detach()
        theirs.set_(mean[0, 0], root[0, 0], a[0, 0])
        m, S = t(mean, L), L @ root @ root.mT @ L.mT
        b = t(a, prior.gain.mT)
        with torch.no_grad():
            q.set_(torch.cat([t(m + t(b, S), inv(L)), t(a, torch.linalg.cholesky(prior.v).mT)], -1), q.root())
        theirs.train()
        f = theirs(x[0])
        reported = theirs.variational_strategy.kl_divergence()
        _, residual, explained = model.frozen().joint(x.unsqueeze(1))
        close = {"rtol": 1e-8, "atol": 1e-8}
        assert_close(f.mean, (model.marginals(x).mean - dense.prior_mean(model, x))[0, 0], **close)
        assert_close(f.covariance_matrix, (residual + explained)[0, 0], **close)

        true = model.basis.kl(model.factors(), model.basis.q)
        zero = torch.zeros_like(m)
        expected = dense.gaussian_kl(Gaussian(m + t(b, S), S), Gaussian(zero, prior.u))
        assert_close(true, expected + 0.5 * quadratic(a, prior.v), **close)
        K_inv = inv(prior.u)
        difference = (t(m, K_inv) * t(b, S)).sum(-1)
        difference = difference + 0.5 * (quadratic(t(b, S), K_inv) - quadratic(b, S))
        assert_close(true - reported, difference, **close)
        signs.add(bool((true > reported).all()))
    assert signs == {True, False}


def test_their_orthogonal_elbo_exceeds_the_evidence_and_ours_does_not() -> None:
    """With S at its optimum and the best m = K a, a = (K + S + s²I)⁻¹y: theirs −31.22, log p(y) −36.73."""
    model, batch, x = orthogonal_at_the_data()
    kernel, y = model.basis.kernel, batch.y
    exact = dense.exact_log_evidence(model, batch).item()
    assert_close(exact, -36.73, rtol=0, atol=0.01)

    K = k(kernel, x.unsqueeze(1), x.unsqueeze(1))
    S = inv(inv(K) + torch.eye(6) / 2)
    a = t(y, inv(K + S + 2 * torch.eye(6)))
    L = torch.linalg.cholesky(K)
    theirs = TheirOrthogonal(kernel, x[0], x[0])
    theirs.set_(t(a, L.mT)[0, 0], torch.linalg.cholesky(inv(L) @ S @ inv(L).mT)[0, 0], a[0, 0])
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = 2.0
    theirs.train()
    with torch.no_grad():
        value = 6 * VariationalELBO(likelihood, theirs, num_data=6)(theirs(x[0]), y[0, 0]).item()
    assert_close(value, -31.22, rtol=0, atol=0.01)
    assert value > exact + 5

    # ours: their process with its own KL, and the best there is
    with torch.no_grad():
        m_b = t(a, K + S)
        mean = torch.cat([t(m_b, inv(L)), torch.zeros_like(m_b)], -1)
        model.basis.q.set_(mean, torch.linalg.cholesky(inv(L) @ S @ inv(L).mT))
    f = theirs(x[0])
    assert_close(model.marginals(x).mean[0, 0], f.mean, rtol=1e-6, atol=1e-6)
    assert_close(model.marginals(x).variance[0, 0], f.variance, rtol=1e-6, atol=1e-6)
    best = -6 * CollapsedObjective(model, [lambda: batch]).backward().item()
    assert -6 * model.loss(batch).item() < best < exact + 1e-9
    assert_close(best, exact, rtol=0, atol=1e-5)  # Z = X: nothing is lost
