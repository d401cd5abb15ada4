"""Kernels are the functions their formulas say, in any dtype, at any offset, for any leading shape."""

from __future__ import annotations

import json

import gpytorch
import numpy as np
import pytest
import sklearn.gaussian_process.kernels as sk
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from duogp.kernels import (
    KERNELS,
    RBF,
    ActiveDims,
    Constant,
    GPyTorchKernel,
    Hamming,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Product,
    RationalQuadratic,
    Scale,
    Sum,
    Tanimoto,
    make_kernel,
    squared_distance,
)
from duogp.kernels.frozen import FrozenColumns
from duogp.numerics.parameters import batched

DIMS = 3
LENGTHSCALES = [0.7, 1.3, 2.1]
SMOOTH = [RBF, Matern12, Matern32, Matern52, RationalQuadratic, Periodic]
MATERN = [Matern12, Matern32, Matern52]


def example(name: str, dims: int = DIMS) -> Kernel:
    """One of every kernel and some compositions, in float64, with distinct hyperparameters."""
    if name == "composed":
        first = ActiveDims(RBF(1), [0])
        kernel: Kernel = (
            Scale(first, 1.7) * Linear(dims) + 0.5 * Matern32(dims) + ActiveDims(Hamming(1), dims - 1) + 0.3
        )
    else:
        kernel = make_kernel(name, dims)
    kernel = kernel.double()
    generator = torch.Generator().manual_seed(3)
    for p in kernel.parameters():
        p.data = p.data + 0.5 * torch.rand(p.shape, generator=generator, dtype=p.dtype)
    return kernel


ALL = [*KERNELS, "composed"]


def points(*shape: int, seed: int = 0, codes: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if codes:
        return torch.randint(0, 3, shape, generator=generator).double()
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def inputs(name: str, *shape: int, seed: int = 0) -> torch.Tensor:
    return points(*shape, seed=seed, codes=name == "hamming")


def in_float64(kernel: Kernel, **values: float | list[float]) -> Kernel:
    """Hyperparameters exact to float64, not to the float32 they were first made in."""
    kernel = kernel.double()
    for name, value in values.items():
        getattr(kernel, name).set_(value)
    return kernel


# -- against other libraries -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (in_float64(RBF(DIMS), lengthscale=LENGTHSCALES), sk.RBF(LENGTHSCALES)),
        (in_float64(Matern12(DIMS), lengthscale=LENGTHSCALES), sk.Matern(LENGTHSCALES, nu=0.5)),
        (in_float64(Matern32(DIMS), lengthscale=LENGTHSCALES), sk.Matern(LENGTHSCALES, nu=1.5)),
        (in_float64(Matern52(DIMS), lengthscale=LENGTHSCALES), sk.Matern(LENGTHSCALES, nu=2.5)),
        (
            in_float64(RationalQuadratic(DIMS, ard=False), lengthscale=0.8, alpha=1.7),
            sk.RationalQuadratic(0.8, alpha=1.7),
        ),
        (in_float64(Linear(DIMS, ard=False), variance=1.0), sk.DotProduct(sigma_0=0.0)),
        (in_float64(Scale(Constant()), variance=1.9), sk.ConstantKernel(1.9)),
    ],
    ids=lambda k: str(type(k).__name__),
)
def test_agrees_with_scikit_learn(ours: Kernel, theirs: sk.Kernel) -> None:
    x1, x2 = points(7, DIMS), points(5, DIMS, seed=1)
    assert_close(ours(x1, x2), torch.as_tensor(theirs(x1.numpy(), x2.numpy())), rtol=1e-10, atol=1e-10)
    assert_close(ours(x1, x1), torch.as_tensor(theirs(x1.numpy())), rtol=1e-10, atol=1e-10)


def test_periodic_agrees_with_scikit_learn_in_one_dimension() -> None:
    ours = in_float64(Periodic(1), lengthscale=0.6, period=1.4)
    x1, x2 = points(7, 1), points(5, 1, seed=1)
    theirs = sk.ExpSineSquared(0.6, periodicity=1.4)(x1.numpy(), x2.numpy())
    assert_close(ours(x1, x2), torch.as_tensor(theirs), rtol=1e-10, atol=1e-10)


def gpytorch_pairs() -> list[tuple[Kernel, gpytorch.kernels.Kernel]]:
    gp = gpytorch.kernels
    pairs = [(RBF, gp.RBFKernel(ard_num_dims=DIMS)), (RationalQuadratic, gp.RQKernel(ard_num_dims=DIMS))]
    pairs += [(M, gp.MaternKernel(nu=M.twice_nu / 2, ard_num_dims=DIMS)) for M in MATERN]
    made = []
    for kind, theirs in pairs:
        theirs = theirs.double()
        theirs.lengthscale = torch.tensor(LENGTHSCALES, dtype=torch.float64)
        ours = in_float64(kind(DIMS), lengthscale=LENGTHSCALES)
        if kind is RationalQuadratic:
            theirs.alpha = torch.tensor(1.7, dtype=torch.float64)
            in_float64(ours, alpha=1.7)
        made.append((ours, theirs))
    periodic = gp.PeriodicKernel(ard_num_dims=DIMS).double()
    periodic.lengthscale = torch.tensor(LENGTHSCALES, dtype=torch.float64).square()  # theirs is our l²
    periodic.period_length = torch.tensor([0.9, 1.4, 2.2], dtype=torch.float64)
    made.append((in_float64(Periodic(DIMS), lengthscale=LENGTHSCALES, period=[0.9, 1.4, 2.2]), periodic))
    linear = gp.LinearKernel(ard_num_dims=DIMS).double()
    linear.variance = torch.tensor(LENGTHSCALES, dtype=torch.float64)
    made.append((in_float64(Linear(DIMS), variance=LENGTHSCALES), linear))
    return made


@pytest.mark.parametrize(("ours", "theirs"), gpytorch_pairs(), ids=lambda k: str(type(k).__name__))
def test_agrees_with_gpytorch(ours: Kernel, theirs: gpytorch.kernels.Kernel) -> None:
    x1, x2 = points(2, 7, DIMS), points(2, 5, DIMS, seed=1)
    assert_close(ours(x1, x2), theirs(x1, x2).to_dense(), rtol=1e-10, atol=1e-10)


def test_hamming_counts_the_dimensions_that_differ() -> None:
    kernel = in_float64(Hamming(2), lengthscale=[0.5, 2.0])
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 7.0], [3.0, 7.0]], dtype=torch.float64)
    expected = torch.tensor([0.0, 2.0, 0.5, 2.5], dtype=torch.float64).neg().exp()
    assert_close(kernel(x[:1], x)[0], expected)


def test_tanimoto_of_sets_is_intersection_over_union() -> None:
    x = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.float64)
    expected = [[1, 2 / 4, 0, 0], [2 / 4, 1, 1 / 3, 0], [0, 1 / 3, 1, 0], [0, 0, 0, 1]]
    assert_close(Tanimoto()(x, x), torch.tensor(expected, dtype=torch.float64))


def test_tanimoto_of_counts() -> None:
    x1, x2 = torch.tensor([[3.0, 1.0]]), torch.tensor([[1.0, 2.0]])
    assert_close(Tanimoto()(x1, x2), torch.tensor([[5 / (10 + 5 - 5)]]))


def test_tanimoto_has_finite_gradients_at_zero() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    Tanimoto()(x, x).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


# -- what every kernel keeps -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_symmetric_positive_and_consistent_with_its_diagonal(name: str) -> None:
    kernel, x = example(name), inputs(name, 12, DIMS)
    K = kernel(x, x)
    assert_close(K, K.mT, rtol=1e-12, atol=1e-12)
    assert_close(kernel.diag(x), K.diagonal(), rtol=1e-12, atol=1e-12)
    assert torch.linalg.eigvalsh(K).min() > -1e-10


@pytest.mark.parametrize("name", ALL)
def test_batched_parameters_are_many_kernels_at_once(name: str) -> None:
    one = example(name)
    many = batched(one, (2, 3))
    for p in many.parameters():
        p.data = p.data + 0.3 * torch.rand(p.shape, generator=torch.Generator().manual_seed(1), dtype=p.dtype)
    x1, x2 = inputs(name, 2, 3, 6, DIMS), inputs(name, 4, DIMS, seed=1)
    K, diag = many(x1, x2), many.diag(x1)
    for i in range(2):
        for j in range(3):
            for p, q in zip(one.parameters(), many.parameters(), strict=True):
                p.data = q.data[i, j]
            assert_close(K.expand(2, 3, 6, 4)[i, j], one(x1[i, j], x2))
            assert_close(diag.expand(2, 3, 6)[i, j], one.diag(x1[i, j]))


@pytest.mark.parametrize("name", [n for n in ALL if n != "constant"])
def test_batched_parameters_broadcast_over_unbatched_points(name: str) -> None:
    many, x = batched(example(name), (2,)), inputs(name, 5, DIMS)
    assert many(x, x).shape == (2, 5, 5)
    assert many.diag(x).shape == (2, 5)
    assert many.batch_shape == (2,)
    assert_close(many.diag(x), many(x, x).diagonal(dim1=-2, dim2=-1))


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(ALL),
    batch=st.lists(st.integers(1, 2), max_size=2),
    n=st.integers(0, 3),
    m=st.integers(0, 3),
    dims=st.integers(1, 3),
)
def test_shapes(name: str, batch: list[int], n: int, m: int, dims: int) -> None:
    kernel = example(name, dims)
    x1, x2 = inputs(name, *batch, n, dims), inputs(name, *batch, m, dims, seed=1)
    x1.requires_grad_(True)
    K, diag = kernel(x1, x2), kernel.diag(x1)
    assert K.shape == (*batch, n, m)
    assert diag.shape == (*batch, n)
    (K.sum() + diag.sum() + x1.sum()).backward()
    assert x1.grad is not None
    assert x1.grad.isfinite().all()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("parameter_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("input_dtype", [torch.float32, torch.float64])
def test_computes_in_the_dtype_of_its_inputs(
    name: str, parameter_dtype: torch.dtype, input_dtype: torch.dtype
) -> None:
    kernel, x = example(name).to(parameter_dtype), inputs(name, 4, DIMS).to(input_dtype)
    assert kernel(x, x).dtype == input_dtype
    assert kernel.diag(x).dtype == input_dtype


# -- gradients -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in ALL if n not in ("constant", "hamming", "composed")])
def test_gradients(name: str) -> None:
    kernel = example(name)
    names, values = zip(*kernel.named_parameters(), strict=True)
    x1, x2 = (inputs(name, n, DIMS, seed=n).requires_grad_(True) for n in (3, 2))

    def matrix(x1: torch.Tensor, x2: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(kernel, dict(zip(names, parameters, strict=True)), (x1, x2))

    assert torch.autograd.gradcheck(matrix, (x1, x2, *values))


@pytest.mark.parametrize("name", ["hamming", "composed"])
def test_gradients_of_parameters_on_codes(name: str) -> None:
    kernel, x = example(name), points(4, DIMS, codes=True)
    names, values = zip(*kernel.named_parameters(), strict=True)
    trained = tuple(v.detach().requires_grad_(True) for v in values)

    def matrix(*parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(kernel, dict(zip(names, parameters, strict=True)), (x, x))

    assert torch.autograd.gradcheck(matrix, trained)


@pytest.mark.parametrize("kind", [k for k in SMOOTH if k is not Matern12])
def test_gradients_at_coincident_points(kind: type[Kernel]) -> None:
    kernel = kind(DIMS).double()
    x1 = points(3, DIMS)
    x2 = torch.cat([x1[:2], points(1, DIMS, seed=1)])
    # Matérn 3/2 has a third derivative that jumps at zero: finite differences are off by O(step).
    assert torch.autograd.gradcheck(
        kernel, (x1.requires_grad_(True), x2.requires_grad_(True)), eps=1e-6, atol=2e-5
    )


@pytest.mark.parametrize("kind", SMOOTH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_coincident_points_have_finite_gradients(
    kind: type[Kernel], dtype: torch.dtype, offset: float
) -> None:
    kernel = kind(DIMS)
    x = (points(6, DIMS) + offset).to(dtype)
    x[3:] = x[:3]
    x.requires_grad_(True)
    kernel(x, x).square().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in kernel.parameters())


def test_coincident_points_alone_have_zero_gradient() -> None:
    for kind in MATERN:
        x = points(1, DIMS).repeat(4, 1).requires_grad_(True)
        z = points(1, DIMS).repeat(2, 1)
        kernel = kind(DIMS).double()
        K = kernel(x, z)
        assert_close(K, torch.ones_like(K), rtol=0, atol=0)
        K.sum().backward()
        assert_close(x.grad, torch.zeros_like(x), rtol=0, atol=1e-12)


def test_second_derivatives_survive_the_clamp() -> None:
    """∂²k/∂x∂x′ = 1/l² at x = x′ for the RBF: the clamp must not cut it where rounding fell below zero."""
    kernel = in_float64(RBF(1), lengthscale=0.5)
    for x0 in points(20, 1):
        x1 = torch.stack([x0, x0 + 1.0]).requires_grad_(True)
        x2 = torch.stack([x0, x0 - 2.0]).requires_grad_(True)
        (g,) = torch.autograd.grad(kernel(x1, x2)[0, 0], x1, create_graph=True)
        (h,) = torch.autograd.grad(g[0, 0], x2)
        assert_close(h[0, 0], torch.tensor(4.0, dtype=torch.float64))


# -- distances -------------------------------------------------------------------------------------------


def exact_squared_distance(x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
    return (x1.double()[..., :, None, :] - x2.double()[..., None, :, :]).square().sum(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
def test_squared_distances_are_accurate_far_from_the_origin(dtype: torch.dtype, offset: float) -> None:
    x1, x2 = (points(40, 8) + offset).to(dtype), (points(30, 8, seed=1) + offset).to(dtype)
    r2 = squared_distance(x1, x2)
    assert r2.dtype == dtype
    eps = torch.finfo(dtype).eps
    assert_close(r2.double(), exact_squared_distance(x1, x2), rtol=4 * eps, atol=1e-13)


@pytest.mark.parametrize("kind", SMOOTH)
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_float32_kernels_are_the_float64_ones_rounded(kind: type[Kernel], offset: float) -> None:
    kernel = kind(DIMS, lengthscale=0.37)
    x = (points(30, DIMS) + offset).float()
    moved = x.double() - x[:1].double()  # exact, and no kernel here notices
    assert_close(kernel(x, x), kernel(moved, moved).float(), rtol=3e-6, atol=3e-7)


def test_squared_distances_are_never_negative_and_small_ones_are_kept() -> None:
    x = points(50, 8)
    assert squared_distance(x, x).min() >= 0
    near = torch.tensor([[0.0], [1e-5]], dtype=torch.float64)
    assert_close(
        Matern12(1).double()(near, near)[0, 1], torch.exp(-near[1, 0] / np.log(2)), rtol=1e-9, atol=0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [RBF, *MATERN, RationalQuadratic])
def test_rows_beyond_any_distance_are_uncorrelated(kind: type[Kernel], dtype: torch.dtype) -> None:
    """However many lengthscales away, also where their squares are no floats: zero, never NaN."""
    tiny, far = (1e-100, [1e5, 1e60, 1e300]) if dtype == torch.float64 else (1e-30, [1.0, 1e3, 1e5])
    kernel = kind(2, lengthscale=tiny).to(dtype)
    z = torch.tensor([[0.0, 0.0], [tiny, 0.0]], dtype=dtype, requires_grad=True)
    x = torch.tensor([[v, -v] for v in far], dtype=dtype, requires_grad=True)
    k = kernel(z, x)
    assert_close(k, torch.zeros_like(k), rtol=0, atol=1e-20)
    k.sum().backward()
    assert all(torch.isfinite(g).all() for g in (z.grad, x.grad, kernel.lengthscale.raw.grad))
    assert_close(kernel(x, x).diagonal(), torch.ones(3, dtype=dtype), rtol=1e-6, atol=0)
    columns = FrozenColumns.of(kernel, z.detach())
    if columns is not None:
        assert_close(columns(x.detach().double()), torch.zeros(2, 3, dtype=torch.float64), rtol=0, atol=1e-20)


# -- algebra ---------------------------------------------------------------------------------------------


def test_operators() -> None:
    a, b, x = RBF(DIMS).double(), Linear(DIMS).double(), points(5, DIMS)
    A, B = a(x, x), b(x, x)
    for kernel, expected in [
        (a + b, A + B),
        (a * b, A * B),
        (2.0 * a, 2 * A),
        (a * 2, 2 * A),
        (a + 1.5, A + 1.5),
        (1.5 + a, A + 1.5),
        ((a + b) * a, (A + B) * A),
    ]:
        assert_close(kernel.double()(x, x), expected, rtol=1e-6, atol=1e-6)
        assert_close(kernel.diag(x), kernel(x, x).diagonal(), rtol=1e-12, atol=1e-12)


def test_fixed_scales_are_not_trained_and_sums_are_flat() -> None:
    a, b, c = RBF(1), Linear(1), Constant()
    assert [n for n, p in (a * 2.0).named_parameters() if p.requires_grad] == ["kernel.lengthscale.raw"]
    assert len(list(a + b + c)) == 3
    assert len(list(a * b * c)) == 3
    assert isinstance(a + b, Sum)
    assert isinstance(a * b, Product)
    with pytest.raises(TypeError):
        a + "b"  # type: ignore[operator]
    with pytest.raises(ValueError, match="positive"):
        a * -1.0
    with pytest.raises(ValueError, match="at least one"):
        Sum()


def test_active_dims_sees_only_its_columns() -> None:
    kernel, x = ActiveDims(RBF(2), [2, 0]).double(), points(5, DIMS)
    assert_close(kernel(x, x), kernel.kernel(x[:, [2, 0]], x[:, [2, 0]]))
    assert "index" not in kernel.state_dict()


def test_inputs_with_the_wrong_number_of_columns_are_refused() -> None:
    with pytest.raises(ValueError, match=r"RBF\(dims=2\).*3 columns"):
        RBF(2)(points(4, 3), points(4, 3))


# -- names and descriptions --------------------------------------------------------------------------------


def test_make_kernel_knows_names() -> None:
    for name in ["Matern-5/2", "matern52", "MATERN_5_2"]:
        kernel = make_kernel(name, 4)
        assert isinstance(kernel, Scale)
        assert isinstance(kernel.kernel, Matern52)
        assert kernel.kernel.lengthscale().shape == (4,)
    assert isinstance(make_kernel("rbf", 4, scale=False), RBF)
    assert make_kernel("rbf", 4, ard=False, scale=False).lengthscale().shape == (1,)
    with pytest.raises(ValueError, match=r"unknown kernel 'matern72'.*rbf, matern12"):
        make_kernel("matern72", 1)


def test_make_kernel_copies_kernels() -> None:
    kernel = RBF(2)
    made = make_kernel(kernel, 2)
    assert isinstance(made, RBF)
    assert made is not kernel
    assert made.lengthscale.raw is not kernel.lengthscale.raw


@pytest.mark.parametrize("name", ALL)
def test_describe_is_json(name: str) -> None:
    kernel = batched(example(name), (2,))
    assert json.loads(json.dumps(kernel.describe())) == kernel.describe()
    assert type(kernel).__name__ in repr(kernel)


def test_describe_gives_values() -> None:
    described = Scale(RBF(2, lengthscale=[1.0, 2.0]), 3.0).describe()
    assert described["class"] == "Scale"
    assert described["variance"] == pytest.approx(3.0)
    assert described["kernel"]["class"] == "RBF"
    assert described["kernel"]["lengthscale"] == pytest.approx([1.0, 2.0])
    assert "lengthscale=[1, 2]" in repr(RBF(2, lengthscale=[1.0, 2.0]))


# -- gpytorch ----------------------------------------------------------------------------------------------


def wrapped() -> tuple[GPyTorchKernel, gpytorch.kernels.Kernel]:
    theirs = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=DIMS)).double()
    theirs.outputscale = 1.7
    made = make_kernel(theirs, DIMS)
    assert isinstance(made, GPyTorchKernel)
    return made, theirs


def test_gpytorch_kernels_are_wrapped() -> None:
    ours, theirs = wrapped()
    x1, x2 = points(2, 6, DIMS), points(2, 4, DIMS, seed=1)
    assert_close(ours(x1, x2), theirs(x1, x2).to_dense())
    assert_close(ours.diag(x1), theirs(x1, diag=True))
    assert ours(x1.float(), x2.float()).dtype == torch.float32
    assert len(list(ours.parameters())) == 2
    ours(x1, x2).sum().backward()
    assert all(p.grad is not None for p in ours.parameters())
    assert json.loads(json.dumps(ours.describe()))["parameters"]["outputscale"] == pytest.approx(1.7)


@pytest.mark.parametrize("batch", [(1,), (1, 1), (3,), (2, 3)])
def test_gpytorch_kernels_are_batched_by_a_loop(batch: tuple[int, ...]) -> None:
    ours, _ = wrapped()
    many = batched(ours, batch)
    for p in many.parameters():
        p.data = p.data + torch.rand(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(0))
    x1, x2 = points(4, *batch, 5, DIMS), points(2, DIMS, seed=1)
    K, diag = many(x1, x2), many.diag(x1)
    assert K.shape == (4, *batch, 5, 2)
    last = tuple(b - 1 for b in batch)
    for p, q in zip(ours.parameters(), many.parameters(), strict=True):
        p.data = q.data[last]
    assert_close(K[(1, *last)], ours(x1[(1, *last)], x2))
    assert_close(diag[(1, *last)], ours.diag(x1[(1, *last)]))
    K.sum().backward()
    assert all(p.grad is not None and p.grad.shape[: len(batch)] == batch for p in many.parameters())


def test_gpytorch_kernels_with_their_own_batch_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="batch shape"):
        GPyTorchKernel(gpytorch.kernels.RBFKernel(batch_shape=torch.Size([2])))
    with pytest.raises(TypeError, match="wraps a gpytorch kernel"):
        GPyTorchKernel(RBF(1))
