"""Prior means: one value for each point, for any leading shape."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from duogp.means import ConstantMean, LinearMean, Mean, ModuleMean, Zero, make_mean
from duogp.numerics.parameters import batched

DIMS = 3


def examples() -> list[Mean]:
    means: list[Mean] = [
        ConstantMean(1.5),
        LinearMean(DIMS),
        ModuleMean(nn.Sequential(nn.Linear(DIMS, 4), nn.Tanh(), nn.Linear(4, 1))),
    ]
    for mean in means:
        for p in mean.parameters():
            p.data = p.data + torch.rand(p.shape, generator=torch.Generator().manual_seed(0))
    return [Zero(), *means]


def points(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_values() -> None:
    x = points(5, DIMS)
    zero, constant, linear, module = examples()
    assert_close(zero(x), torch.zeros(5).double())
    assert_close(constant(x), constant.constant.double().expand(5))
    assert_close(linear(x), x @ linear.weights.double() + linear.bias.double())
    net = nn.Linear(DIMS, 1).double()
    assert_close(ModuleMean(net)(x), net(x).squeeze(-1))
    assert module(x).dtype == torch.float64


@pytest.mark.parametrize("mean", examples(), ids=lambda m: type(m).__name__)
def test_batched_equals_a_loop(mean: Mean) -> None:
    many = batched(mean, (2, 3))
    for p in many.parameters():
        p.data = p.data + torch.rand(p.shape, generator=torch.Generator().manual_seed(2))
    x = points(4, 2, 3, 5, DIMS)
    out = many(x)
    assert out.shape == (4, 2, 3, 5)
    for i in range(2):
        for j in range(3):
            for p, q in zip(mean.parameters(), many.parameters(), strict=True):
                p.data = q.data[i, j]
            assert_close(out[:, i, j], mean(x[:, i, j]))
    if not isinstance(mean, Zero):
        assert many(x[0, 0, 0]).shape == (2, 3, 5)


@pytest.mark.parametrize("mean", examples(), ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("shape", [(0, DIMS), (1, DIMS), (2, 4, DIMS)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_dtypes(mean: Mean, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    out = mean(points(*shape).to(dtype))
    assert out.shape == shape[:-1]
    assert out.dtype == dtype


def test_make_mean() -> None:
    assert isinstance(make_mean("zero", DIMS), Zero)
    assert isinstance(make_mean("Constant", DIMS), ConstantMean)
    assert isinstance(make_mean("linear", DIMS), LinearMean)
    net = nn.Linear(DIMS, 1)
    wrapped = make_mean(net, DIMS)
    assert isinstance(wrapped, ModuleMean)
    assert net.weight is not next(wrapped.parameters())
    mean = LinearMean(DIMS)
    assert isinstance(make_mean(mean, DIMS), LinearMean)
    with pytest.raises(ValueError, match="unknown mean 'cubic'; the names are zero, constant, linear"):
        make_mean("cubic", DIMS)


def test_modules_with_the_wrong_output_are_refused() -> None:
    with pytest.raises(ValueError, match="a mean module must map"):
        ModuleMean(nn.Linear(DIMS, 2))(points(5, DIMS))
