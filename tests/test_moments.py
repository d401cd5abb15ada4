"""Frozen means and variances by fewer passes are those of the general form."""

from __future__ import annotations

import pytest
import torch

from duogp.bases import moments
from duogp.bases.moments import SymmetricForm, WeighedMean
from duogp.kernels import RBF, Matern52, Scale


def points(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("M", [1, 2, 7, 16, 33])
@pytest.mark.parametrize("batch", [(), (2, 1)])
def test_a_symmetric_form_from_half_of_its_matrix(M, batch, scaled, monkeypatch):
    monkeypatch.setattr(moments, "BLOCK_ROWS", 6)
    kernel = Scale(Matern52(3), 1.7).double() if scaled else Matern52(3).double()
    z, x, C = points(*batch, M, 3), points(*batch, 5, 3, seed=1), points(*batch, M, M, seed=2)
    C = C + C.mT
    k = kernel(z, x)
    expected = (k * (C @ k)).sum(-2)
    torch.testing.assert_close(SymmetricForm.of(kernel, z, C)(x), expected)


def test_a_mean_and_its_kernels_variance():
    kernel = Scale(RBF(2), 0.3).double()
    z, x, a = points(6, 2), points(4, 2, seed=1), points(6, seed=2)
    torch.testing.assert_close(WeighedMean.of(kernel, z, a)(x), a @ kernel(z, x))


def test_rows_have_gradients(monkeypatch):
    monkeypatch.setattr(moments, "BLOCK_ROWS", 2)
    kernel = Scale(RBF(2), 0.3).double()
    z, C = points(5, 2), points(5, 5, seed=2)
    form = SymmetricForm.of(kernel, z, C + C.mT)
    assert torch.autograd.gradcheck(form, (points(3, 2, seed=1).requires_grad_(),))
