"""Inverses of triangles: by doubling as by substitution."""

from __future__ import annotations

import pytest
import torch

from duogp.numerics.factorisation import lower_root_of_inverse
from duogp.numerics.triangles import (
    _doubled,
    by_doubling,
    by_substitution,
    inverse_of_lower,
    inverses_of_lower,
)
from helpers.devices import eye, placed

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.parametrize("batch", [(), (1, 1), (3, 2)])
@pytest.mark.parametrize("M", [1, 7, 32, 33, 64, 65, 100, 257])
def test_by_doubling_is_by_substitution(M: int, batch: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(M)
    X = placed(torch.randn(*batch, M, 2 * M, generator=generator, dtype=torch.float64))
    L = torch.linalg.cholesky(X @ X.mT)
    before = L.clone()
    found = by_doubling(L)
    assert found.shape == L.shape
    torch.testing.assert_close(found, by_substitution(L), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(found, found.tril())
    torch.testing.assert_close(L, before)


@pytest.mark.parametrize("sizes", [(70, 70), (100, 40), (33, 129), (5, 9)])
@pytest.mark.parametrize("by_columns", [False, True])
def test_several_at_once(sizes: tuple[int, ...], by_columns: bool) -> None:
    generator = torch.Generator().manual_seed(sum(sizes))
    blocks = []
    for M in sizes:
        X = placed(torch.randn(2, 1, M, 2 * M, generator=generator, dtype=torch.float64))
        L = torch.linalg.cholesky(X @ X.mT)
        blocks.append(L.mT.contiguous().mT if by_columns else L.contiguous())
    for found in (_doubled(*blocks), inverses_of_lower(*blocks)):
        torch.testing.assert_close(found, [by_substitution(L) for L in blocks], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("M", [7, 65, 130])
def test_the_gradient_by_doubling_is_that_by_substitution(M: int) -> None:
    generator = torch.Generator().manual_seed(M)
    X = placed(torch.randn(2, M, 2 * M, generator=generator, dtype=torch.float64))
    weights = placed(torch.randn(2, M, M, generator=generator, dtype=torch.float64))
    L = torch.linalg.cholesky(X @ X.mT).requires_grad_()
    (found,) = torch.autograd.grad((weights * by_doubling(L)).sum(), L)
    (expected,) = torch.autograd.grad((weights * by_substitution(L)).sum(), L)
    torch.testing.assert_close(found, expected.tril(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("M", [20, 100])
def test_the_root_of_an_inverse_has_a_gradient(M: int) -> None:
    """Of tr R Rᵀ = tr P⁻¹: −P⁻²."""
    generator = torch.Generator().manual_seed(M)
    X = placed(torch.randn(3, M, 2 * M, generator=generator, dtype=torch.float64))
    P = (X @ X.mT / M).requires_grad_()
    root, info = lower_root_of_inverse(P)
    assert not info.any()
    (found,) = torch.autograd.grad(root.square().sum(), P)
    inverse = torch.linalg.inv(P.detach())
    torch.testing.assert_close(found + found.mT, -2 * inverse @ inverse, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("jitter", [1e-6, 1e-8, 1e-12])
def test_nearly_singular(jitter: float) -> None:
    """As good a left inverse as substitution finds, which is what φᵀφ = kᵀK⁻¹k wants."""
    x = placed(torch.linspace(0, 1, 200, dtype=torch.float64))
    L = torch.linalg.cholesky(torch.exp(-5.0 * (x[:, None] - x) ** 2) + jitter * eye(200))

    def error(inverse: torch.Tensor) -> float:
        return float((inverse @ L - eye(200)).abs().max())

    assert error(by_doubling(L)) <= 3 * error(by_substitution(L))


@pytest.mark.parametrize("M", [50, 100, 1000])
def test_the_choice_between_them(M: int) -> None:
    generator = torch.Generator().manual_seed(M)
    X = torch.randn(2, 1, M, 2 * M, generator=generator, dtype=torch.float64)
    L = torch.linalg.cholesky(X @ X.mT)
    torch.testing.assert_close(inverse_of_lower(placed(L)).cpu(), by_substitution(L), rtol=1e-9, atol=1e-12)
