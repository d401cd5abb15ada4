"""Expectations and probabilities of class likelihoods are their integrals."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import special
from torch import Tensor
from torch.testing import assert_close

from duogp.likelihoods import BernoulliLikelihood, RobustMaxLikelihood, SoftmaxLikelihood
from duogp.likelihoods.robust_max import log_argmax_probabilities
from duogp.numerics.parameters import batched
from duogp.objectives import elbo, predictive, vfitc
from helpers.likelihoods import Problem, class_problem, mean_over, spread


def two_class_grid(p: Problem, log_p: Callable[[Tensor], Tensor]) -> dict[Callable, Tensor]:
    """The objectives of two classes, which only see the difference d of the two functions: [R, n]."""
    sign = 2 * p.y[:, 0] - 1
    mu, r, e = ((t[:, 1] - t[:, 0]) * sign if i == 0 else t.sum(1) for i, t in enumerate(p.f))
    z = torch.linspace(-9, 9, 241, dtype=torch.float64)
    w = torch.softmax(-0.5 * z**2, 0)

    def on_grid(mean: Tensor, variance: Tensor) -> Tensor:
        return mean[..., None] + variance.sqrt().view(*variance.shape, *(1,) * (mean.dim() - 1)) * z

    return {
        elbo: log_p(on_grid(mu, r + e)) @ w,
        predictive: (log_p(on_grid(mu, r + e)).exp() @ w).log(),
        vfitc: (log_p(on_grid(on_grid(mu, e), r)).exp() @ w).log() @ w,
    }


def test_softmax_of_two_classes_is_the_logistic_of_their_difference() -> None:
    p = class_problem(SoftmaxLikelihood(2, eval_samples=256, eval_inner_samples=2048), 2)
    p.likelihood.eval()
    for objective, expected in two_class_grid(p, torch.nn.functional.logsigmoid).items():
        assert_close(objective(p.density, p.f, p.y), expected, rtol=0, atol=5e-3, msg=objective.name)


def test_robust_max_of_two_classes_is_a_probit_of_their_difference() -> None:
    """π = Φ(d/√v) for the three places of the log; only VFITC's outer expectation is Monte Carlo."""
    p = class_problem(RobustMaxLikelihood(2, epsilon=0.05, eval_samples=2048), 2)
    p.likelihood.eval()
    epsilon = p.likelihood.epsilon[:, None].detach()
    sign = 2 * p.y[:, 0] - 1
    d = sign * (p.f.mean[:, 1] - p.f.mean[:, 0])
    pi = torch.special.ndtr(d / p.f.variance.sum(1).sqrt())
    assert_close(
        elbo(p.density, p.f, p.y), pi * (1 - epsilon).log() + (1 - pi) * epsilon.log(), rtol=0, atol=1e-8
    )
    assert_close(
        predictive(p.density, p.f, p.y), (pi * (1 - epsilon) + (1 - pi) * epsilon).log(), rtol=0, atol=1e-8
    )
    z = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    g = d[..., None] + p.f.explained.sum(1).sqrt()[..., None] * z
    inner = torch.special.ndtr(g / p.f.residual.sum(1).sqrt()[..., None])
    log_p = (inner * (1 - epsilon[..., None]) + (1 - inner) * epsilon[..., None]).log()
    expected = log_p @ torch.softmax(-0.5 * z**2, 0)
    assert_close(vfitc(p.density, p.f, p.y), expected, rtol=0, atol=3e-3)


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("kind", [RobustMaxLikelihood, SoftmaxLikelihood])
def test_class_objectives_are_their_integrals(kind: type, classes: int) -> None:
    """Monte Carlo with as many draws as it takes, within three standard errors of its own."""
    settings = {"eval_inner_samples": 512} if kind is SoftmaxLikelihood else {}
    p = class_problem(kind(classes, **settings), classes, rows=2)
    p.likelihood.eval()
    g = torch.Generator().manual_seed(5)
    many, few = 20_000, 200
    rows = p.y.long()

    def log_p(f: Tensor) -> Tensor:
        """log p(y|f): [..., R, n]."""
        if kind is SoftmaxLikelihood:
            return f.log_softmax(-2).gather(-2, rows.expand(*f.shape[:-2], 1, 2)).squeeze(-2)
        epsilon = p.likelihood.epsilon[:, None]
        hit = f.argmax(-2) == p.y[:, 0]
        return torch.where(hit, 1 - epsilon, epsilon / (classes - 1)).log()

    def normal(count: int, mean: Tensor, variance: Tensor) -> Tensor:
        shape = (count, *mean.shape)
        return mean + variance.sqrt() * torch.randn(shape, generator=g, dtype=torch.float64)

    def check(found: Tensor, estimates: Tensor, slack: float) -> None:
        error = estimates.std(0) / math.sqrt(len(estimates))
        assert ((found - estimates.mean(0)).abs() <= 3 * error + slack).all()

    with torch.no_grad():
        f = normal(many, p.f.mean, p.f.variance)
        check(elbo(p.density, p.f, p.y), log_p(f), 2e-3)
        check(predictive(p.density, p.f, p.y).exp(), log_p(f).exp(), 2e-3)
        # the log of an inner mean over 1,000 draws is off by less than the slack
        g_u = normal(few, p.f.mean, p.f.explained)
        inner = torch.stack([log_p(normal(1000, u, p.f.residual)).exp().mean(0).log() for u in g_u])
        check(vfitc(p.density, p.f, p.y), inner, 1e-2)


@pytest.mark.parametrize("kind", [RobustMaxLikelihood, SoftmaxLikelihood])
def test_class_bounds_are_ordered(kind: type) -> None:
    """Allowing for the draws; softmax is equal draw by draw where nothing crosses the log."""
    settings = {"eval_samples": 128} | ({"eval_inner_samples": 128} if kind is SoftmaxLikelihood else {})
    p = class_problem(kind(4, **settings), 4, rows=40)
    p.likelihood.eval()
    with torch.no_grad():
        values = [objective(p.density, p.f, p.y) for objective in (predictive, vfitc, elbo)]
        assert (values[0] >= values[1] - 0.02).all()
        assert (values[1] >= values[2] - 0.02).all()
        nothing = torch.zeros_like(p.f.mean)
        no_residual, no_explained = p.f._replace(residual=nothing), p.f._replace(explained=nothing)
        tolerance = 1.5 if kind is RobustMaxLikelihood else 1e-6  # a step function by so few draws
        assert_close(
            vfitc(p.density, no_residual, p.y), elbo(p.density, no_residual, p.y), rtol=0, atol=tolerance
        )
        assert_close(
            vfitc(p.density, no_explained, p.y),
            predictive(p.density, no_explained, p.y),
            rtol=0,
            atol=1e-6,
        )


@pytest.mark.parametrize("ratio", [1.0, 3.0, 10.0])
@pytest.mark.parametrize("classes", [2, 5, 26])
def test_argmax_probabilities_by_an_independent_rule(classes: int, ratio: float) -> None:
    """∫ φ_c Π_{j≠c} Φ_j around every class on a dense grid; standard deviations that differ by a ratio."""
    g = torch.Generator().manual_seed(0)
    mean = 2 * torch.randn(1, classes, 20, generator=g, dtype=torch.float64)
    sd = ratio ** -torch.rand(1, classes, 20, generator=g, dtype=torch.float64)
    x = torch.linspace(-9, 9, 1801, dtype=torch.float64)
    w = torch.softmax(-0.5 * x**2, 0)
    expected = []
    for c in range(classes):
        f = mean[:, c : c + 1] + sd[:, c : c + 1] * x[:, None, None, None]
        cdf = torch.special.ndtr((f - mean) / sd)
        cdf[:, :, c] = 1.0
        expected.append((w[:, None, None] * cdf.prod(-2)).sum(0))
    found = log_argmax_probabilities(mean, sd**2)
    assert_close(found.exp(), torch.stack(expected, -2), rtol=0, atol=1e-7)
    assert_close(found.exp().sum(-2), torch.ones(1, 20).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", range(2, 27))
def test_class_probabilities_sum_to_one(classes: int, dtype: torch.dtype) -> None:
    """Also for latents of ±1000 and without any variance; and they are what the predictive density says."""
    g = torch.Generator().manual_seed(classes)
    mean = torch.randn(1, classes, 12, generator=g, dtype=dtype)
    mean[..., 4:8] *= 1e3
    mean[..., 8] = 1e3
    variance = torch.rand(1, classes, 12, generator=g, dtype=dtype)
    variance[..., 2:6] = 0.0
    for likelihood in (RobustMaxLikelihood(classes), SoftmaxLikelihood(classes, eval_inner_samples=64)):
        density = batched(likelihood.eval(), (1,)).to(dtype).bind()
        found = density.class_probabilities(mean, variance).detach()
        assert found.shape == mean.shape and found.dtype == dtype
        assert_close(found.sum(-2), torch.ones(1, 12, dtype=dtype), rtol=0, atol=1e-6)
        assert (found >= 0.99e-12).all()
        numbers = torch.arange(classes).view(-1, 1, 1, 1).expand(-1, 1, 1, 12).to(dtype)
        each = torch.cat([density.log_predictive(y, mean, variance).exp() for y in numbers])
        assert_close(found[0], each.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("link", ["probit", "logit"])
def test_probabilities_of_two_classes(link: str) -> None:
    likelihood = BernoulliLikelihood(link).double()
    mean = torch.tensor([[[-1e3, -2.0, 0.0, 0.3, 1e3]]], dtype=torch.float64)
    variance = torch.tensor([[[0.0, 0.5, 1.0, 3.0, 0.0]]], dtype=torch.float64)
    found = likelihood.bind().class_probabilities(mean, variance)
    assert found.shape == (1, 2, 5)
    assert_close(found.sum(-2), torch.ones(1, 5).double())
    squash = special.ndtr if link == "probit" else special.expit
    expected = mean_over(squash(spread(mean.numpy(), variance.numpy())))
    assert_close(found[:, 1], torch.as_tensor(expected[0]), rtol=0, atol=1e-9)
    assert (found > 0).all() and (found < 1).all()
    with pytest.raises(ValueError, match="one output"):
        likelihood.bind().class_probabilities(mean.expand(1, 2, 5), variance.expand(1, 2, 5))
