"""Plans of products by blocks against dense algebra (float64); numbers of parameters against autograd."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from duogp.fused import direct_products as plans
from duogp.fused.direct import Numbers, form_of_squares
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import Positive


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("M", "rows"), [(5, 100), (23, 8), (24, 8)])
def test_solves_and_products(M: int, rows: int) -> None:
    B, cuts = draw(M, M), plans.cuts_of(M, rows)
    K = B @ B.mT + M * torch.eye(M, dtype=torch.float64)
    R, H, P = draw(M, M, seed=1).tril(), draw(M, 9, seed=2), draw(M, M, seed=3).tril()
    triangle, L = plans.Triangle(M, torch.float64, cuts), torch.linalg.cholesky(K)
    inverse = torch.linalg.inv(L)
    out, square, zeros = torch.full_like(H, torch.nan), torch.full_like(L, torch.nan), torch.zeros_like(L)
    made = {
        "solve": (triangle.solve(H, out), out, inverse @ H),
        "solve transposed": (triangle.solve_transposed(H, out), out, inverse.mT @ H),
        "divide": (triangle.divide(P.clone(), zeros), zeros, P @ inverse),
        "lower": (plans.lower_product(R, H, out, cuts), out, R @ H),
        "upper": (plans.upper_product(R, H, out, cuts), out, R.mT @ H),
        "with lower": (plans.product_with_lower(P, R, square, cuts), square, P @ R),
        "gram": (plans.gram(H, square, cuts), square, H @ H.mT),
        "gram of lower": (plans.gram_of_lower(R, square, cuts), square, R @ R.mT),
    }
    triangle.factorise(K, Numerics(1))
    for name, (plan, memory, expected) in made.items():
        plan()
        assert_close(memory, expected, msg=name)
    assert triangle.half_log_det() == pytest.approx(float(L.logdet()))
    plans.lower_outer(H, H, square, cuts)()
    assert_close(square.tril(), (H @ H.mT).tril())
    to = P.clone()
    plans.less_lower_product(to, R, B, cuts)()
    assert_close(to.tril(), (R @ B - P).tril())
    first = cuts[0][1]
    triangle.solve(H, out, count=1)()
    assert_close(out[:first], torch.linalg.inv(L[:first, :first]) @ H[:first])


def test_a_plan_reads_the_memory_as_it_is_when_it_is_called() -> None:
    A, B, out = draw(3, 4), draw(4, 5, seed=1), torch.zeros(3, 5, dtype=torch.float64)
    plan = plans.product(A, B, out) + plans.sum_of(out, A, B, out, beta=-1.0, alpha=2.0)
    A.mul_(3.0)
    plan()
    assert_close(out, A @ B)


def test_small_blocks_for_few_points_and_larger_ones_for_many() -> None:
    assert [len(plans.cuts_of(M)) for M in (7, 50, 100, 200, 400, 800, 2000)] == [1, 1, 2, 3, 5, 10, 25]


@pytest.mark.parametrize("d", [1, 4])
def test_squared_distances_as_a_form(d: int) -> None:
    a, b = draw(5, d), draw(6, d, seed=1)
    left, right = (torch.cat([x, x.square().sum(1, keepdim=True), torch.ones(len(x), 1)], 1) for x in (a, b))
    assert_close(left @ form_of_squares(d, 2.5) @ right.mT, 2.5 * torch.cdist(a, b).square())


@pytest.mark.parametrize("transform", ["softplus", "exp"])
@pytest.mark.parametrize("initial", [[0.3, 2.0], [1e-5, 60.0]])
def test_numbers_are_those_of_the_parameter(transform: str, initial: list[float]) -> None:
    parameter = Positive(initial, transform=transform, floor=1e-6).double()  # type: ignore[arg-type]
    numbers, gradient = Numbers(parameter), [0.7, -1.3]
    assert numbers.values() == pytest.approx(parameter().tolist(), rel=1e-12)
    (expected,) = torch.autograd.grad(parameter(), parameter.raw, torch.tensor(gradient, dtype=torch.float64))
    numbers.add(gradient)
    assert parameter.raw.grad is not None
    assert_close(parameter.raw.grad, expected, rtol=1e-10, atol=1e-14)


def test_numbers_never_raise() -> None:
    for transform in ("softplus", "exp"):
        parameter = Positive(1.0, transform=transform).double()  # type: ignore[arg-type]
        numbers = Numbers(parameter)
        for raw in (-1e4, 1e4, float("nan"), float("inf")):
            with torch.no_grad():
                parameter.raw.fill_(raw)
            1.0 / numbers.value() ** 0.5
            numbers.add([1.0])
