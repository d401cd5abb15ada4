"""Random features: φ(x) φ(x′)ᵀ is k(x, x′) on average."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from torch.testing import assert_close

from duogp.kernels import (
    KERNELS,
    RBF,
    ActiveDims,
    Constant,
    Hamming,
    Kernel,
    Linear,
    Matern12,
    Matern52,
    Periodic,
    RationalQuadratic,
    Scale,
    make_kernel,
)
from duogp.numerics.parameters import batched

DIMS = 2
FEATURES = 40_000
NOISE = 5.0 / FEATURES**0.5  # five standard errors of a feature of unit variance


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded(7), dtype=torch.float64)


def check_monte_carlo(kernel: Kernel, x: torch.Tensor, magnitude: float = 1.0) -> None:
    phi = kernel.prior_features(FEATURES, seeded())(x)
    assert_close(
        phi @ phi.mT, kernel(x, x).detach().expand(*phi.shape[:-1], -1), rtol=0, atol=NOISE * magnitude
    )
    assert phi.dtype == x.dtype


def test_tanimoto_has_no_features() -> None:
    with pytest.raises(TypeError, match="Tanimoto has no random features"):
        make_kernel("tanimoto", DIMS).prior_features(4)


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "tanimoto"])
@pytest.mark.parametrize("ard", [True, False])
def test_every_kernel(name: str, ard: bool) -> None:
    x = torch.randint(0, 3, (6, DIMS), generator=seeded()).double() if name == "hamming" else points(6, DIMS)
    kernel = make_kernel(name, DIMS, ard=ard)
    if ard:
        for p in kernel.parameters():
            p.data = p.data + torch.rand(p.shape, generator=seeded(1))
    check_monte_carlo(kernel, x, magnitude=2.0)


@pytest.mark.parametrize("lengthscale", [0.2, 0.5, 3.0])
def test_periodic_spectrum_at_short_and_long_lengthscales(lengthscale: float) -> None:
    check_monte_carlo(Periodic(1, lengthscale=lengthscale, period=1.7), points(8, 1))


@pytest.mark.parametrize("alpha", [0.05, 0.5, 20.0])
def test_rational_quadratic_spectrum_at_small_and_large_alpha(alpha: float) -> None:
    check_monte_carlo(RationalQuadratic(DIMS, alpha=alpha), points(8, DIMS))


@pytest.mark.parametrize(
    "kernel",
    [
        Scale(RBF(DIMS), 1.5) + Linear(DIMS) + 0.5,
        RBF(DIMS) * Matern52(DIMS, lengthscale=2.0),
        Linear(DIMS) * RBF(DIMS),
        (Constant() + 0.5 * RBF(DIMS)) * Matern12(DIMS, lengthscale=2.0),
        (RBF(DIMS) + RBF(DIMS) * Constant()) * (Constant() + Constant()),
        ActiveDims(Periodic(1, lengthscale=1.5), 1) * ActiveDims(RBF(1), 0) + ActiveDims(Linear(1), [1]),
    ],
    ids=["sum", "product", "linear-product", "sum-in-product", "nested", "active"],
)
def test_compositions(kernel: Kernel) -> None:
    check_monte_carlo(kernel, 0.7 * points(6, DIMS), magnitude=4.0)


def test_mixed_categorical_and_continuous() -> None:
    x = torch.cat([points(6, 1), torch.tensor([[0.0, 1, 2, 0, 1, 2]], dtype=torch.float64).mT], -1)
    check_monte_carlo(ActiveDims(RBF(1), 0) * ActiveDims(Hamming(1), 1), x, magnitude=2.0)


def test_finite_kernels_are_exact() -> None:
    kernel, x = Scale(Linear(DIMS), 2.0) + Scale(Constant(), 0.5), points(6, DIMS)
    phi = kernel.double().prior_features(100, None)(x)
    assert phi.shape == (6, DIMS + 1)
    assert_close(phi @ phi.mT, kernel(x, x).detach())


def test_batched_parameters_draw_independently_and_broadcast() -> None:
    kernel = Scale(Matern52(DIMS), 1.5) + Linear(DIMS) * RBF(DIMS)
    many = batched(kernel + Constant(), (2,))
    for p in many.parameters():
        p.data = p.data + torch.rand(p.shape, generator=seeded(1))
    x = 0.7 * points(5, DIMS)
    phi = many.prior_features(FEATURES, seeded())(x)
    assert phi.shape == (2, 5, 2 * FEATURES + 1)
    assert_close(phi @ phi.mT, many(x, x).detach(), rtol=0, atol=5 * NOISE)
    across = phi[0, :, :-1] @ phi[1, :, :-1].mT  # replicates share nothing
    assert_close(across, torch.zeros_like(across), rtol=0, atol=5 * NOISE)
    assert many.prior_features(8, seeded())(points(3, 2, 5, DIMS)).shape == (3, 2, 5, 17)


def test_random_signs_of_sums_in_products_differ_between_replicates() -> None:
    many = batched(Scale(Constant() + Scale(Constant())) * Scale(Constant()), (2,))
    psi = many.unbiased_features(FEATURES, seeded())(points(1, DIMS))
    centred = psi - psi.mean(-1, keepdim=True)
    assert (centred[0] * centred[1]).mean().abs() < 3 * NOISE


def test_features_are_reproducible_and_frozen() -> None:
    kernel, x = Scale(RationalQuadratic(DIMS)) * Periodic(DIMS) + Scale(RBF(DIMS)), points(4, DIMS)
    one, two = (kernel.prior_features(16, seeded(5)) for _ in range(2))
    before = one(x)
    assert_close(before, two(x), rtol=0, atol=0)
    for p in kernel.parameters():
        p.data += 1.0
    assert_close(one(x), before, rtol=0, atol=0)
    x.requires_grad_(True)
    one(x).sum().backward()  # differentiable in x, not in the hyperparameters
    assert x.grad is not None
    assert all(p.grad is None for p in kernel.parameters())


def test_kernels_without_features_say_so() -> None:
    kernel = make_kernel(gpytorch.kernels.RBFKernel(), 1) + RBF(1)
    with pytest.raises(TypeError, match=r"GPyTorchKernel.*pathwise samples are unavailable"):
        kernel.prior_features(4, None)
