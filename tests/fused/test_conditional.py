"""The step of decoupled conditionals in one function is the general one, in values and all gradients."""

from __future__ import annotations

import pytest
import torch

from duogp.bases import Conditional
from duogp.fused.table import evaluate
from duogp.kernels import RBF, Kernel, Matern52, Scale
from duogp.numerics import products
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import batched
from duogp.variational import CholeskyQ
from helpers.fused_steps import by_definition, by_fused_step
from helpers.tensor_cores import stand_in

POINTS, ROWS, DIMS = 11, 9, 3


def problem(
    shape: tuple[int, int],
    scaled: tuple[bool, bool],
    dtype: torch.dtype,
    points: int = POINTS,
    shared: tuple[bool, bool] = (False, False),
):
    """``shared``: whether all latent functions have one kernel, and one mean kernel, and so one Z."""
    g = torch.Generator().manual_seed(0)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=g, dtype=torch.float64).to(dtype)

    def kernel(base: type[Kernel], with_variance: bool, one_for_all: bool) -> Kernel:
        made = Scale(base(DIMS)) if with_variance else base(DIMS)
        return batched(made, (shape[0], 1) if one_for_all else shape).to(dtype)

    q = CholeskyQ(points, shape).to(dtype)
    basis = Conditional(
        kernel(RBF, scaled[0], shared[0]), kernel(Matern52, scaled[1], shared[1]),
        draw(shape[0], 1 if any(shared) else shape[1], points, DIMS), q,
        omega="rows", mean_jitter=1e-3,
    ).to(dtype)  # fmt: skip
    with torch.no_grad():
        for p in basis.parameters():
            if p is not basis.inducing:
                p.add_(0.3 * draw(*p.shape))
    return basis, draw(shape[0], 1, ROWS, DIMS), draw(3, *shape, ROWS), Numerics(shape[0], 1e-2, dtype)


def outcome(evaluate, basis, x, weights, numerics, with_omega):
    """The loss of a random combination, and every gradient, that of the rows included."""
    basis.zero_grad()
    x = x.clone().requires_grad_()
    f, penalties = evaluate(basis, x, numerics, with_omega=with_omega)
    loss = sum((part * w).sum() for part, w in zip(f, weights, strict=True)) + 0.7 * penalties.kl.sum()
    if with_omega:
        loss = loss + 0.3 * penalties.omega.sum()
    loss.backward()
    return loss.detach(), {"x": x.grad} | {name: p.grad.clone() for name, p in basis.named_parameters()}


@pytest.mark.parametrize("with_omega", [False, True])
@pytest.mark.parametrize("scaled", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 2)])
def test_it_is_the_general_step(shape, scaled, with_omega):
    basis, x, weights, numerics = problem(shape, scaled, torch.float64)
    found, gradients = outcome(by_fused_step, basis, x, weights, numerics, with_omega)
    expected, others = outcome(by_definition, basis, x, weights, numerics, with_omega)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for name, gradient in others.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-10, atol=1e-11, msg=name)


@pytest.mark.parametrize("with_omega", [False, True])
@pytest.mark.parametrize("scaled", [(False, False), (True, True)])
@pytest.mark.parametrize("shared", [(True, True), (True, False), (False, True)])
def test_latent_functions_may_share_kernels(shared, scaled, with_omega):
    basis, x, weights, numerics = problem((2, 3), scaled, torch.float64, shared=shared)
    found, gradients = outcome(by_fused_step, basis, x, weights, numerics, with_omega)
    expected, others = outcome(by_definition, basis, x, weights, numerics, with_omega)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for name, gradient in others.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-10, atol=1e-11, msg=name)


@pytest.mark.parametrize("on_tensor_cores", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2)])
def test_products_with_an_inverse_give_the_same(shape, on_tensor_cores, monkeypatch):
    """What a GPU does, on a CPU; the second time what it does with many points."""
    monkeypatch.setattr(products, "substitutes", lambda _: False)
    if on_tensor_cores:
        stand_in(monkeypatch)
        monkeypatch.setattr(products, "HALVED", 4)
    test_it_is_the_general_step(shape, (True, True), True)
    test_latent_functions_may_share_kernels((True, True), (True, True), True)


def test_sizes_at_which_triangles_are_cut_in_blocks():
    basis, x, weights, numerics = problem((1, 1), (True, True), torch.float64, points=270)
    found, gradients = outcome(by_fused_step, basis, x, weights, numerics, True)
    expected, others = outcome(by_definition, basis, x, weights, numerics, True)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    for name, gradient in others.items():
        size = gradient.abs().max()
        torch.testing.assert_close(gradients[name] / size, gradient / size, rtol=0, atol=1e-9, msg=name)


def test_single_precision():
    basis, x, weights, numerics = problem((2, 1), (True, True), torch.float32)
    found, gradients = outcome(by_fused_step, basis, x, weights, numerics, True)
    expected, others = outcome(by_definition, basis, x, weights, numerics, True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for name, gradient in others.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=1e-4, msg=name)


def test_a_failed_factorisation_of_either_kernel_is_noted():
    for broken in ("kernel", "mean_kernel"):
        basis, x, *_ = problem((2, 1), (False, False), torch.float64)
        numerics = Numerics(2, 0.0)
        with torch.no_grad():
            basis.inducing[1, :, 1:] = basis.inducing[1, :, :1]  # all points of one replicate coincide
        basis.mean_jitter = 0.0 if broken == "mean_kernel" else 1e-3
        evaluate(basis, x, None, numerics)
        assert numerics.failed.tolist() == [False, True]
