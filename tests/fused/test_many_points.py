"""Fused steps with as many points as a GPU takes to its tensor cores: float32 beside float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from duogp.bases import Conditional
from duogp.fused.projections import Parts, Projection, VarianceFromParts
from duogp.fused.two_block_projections import BlockVariance, MeanTotal, MeanVariance
from duogp.kernels import RBF, Matern52, Scale
from duogp.numerics import products
from duogp.numerics import tensor_core_products as tensor_cores
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import batched
from duogp.variational import CholeskyQ
from helpers.devices import placed
from helpers.fused_steps import by_fused_step

pytestmark = pytest.mark.usefixtures("device")

M, ROWS, DIMS = 1000, 500, 4


def test_they_are_large_enough() -> None:
    assert min(M // 2, ROWS) >= tensor_cores.SMALLEST


class Draws:
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, *size: int) -> Tensor:
        return placed(torch.randn(*size, generator=self.generator, dtype=torch.float64))


def outcome(projection: Projection, dtype: torch.dtype, root_size: int) -> list[Tensor]:
    """The values and the gradients of a random combination of them."""
    draw, eye = Draws(), placed(torch.eye(M, dtype=torch.float64))
    z, x = draw(1, 1, M, DIMS), draw(1, 1, ROWS, DIMS)
    K = torch.exp(-0.5 * torch.cdist(z, z).square()) + 1e-2 * eye
    k = torch.exp(-0.5 * torch.cdist(z, x).square())
    root = 0.1 * draw(1, 1, root_size, root_size).tril() + eye[:root_size, :root_size]
    of = [K.clone(), *(a.to(dtype, copy=True) for a in (k, draw(1, 1, M), root))]
    of = [a.requires_grad_() for a in of]
    *values, _ = projection(*of)
    loss = sum((value.double() * draw(1, 1, ROWS)).sum() for value in values)
    return [*values, *torch.autograd.grad(loss, of)]


@pytest.mark.parametrize(
    ("projection", "root_size"),
    [
        (Parts(), M),
        (VarianceFromParts(), M),
        (BlockVariance(M // 2), M),
        (MeanVariance(), M // 2),
        (MeanTotal(), M // 2),
    ],
    ids=["parts", "variance", "two-blocks", "orth", "orth-total"],
)
def test_single_precision_is_near_double(
    projection: Projection, root_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(projection, MeanTotal):  # for a GPU
        monkeypatch.setattr(products, "substitutes", lambda _: False)
    found = outcome(projection, torch.float32, root_size)
    expected = outcome(projection, torch.float64, root_size)
    for a, b in zip(found, expected, strict=True):
        assert (a.double() - b).norm() <= 1e-3 * b.norm()


def conditional_outcome(dtype: torch.dtype) -> dict[str, Tensor]:
    """The loss of a step of decoupled conditionals with Ω, and every gradient."""
    draw, shape = Draws(), (1, 1)
    kernels = [placed(batched(Scale(base(DIMS)), shape).to(dtype)) for base in (RBF, Matern52)]
    q = placed(CholeskyQ(M, shape).to(dtype))
    basis = Conditional(
        kernels[0], kernels[1], draw(1, 1, M, DIMS).to(dtype), q, omega="rows", mean_jitter=1e-2
    )
    basis = placed(basis.to(dtype))
    with torch.no_grad():
        q.mean.add_(draw(1, 1, M).to(dtype))
    numerics = placed(Numerics(1, 1e-2, dtype))
    f, penalties = by_fused_step(basis, draw(1, 1, ROWS, DIMS).to(dtype), numerics, with_omega=True)
    loss = sum((part * draw(1, 1, ROWS).to(dtype)).sum() for part in f) + 0.01 * penalties.kl.sum()
    loss = loss + 0.01 * penalties.omega.sum()
    loss.backward()
    gradients = {name: p.grad for name, p in basis.named_parameters() if p.grad is not None}
    return {"loss": loss.detach()} | gradients


@pytest.mark.parametrize("in_halves", [False, True])
def test_decoupled_conditionals(in_halves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams, factorisations in halves and shared parts together, where there is a GPU."""
    monkeypatch.setattr(products, "HALVED", M if in_halves else 2 * M)
    if in_halves:  # on a CPU they are not
        monkeypatch.setattr(products, "substitutes", lambda _: False)
    found, expected = conditional_outcome(torch.float32), conditional_outcome(torch.float64)
    assert found.keys() == expected.keys() and len(found) > 5
    for name, b in expected.items():
        assert (found[name].double() - b).norm() <= 5e-3 * b.norm(), name
