"""Draws of likelihoods without a quadrature rule: generators, antithetic pairs, patterns over rows."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from duogp.bases.marginals import Marginals
from duogp.likelihoods import SoftmaxLikelihood
from duogp.likelihoods.monte_carlo import PATTERN, by_rows, samples
from duogp.numerics.parameters import batched
from duogp.objectives import elbo, predictive, vfitc
from helpers.likelihoods import any_problem, named


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


@pytest.mark.parametrize("name", ["robust-max", "softmax"])
def test_draws_follow_their_generators(name: str) -> None:
    """Reproducible, different by replicate, and every step anew; evaluation does not see them."""
    p = any_problem(name)
    values = []
    for seeds in ((1, 2), (1, 2), (2, 1), (3, 4)):
        p.likelihood.draw(generators(*seeds))
        values.append(vfitc(p.density, p.f, p.y))
    assert_close(values[0], values[1])
    assert (values[0] != values[3]).all()
    twins = Marginals(*(t[:1].expand(2, -1, -1) for t in p.f))
    p.likelihood = batched(named(name), (2,)).double()
    p.likelihood.draw(generators(1, 2))
    first = vfitc(p.density, twins, p.y[:1].expand(2, -1, -1))
    p.likelihood.draw(generators(2, 1))
    assert_close(vfitc(p.density, twins, p.y[:1].expand(2, -1, -1)), first.flip(0))
    same = generators(7, 8)
    p.likelihood.draw(same)
    before = p.likelihood.outer().clone()
    p.likelihood.draw(same)
    assert (p.likelihood.outer() != before).any()
    p.likelihood.eval()
    evaluated = predictive(p.density, p.f, p.y)
    p.likelihood.draw(generators(5, 6))
    assert_close(predictive(p.density, p.f, p.y), evaluated, rtol=0, atol=0)


def test_draws_are_antithetic_written_in_place_and_follow_the_module() -> None:
    likelihood = batched(SoftmaxLikelihood(3, samples=6), (2,))
    assert likelihood.outer().shape == (1, 6, 3, PATTERN)  # one set for all replicates, until the first draw
    likelihood.draw(generators(0, 1))
    buffer = likelihood.outer()
    assert buffer.shape == (2, 6, 3, PATTERN)
    likelihood.draw(generators(2, 3))
    assert likelihood.outer().data_ptr() == buffer.data_ptr()  # a captured step reads this memory
    for draws in (likelihood.outer(), likelihood.eval().outer()):
        assert_close(draws.mean(1), torch.zeros_like(draws[:, 0]), rtol=0, atol=1e-6)
    assert likelihood.double().train().outer().dtype == torch.float64
    assert not likelihood.state_dict()
    fixed = likelihood.eval().outer()[0, :, :, 0]
    assert_close(fixed.var(0), torch.ones(3).double(), rtol=0.05, atol=0)
    with pytest.raises(ValueError, match="even"):
        SoftmaxLikelihood(3, samples=5)


def test_rows_share_the_columns_of_a_pattern() -> None:
    """Row i uses column i mod P; replicates that have no draws of their own use the first."""
    likelihood = batched(SoftmaxLikelihood(2), (2,)).double()
    likelihood.draw(generators(0, 1))
    n = PATTERN + 3
    mean = torch.zeros(2, 2, n, dtype=torch.float64)
    f = samples(likelihood.outer(), mean, torch.ones_like(mean))
    assert f.shape == (8, 2, 2, n)
    assert_close(f[..., PATTERN:], f[..., :3])
    assert_close(f[:, 1, :, 5], likelihood.outer()[1, :, :, 5])
    assert_close(samples(likelihood.outer(), mean[:1], torch.ones_like(mean[:1])), f[:, :1])


def test_rows_in_slabs_are_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    likelihood = SoftmaxLikelihood(3).double()
    n = 3 * PATTERN + 7
    f = Marginals(*torch.rand(3, 1, 3, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    y = torch.ones(1, 1, n, dtype=torch.float64)
    values = [objective(likelihood.bind(), f, y) for objective in (elbo, vfitc, predictive)]
    calls = []
    monkeypatch.setattr("duogp.likelihoods.monte_carlo.SLAB", 1)
    assert by_rows(lambda t: calls.append(t.shape[-1]) or t, 1, y).shape == y.shape
    assert calls == [PATTERN] * 3 + [7]
    for objective, expected in zip((elbo, vfitc, predictive), values, strict=True):
        assert_close(objective(likelihood.bind(), f, y), expected)
