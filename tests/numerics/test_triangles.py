"""Inverses of triangles: by doubling as by substitution."""

from __future__ import annotations

import pytest
import torch

from duogp.numerics.triangles import by_doubling, by_substitution, inverse_of_lower
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
