"""Factors with jitter: as little as is needed, more where that fails, and an error in the end."""

from __future__ import annotations

import pytest
import torch

from duogp.numerics.factorisation import MAX_JITTER, Numerics, jittered_root
from helpers.devices import eye, placed

pytestmark = pytest.mark.usefixtures("device")


def spread(*eigenvalues: float) -> torch.Tensor:
    """A batch [2, M, M] of matrices with these eigenvalues, the second ten times the first."""
    generator = torch.Generator().manual_seed(0)
    M = len(eigenvalues)
    Q, _ = torch.linalg.qr(torch.randn(M, M, generator=generator, dtype=torch.float64))
    K = Q @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ Q.mT
    return placed(torch.stack([K, 10 * K]))


@pytest.mark.parametrize(
    ("least", "jitter"), [(1.0, 1e-10), (0.0, 1e-10), (-2e-8, 1e-7), (-3e-5, 1e-4), (-5e-3, 1e-2)]
)
def test_a_root_has_the_jitter_that_it_needs_and_no_more(least: float, jitter: float) -> None:
    K, scale = spread(least, 1.0, 2.0), placed(torch.tensor([1.0, 10.0], dtype=torch.float64))
    root = jittered_root(K, scale, failure="no root")
    expected = K + jitter * scale[:, None, None] * eye(3)
    torch.testing.assert_close(root @ root.mT, expected, rtol=1e-12, atol=1e-12)


def test_a_matrix_that_is_no_covariance_has_no_root() -> None:
    scale = placed(torch.ones(2, dtype=torch.float64))
    with pytest.raises(ValueError, match="no root"):
        jittered_root(spread(-1.0, 1.0), scale, failure="no root")


def test_jitter_is_raised_for_those_that_failed_and_never_lowered() -> None:
    numerics = Numerics(3, jitter=1e-6)
    numerics.raise_jitter(torch.tensor([True, False, True]))
    torch.testing.assert_close(numerics.jitter[:, 0].tolist(), [1e-5, 1e-6, 1e-5])
    for _ in range(10):
        numerics.raise_jitter(torch.tensor([False, False, True]))
    torch.testing.assert_close(numerics.jitter[:, 0].tolist(), [1e-5, 1e-6, MAX_JITTER])
    large = Numerics(1, jitter=0.5)
    large.raise_jitter(torch.tensor([True]))
    assert large.jitter.item() == 0.5
