"""What gpytorch 1.15 calls orthogonally decoupled, mean-field decoupled and natural (MATH §1.3, §3.7, §4).

test_conformance_gpytorch.py has what their orthogonal process is in our coordinates, the difference of its
two KLs and a constructed case above log p(y); γ-robust's sign is in test_conformance_objectives.py. Here are
the formulas themselves with their jitter, where optimisers take them, and the rest of identities 2 and 13.
"""

from __future__ import annotations

from collections.abc import Iterator

import gpytorch
import pytest
import torch
from gpytorch.mlls import PredictiveLogLikelihood, VariationalELBO
from gpytorch.variational import (
    BatchDecoupledVariationalStrategy,
    DeltaVariationalDistribution,
    MeanFieldVariationalDistribution,
    NaturalVariationalDistribution,
    OrthogonallyDecoupledVariationalStrategy,
    TrilNaturalVariationalDistribution,
    VariationalStrategy,
)
from linear_operator.utils.errors import NotPSDError
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor, nn
from torch.testing import assert_close

from duogp.bases import Coupled, Separate
from duogp.inference.natural import NaturalGradient
from duogp.kernels import Scale
from duogp.models.model import Batch, Model
from helpers import dense
from helpers.conformance import orthogonal
from helpers.dense import Gaussian, inv, k, quadratic, t
from helpers.gpytorch_models import TheirOrthogonal, orthogonal_at_the_data
from helpers.identities import bound_problem, collapsed_value, objective_value
from helpers.random_models import Parts, Problem, random_problem

#: gpytorch's own jitter of a Cholesky factor in float64
THEIR_JITTER = gpytorch.settings.variational_cholesky_jitter.value(torch.float64)


class TheirModel(gpytorch.models.ApproximateGP):
    """Zero mean and our kernel's numbers around a strategy."""

    def __init__(self, strategy: object, kernel: Scale) -> None:
        super().__init__(strategy)
        lengthscale = kernel.kernel.lengthscale()[0].detach()
        self.kernel = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.RBFKernel(ard_num_dims=lengthscale.shape[-1])
        )
        self.double()
        self.kernel.outputscale = kernel.variance()[0, 0].detach()
        self.kernel.base_kernel.lengthscale = lengthscale
        for part in self.modules():
            if hasattr(part, "variational_params_initialized"):
                part.variational_params_initialized.fill_(1)
        self.train()

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(x.new_zeros(x.shape[:-1]), self.kernel(x))


def their_likelihood(model: Model) -> gpytorch.likelihoods.GaussianLikelihood:
    likelihood = gpytorch.likelihoods.GaussianLikelihood(
        noise_constraint=gpytorch.constraints.GreaterThan(1e-6)
    ).double()
    likelihood.noise = model.likelihood.noise()[0].detach()
    return likelihood


def variational_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    return (p for name, p in model.named_parameters() if "variational_distribution" in name)


def without_prior_mean(problem: Problem) -> Problem:
    with torch.no_grad():
        for p in problem.model.mean.parameters():
            p.zero_()
    return problem


# -- the orthogonal strategy ----------------------------------------------------------------------------


def posterior(kernel: Scale, x1: Tensor, x2: Tensor, z: Tensor, K: Tensor, S: Tensor) -> Tensor:
    """k(x, y) − K_xZ K⁻¹(K − S)K⁻¹ K_Zy."""
    return k(kernel, x1, x2) - k(kernel, x1, z) @ inv(K) @ (K - S) @ inv(K) @ k(kernel, z, x2)


@pytest.mark.parametrize("jitter", [0.0, THEIR_JITTER], ids=["exact", "their-jitter"])
def test_identity_13_mean_and_divergence_of_their_orthogonal_strategy(jitter: float) -> None:
    """Mean S_xγ a + K_xZ K⁻¹m and "KL" = KL(m, S ‖ K) + ½ aᵀS_γγ a, with the POSTERIOR covariance S_xy of the
    wrapped strategy in both places. Jitter ε is in K = K_Z + εI and on the diagonal of S, not across."""
    for seed in range(5):
        model, _, x = random_problem(orthogonal(+1), seed=seed)
        basis, kernel = model.basis, model.basis.kernel
        z, gamma, rows = basis.inducing, basis.orthogonal_inducing, x.unsqueeze(1)
        theirs = TheirOrthogonal(kernel, z[0, 0], gamma[0, 0])
        theirs.inner.jitter_val = jitter
        q, size = basis.q, basis.q.size
        v, root, a = q.mean[..., :size].detach(), q.root().detach(), q.mean[..., size:].detach()
        theirs.set_(v[0, 0], root[0, 0], a[0, 0])

        K = k(kernel, z, z) + jitter * torch.eye(size)
        L = torch.linalg.cholesky(K)
        m, S = t(v, L), L @ root @ root.mT @ L.mT

        mean = t(a, posterior(kernel, rows, gamma, z, K, S)) + t(m, k(kernel, rows, z) @ inv(K))
        S_gg = posterior(kernel, gamma, gamma, z, K, S) + jitter * torch.eye(size + 1)
        divergence = dense.gaussian_kl(Gaussian(m, S), Gaussian(torch.zeros_like(m), K))
        theirs.train()
        found = theirs(x[0])
        assert_close(found.mean, mean[0, 0], rtol=1e-8, atol=1e-8)
        reported = theirs.variational_strategy.kl_divergence()
        assert_close(reported, (divergence + 0.5 * quadratic(a, S_gg))[0, 0], rtol=1e-8, atol=1e-8)


def maximise(parameters: list[nn.Parameter], objective: object, steps: int = 150) -> float:
    """Their parameters by L-BFGS; the value reached."""
    optimiser = torch.optim.LBFGS(
        parameters, max_iter=steps, tolerance_grad=1e-9, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -objective()
        loss.backward()
        return loss

    optimiser.step(closure)
    return float(objective().detach())


def test_identity_13_optimising_their_orthogonal_elbo_leads_far_above_the_evidence() -> None:
    """X = Z = γ, s² = 2, y = 6·1, log p(y) = −36.73: theirs climbs to −20.26, where its process with the KL
    that it has is worth less than log p(y), by what true − reported says. Ours climbs to log p(y)."""
    model, batch, x = orthogonal_at_the_data()
    kernel, y = model.basis.kernel, batch.y
    exact = dense.exact_log_evidence(model, batch).item()
    theirs, likelihood = TheirOrthogonal(kernel, x[0], x[0]), their_likelihood(model)
    theirs.train()
    mll = VariationalELBO(likelihood, theirs, num_data=6)
    value = maximise(list(variational_parameters(theirs)), lambda: 6 * mll(theirs(x[0]), y[0, 0]))
    assert_close(value, -20.26, rtol=0, atol=0.02)
    assert value > exact + 16

    with torch.no_grad():
        K = k(kernel, x.unsqueeze(1), x.unsqueeze(1))
        L = torch.linalg.cholesky(K)
        q = theirs.inner.variational_distribution
        a = theirs.variational_strategy.variational_distribution.mean[None, None]
        m, S = t(q.mean[None, None], L), L @ q.covariance_matrix @ L.mT
        # b = K⁻¹K_γ a = a, and C_γγ = 0
        difference = (t(m, inv(K)) * t(a, S)).sum(-1) + 0.5 * (quadratic(t(a, S), inv(K)) - quadratic(a, S))
        honest = dense.gaussian_kl(Gaussian(m + t(a, S), S), Gaussian(torch.zeros_like(m), K))
        reported = theirs.variational_strategy.kl_divergence()
        assert_close(honest - reported, difference, rtol=1e-6, atol=1e-6)
        assert value - difference.item() < exact

    best = maximise(list(model.basis.q.parameters()), lambda: -6 * model.loss(batch).sum())
    assert exact - 1e-3 < best < exact + 1e-6


def natural_values(theirs: TheirModel, model: Model, batch: Batch, steps: int) -> list[float]:
    """Their ELBO, summed over data, before and after each step of their natural gradients with lr = 1."""
    n = batch.x.shape[1]
    mll = VariationalELBO(their_likelihood(model), theirs, num_data=n)
    strategy = theirs.variational_strategy
    natural = getattr(strategy, "base_variational_strategy", strategy)._variational_distribution
    optimiser = gpytorch.optim.NGD(natural.parameters(), num_data=n, lr=1.0)
    values = []
    for _ in range(steps + 1):
        optimiser.zero_grad()
        value = mll(theirs(batch.x[0]), batch.y[0, 0])
        values.append(n * float(value.detach()))
        (-value).backward()
        optimiser.step()
    return values


class TheirNaturalOrthogonal(TheirModel):
    """Natural gradients for Z inside the strategy for γ, whose coefficients are all the same."""

    def __init__(self, kernel: Scale, z: Tensor, gamma: Tensor, coefficient: float) -> None:
        inner = VariationalStrategy(self, z, NaturalVariationalDistribution(len(z)), jitter_val=0.0)
        point = DeltaVariationalDistribution(len(gamma))
        point.variational_mean.data.fill_(coefficient)
        outer = OrthogonallyDecoupledVariationalStrategy(inner, gamma, point, jitter_val=0.0)
        super().__init__(outer, kernel)


def test_their_orthogonal_strategy_takes_natural_gradients_for_the_covariance_points_only() -> None:
    """γ must be a point mass. The wrapped strategy may be natural, but S is in its mean as well: where that
    matters a full step does not arrive, or even leaves the cone. Ours arrives (§11 B10)."""
    model, batch, _ = without_prior_mean(bound_problem(orthogonal(+1)))
    q, size = model.basis.q, model.basis.q.size
    points = [p[0, 0].detach() for p in (model.basis.inducing, model.basis.orthogonal_inducing)]
    theirs = TheirNaturalOrthogonal(model.basis.kernel, *points, coefficient=0.2)
    values = natural_values(theirs, model, batch, 3)
    assert abs(values[2] - values[1]) > 1e-3
    steep = TheirNaturalOrthogonal(model.basis.kernel, *points, coefficient=1.0)
    with pytest.raises(NotPSDError), pytest.warns(NumericalWarning):
        natural_values(steep, model, batch, 3)
    inner, gamma = theirs.variational_strategy.base_variational_strategy, points[1]
    with pytest.raises(NotImplementedError, match="DeltaVariationalDistribution"):
        OrthogonallyDecoupledVariationalStrategy(inner, gamma, NaturalVariationalDistribution(len(gamma)))

    for coefficient in (0.2, 1.0):
        with torch.no_grad():
            a = torch.full_like(q.mean[..., size:], coefficient)
            q.mean[..., size:] = t(a, model.factors().v.L.mT)
        ours = []
        for _ in range(2):
            our_natural_step(model, batch)
            ours.append(objective_value(model, batch))
        assert_close(*ours, rtol=0, atol=1e-9)


def our_natural_step(model: Model, batch: Batch) -> None:
    model.zero_grad()
    model.loss(batch).sum().backward()
    natural = NaturalGradient(model.basis, model.num_data, 1.0)
    natural.compute()
    natural.write()


# -- natural gradients of the coupled basis (identity 2) ------------------------------------------------


class TheirNatural(TheirModel):
    def __init__(self, kernel: Scale, z: Tensor, distribution: type) -> None:
        super().__init__(VariationalStrategy(self, z, distribution(len(z)), jitter_val=0.0), kernel)


def test_identity_02_their_natural_gradients_land_on_the_same_bound() -> None:
    """Natural parameters and lr = 1 reach Titsias' bound in one step, as ours do; a triangular factor's
    first-order step does not, and gets there later."""
    model, batch, x = without_prior_mean(bound_problem(lambda p: Coupled(p.kernel(), p.z, p.q())))
    best = collapsed_value(model, batch).item()
    kernel, z = model.basis.kernel, model.basis.inducing[0, 0].detach()
    theirs = TheirNatural(kernel, z, NaturalVariationalDistribution)
    values = natural_values(theirs, model, batch, 1)
    assert values[0] < best - 1
    assert_close(values[1], best, rtol=0, atol=1e-8)

    our_natural_step(model, batch)
    assert_close(objective_value(model, batch).item(), best, rtol=0, atol=1e-8)
    f, ours = theirs(x[0]), model.marginals(x)  # after one more step, which leaves it there
    assert_close(f.mean, ours.mean[0, 0], rtol=1e-6, atol=1e-6)
    assert_close(f.variance, ours.variance[0, 0], rtol=1e-6, atol=1e-6)

    triangular = TheirNatural(kernel, z, TrilNaturalVariationalDistribution)
    values = natural_values(triangular, model, batch, 15)
    assert values[1] < best - 1e-3
    assert_close(values[-1], best, rtol=0, atol=1e-6)


# -- mean-field decoupled (MATH §4, §11 A1) -------------------------------------------------------------


class TheirDecoupled(TheirModel):
    """One kernel, one set of points for the mean and one for the variance."""

    def __init__(self, kernel: Scale, z_mean: Tensor, z: Tensor) -> None:
        strategy = BatchDecoupledVariationalStrategy(
            self, z, MeanFieldVariationalDistribution(len(z)), jitter_val=0.0
        )
        strategy.inducing_points.data.copy_(torch.stack([z_mean, z]))
        super().__init__(strategy, kernel)


def test_identity_13_their_mean_field_decoupled_divergence_has_a_constant_too_many() -> None:
    """½ mᵀm + (M/2) log 2π + KL(0, diag s² ‖ I): the KL of the process, and the constant of a density. The
    process itself is our separate basis."""

    def build(p: Parts) -> Separate:
        return Separate(p.kernel(), p.extra[..., :4, :].clone(), p.z, p.q(mean_size=4))

    for seed in range(3):
        model, batch, x = without_prior_mean(random_problem(build, "diagonal", "predictive", seed=seed))
        basis, q = model.basis, model.basis.q
        theirs = TheirDecoupled(
            basis.kernel, basis.mean_inducing[0, 0].detach(), basis.inducing[0, 0].detach()
        )
        distribution = theirs.variational_strategy._variational_distribution
        with torch.no_grad():
            distribution.variational_mean.copy_(q.mean[0, 0])
            distribution._variational_stddev.copy_(q.std[0, 0])
        f, ours = theirs(x[0]), model.marginals(x)
        close = {"rtol": 1e-8, "atol": 1e-8}
        assert_close(f.mean, ours.mean[0, 0], **close)
        assert_close(f.variance, ours.variance[0, 0], **close)
        constant = 0.5 * 4 * dense.LOG_2PI
        divergence = basis.kl(model.factors(), q)[0, 0]
        assert_close(theirs.variational_strategy.kl_divergence(), divergence + constant, **close)

        n, beta = batch.x.shape[1], model.beta1.item()
        mll = PredictiveLogLikelihood(their_likelihood(model), theirs, num_data=n, beta=beta)
        loss = -mll(theirs(batch.x[0]), batch.y[0, 0])
        assert_close(loss, model.loss(batch)[0] + beta * constant / n, **close)
