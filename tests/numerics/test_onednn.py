"""Products by oneDNN are those of torch, parts and transposes too; the processor decides who multiplies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from duogp.numerics import onednn

needs_onednn = pytest.mark.skipif(not onednn.is_there(), reason="torch has no oneDNN here")
ZEN5 = "processor : 0\nvendor_id : AuthenticAMD\ncpu family : 26\nflags : avx512f\n"


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine on which oneDNN is quicker, for products of any size."""
    monkeypatch.setattr(onednn, "is_quicker", lambda: True)
    monkeypatch.setattr(onednn, "LEAST_WORK", 1)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


@needs_onednn
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (3, 7, 5), (67, 67, 130), (20, 201, 1)])
def test_a_product(m: int, k: int, n: int) -> None:
    A, B = normal(m, k), normal(k, n)
    for left in (A, A.mT.contiguous().mT, normal(m + 2, k + 3)[1:-1, 2:-1]):
        for right in (B, B.mT.contiguous().mT, normal(k + 2, n + 3)[1:-1, 2:-1]):
            torch.testing.assert_close(onednn.product(left, right), left @ right, rtol=1e-5, atol=1e-4)


@needs_onednn
def test_what_is_no_number_stays_none() -> None:
    A = normal(4, 5)
    A[1, 2] = torch.nan
    assert torch.equal(onednn.product(A, normal(5, 3)).isnan(), (A @ normal(5, 3)).isnan())


def test_it_is_for_large_products_in_single_precision(wanted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert onednn.suits(normal(4, 5), normal(5, 6))
    assert not onednn.suits(normal(4, 5, dtype=torch.float64), normal(5, 6, dtype=torch.float64))
    monkeypatch.setattr(onednn, "LEAST_WORK", 4 * 5 * 6 + 1)
    assert not onednn.suits(normal(4, 5), normal(5, 6))


@pytest.mark.parametrize(
    ("text", "capability", "expected"),
    [
        (ZEN5, "AVX512", True),
        (ZEN5, "AVX2", False),
        (ZEN5.replace("26", "25"), "AVX512", False),
        (ZEN5.replace("AuthenticAMD", "GenuineIntel"), "AVX512", False),
        ("Processor : ARM\n", "AVX512", False),
        (None, "AVX512", False),
    ],
)
def test_which_processors(
    text: str | None, capability: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(onednn, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert onednn._has_full_width() is expected
