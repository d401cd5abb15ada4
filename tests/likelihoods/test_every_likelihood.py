"""What holds for every likelihood: gradients, extreme latents, float32, shapes, no host round trips."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from duogp.bases.marginals import Marginals
from duogp.numerics.parameters import batched
from duogp.objectives import elbo, predictive, vfitc
from helpers.likelihoods import REPLICATES, ROWS, Problem, any_problem, every_likelihood, named

every_objective = pytest.mark.parametrize(
    "objective", [elbo, vfitc, predictive], ids=["elbo", "vfitc", "predictive"]
)


@every_objective
@every_likelihood
def test_gradients_are_those_of_differences(name: str, objective: Callable) -> None:
    """With respect to the marginals and every learned parameter."""
    p = any_problem(name, rows=3)
    learned = [part for part in p.likelihood.parameters() if part.requires_grad]
    leaves = [t.clone().requires_grad_() for t in p.f]

    def total() -> Tensor:
        return objective(p.density, Marginals(*leaves), p.y).sum()

    gradients = torch.autograd.grad(total(), [*leaves, *learned], allow_unused=True)
    g = torch.Generator().manual_seed(0)
    step = 1e-4
    for leaf, gradient in zip([*leaves, *learned], gradients, strict=True):
        gradient = torch.zeros_like(leaf) if gradient is None else gradient
        direction = torch.randn(leaf.shape, generator=g, dtype=torch.float64)
        with torch.no_grad():
            values = []
            for side in (+1, -2, +1):
                leaf += side * step * direction
                values.append(total())
        slope = (values[0] - values[1]) / (2 * step)
        assert_close((gradient * direction).sum(), slope, rtol=2e-4, atol=2e-5)


@every_objective
@every_likelihood
def test_the_gradient_survives_variances_of_zero(name: str, objective: Callable) -> None:
    """q(u) a point: explained = 0 exactly; at a smooth point the slope is that of a small variance."""
    p = any_problem(name, rows=3)
    slopes = []
    for explained in (0.0, 1e-5):
        leaf = torch.full_like(p.f.explained, explained).requires_grad_()
        objective(p.density, p.f._replace(explained=leaf), p.y).sum().backward()
        slopes.append(leaf.grad)
    assert_close(slopes[0], slopes[1], rtol=1e-2, atol=1e-3)


EXTREME_MEANS = [-1e3, -30.0, 0.0, 30.0, 1e3]
EXTREME_VARIANCES = [-1e-7, 0.0, 1e-12, 1.0, 100.0]


@every_objective
@every_likelihood
def test_extreme_latents_stay_finite_in_float32(name: str, objective: Callable) -> None:
    likelihood = batched(named(name), (1,)).float()
    latents = likelihood.num_latents(1)
    means, variances = (
        t.flatten()
        for t in torch.meshgrid(*map(torch.tensor, (EXTREME_MEANS, EXTREME_VARIANCES)), indexing="ij")
    )
    g = torch.Generator().manual_seed(0)
    order = torch.stack([torch.randperm(len(means), generator=g) for _ in range(latents)])
    lowest, middle, highest = {
        "real": (-50.0, 0.0, 50.0),
        "count": (0.0, 3.0, 1e4),
        "positive": (1e-4, 1.0, 1e4),
        "unit": (1e-4, 0.5, 0.999),
        "classes": (0.0, 1.0, getattr(likelihood, "classes", 2) - 1.0),
    }[likelihood.target]
    for y in (lowest, middle, highest):
        mean, residual = (t[order][None].clone().requires_grad_() for t in (means, variances))
        explained = variances.flip(0)[order][None].clone().requires_grad_()
        f = Marginals(mean, residual, explained)
        found = objective(likelihood.bind(), f, torch.full((1, 1, len(means)), y))
        assert torch.isfinite(found).all(), (y, found)
        found.sum().backward()
        for leaf in f[:3]:
            assert torch.isfinite(leaf.grad).all(), (y, leaf.grad)


@every_objective
@every_likelihood
def test_float32_agrees_with_float64(name: str, objective: Callable) -> None:
    p = any_problem(name)
    exact = objective(p.density, p.f, p.y)
    single = Problem(p.likelihood.float(), Marginals(*(t.float() for t in p.f)), p.y.float())
    found = objective(single.density, single.f, single.y)
    assert found.dtype == torch.float32
    assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)


@every_objective
@every_likelihood
def test_rows_and_replicates_one_by_one(name: str, objective: Callable) -> None:
    """In evaluation no row sees another, however many are asked; parameters act on their replicate alone."""
    p = any_problem(name)
    p.likelihood.eval()
    if name in ("robust-max", "softmax") and objective is vfitc:  # 256 × 512 draws are not needed here
        p.likelihood.outer.fixed_draws = p.likelihood.outer.fixed_draws[:, :8]
    together = objective(p.density, p.f, p.y)
    for i in range(ROWS):
        alone = objective(p.density, Marginals(*(t[..., i : i + 1] for t in p.f)), p.y[..., i : i + 1])
        assert_close(alone, together[:, i : i + 1])
    for r in range(REPLICATES):
        one = named(name).double().eval()
        with torch.no_grad():
            for own, all_of_them in zip(one.parameters(), p.likelihood.parameters(), strict=True):
                own.copy_(all_of_them[r])
        one = batched(one, (1,))
        if hasattr(one, "outer") and hasattr(one.outer, "fixed_draws"):
            one.outer.fixed_draws = p.likelihood.outer.fixed_draws
        alone = objective(one.bind(), Marginals(*(t[r : r + 1] for t in p.f)), p.y[r : r + 1])
        assert_close(alone, together[r : r + 1])


@every_objective
@every_likelihood
def test_a_shared_variance_broadcasts(name: str, objective: Callable) -> None:
    """Latent functions with one kernel have one variance: [R, 1, n] beside a mean [R, C, n]."""
    p = any_problem(name)
    shared = Marginals(p.f.mean, p.f.residual[:, :1], p.f.explained[:, :1])
    whole = Marginals(p.f.mean, *(t.expand_as(p.f.mean) for t in shared[1:]))
    assert_close(objective(p.density, shared, p.y), objective(p.density, whole, p.y))
    ask = "class_probabilities" if p.likelihood.target == "classes" else "predictive_moments"
    arguments = [(f.mean, f.variance) if ask == "class_probabilities" else f for f in (shared, whole)]
    for found, expected in zip(*(getattr(p.density, ask)(*a) for a in arguments), strict=True):
        assert_close(found, expected)


@every_objective
@every_likelihood
def test_nothing_asks_the_host(name: str, objective: Callable) -> None:
    """Value and gradient on tensors without values, where .item() or a branch on a value raises."""
    likelihood = batched(named(name), (REPLICATES,)).float()
    with FakeTensorMode(allow_non_fake_inputs=True):
        shape = (REPLICATES, likelihood.num_latents(1), ROWS)
        f = Marginals(*(torch.rand(shape).requires_grad_() for _ in range(3)))
        objective(likelihood.bind(), f, torch.ones(REPLICATES, 1, ROWS)).sum().backward()
        assert f.mean.grad is not None
