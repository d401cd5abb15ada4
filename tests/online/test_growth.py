"""Growth of a basis within a stream: predictions do not move, new entries are trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from duogp.bases import Coupled, Subspace
from duogp.kernels import RBF, GeneralisedRBF, Scale, generalised_points
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import batched
from duogp.online import GrowingAdam, append_coupled, append_mean, append_tied, free_mean, novel_rows, tie
from duogp.online.growth import distinct_rows, lead_with
from duogp.online.start import median_distances
from duogp.variational import CholeskyQ


def coupled_basis(generator: torch.Generator) -> Coupled:
    q = CholeskyQ(5, (1, 2)).double()
    with torch.no_grad():
        q.mean.copy_(torch.randn(q.mean.shape, generator=generator, dtype=torch.float64))
        q.raw_root.add_(0.3 * torch.randn(q.raw_root.shape, generator=generator, dtype=torch.float64))
    z = torch.randn(1, 1, 5, 2, generator=generator, dtype=torch.float64)
    return Coupled(batched(Scale(RBF(2)), (1, 2)).double(), z, q)


def tied_basis(generator: torch.Generator, preconditioner: str = "jacobi") -> Subspace:
    z = generalised_points(torch.randn(1, 1, 5, 2, generator=generator, dtype=torch.float64))
    kernel = batched(Scale(GeneralisedRBF(2)), (1, 2)).double()
    basis = tie(Subspace(kernel, z, z.clone(), (1, 2), preconditioner=preconditioner).double())
    with torch.no_grad():
        for p in (basis.q.a0, basis.q.raw_root):
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
        basis.inducing.add_(0.1 * torch.randn(basis.inducing.shape, generator=generator, dtype=torch.float64))
    return basis


def marginals(basis, generator: torch.Generator, numerics: Numerics) -> torch.Tensor:
    x = torch.randn(1, 1, 40, 2, generator=generator, dtype=torch.float64)
    f = basis.marginals(x, basis.factors(numerics))
    kl = basis.kl(basis.factors(numerics), basis.q_of(basis.factors(numerics)))
    parts = [t.expand(1, 2, 40) for t in (f.mean, f.variance)]
    return torch.cat([*parts, kl.unsqueeze(-1)], -1).detach()


def test_a_coupled_basis_grows_without_moving(generator):
    basis, numerics = coupled_basis(generator), Numerics()
    new = torch.randn(1, 1, 4, 2, generator=generator, dtype=torch.float64)
    grown = append_coupled(basis, new)
    assert grown.basis.q.size == 9
    seeds = [torch.Generator().manual_seed(1) for _ in range(2)]
    assert_close(
        marginals(grown.basis, seeds[0], numerics), marginals(basis, seeds[1], numerics), atol=1e-9, rtol=0
    )


@pytest.mark.parametrize("preconditioner", ["none", "jacobi", "nystrom"])
def test_a_subspace_basis_grows_without_moving(preconditioner, generator):
    """Tied points, the moment of freedom, and points of the mean alone."""
    numerics = Numerics()
    basis = tied_basis(generator, preconditioner)
    before = marginals(basis, torch.Generator().manual_seed(1), numerics)
    for step in ("tied", "free", "mean"):
        new = generalised_points(torch.randn(1, 1, 4, 2, generator=generator, dtype=torch.float64))
        if step == "tied":
            grown = append_tied(basis, new, numerics)
        else:
            grown = free_mean(basis) if step == "free" else append_mean(basis, new, numerics)
        basis = grown.basis
        assert_close(
            marginals(basis, torch.Generator().manual_seed(1), numerics), before, atol=1e-6, rtol=1e-6
        )
    assert basis.q.size == 9
    assert basis.mean_points.shape[-2] == 13


def test_the_mean_grows_only_when_it_is_free(generator):
    basis = tied_basis(generator)
    new = generalised_points(torch.randn(1, 1, 2, 2, generator=generator, dtype=torch.float64))
    with pytest.raises(ValueError, match="free it first"):
        append_mean(basis, new)
    free = free_mean(basis).basis
    with pytest.raises(ValueError, match="no longer tied"):
        append_tied(free, new)


def test_new_points_get_gradients(generator):
    """The new columns of L₀ start just off zero: at zero their gradient vanishes."""
    basis = append_tied(
        tied_basis(generator),
        generalised_points(torch.randn(1, 1, 3, 2, generator=generator, dtype=torch.float64)),
    ).basis
    x = torch.randn(1, 1, 20, 2, generator=generator, dtype=torch.float64)
    f = basis.marginals(x, basis.factors(Numerics()))
    (f.mean.sum() + f.variance.sum()).backward()
    assert (basis.q.raw_root.grad[..., 5:, 5:].diagonal(dim1=-2, dim2=-1) != 0).all()
    assert (basis.q.a0.grad[..., 5:] != 0).all()


def test_adam_is_torch_adam_until_something_grows():
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64)) for _ in range(2))
    adam, reference = GrowingAdam([ours]), torch.optim.Adam([theirs], lr=0.05)
    for _ in range(20):
        for p in (ours, theirs):
            p.grad = None
            (p**4 + (p - 0.3) ** 2).sum().backward()
        adam.step(0.05, torch.tensor(True))
        reference.step()
    assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    before = ours.detach().clone()
    ours.grad.fill_(torch.nan)
    adam.step(0.05, torch.tensor(False))  # a refused step
    assert_close(ours.detach(), before)
    assert_close(adam.moments[ours].first, reference.state[theirs]["exp_avg"])


def test_moments_grow_with_zeros_and_new_entries_are_young():
    old = nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    adam = GrowingAdam([old])
    for _ in range(50):
        old.grad = torch.full_like(old, 2.0)
        adam.step(0.01, torch.tensor(True))
    first = adam.moments[old].first.clone()
    new = nn.Parameter(lead_with(old.detach(), torch.ones(3, 3, dtype=torch.float64)))
    adam.inherit([(old, new)])
    assert list(adam.moments) == [new]
    moments = adam.moments[new]
    assert_close(moments.first[:2, :2], first)
    assert not moments.first[2].any() and not moments.second[:, 2].any()
    new.grad = torch.full_like(new, 2.0)
    adam.step(0.01, torch.tensor(True))
    expected = torch.full((3, 3), 0.99, dtype=torch.float64)
    expected[:2, :2] = 0.49  # 50 steps before
    assert_close(new.detach(), expected, atol=1e-6, rtol=0)  # old and new entries step alike


def test_only_rows_that_add_something_are_chosen():
    kernel = Scale(RBF(2)).double()
    x = torch.tensor([[0.0, 0.0], [5.0, 0.0], [5.0, 1e-5], [0.0, 1e-5], [0.0, 5.0]], dtype=torch.float64)
    points = torch.zeros(1, 1, 1, 2, dtype=torch.float64)
    assert novel_rows(kernel, points, x, 5).tolist() == [1, 4]
    assert distinct_rows(kernel, points, x, 5).tolist() == [1, 4]
    assert novel_rows(kernel, points, x, 1).tolist() == [1]


def test_the_median_trick_guards_columns_that_do_not_move():
    X = np.random.default_rng(0).normal(size=(300, 4))
    X[:, 1] = 7.0  # constant
    X[:, 2] = 0.0
    X[:3, 2] = 1.0  # nearly so
    X[:, 3] *= 1e-3
    found = median_distances(X, np.random.default_rng(0))
    pairs = np.abs(X[:, None, 0] - X[None, :, 0])[np.triu_indices(300, 1)]
    assert found[0] == pytest.approx(np.median(pairs))
    assert found[1] == 1.0 and found[2] == pytest.approx(X[:, 2].std()) and found[3] < 2e-3
