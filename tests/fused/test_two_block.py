"""Two blocks as one coupled basis on Z ∪ O: the same step as by orthogonal features."""

from __future__ import annotations

import pytest
import torch

from duogp.bases import TwoBlock
from duogp.fused import two_block
from duogp.fused.table import find
from duogp.fused.two_block_projections import MeanTotal
from duogp.kernels import RBF, Matern12, Matern52, Scale
from duogp.numerics import products
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import batched
from duogp.variational import BlockQ, CentredQ, CholeskyQ, ShrunkQ
from helpers.fused_steps import by_definition, by_fused_step, weighed
from helpers.tensor_cores import stand_in

POINTS, OTHERS, ROWS, DIMS = 6, 5, 8, 3
SHAPE = (2, 2)


def full(size: int) -> CholeskyQ:
    return CholeskyQ(size, SHAPE)


POSTERIORS = {
    "solve": lambda: BlockQ(full(POINTS), full(OTHERS)),
    "dsgpc-free": lambda: BlockQ(full(POINTS), CentredQ(OTHERS, SHAPE)),
    "dsgpc-eps": lambda: BlockQ(full(POINTS), ShrunkQ(OTHERS, SHAPE, epsilon=0.3)),
    "dsgpc": lambda: BlockQ(full(POINTS), ShrunkQ(OTHERS, SHAPE)),
    "orth": lambda: CholeskyQ(POINTS, SHAPE, mean_size=POINTS + OTHERS),
}


@pytest.mark.parametrize("reads", ["sum", "variance", "parts"])
@pytest.mark.parametrize("shared", [False, True], ids=["own-points", "one-kernel"])
@pytest.mark.parametrize("by", ["substitution", "inverse", "tensor-cores"])
@pytest.mark.parametrize("name", POSTERIORS)
def test_it_is_the_general_step(name, by, shared, reads, monkeypatch):
    if by != "substitution":  # what a GPU does
        monkeypatch.setattr(products, "substitutes", lambda _: False)
    if by == "tensor-cores":
        stand_in(monkeypatch)
    g = torch.Generator().manual_seed(0)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=g, dtype=torch.float64)

    own = (SHAPE[0], 1) if shared else SHAPE
    kernel = batched(Scale(RBF(DIMS)), own)
    z, o = draw(*own, POINTS, DIMS), draw(*own, OTHERS, DIMS)
    basis = TwoBlock(kernel, z, o, POSTERIORS[name](), mean_only=name == "orth").double()
    with torch.no_grad():
        for p in basis.parameters():
            if p.requires_grad:
                p.add_(0.3 * draw(*p.shape))
    x, weights = draw(SHAPE[0], 1, ROWS, DIMS), draw(3, *SHAPE, ROWS)

    if name == "orth" and reads == "parts":  # its parts are not those of the union
        assert find(basis, x, reads=reads) is None
        return

    def outcome(evaluate):
        basis.zero_grad()
        f, penalties = evaluate(basis, x, Numerics(SHAPE[0], 1e-2), reads=reads)
        loss = weighed(f, weights, reads) + 0.7 * penalties.kl.sum()
        loss.backward()
        return loss.detach(), {n: p.grad.clone() for n, p in basis.named_parameters() if p.requires_grad}

    (found, gradients), (expected, others) = outcome(by_fused_step), outcome(by_definition)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    for key, gradient in others.items():
        torch.testing.assert_close(gradients[key], gradient, rtol=1e-9, atol=1e-10, msg=key)


@pytest.mark.parametrize("base", [Matern12, Matern52])
@pytest.mark.parametrize("learns", [True, False])
def test_the_sum_of_variances_on_a_gpu(base, learns, monkeypatch):
    """Values and gradients of what a GPU does; not where no backward pass will join its streams."""
    monkeypatch.setattr(products, "substitutes", lambda _: False)
    made: list[MeanTotal] = []
    monkeypatch.setattr(two_block, "MeanTotal", lambda: made.append(MeanTotal()) or made[-1])
    g = torch.Generator().manual_seed(0)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=g, dtype=torch.float64)

    kernel = batched(Scale(base(DIMS)), (1, 1))
    z, o = draw(1, 1, 70, DIMS), draw(1, 1, 90, DIMS)
    q = CholeskyQ(70, (1, 1), mean_size=160)
    basis = TwoBlock(kernel, z, o, q, mean_only=True).double()
    with torch.no_grad():
        q.mean.add_(draw(1, 1, 160))
    x, weights = draw(1, 1, ROWS, DIMS), draw(3, 1, 1, ROWS)
    basis.requires_grad_(learns)

    def outcome(evaluate):
        f, _ = evaluate(basis, x, Numerics(1, 1e-2), reads="sum")
        loss = weighed(f, weights, "sum")
        wanted = [p for p in basis.parameters() if p.requires_grad]
        return [loss.detach(), *(torch.autograd.grad(loss, wanted) if wanted else ())]

    found = outcome(by_fused_step)
    assert len(made) == learns
    torch.testing.assert_close(found, outcome(by_definition), rtol=1e-8, atol=1e-9)
