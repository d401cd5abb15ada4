"""A likelihood of one's own: `log_prob` alone gives every expectation, and traits follow the formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import duogp
from duogp.bases.marginals import Marginals
from duogp.likelihoods import (
    LIKELIHOODS,
    BernoulliLikelihood,
    GaussianDensity,
    GaussianLikelihood,
    Likelihood,
    PoissonLikelihood,
    StudentTLikelihood,
)
from duogp.numerics.parameters import Positive, batched
from duogp.objectives import elbo, predictive, vfitc

REPLICATES, OUTPUTS, ROWS = 3, 2, 5


class OwnStudentT(Likelihood):
    """Only the formula, with two learned numbers."""

    def __init__(self) -> None:
        super().__init__(nodes=200)
        self.scale = Positive(0.5)
        self.dof = Positive(5.0)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        s, nu = self.scale()[..., None, None], self.dof()[..., None, None]
        norm = torch.lgamma(0.5 * (nu + 1)) - torch.lgamma(0.5 * nu) - 0.5 * (math.pi * nu).log() - s.log()
        return norm - 0.5 * (nu + 1) * torch.log1p(((y - f) / s).square() / nu)


class OwnPoisson(Likelihood):
    """No parameters, no constructor; moments and draws beside the formula."""

    target = "count"
    is_log_concave = True

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return y * f - f.exp() - torch.lgamma(y + 1)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return f.exp(), f.exp()

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        return torch.poisson(f.exp(), generator=generator)


class OwnProbit(Likelihood):
    target = "classes"

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return torch.special.log_ndtr((2 * y - 1) * f)


class Ordinal(Likelihood):
    """Three ordered classes behind one latent function: P(y ≤ c) = Φ(b_c − f)."""

    target = "classes"
    classes = 3

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        edges = torch.tensor([-math.inf, -0.5, 0.5, math.inf], dtype=f.dtype)
        upper, lower = edges[y.long() + 1], edges[y.long()]
        return (torch.special.ndtr(upper - f) - torch.special.ndtr(lower - f)).clamp_min(1e-300).log()


def marginals(outputs: int = OUTPUTS, seed: int = 0) -> Marginals:
    g = torch.Generator().manual_seed(seed)
    shape = (REPLICATES, outputs, ROWS)
    mean = torch.randn(shape, generator=g, dtype=torch.float64)
    return Marginals(mean, *(0.05 + torch.rand(2, *shape, generator=g, dtype=torch.float64)))


def replicated(likelihood: Likelihood) -> Likelihood:
    out = batched(likelihood, (REPLICATES,)).double()
    with torch.no_grad():
        for i, p in enumerate(out.parameters()):
            p += 0.1 * torch.arange(REPLICATES, dtype=p.dtype).view(-1, *(1,) * (p.dim() - 1)) + 0.05 * i
    return out


@pytest.mark.parametrize("objective", [elbo, vfitc, predictive])
def test_log_prob_alone_gives_every_objective_with_gradients(objective) -> None:
    own, ours = replicated(OwnStudentT()), replicated(StudentTLikelihood(OUTPUTS, nodes=200, scale_floor=0.0))
    with torch.no_grad():
        ours.scale.set_(own.scale()[:, None])
        ours.dof.set_(own.dof()[:, None])
    f = marginals()
    y = f.mean.flip(-1)
    values = [objective(p.bind(), f, y) for p in (own, ours)]
    assert values[0].shape == (REPLICATES, ROWS)
    assert_close(*values, rtol=2e-3, atol=2e-3)
    values[0].sum().backward()
    assert all(bool((p.grad != 0).all()) for p in own.parameters())


def test_optional_methods_give_moments_and_draws() -> None:
    f = marginals()
    own, ours = OwnPoisson().double().bind(), PoissonLikelihood().double().bind()
    for found, expected in zip(own.predictive_moments(*f), ours.predictive_moments(*f), strict=True):
        assert_close(found, expected, rtol=1e-6, atol=1e-6)
    draws = own.sample(f.mean.expand(4000, *f.mean.shape), torch.Generator().manual_seed(0))
    assert_close(draws.mean(0), f.mean.exp(), rtol=0.1, atol=0.1)


def test_missing_methods_are_named() -> None:
    likelihood, f = OwnStudentT(), marginals()
    density = likelihood.bind()
    with pytest.raises(ValueError, match=r"OwnStudentT has no conditional_moments\(f\): define it"):
        density.predictive_moments(*f)
    with pytest.raises(ValueError, match=r"OwnStudentT has no sample\(f, generator\): define it"):
        density.sample(f.mean, torch.Generator())
    with pytest.raises(ValueError, match=r"targets are numbers"):
        density.class_probabilities(f.mean, f.variance)
    with pytest.raises(ValueError, match=r"known noise variances are for the Gaussian likelihood"):
        likelihood.bind(torch.ones(1, 1, ROWS))


def test_class_targets_need_no_more() -> None:
    f = marginals(outputs=1)
    own, ours = OwnProbit().double().bind(), BernoulliLikelihood().double().bind()
    assert_close(own.class_probabilities(f.mean, f.variance), ours.class_probabilities(f.mean, f.variance))
    ordinal = Ordinal().double().bind()
    p = ordinal.class_probabilities(f.mean, f.variance)
    assert p.shape == (REPLICATES, 3, ROWS)
    below = torch.special.ndtr((-0.5 - f.mean) / (1 + f.variance).sqrt())
    assert_close(p[:, :1], below, rtol=1e-6, atol=1e-8)
    draws = ordinal.sample(f.mean.expand(4000, *f.mean.shape), torch.Generator().manual_seed(0))
    assert_close((draws == 0).double().mean(0), torch.special.ndtr(-0.5 - f.mean), rtol=0, atol=0.05)
    with pytest.raises(ValueError, match="one output"):
        ordinal.class_probabilities(marginals().mean, marginals().variance)


def test_incomplete_likelihoods_are_refused_when_they_are_made() -> None:
    class Empty(Likelihood):
        pass

    class Two(OwnStudentT):
        latents_per_output = 2

    class Unread(OwnStudentT):
        def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
            return super().log_prob(y, f).sum(-1)

    with pytest.raises(TypeError, match=r"Empty defines neither log_prob\(y, f\) nor density\(\)"):
        Empty()
    with pytest.raises(TypeError, match=r"2 latent functions per output.*define density\(\)"):
        Two()
    with pytest.raises(TypeError, match=r"Ignored defines log_prob but inherits a density"):

        class Ignored(StudentTLikelihood):
            def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
                return y - f

    f = marginals()
    with pytest.raises(ValueError, match=r"Unread\.log_prob returned shape .*read parameters from the right"):
        elbo(batched(Unread(), (REPLICATES,)).bind(), f, f.mean)


def test_traits_follow_the_formula() -> None:
    class Louder(GaussianLikelihood):
        """Another start, the same density."""

        def __init__(self) -> None:
            super().__init__(noise=3.0)

    class Tempered(GaussianLikelihood):
        def bind(self, row_noise: Tensor | None = None) -> GaussianDensity:
            return GaussianDensity(2 * self.variance(row_noise))

    class Said(Tempered):
        is_gaussian = is_log_concave = True

        def bind(self, row_noise: Tensor | None = None) -> GaussianDensity:
            return GaussianDensity(self.variance(row_noise))

    def traits(kind: type[Likelihood]) -> tuple[bool, bool, bool, bool]:
        return kind.is_gaussian, kind.linear_in_variance, kind.is_log_concave, kind.has_powers

    assert traits(GaussianLikelihood) == traits(Louder) == (True, True, True, True)
    assert traits(Tempered) == (False, False, False, False)
    assert traits(Said) == (True, False, True, False)
    assert traits(OwnPoisson) == (False, False, True, False) and OwnStudentT.target == "real"
    for name, kind in LIKELIHOODS.items():
        assert kind.is_gaussian == kind.linear_in_variance == kind.has_powers == (name == "gaussian")


@pytest.mark.parametrize("samples", [(), (4,)])
def test_the_gaussian_elbo_of_a_sum_is_the_sum(samples: tuple[int, ...]) -> None:
    g = torch.Generator().manual_seed(1)
    shape = (REPLICATES, OUTPUTS, ROWS)
    y = torch.randn(shape, generator=g, dtype=torch.float64)
    mean = torch.randn(*samples, *shape, generator=g, dtype=torch.float64)
    variance = torch.rand(*samples, *shape, generator=g, dtype=torch.float64)
    noise = 0.1 + torch.rand(REPLICATES, OUTPUTS, 1, generator=g, dtype=torch.float64)
    inputs = [t.requires_grad_() for t in (mean, variance, noise)]
    weights = torch.rand(*samples, REPLICATES, generator=g, dtype=torch.float64)

    def gradients(value: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad((weights * value).sum(), inputs)

    rows = GaussianDensity(noise).expected_log_prob(y, mean, variance).sum(-1)
    value = GaussianDensity(noise).expected_log_prob_of_sum(y, mean, variance.sum(-1))
    plain = GaussianDensity(noise).expected_log_prob_of_sum(
        y.clone().requires_grad_(), mean, variance.sum(-1)
    )
    assert value.shape == (*samples, REPLICATES)
    assert_close(value, rows, rtol=1e-13, atol=1e-13)
    assert_close(plain, rows, rtol=1e-13, atol=1e-13)
    for found, expected in zip(gradients(value), gradients(rows), strict=True):
        assert_close(found, expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="same for all rows"):
        GaussianDensity(noise.expand(shape)).expected_log_prob_of_sum(y, mean, variance.sum(-1))


@pytest.mark.slow
def test_compiles_without_a_graph_break() -> None:
    likelihood, f = replicated(OwnStudentT()), marginals()
    step = torch.compile(lambda y: predictive(likelihood.bind(), f, y), backend="aot_eager", fullgraph=True)
    assert_close(step(f.mean), predictive(likelihood.bind(), f, f.mean))


@pytest.mark.parametrize("method", ["svgp", pytest.param("vfitc", marks=pytest.mark.slow), "ppgpr"])
def test_fits_with_every_objective(method: str) -> None:
    x = np.linspace(-2, 2, 60)[:, None]
    y = np.sin(2 * x[:, 0]) + 0.1 * np.random.default_rng(0).standard_t(3, 60)
    own = OwnStudentT()
    gp = duogp.fit(x, y, method, likelihood=own, num_inducing=10, steps=20, random_state=0)
    assert np.isfinite(gp.log_density(x, y)).all()
    assert gp.sample(x[:5], 3, seed=0).shape == (3, 5)
