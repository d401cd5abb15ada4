"""Likelihoods by name, their errors and starting values, and a density of one's own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.testing import assert_close

from duogp.likelihoods import (
    LIKELIHOODS,
    BernoulliLikelihood,
    BetaLikelihood,
    Density,
    HeteroscedasticGaussianLikelihood,
    QuadratureDensity,
    QuadratureLikelihood,
    RobustMaxLikelihood,
    SoftmaxLikelihood,
    StudentTLikelihood,
    make_named,
)
from duogp.likelihoods.quadrature import GaussHermite
from duogp.numerics.parameters import Positive, batched
from duogp.objectives import elbo, predictive, vfitc
from helpers.likelihoods import (
    REPLICATES,
    Array,
    brute_elbo,
    brute_predictive,
    brute_vfitc,
    class_problem,
    every_likelihood,
    named,
    problem,
)


@every_likelihood
def test_names_make_likelihoods(name: str) -> None:
    likelihood = named(name)
    assert isinstance(likelihood, LIKELIHOODS[name])
    assert likelihood.target in ("real", "count", "positive", "unit", "classes")
    assert likelihood.num_latents(1) == {"robust-max": 4, "softmax": 4, "heteroscedastic": 2}.get(name, 1)
    assert likelihood.has_powers == (name == "gaussian")
    noise = torch.ones(1, 1, 3)
    if name == "gaussian":
        assert_close(likelihood.bind(noise).noise, likelihood.noise().unsqueeze(-1) + noise)
    else:
        with pytest.raises(ValueError, match="known noise"):
            likelihood.bind(noise)
        with pytest.raises(ValueError, match="γ-robust"):
            likelihood.bind().expected_power(noise, noise, noise, 0.1)
        with pytest.raises(ValueError, match="γ-robust"):
            likelihood.bind().log_power_mass(noise, 1.1)
    f = torch.zeros(1, likelihood.num_latents(1), 3)
    if likelihood.target == "classes":
        for ask in (lambda p: p.conditional_moments(f), lambda p: p.predictive_moments(f, f, f)):
            with pytest.raises(ValueError, match="class_probabilities"):
                ask(likelihood.bind())
    else:
        with pytest.raises(ValueError, match="predictive_moments"):
            likelihood.bind().class_probabilities(f, f)


def test_names_are_read_kindly() -> None:
    options = {"outputs": 3, "noise": 0.5, "noise_floor": 1e-3, "learn_noise": False}
    assert isinstance(make_named("Student T", **options), StudentTLikelihood)
    assert make_named("logit", **options).link == "logit"
    assert make_named("bernoulli", **options).link == "probit"
    gaussian = make_named("gaussian", **options)
    assert gaussian.outputs == 3 and not gaussian.learns_noise
    assert_close(gaussian.noise(), torch.full((3,), 0.5).double())
    low = make_named("gaussian", outputs=1, noise=1e-9, noise_floor=1e-3, learn_noise=True)
    assert_close(low.noise(), torch.tensor([2e-3]).double())
    assert make_named("heteroscedastic", **options).num_latents(3) == 6
    assert_close(make_named("student-t", **options).scale().square(), torch.full((3,), 0.5).double())
    with pytest.raises(ValueError, match="did you mean 'poisson'"):
        make_named("poison", **options)
    with pytest.raises(ValueError, match="needs classes"):
        make_named("softmax", **options)
    with pytest.raises(ValueError, match="2 classes"):
        make_named("logit", classes=3, **options)


def test_what_makes_no_likelihood_is_answered() -> None:
    with pytest.raises(ValueError, match="epsilon"):
        RobustMaxLikelihood(3, epsilon=1.0)
    with pytest.raises(ValueError, match="at least 2"):
        SoftmaxLikelihood(1)
    with pytest.raises(ValueError, match="one output"):
        SoftmaxLikelihood(3).num_latents(2)
    for kind in (BernoulliLikelihood, lambda link: BetaLikelihood(1, link)):
        with pytest.raises(ValueError, match="link"):
            kind("cauchit")


def test_robust_max_may_learn_its_errors() -> None:
    fixed, learned = (RobustMaxLikelihood(3, 0.01, learn_epsilon=flag) for flag in (False, True))
    assert [p.requires_grad for p in fixed.parameters()] == [False]
    assert_close(learned.epsilon.detach(), torch.tensor(0.01).double())
    p = class_problem(learned, 3)
    elbo(p.density, p.f, p.y).sum().backward()
    assert (p.likelihood.epsilon_logit.grad != 0).all()


def test_the_noise_parameters_have_their_start_and_floor() -> None:
    assert_close(HeteroscedasticGaussianLikelihood(2).noise(), torch.full((2,), 0.1).double())
    student = StudentTLikelihood()
    with torch.no_grad():
        student.dof.raw.fill_(-50.0)
    assert student.dof() > 2
    _, noise = student.bind().conditional_moments(torch.zeros(1, 1, 1, dtype=torch.float64))
    assert torch.isfinite(noise).all()


class Laplace(QuadratureLikelihood):
    """A likelihood of someone else's: its density is one formula."""

    target = "real"

    def __init__(self) -> None:
        super().__init__(nodes=64)
        self.scale = Positive(0.8, (1,))

    def bind(self, row_noise: Tensor | None = None) -> Density:
        return LaplaceDensity(self.rule(), self.scale().unsqueeze(-1))


@dataclass(frozen=True)
class LaplaceDensity(QuadratureDensity):
    scale: Tensor

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return -(y - f).abs() / self.scale - (2 * self.scale).log()


def test_a_density_is_one_formula() -> None:
    likelihood = batched(Laplace(), (REPLICATES,))
    p = problem("gaussian", outputs=1)
    y, mu, r, e = (t.numpy() for t in (p.y, *p.f))

    def log_p(y: Array, f: Array) -> Array:
        return stats.laplace.logpdf(y, f, 0.8)

    expected = {
        elbo: brute_elbo(log_p, y, mu, r + e),
        predictive: brute_predictive(log_p, y, mu, r + e),
        vfitc: brute_vfitc(log_p, y, mu, r, e),
    }
    for objective, integral in expected.items():  # a kink, so quadrature errs where it stands
        found = objective(likelihood.bind(), p.f, p.y)
        assert_close(found, torch.as_tensor(integral.sum(-2)), rtol=0, atol=0.05)


@pytest.mark.parametrize("size", [5, 20, 32])
def test_gauss_hermite_is_exact_for_polynomials(size: int) -> None:
    rule = GaussHermite(size)()
    mean, variance = torch.tensor([0.3, -2.0]).double(), torch.tensor([0.5, 2.0]).double()
    found = rule.mean(lambda f: f**4, mean, variance)
    assert_close(found, mean**4 + 6 * mean**2 * variance + 3 * variance**2)
    assert isinstance(GaussHermite(size), nn.Module) and not GaussHermite(size).state_dict()
