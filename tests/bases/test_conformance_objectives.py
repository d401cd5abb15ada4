"""Each objective is the integral it names (MATH §4), by quadrature; identities 7, 12, 20, 21 of MATH §8."""

from __future__ import annotations

import math
from collections.abc import Callable

import gpytorch
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from duogp.bases.marginals import Marginals
from duogp.likelihoods import GaussianDensity, GaussianLikelihood
from duogp.objectives import GammaRobust, elbo, predictive, vfitc

ROWS = 200


class Draw:
    """Random marginals [latent, n], targets and noise variances."""

    def __init__(self, latents: int = 1, seed: int = 0) -> None:
        g = torch.Generator().manual_seed(seed)
        shape = (latents, ROWS)

        def uniform(low: float, high: float) -> Tensor:
            return low + (high - low) * torch.rand(shape, generator=g, dtype=torch.float64)

        self.y, mean = torch.randn(2, *shape, generator=g, dtype=torch.float64)
        self.f = Marginals(mean, uniform(0.05, 1.2), uniform(0.05, 1.2))
        self.noise = uniform(0.2, 1.0)
        self.p = GaussianDensity(self.noise)


def log_normal(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return torch.distributions.Normal(mean, variance.sqrt()).log_prob(y)


def expectation(g: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor) -> Tensor:
    """E g(f), f ~ N(mean, variance): the trapezium rule, exact to rounding for such integrands."""
    nodes = torch.linspace(-13, 13, 521, dtype=torch.float64)
    weights = torch.exp(-0.5 * nodes**2)
    return g(mean[..., None] + variance.sqrt()[..., None] * nodes) @ (weights / weights.sum())


def likelihood_at(draw: Draw, power: float = 1.0) -> Callable[[Tensor], Tensor]:
    """f ↦ p(y|f)^power, with as many trailing axes as f has."""

    def p(f: Tensor) -> Tensor:
        extra = (...,) + (None,) * (f.dim() - draw.y.dim())
        return torch.exp(power * log_normal(draw.y[extra], f, draw.noise[extra]))

    return p


@pytest.mark.parametrize("latents", [1, 2])
def test_elbo_is_the_expected_log_likelihood(latents: int) -> None:
    """E_u E_{f|u} log p(y|f), outputs independent."""
    d = Draw(latents)

    def log_likelihood(f: Tensor) -> Tensor:
        return log_normal(d.y[..., None], f, d.noise[..., None])

    expected = expectation(log_likelihood, d.f.mean, d.f.variance).sum(-2)
    assert_close(elbo(d.p, d.f, d.y), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("latents", [1, 2])
def test_vfitc_has_the_residual_inside_the_log(latents: int) -> None:
    """E_u log E_{f|u} p(y|f), both integrals on a grid."""
    d = Draw(latents)
    d.f = Marginals(*(part[..., :20] for part in d.f))
    d.y, d.noise = d.y[..., :20], d.noise[..., :20]

    def inner(u: Tensor) -> Tensor:
        return expectation(likelihood_at(d), u, d.f.residual[..., None].expand_as(u)).log()

    expected = expectation(inner, d.f.mean, d.f.explained).sum(-2)
    assert_close(vfitc(GaussianDensity(d.noise), d.f, d.y), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("latents", [1, 2])
def test_predictive_has_everything_inside_the_log(latents: int) -> None:
    """log E_u E_{f|u} p(y|f)."""
    d = Draw(latents)
    expected = expectation(likelihood_at(d), d.f.mean, d.f.variance).log().sum(-2)
    assert_close(predictive(d.p, d.f, d.y), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("gpytorch_sign", [False, True])
@pytest.mark.parametrize("gamma", [1.03, 1.5])
@pytest.mark.parametrize("latents", [1, 2])
def test_gamma_robust_is_its_two_integrals(latents: int, gamma: float, gpytorch_sign: bool) -> None:
    """(γ/h) E_q[p^h] (∫p^γ dy)^(−h/γ) − γ/h, moments on a grid; gpytorch's sign flips the exponent."""
    d, h = Draw(latents), gamma - 1
    power = expectation(likelihood_at(d, h), d.f.mean, d.f.variance).prod(-2)
    y = d.noise[..., None].sqrt() * torch.linspace(-12, 12, 2001, dtype=torch.float64)
    mass = torch.trapezoid(torch.exp(gamma * log_normal(y, 0.0 * y, d.noise[..., None])), y).prod(-2)
    sign = 1 if gpytorch_sign else -1
    expected = gamma / h * power * mass ** (sign * h / gamma) - gamma / h
    assert_close(GammaRobust(gamma, gpytorch_sign)(d.p, d.f, d.y), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("gpytorch_sign", [False, True])
def test_identity_12_gamma_to_one_is_the_elbo(gpytorch_sign: bool) -> None:
    """The term minus γ/h tends to E log p for either sign, with an error linear in h."""
    d = Draw(2)
    errors = [
        (GammaRobust(1 + h, gpytorch_sign)(d.p, d.f, d.y) - elbo(d.p, d.f, d.y)).abs().max()
        for h in (1e-3, 1e-4, 1e-5)
    ]
    assert errors[-1] < 0.02
    assert_close(errors[0] / errors[1], torch.tensor(10.0).double(), rtol=0.05, atol=0)
    assert_close(errors[1] / errors[2], torch.tensor(10.0).double(), rtol=0.05, atol=0)


@pytest.mark.parametrize("gamma", [1.03, 1.2])
def test_identity_12_the_switch_is_gpytorchs_gamma_robust_elbo(gamma: float) -> None:
    """`gpytorch_sign=True` is `GammaRobustVariationalELBO`'s data term minus γ/h; False is not."""
    d = Draw()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    mll = gpytorch.mlls.GammaRobustVariationalELBO(
        likelihood, gpytorch.models.GP(), num_data=ROWS, gamma=gamma
    )
    f = gpytorch.distributions.MultivariateNormal(d.f.mean[0], torch.diag(d.f.variance[0]))
    theirs = mll._log_likelihood_term(f, d.y[0])
    p = GaussianDensity(likelihood.noise.detach())
    ours = GammaRobust(gamma, gpytorch_sign=True)(p, d.f, d.y) + gamma / (gamma - 1)
    assert_close(ours.sum(), theirs, rtol=1e-9, atol=1e-9)
    other = GammaRobust(gamma)(p, d.f, d.y) + gamma / (gamma - 1)
    assert (other.sum() - theirs).abs() > 1e-4


@pytest.mark.parametrize("latents", [1, 2])
def test_identity_12_elbo_vfitc_and_predictive_are_ordered(latents: int) -> None:
    """Jensen, pointwise; equal where there is nothing to move: r = 0 (left), e = 0 (right)."""
    d = Draw(latents)
    low, middle, high = (objective(d.p, d.f, d.y) for objective in (elbo, vfitc, predictive))
    assert (low < middle).all() and (middle < high).all()
    no_residual = d.f._replace(residual=torch.zeros_like(d.f.residual))
    assert_close(vfitc(d.p, no_residual, d.y), elbo(d.p, no_residual, d.y), rtol=1e-12, atol=1e-12)
    point = d.f._replace(explained=torch.zeros_like(d.f.explained))
    assert_close(vfitc(d.p, point, d.y), predictive(d.p, point, d.y), rtol=1e-12, atol=1e-12)


def test_identity_7_noisy_marginals_shift_the_elbo_and_double_the_noise() -> None:
    """Feeding v + s² instead of v: the ELBO falls by exactly ½, the predictive is that of noise 2s²."""
    d = Draw()
    noisy = d.f._replace(residual=d.f.residual + d.noise)
    assert_close(elbo(d.p, noisy, d.y), elbo(d.p, d.f, d.y) - 0.5, rtol=1e-12, atol=1e-12)
    doubled = GaussianDensity(2 * d.noise)
    assert_close(predictive(d.p, noisy, d.y), predictive(doubled, d.f, d.y), rtol=1e-12, atol=1e-12)
    switched = predictive.configured(doubled_noise=True)
    assert_close(switched(d.p, d.f, d.y), predictive(doubled, d.f, d.y), rtol=1e-12, atol=1e-12)


def test_identity_20_how_the_data_pull_on_the_explained_variance() -> None:
    """ELBO: −1/(2s²) whatever y is. Predictive: upwards exactly where (y − μ)² > s² + r + e."""
    d = Draw()
    d.f = d.f._replace(explained=d.f.explained.requires_grad_())
    (slope,) = torch.autograd.grad(elbo(d.p, d.f, d.y).sum(), d.f.explained)
    assert_close(slope, -0.5 / d.noise, rtol=1e-12, atol=1e-12)
    (slope,) = torch.autograd.grad(predictive(d.p, d.f, d.y).sum(), d.f.explained)
    surprised = (d.y - d.f.mean) ** 2 > d.noise + d.f.variance
    assert surprised.any() and not surprised.all()
    assert ((slope > 0) == surprised).all()


def test_identity_21_predictive_tends_to_the_elbo_in_value_only() -> None:
    """predictive − ELBO = v(y − μ)²/(2s⁴) + O(v²): the gap closes with v, its slope does not (§11 A6)."""
    d = Draw()
    for v in (1e-4, 1e-5):
        variance = (v * d.noise).requires_grad_()
        f = Marginals(d.f.mean, variance, torch.zeros_like(variance))
        gap = predictive(d.p, f, d.y) - elbo(d.p, f, d.y)
        leading = (d.y - d.f.mean) ** 2 / (2 * d.noise**2)
        (slope,) = torch.autograd.grad(gap.sum(), variance)
        assert_close(gap, (variance * leading).sum(-2), rtol=0, atol=20 * v**2)
        assert_close(slope, leading, rtol=0, atol=200 * v)
        assert gap.abs().max() < 30 * v


def test_noise_is_learned_fixed_or_both() -> None:
    """bind adds a row's fixed variance to the learned one; known noise enters as known noise should."""
    likelihood = GaussianLikelihood(2, noise=0.3).double()
    row_noise = torch.rand(ROWS, dtype=torch.float64)
    d = Draw(2)
    density = likelihood.bind(row_noise)
    assert density.noise.shape == (2, ROWS)
    expected = log_normal(d.y, d.f.mean, 0.3 + row_noise + d.f.variance).sum(-2)
    assert_close(predictive(density, d.f, d.y), expected, rtol=1e-7, atol=1e-7)  # 0.3 is a float32 parameter


def test_gamma_must_exceed_one() -> None:
    with pytest.raises(ValueError, match="gamma"):
        GammaRobust(1.0)
    assert math.isfinite(GammaRobust().gamma)
