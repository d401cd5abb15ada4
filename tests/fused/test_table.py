"""Every entry of the lookup of fused steps gives the values and gradients of the general path (float64)."""

from __future__ import annotations

import pytest
import torch

from duogp.bases import Conditional, Coupled, Hybrid, TwoBlock
from duogp.bases.marginals import Marginals, TotalMarginals, VarianceSum
from duogp.fused.table import FUSED, find
from duogp.kernels import RBF, Linear, Matern32, Matern52, Scale
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import batched
from duogp.variational import BlockQ, CentredQ, CholeskyQ, DiagonalQ, ShrunkQ
from helpers.fused_steps import by_definition, by_fused_step, weighed

M, E, DIMS = 6, 5, 3


def coupled(shape, kernel, points):
    return Coupled(kernel, points(M), CholeskyQ(M, shape))


def conditional(shape, kernel, points):
    mean_kernel = batched(Scale(Matern52(DIMS)), shape)
    return Conditional(kernel, mean_kernel, points(M), CholeskyQ(M, shape), omega="rows", mean_jitter=1e-3)


def solve(shape, kernel, points):
    return TwoBlock(kernel, points(M), points(E), BlockQ(CholeskyQ(M, shape), CholeskyQ(E, shape)))


def shrunk(shape, kernel, points):
    return TwoBlock(kernel, points(M), points(E), BlockQ(CholeskyQ(M, shape), ShrunkQ(E, shape, epsilon=0.3)))


def orthogonal(shape, kernel, points):
    return TwoBlock(kernel, points(M), points(E), CholeskyQ(M, shape, mean_size=M + E), mean_only=True)


def hybrid(shape, kernel, points):
    return Hybrid(kernel, points(M), points(E), CholeskyQ(M, shape))


BUILDERS = {f.__name__: f for f in (coupled, conditional, solve, shrunk, orthogonal, hybrid)}
READS = {"parts": Marginals, "variance": (Marginals, TotalMarginals), "sum": (Marginals, VarianceSum)}


def case(name: str, kernel: str, rows: int, device: str = "cpu"):
    """A basis with random parameters, rows x, and weights of a random loss."""
    g = torch.Generator().manual_seed(0)
    shape = (2, 1) if name == "hybrid" else (2, 2)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=g, dtype=torch.float64)

    kernels = {"rbf": RBF(DIMS), "scaled": Scale(Matern32(DIMS)), "sum": Scale(RBF(DIMS)) + Linear(DIMS)}
    made = batched(kernels[kernel], shape)
    basis = BUILDERS[name](shape, made, lambda size: draw(*shape, size, DIMS)).double()
    with torch.no_grad():
        for p in basis.parameters():
            if p.requires_grad:
                p.add_(0.3 * draw(*p.shape))
    x, weights = draw(shape[0], 1, rows, DIMS), draw(3, *shape, rows)
    return basis.to(device), x.to(device), weights.to(device), Numerics(shape[0], 1e-2).to(device)


def outcome(evaluate, basis, x, weights, numerics, reads, with_omega):
    basis.zero_grad()
    f, penalties = evaluate(basis, x, numerics, reads=reads, with_omega=with_omega)
    loss = weighed(f, weights, reads) + 0.7 * penalties.kl.sum()
    if with_omega:
        loss = loss + 0.3 * penalties.omega.sum()
    loss.backward()
    return f, loss.detach(), {n: p.grad.clone() for n, p in basis.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("rows", [8, 40])  # fewer and more rows than 2.5 for each inducing point
@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("kernel", ["rbf", "scaled", "sum"])
@pytest.mark.parametrize("name", BUILDERS)
def test_a_fused_step_is_the_general_one(name, kernel, reads, rows, device):
    basis, x, weights, numerics = case(name, kernel, rows, device)
    for with_omega in (False, True) if basis.has_omega else (False,):
        if find(basis, x, reads=reads, with_omega=with_omega) is None:
            assert kernel == "sum" or (name == "orthogonal" and reads == "parts")
            return
        f, found, gradients = outcome(by_fused_step, basis, x, weights, numerics, reads, with_omega)
        assert isinstance(f, READS[reads])
        _, expected, others = outcome(by_definition, basis, x, weights, numerics, reads, with_omega)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
        assert gradients.keys() == others.keys()
        for key, gradient in others.items():
            torch.testing.assert_close(gradients[key], gradient, rtol=1e-9, atol=1e-10, msg=key)


def test_every_entry_of_the_table_is_tested():
    assert {type(case(name, "rbf", 8)[0]) for name in BUILDERS} == set(FUSED)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_subclass_takes_the_general_path(name):
    """Its formulas may be others."""
    basis, x, *_ = case(name, "rbf", 8)
    assert find(basis, x, reads="variance") is not None
    basis.__class__ = type("Mine", (type(basis),), {})
    assert find(basis, x, reads="variance") is None


@pytest.mark.parametrize("q", [DiagonalQ, CentredQ])
def test_another_q_takes_the_general_path(q):
    basis, x, *_ = case("coupled", "rbf", 8)
    basis.q = q(M, (2, 2))
    assert find(basis, x, reads="parts") is None


def test_a_recorded_step_takes_the_general_path():
    basis, x, *_ = case("coupled", "rbf", 8)
    basis.keep_record = True
    assert find(basis, x, reads="parts") is None


def test_marginals_of_a_fused_step_have_their_own_meaning():
    """residual k − ‖φ‖² and explained φᵀSφ, whatever was asked for."""
    basis, x, _, numerics = case("coupled", "scaled", 40)
    truth, _ = by_definition(basis, x, numerics)
    f, _ = by_fused_step(basis, x, numerics, reads="parts")
    torch.testing.assert_close(f.residual, truth.residual, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(f.explained, truth.explained, rtol=1e-11, atol=1e-12)
    total, _ = by_fused_step(basis, x, numerics, reads="variance")
    assert not hasattr(total, "explained")
    summed, _ = by_fused_step(basis, x, numerics, reads="sum")
    assert not hasattr(summed, "variance")
    torch.testing.assert_close(summed.total, truth.variance.sum(-1), rtol=1e-11, atol=1e-12)
