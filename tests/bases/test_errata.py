"""Printed formulas that are wrong, beside the right ones (docs/errata.md), in dense algebra; and the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

ROOT = Path(__file__).resolve().parents[2]


def rbf(a: Tensor, b: Tensor, lengthscale: float = 0.9) -> Tensor:
    return torch.exp(-0.5 * torch.cdist(a, b).square() / lengthscale**2)


def gaussian_kl(m: Tensor, S: Tensor, m0: Tensor, K: Tensor) -> Tensor:
    """KL(N(m, S) ‖ N(m₀, K))."""
    d = m - m0
    trace = torch.linalg.solve(K, S).trace()
    return 0.5 * (trace + d @ torch.linalg.solve(K, d) - len(m) + K.logdet() - S.logdet())


def points(*sizes: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [3 * torch.rand(size, 2, dtype=torch.float64) for size in sizes]


def spd(size: int) -> Tensor:
    A = torch.randn(size, size, dtype=torch.float64)
    return A @ A.mT / size + 0.3 * torch.eye(size, dtype=torch.float64)


def test_the_optimal_coefficients_need_one_over_the_noise() -> None:
    """Salimbeni et al., appendix D: a = (K_αX K_Xα/s² + K_α)⁻¹ K_αX y/s²; printed without the last 1/s²."""
    x, alpha = points(20, 6)
    y, s2 = torch.sin(2 * x).sum(-1), 0.1
    K, K_ax = rbf(alpha, alpha), rbf(alpha, x)

    def objective(a: Tensor) -> Tensor:
        """The part of the bound that the coefficients of the mean decide."""
        return -0.5 * (y - K_ax.mT @ a).square().sum() / s2 - 0.5 * a @ K @ a

    printed = torch.linalg.solve(K_ax @ K_ax.mT / s2 + K, K_ax @ y)
    right = printed / s2
    gradient = torch.func.grad(objective)(right)
    assert_close(gradient, torch.zeros_like(gradient), atol=1e-8, rtol=0)
    assert objective(right) > objective(printed) + 1


def test_the_metric_of_gamma_needs_the_transpose() -> None:
    """Salimbeni et al., eq. 15a: K_γ − K_γβ K_β⁻¹ K_βγ; with K_γβ twice the shapes do not fit."""
    gamma, beta = points(7, 4)
    K_gb, K_b = rbf(gamma, beta), rbf(beta, beta)
    C = rbf(gamma, gamma) - K_gb @ torch.linalg.solve(K_b, K_gb.mT)
    assert torch.linalg.eigvalsh(C)[0] > -1e-12
    with pytest.raises(RuntimeError):
        K_gb @ torch.linalg.solve(K_b, K_gb)


def test_a_whitened_mean_is_relative_to_the_prior_mean() -> None:
    """Zhu et al., the script: m̃ − c in the KL, where u = c + R m̃ and the prior is N(c, K)."""
    (z,) = points(5)
    K, Q = rbf(z, z, 1.3), rbf(z, z, 0.7)
    R, L = torch.linalg.cholesky(Q), torch.linalg.cholesky(K)
    m, St, c = torch.randn(5, dtype=torch.float64), spd(5), 0.7
    one = torch.ones(5, dtype=torch.float64)
    true = gaussian_kl(c * one + R @ m, R @ St @ R.mT, c * one, K)
    rest = gaussian_kl(0 * m, R @ St @ R.mT, 0 * m, K)

    def quadratic(v: Tensor) -> Tensor:
        return 0.5 * torch.linalg.solve_triangular(L, (R @ v)[:, None], upper=False).square().sum()

    assert_close(rest + quadratic(m), true)
    assert (rest + quadratic(m - c * one) - true).abs() > 1e-3


def test_the_hybrid_divergence_has_half_a_log_determinant() -> None:
    """Cheng and Boots, eq. 14, against the divergence of the two processes on all their points."""
    z, r = points(4, 3)
    S, m, a = spd(4) * 0.2, torch.randn(4, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    K, K_zr, K_r = rbf(z, z), rbf(z, r), rbf(r, r)
    everything = torch.cat([z, r])
    A = torch.linalg.solve(K, rbf(z, everything))  # K⁻¹ k(z, ·)
    prior = rbf(everything, everything)
    mean = A.mT @ m + rbf(everything, r) @ a
    dense = gaussian_kl(mean, prior + A.mT @ (S - K) @ A, 0 * mean, prior)
    b = torch.linalg.solve(K, m)
    quadratic = 0.5 * m @ b + b @ K_zr @ a + 0.5 * a @ K_r @ a
    log_det = S.logdet() - K.logdet()
    trace = 0.5 * torch.linalg.solve(K, S).trace() - 2.0  # |z|/2
    assert_close(quadratic - 0.5 * log_det + trace, dense, rtol=1e-8, atol=1e-8)
    assert (quadratic - log_det + trace - dense).abs() > 1e-3  # as printed


def test_every_test_that_the_page_names_exists() -> None:
    page = ROOT / "docs" / "errata.md"
    if not page.is_file():
        pytest.skip("no docs beside these tests")
    named = re.findall(r"`((?:tests/[\w/]+\.py|…)(?:::\w+)?)`", page.read_text("utf-8"))
    assert len(named) > 20
    file = ""
    for name in named:
        path, _, test = name.partition("::")
        file = file if path == "…" else path
        text = (ROOT / file).read_text("utf-8")
        assert not test or f"def {test}(" in text, name
