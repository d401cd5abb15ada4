"""Products with triangles in blocks are the plain products."""

from __future__ import annotations

import pytest
import torch

from duogp.numerics import products
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


@pytest.mark.parametrize("m", [7, 128, 250, 131])
def test_weighed_rows_by_pieces(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU: pieces of equal size where m has a divisor, one product otherwise."""
    g = torch.Generator().manual_seed(m)
    a = torch.randn(2, 1, m, generator=g, dtype=torch.float64)
    B = torch.randn(2, 1, m, 9, generator=g, dtype=torch.float64)
    expected = torch.einsum("rlm,rlmn->rln", a, B)
    monkeypatch.setattr(products, "substitutes", lambda _: False)
    monkeypatch.setattr(products, "PIECED", 100)
    torch.testing.assert_close(products.weighed_rows(a, B), expected)
    shared = products.weighed_rows(a.expand(2, 3, m), B)
    torch.testing.assert_close(shared, expected.expand(2, 3, 9))
