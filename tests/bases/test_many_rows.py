"""The form for many rows gives the marginals of the general one; in float32 within a bound."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from duogp.bases import many_rows
from duogp.bases.frozen import FrozenPosterior
from duogp.bases.many_rows import ManyRows, cuts_of
from duogp.kernels import RBF, Linear, Matern12, Matern32, Matern52
from duogp.kernels.fused_columns import FusedColumns
from duogp.numerics import split_products
from duogp.numerics.split_norms import PairNorms, pairs_of
from helpers.conformance import Row, every_basis_and_q
from helpers.devices import placed
from helpers.random_models import random_problem

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(params=[False, True], ids=["float32 products", "float16 products"])
def split(request: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Products as a CPU and as a GPU makes them, wherever the test runs."""
    monkeypatch.setattr(many_rows, "splits", lambda a: request.param)
    monkeypatch.setattr(many_rows, "BLOCK_ROWS", 3)
    monkeypatch.setattr(many_rows, "CUDA_BLOCK_ROWS", 3)
    monkeypatch.setattr(split_products, "PANEL", 4)
    return bool(request.param)


def frozen(row: Row, q: str, latents: int) -> tuple[FrozenPosterior, torch.Tensor]:
    model, _, x = random_problem(row.build, q, latents=latents, jitter=1e-4)
    return model.frozen(), x.unsqueeze(-3)


@torch.no_grad()
@pytest.mark.parametrize("latents", [1, 2])
@every_basis_and_q
def test_many_rows_are_as_single_ones(row: Row, q: str, latents: int, split: bool) -> None:
    form, x = frozen(row, q, latents)
    expected, prior = form.marginals(x), form.prior.diag(x)
    found = form.many_rows("float64").marginals(x)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(*torch.broadcast_tensors(a, b), rtol=1e-8, atol=1e-10)
    size = 1e-4 * torch.maximum(prior, expected.explained)
    for in_parts in (True, False):
        quick = form.many_rows("float32", in_parts=in_parts)
        total = quick.total_marginals(x)
        assert ((total.variance - expected.variance).abs() <= size).all() and (total.variance > 0).all()
        torch.testing.assert_close(*torch.broadcast_tensors(total.mean, expected.mean), rtol=1e-8, atol=1e-9)
    parts = form.many_rows("float32").marginals(x)
    assert (parts.residual > 0).all() and (parts.explained >= 0).all()
    assert ((parts.residual - expected.residual).abs() <= size).all()
    assert ((parts.explained - expected.explained).abs() <= size).all()


@torch.no_grad()
def test_kernels_that_are_not_bounded(split: bool) -> None:
    """Columns of a linear kernel are divided by what bounds them before they are rounded to float16."""
    form = linear_form()
    x = placed(torch.tensor([[0.0, 0.0], [1e3, -2e3], [1e-3, 1.0]], dtype=torch.float64))[None, None]
    expected, found = form.marginals(x), ManyRows.of(form, "float32").marginals(x)
    prior = form.prior.diag(x)
    assert ((found.residual - expected.residual).abs() <= 1e-4 * prior + 1e-12).all()
    assert found.residual.isfinite().all() and found.explained.isfinite().all()


def linear_form() -> FrozenPosterior:
    from duogp.bases.frozen import Probe

    kernel = placed(Linear(2).double())
    points = placed(torch.tensor([[300.0, 0.0], [1.0, 700.0], [2.0, 2.0]], dtype=torch.float64))[None, None]
    K = kernel(points, points).detach() + 1e-3 * 7e5 * placed(torch.eye(3, dtype=torch.float64))
    W = torch.linalg.inv(torch.linalg.cholesky(K))
    probe = Probe(kernel, points)
    jitter = placed(torch.zeros(1, 1, 1, dtype=torch.float64))
    return FrozenPosterior(kernel, probe, W[..., 0, :], probe, W, jitter, probe, 0.3 * W)


@pytest.mark.parametrize("rows", [1, 15, 16, 200, 500, 1003])
@pytest.mark.parametrize("size", [16, 128, 256])
def test_blocks_cover_all_rows(rows: int, size: int) -> None:
    cuts = cuts_of(rows, size)
    assert cuts[0][0] == 0 and cuts[-1][1] == rows
    assert all(end == begin for (_, end), (begin, _) in pairwise(cuts))
    assert all(begin % 16 == 0 for begin, _ in cuts)


@torch.no_grad()
@pytest.mark.parametrize("kernel", [RBF, Matern12, Matern32, Matern52])
def test_columns_by_one_kernel_of_the_gpu(kernel: Any) -> None:
    """Where there is Triton: the sum of the parts is k, and the mean that of the weights."""
    made = placed(kernel(3, lengthscale=[0.5, 1.0, 2.0]).double())
    z, x = (placed(torch.randn(1, 1, n, 3, dtype=torch.float64)) for n in (70, 301))
    fused = FusedColumns.of(made, z)
    if fused is None:
        pytest.skip("no Triton here")
    a = placed(torch.randn(1, 2, 70, dtype=torch.float64))
    mean, pairs = fused(x, a)
    k = made(z, x)[0, 0]
    each = pairs[:70, :, :301].double()
    torch.testing.assert_close(each[:, 0] + each[:, 1], k, rtol=0, atol=2e-7)
    assert not pairs[70:, :, :301].any()
    assert mean is not None
    torch.testing.assert_close(mean[0], a[0] @ k, rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("rows", "points", "n"), [(3, 3, 5), (64, 64, 128), (130, 130, 301), (70, 200, 33)])
def test_norms_by_one_kernel_of_the_gpu(groups: int, rows: int, points: int, n: int) -> None:
    """Where there is Triton: sums of squares of products with trapezoids, whose zeros are not multiplied."""
    g = torch.Generator().manual_seed(0)
    roots = torch.randn(groups, rows, points, generator=g, dtype=torch.float64).tril(points - rows)
    k = torch.rand(points, n, generator=g, dtype=torch.float64)
    norms = PairNorms.of(placed(roots))
    if norms is None:
        pytest.skip("no Triton here")
    expected = (roots @ k).square().sum(-2)
    found = norms(pairs_of(placed(k)), n).cpu()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.max()))


def test_other_kernels_are_not_fused() -> None:
    assert FusedColumns.of(Linear(3), torch.zeros(1, 1, 4, 3, dtype=torch.float64)) is None
