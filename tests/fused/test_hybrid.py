"""The step of the hybrid and orthogonal bases in one function is the general one."""

from __future__ import annotations

import pytest
import torch

from duogp.bases import Hybrid
from duogp.kernels import RBF, Scale
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import batched
from duogp.variational import CholeskyQ
from helpers.fused_steps import by_definition, by_fused_step

POINTS, MEAN_POINTS, ROWS, DIMS = 7, 11, 6, 3


@pytest.mark.parametrize("columns", [None, 4])
@pytest.mark.parametrize("orthogonal", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("replicates", [1, 3])
def test_it_is_the_general_step(replicates, scaled, orthogonal, columns):
    g = torch.Generator().manual_seed(0)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=g, dtype=torch.float64)

    shape = (replicates, 1)
    kernel = batched(Scale(RBF(DIMS)) if scaled else RBF(DIMS), shape)
    points, mean_points = draw(*shape, POINTS, DIMS), draw(*shape, MEAN_POINTS, DIMS)
    basis = Hybrid(
        kernel, points, mean_points, CholeskyQ(POINTS, shape), orthogonal=orthogonal, columns=columns
    ).double()
    with torch.no_grad():
        for p in basis.parameters():
            p.add_(0.3 * draw(*p.shape))
    basis.draw([torch.Generator().manual_seed(i) for i in range(replicates)])
    x, weights = draw(replicates, 1, ROWS, DIMS), draw(3, *shape, ROWS)

    def outcome(evaluate):
        basis.zero_grad()
        f, penalties = evaluate(basis, x, Numerics(replicates, 1e-2))
        loss = sum((part * w).sum() for part, w in zip(f, weights, strict=True)) + 0.7 * penalties.kl.sum()
        loss.backward()
        return loss.detach(), {name: p.grad.clone() for name, p in basis.named_parameters()}

    (found, gradients), (expected, others) = outcome(by_fused_step), outcome(by_definition)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for name, gradient in others.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-10, atol=1e-11, msg=name)


def test_columns_are_drawn_without_repetition_until_none_are_left():
    kernel = batched(RBF(2), (2, 1))
    q = CholeskyQ(3, (2, 1))
    basis = Hybrid(kernel, torch.randn(2, 1, 3, 2), torch.randn(2, 1, 10, 2), q, columns=3)
    generators = [torch.Generator().manual_seed(i) for i in range(2)]
    seen = []
    for _ in range(6):
        basis.draw(generators)
        seen.append(basis.columns_index.clone())
    for part in (seen[:3], seen[3:]):
        for rows in zip(*part, strict=True):  # of one replicate
            assert len(set(torch.cat(rows).tolist())) == 9
    assert not torch.equal(torch.cat(seen[:3]), torch.cat(seen[3:]))
