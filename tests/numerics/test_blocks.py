"""Triangular work by blocks against dense algebra (float64); slopes of priors against autograd."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from duogp.numerics import blocks
from duogp.numerics.parameters import GammaPrior, LogNormalPrior, Positive, Prior


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("M", "rows"), [(5, 100), (23, 8), (24, 8)])
def test_solves_and_products(M: int, rows: int) -> None:
    B, cuts = draw(M, M), blocks.cuts_of(M, rows)
    L = torch.linalg.cholesky(B @ B.mT + M * torch.eye(M, dtype=torch.float64))
    R, H, P = draw(M, M, seed=1).tril(), draw(M, 9, seed=2), draw(M, M, seed=3).tril()
    triangle, inverse = blocks.LowerTriangle(L, torch.float64, cuts), torch.linalg.inv(L)
    out, square = torch.full_like(H, torch.nan), torch.full_like(L, torch.nan)
    assert_close(triangle.solve(H.clone(), out), inverse @ H)
    assert_close(triangle.solve_transposed(H.clone(), out), inverse.mT @ H)
    assert_close(triangle.gradient_of_gram(P.clone(), square.clone()), inverse.mT @ P @ inverse)
    assert_close(triangle.half_log_det, L.logdet())
    assert_close(blocks.lower_product(R, H, out, cuts), R @ H)
    assert_close(blocks.upper_product(R, H, out, cuts), R.mT @ H)
    assert_close(blocks.product_with_lower(P, R, square.clone(), cuts), P @ R)
    assert_close(blocks.lower_outer(H, H, square.clone(), cuts).tril(), (H @ H.mT).tril())
    assert_close(blocks.gram(H, square.clone(), cuts), H @ H.mT)
    assert_close(blocks.gram_of_lower(R, square.clone(), cuts), R @ R.mT)
    to = P.clone()
    blocks.add_lower_product(to, R, B, cuts, 0.5)
    assert_close(to.tril(), (P + 0.5 * R @ B).tril())
    first = triangle.leading(1)
    assert_close(
        first.solve(H[: cuts[0][1]].clone(), out[: cuts[0][1]]), torch.linalg.inv(first.L) @ H[: cuts[0][1]]
    )


class Laplace(Prior):
    """One without a slope of its own."""

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return -value.abs()


@pytest.mark.parametrize("prior", [LogNormalPrior(0.3, 0.7), GammaPrior(2.0, 1.5), Laplace()])
@pytest.mark.parametrize("transform", ["softplus", "exp"])
def test_slopes(prior: Prior, transform: str) -> None:
    parameter = Positive([0.3, 2.0], transform=transform, floor=0.1).double()  # type: ignore[arg-type]
    value = parameter()
    (expected,) = torch.autograd.grad(prior(value).sum(), parameter.raw)
    assert_close(prior.slope(value.detach()) * parameter.slope(), expected, rtol=1e-10, atol=1e-12)
