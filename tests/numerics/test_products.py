"""Products with triangles in blocks are the plain products."""

from __future__ import annotations

import pytest
import torch

from duogp.numerics.products import gram_of, lower_outer, lower_product, upper_product


@pytest.mark.parametrize("M", [3, 256, 301])
def test_triangular_products(M: int) -> None:
    generator = torch.Generator().manual_seed(0)
    L = torch.randn(2, M, M, generator=generator, dtype=torch.float64).tril()
    A, B = torch.randn(2, 2, M, 11, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(lower_product(L, A), L @ A)
    torch.testing.assert_close(gram_of(A), A @ A.mT)
    torch.testing.assert_close(upper_product(L, A), L.mT @ A)
    torch.testing.assert_close(lower_outer(A, B), (A @ B.mT).tril())
