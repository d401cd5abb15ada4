"""Products by float16 parts, and roots in triangular shape."""

from __future__ import annotations

import pytest
import torch

from duogp.numerics.split_products import aligned, product, split_left, split_right
from duogp.numerics.triangular_roots import is_lower, lower_root, roots_of_difference
from helpers.devices import placed

pytestmark = pytest.mark.usefixtures("device")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return placed(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("n", [1, 8, 13])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e9])
def test_three_products_have_the_digits_of_float32(batch: int, n: int, size: float) -> None:
    """Entries of A of very different sizes, rows that are not aligned, a sum of two products."""
    A = size * normal(batch, 11, 77) * 10.0 ** normal(batch, 11, 77, seed=1)
    B = normal(batch, 77, n, seed=2).tanh()
    left, scale = split_left(A)
    right = split_right(B.float())
    assert right.dtype == left.dtype == torch.float16 and right.shape[-1] % 8 == 0
    found = product(aligned(left[..., :90]), right[:, :90])
    product(aligned(left[..., 90:]), right[:, 90:], found)
    found = found[..., :n].double() * scale[:, None, None]
    bound = A.abs().amax((-2, -1))[:, None, None] * 77 * 2.0**-21
    assert ((found - A @ B).abs() <= bound).all()
    assert left.isfinite().all() and right.isfinite().all()


def test_a_matrix_of_zeros_is_split_into_zeros() -> None:
    left, scale = split_left(placed(torch.zeros(1, 2, 3)))
    assert not left.any() and scale.isfinite().all()


@pytest.mark.parametrize("shape", [(5, 5), (3, 7), (9, 4), (1, 1)])
def test_a_lower_root_has_the_same_square(shape: tuple[int, int]) -> None:
    root = normal(2, *shape)
    R = lower_root(root)
    assert R.shape[-2] == min(shape) and is_lower(R.where(R.abs() > 1e-14, 0.0))
    torch.testing.assert_close(R.mT @ R, root.mT @ root)
    assert lower_root(R.where(R.abs() > 1e-14, 0.0)).shape == R.shape


@pytest.mark.parametrize("wide", [0.3, 1.0, 3.0])
def test_roots_of_a_difference(wide: float) -> None:
    """WᵀW − TᵀT where q(u) is narrower than the prior everywhere, in some directions, and nowhere."""
    W = normal(2, 8, 8).tril() + 4 * placed(torch.eye(8, dtype=torch.float64))
    U = torch.linalg.qr(normal(2, 8, 8, seed=1)).Q
    spread = wide * placed(torch.linspace(0.1, 1.0, 8, dtype=torch.float64))
    T = U @ (spread[:, None] * (U.mT @ W))
    A, B = roots_of_difference(W, T)
    if wide != 1.0:  # there rounding decides
        assert (B is None) == (wide < 1.0)
    found = A.mT @ A - (0.0 if B is None else B.mT @ B)
    torch.testing.assert_close(found, W.mT @ W - T.mT @ T, atol=1e-7, rtol=1e-8)
    if B is not None:
        assert A.shape[-2] + B.shape[-2] <= 9
