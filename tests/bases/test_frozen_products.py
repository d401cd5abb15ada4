"""Frozen means and variances by fewer passes are those of the general form."""

from __future__ import annotations

import pytest
import torch

from duogp.bases import frozen_products
from duogp.bases.frozen_products import SymmetricForm, WeighedMean
from duogp.kernels import RBF, Linear, Matern12, Matern32, Matern52, Scale, Stationary
from duogp.kernels.frozen import FrozenColumns
from duogp.numerics.parameters import batched
from helpers.devices import placed

pytestmark = pytest.mark.usefixtures("device")


def points(*shape: int, seed: int = 0) -> torch.Tensor:
    return placed(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("M", [1, 2, 7, 16, 33])
@pytest.mark.parametrize("batch", [(), (2, 1)])
def test_a_symmetric_form_from_half_of_its_matrix(M, batch, scaled, monkeypatch):
    monkeypatch.setattr(frozen_products, "BLOCK_ROWS", 6)
    monkeypatch.setattr(frozen_products, "CUDA_BLOCK_ROWS", 6)
    kernel = placed(Scale(Matern52(3), 1.7).double() if scaled else Matern52(3).double())
    z, x, C = points(*batch, M, 3), points(*batch, 5, 3, seed=1), points(*batch, M, M, seed=2)
    C = C + C.mT
    k = kernel(z, x)
    expected = (k * (C @ k)).sum(-2)
    form = SymmetricForm.of(kernel, z, C)
    torch.testing.assert_close(form(x), expected)
    with torch.no_grad():
        torch.testing.assert_close(form(x), expected.detach())


def test_a_mean_and_its_kernels_variance():
    kernel = placed(Scale(RBF(2), 0.3).double())
    z, x, a = points(6, 2), points(4, 2, seed=1), points(6, seed=2)
    torch.testing.assert_close(WeighedMean.of(kernel, z, a)(x), a @ kernel(z, x))


def test_rows_have_gradients(monkeypatch):
    monkeypatch.setattr(frozen_products, "BLOCK_ROWS", 2)
    monkeypatch.setattr(frozen_products, "CUDA_BLOCK_ROWS", 2)
    kernel = placed(Scale(RBF(2), 0.3).double())
    z, C = points(5, 2), points(5, 5, seed=2)
    form = SymmetricForm.of(kernel, z, C + C.mT)
    assert torch.autograd.gradcheck(form, (points(3, 2, seed=1).requires_grad_(),))


@pytest.mark.parametrize("spread", [1.0, 1e4])
@pytest.mark.parametrize("kernel", [RBF, Matern12, Matern32, Matern52])
def test_frozen_columns_are_the_kernel(kernel: type[Stationary], spread: float) -> None:
    """Rows that coincide with points, that lie near them and far away; points near together or not."""
    g = torch.Generator().manual_seed(0)
    points = spread * placed(torch.randn(1, 2, 7, 3, generator=g, dtype=torch.float64)) + 5.0
    made = placed(batched(kernel(3), (1, 2)).double())
    near = points[:, :1] + 1e-3 * placed(torch.randn(1, 1, 7, 3, generator=g, dtype=torch.float64))
    x = torch.cat([points[:, :1], near, 1e6 * near, 1e100 * near.sign()], -2)
    frozen = FrozenColumns.of(made, points)
    assert frozen is not None and frozen.sound == (spread == 1.0)
    with torch.no_grad():
        torch.testing.assert_close(frozen(x), made(points, x), rtol=1e-12, atol=1e-8 if spread > 1 else 1e-12)


def test_other_kernels_are_not_frozen() -> None:
    assert FrozenColumns.of(Linear(3), torch.zeros(1, 1, 4, 3, dtype=torch.float64)) is None
