"""The generalised RBF kernel (MATH §6.3): basis points with lengthscales of their own, one process."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.linalg import inv
from torch.testing import assert_close

import duogp
from duogp.bases import Basis, Coupled, Hybrid, Subspace
from duogp.kernels import RBF, GeneralisedRBF, Kernel, Scale, generalised_points, make_kernel
from duogp.numerics.factorisation import Numerics, norm2, project
from duogp.numerics.parameters import batched
from duogp.variational import CholeskyQ

DIMS = 2
close = partial(assert_close, rtol=1e-12, atol=1e-12)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def wide(*shape: int, seed: int = 0, spread: float = 0.4) -> Tensor:
    """Basis points (z, log c) in DIMS dimensions, or as many as shape ends with."""
    return torch.cat([normal(*shape, seed=seed), normal(*shape, seed=seed + 100, scale=spread)], -1)


def example(ard: bool = True) -> GeneralisedRBF:
    kernel = GeneralisedRBF(DIMS, ard=ard).double()
    kernel.lengthscale.set_([0.7, 1.4] if ard else 0.9)
    return kernel


def formula(kernel: RBF, x1: Tensor, x2: Tensor) -> Tensor:
    """Equation 19 as it is written, with an [n, m, d] tensor."""
    s = kernel.lengthscale()
    s = s.expand(*s.shape[:-1], kernel.dims)

    def parts(x: Tensor) -> tuple[Tensor, Tensor]:
        z, t = x[..., : kernel.dims], x[..., kernel.dims :]
        c = t.exp() if t.shape[-1] else torch.ones_like(z)
        return z, s[..., None, :] * c

    (z1, l1), (z2, l2) = parts(x1), parts(x2)
    z1, l1, z2, l2 = z1[..., :, None, :], l1[..., :, None, :], z2[..., None, :, :], l2[..., None, :, :]
    squares = l1**2 + l2**2
    return ((2 * l1 * l2 / squares).sqrt() * torch.exp(-((z1 - z2) ** 2) / squares)).prod(-1)


WIDTHS = {
    "data-data": (normal(5, DIMS), normal(4, DIMS, seed=1)),
    "bases-data": (wide(5, DIMS), normal(4, DIMS, seed=1)),
    "data-bases": (normal(5, DIMS), wide(4, DIMS, seed=1)),
    "bases-bases": (wide(5, DIMS), wide(4, DIMS, seed=1)),
}
every_width = pytest.mark.parametrize("pair", WIDTHS.values(), ids=WIDTHS.keys())


# -- the function ---------------------------------------------------------------------------------------


def test_it_is_the_inner_product_of_unit_gaussians() -> None:
    """∫ g_x g_z du with g ∝ exp(−(u − x)²/l²) of unit L² norm, by quadrature: it knows of the square root."""
    kernel = GeneralisedRBF(1).double()
    kernel.lengthscale.set_(0.8)
    grid = torch.linspace(-30, 30, 20001, dtype=torch.float64)

    def unit(x: Tensor) -> Tensor:
        l = 0.8 * (x[:, 1:].exp() if x.shape[1] == 2 else torch.ones_like(x))
        g = torch.exp(-(((grid - x[:, :1]) / l) ** 2))
        return g / torch.trapezoid(g**2, grid).sqrt()[:, None]

    data, bases = normal(4, 1), wide(5, 1, seed=2, spread=0.7)
    for x1 in (data, bases):
        for x2 in (data, bases):
            products = torch.trapezoid(unit(x1)[:, None] * unit(x2), grid)
            assert_close(kernel(x1, x2), products, rtol=1e-10, atol=1e-10)
    t1, t2 = bases[:, None, 1], bases[None, :, 1]
    assert (torch.cosh(t1 - t2) ** -0.5 - torch.cosh(t1 - t2) ** -1).max() > 0.1  # the misreading would show


@every_width
@pytest.mark.parametrize("ard", [True, False])
def test_it_is_the_product_over_dimensions(pair: tuple[Tensor, Tensor], ard: bool) -> None:
    kernel = example(ard)
    close(kernel(*pair), formula(kernel, *pair))


@every_width
def test_batches_of_parameters_and_points_broadcast(pair: tuple[Tensor, Tensor]) -> None:
    many = batched(example(), (3, 2))
    many.lengthscale.raw.data += normal(3, 2, DIMS, scale=0.2)
    x1, x2 = pair[0] + normal(3, 1, 1, 1, seed=5), pair[1]
    K = many(x1, x2)
    assert K.shape == (3, 2, 5, 4)
    close(K, formula(many, x1, x2))
    assert many.diag(x1).shape == (3, 2, 5)


def test_unit_diagonal_symmetric_and_positive() -> None:
    for seed in range(5):
        x = wide(40, DIMS, seed=seed, spread=0.6)
        kernel = example()
        K = kernel(x, x)
        close(K.diagonal(), torch.ones(40, dtype=torch.float64))
        close(kernel.diag(x), K.diagonal())
        close(K, K.mT)
        everything = torch.cat([generalised_points(normal(20, DIMS, seed=seed + 50)), x])
        assert torch.linalg.eigvalsh(kernel(everything, everything)).min() > -1e-12


def test_data_and_points_of_width_one_are_the_rbf_kernel() -> None:
    kernel, rbf = example(), RBF(DIMS).double()
    rbf.load_state_dict(kernel.state_dict())
    x1, x2 = WIDTHS["data-data"]
    expected = rbf(x1, x2)
    close(kernel(x1, x2), expected)
    close(kernel(generalised_points(x1), x2), expected)
    close(kernel(x1, generalised_points(x2)), expected)
    close(kernel(generalised_points(x1), generalised_points(x2)), expected)


# -- gradients ------------------------------------------------------------------------------------------


@every_width
@pytest.mark.parametrize("ard", [True, False])
def test_gradients_are_those_of_differences(pair: tuple[Tensor, Tensor], ard: bool) -> None:
    kernel = example(ard)
    raw = kernel.lengthscale.raw.detach().clone().requires_grad_()

    def matrix(raw: Tensor, x1: Tensor, x2: Tensor) -> Tensor:
        return torch.func.functional_call(kernel, {"lengthscale.raw": raw}, (x1, x2))

    inputs = [x.clone().requires_grad_() for x in pair]
    assert torch.autograd.gradcheck(matrix, (raw, *inputs))


def test_gradients_where_points_and_widths_coincide() -> None:
    x = wide(3, DIMS)
    x2 = torch.cat([x[:2], wide(1, DIMS, seed=9)])
    assert torch.autograd.gradcheck(example(), (x.requires_grad_(), x2.requires_grad_()))


def test_nothing_of_size_rows_times_points_times_dimensions_is_kept() -> None:
    """Between data and bases, and between bases: the largest tensor autograd keeps."""
    n, m, d = 40, 30, 50
    kernel = GeneralisedRBF(d).double()
    for x1, x2 in ((wide(n, d), normal(m, d)), (wide(n, d), wide(m, d, seed=1))):
        sizes: list[int] = []
        x1.requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: (sizes.append(t.numel()), t)[1], lambda t: t
        ):
            kernel(x1, x2)
        assert max(sizes) <= n * 2 * d


# -- precision ------------------------------------------------------------------------------------------


@every_width
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_float32_and_far_from_the_origin(pair: tuple[Tensor, Tensor], offset: float) -> None:
    kernel = example()
    kernel.lengthscale.set_(0.37)
    moved = [torch.cat([x[:, :DIMS] + offset, x[:, DIMS:]], -1) for x in pair]
    close(kernel(*moved), formula(kernel, *moved), rtol=1e-10, atol=1e-10)
    rounded = [x.float() for x in moved]
    K = kernel(*rounded)
    assert K.dtype == torch.float32
    assert_close(K.double(), formula(kernel, *(x.double() for x in rounded)), rtol=1e-6, atol=1e-7)


def test_extreme_widths_stay_finite() -> None:
    x = torch.cat([normal(4, DIMS), torch.tensor([[-40.0, 40.0, 0.0, 5.0]]).mT.double().expand(4, DIMS)], -1)
    x.requires_grad_()
    kernel = example()
    (kernel(x, x).sum() + kernel(x, normal(3, DIMS)).sum()).backward()
    assert x.grad is not None and x.grad.isfinite().all()


# -- random features ------------------------------------------------------------------------------------


def test_random_features_are_unbiased_for_every_pair_of_widths() -> None:
    kernel = Scale(batched(example(), (2,)), 1.7)
    features = kernel.double().prior_features(200_000, torch.Generator().manual_seed(0))
    c = torch.tensor([[1.0, 1.5], [0.85, 1.2], [1.3, 0.9]], dtype=torch.float64)
    bases, data = torch.cat([normal(3, DIMS), c.log()], -1), normal(4, DIMS, seed=1)
    phi = torch.cat([features(bases), features(data)], -2)
    everything = torch.cat([bases, generalised_points(data)])
    assert_close(phi @ phi.mT, kernel(everything, everything).detach(), rtol=0, atol=0.05)
    assert features(data.float()).dtype == torch.float32


# -- names and refusals ---------------------------------------------------------------------------------


def test_names_and_columns() -> None:
    for name in ("generalised-rbf", "GeneralisedRBF"):
        made = make_kernel(name, 3, ard=False)
        assert isinstance(made, Scale) and isinstance(made.kernel, GeneralisedRBF)
    with pytest.raises(ValueError, match=r"GeneralisedRBF\(dims=2\).*3 columns; expected 2 .* or 4"):
        example()(normal(4, 3), normal(4, 2))
    with pytest.raises(ValueError, match="3 columns"):
        example().diag(normal(4, 3))


# -- inside the bases -----------------------------------------------------------------------------------

SHAPE = (2, 2)  # replicates, latents
DRAWS = 2000


def new_kernel() -> Kernel:
    kernel = batched(Scale(example(), 1.3), SHAPE).double()
    kernel.kernel.lengthscale.raw.data += normal(*SHAPE, DIMS, scale=0.1)
    return kernel


def points(count: int, seed: int) -> Tensor:
    return wide(SHAPE[0], 1, count, DIMS, seed=seed, spread=0.25)


def coupled() -> Basis:
    return Coupled(new_kernel(), points(3, 1), CholeskyQ(3, SHAPE))


def hybrid() -> Basis:
    return Hybrid(new_kernel(), points(3, 1), points(4, 2), CholeskyQ(3, SHAPE))


def subspace(preconditioner: str) -> Basis:
    return Subspace(new_kernel(), points(4, 2), points(3, 1), SHAPE, preconditioner=preconditioner)


BASES = {
    "coupled": coupled,
    "hybrid": hybrid,
    "subspace": partial(subspace, "none"),
    "subspace-nystrom": partial(subspace, "nystrom"),
}
every_basis = pytest.mark.parametrize("build", BASES.values(), ids=BASES.keys())


def randomised(build: partial[Basis]) -> Basis:
    basis = build().double()
    for i, p in enumerate(basis.parameters()):
        if p.shape[:2] == SHAPE and not any(p is other for other in basis.kernel.parameters()):
            p.data += normal(*p.shape, seed=40 + i, scale=0.3)
    return basis


@every_basis
def test_every_basis_is_the_process_with_inducing_variables_of_their_own_width(build: partial[Basis]) -> None:
    """Frozen posterior against unwhitened algebra on u with Cov(u, f(x)) = k(z, x), data of d columns."""
    basis, numerics, x = randomised(build), Numerics(SHAPE[0], 1e-2), normal(SHAPE[0], 1, 6, DIMS, seed=3)
    factors = basis.factors(numerics)

    def k(a: Tensor, b: Tensor) -> Tensor:
        return basis.kernel.variance()[..., None, None] * formula(basis.kernel.kernel, a, b)

    z = basis.inducing
    K = k(z, z) + 1e-2 * basis.kernel.variance()[..., None, None] * torch.eye(3, dtype=torch.float64)
    gain = k(x, z) @ inv(K)
    L, q = torch.linalg.cholesky(K), basis.q_of(factors)
    S = L @ q.covariance() @ L.mT
    if isinstance(basis, Subspace):
        mean = project(k(basis.mean_inducing, x), factors.a)
    else:
        mean = project(gain.mT, (L @ q.mean.unsqueeze(-1)).squeeze(-1))
    if isinstance(basis, Hybrid):
        mean = mean + project(k(basis.mean_inducing, x), basis.a)
    residual, explained = k(x, x) - gain @ k(z, x), gain @ S @ gain.mT
    form = basis.frozen(factors)
    for found, expected in zip(form.joint(x), (mean, residual, explained), strict=True):
        assert_close(found, expected, rtol=1e-9, atol=1e-9)
    f = basis.marginals(x, factors)
    assert_close(f.mean, mean, rtol=1e-9, atol=1e-9)
    assert_close(f.variance, (residual + explained).diagonal(dim1=-2, dim2=-1), rtol=1e-9, atol=1e-9)
    assert (f.residual > 0).all()


@every_basis
def test_widths_are_learned_in_every_basis(build: partial[Basis]) -> None:
    """Gradients of marginals and KL with respect to the points, log c included, by central differences."""
    basis, numerics, x = randomised(build), Numerics(SHAPE[0], 0.0), normal(SHAPE[0], 1, 4, DIMS, seed=3)

    def value() -> Tensor:
        f, penalties = basis.evaluate(x, basis.factors(numerics), numerics)
        return (f.mean.sin() + f.residual.square() + f.explained.sqrt()).sum() + penalties.kl.sum()

    value().backward()
    for name in ("inducing", "mean_inducing"):
        p = getattr(basis, name, None)
        if p is None:
            continue
        direction, ends = normal(*p.shape, seed=8), []
        for step in (1e-6, -1e-6):
            p.data += step * direction
            ends.append(value().detach())
            p.data -= step * direction
        assert p.grad[..., DIMS:].abs().min() > 0
        assert_close((p.grad * direction).sum(), (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["coupled", "subspace"])
def test_paths_have_the_moments_of_the_posterior(name: str) -> None:
    """Matheron's rule with prior features of the basis points' own widths."""
    basis, x = randomised(BASES[name]), normal(SHAPE[0], 1, 3, DIMS, seed=3)
    with torch.no_grad():
        form = basis.frozen(basis.factors(Numerics(SHAPE[0], 1e-2)))
        draws = form.sample_paths(DRAWS, torch.Generator().manual_seed(0), num_features=2000)(x)
        mean, residual, explained = form.joint(x)
    covariance = residual + explained
    centred = (draws - mean).movedim(0, -1)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    assert (centred.mean(-1).abs() < 5 * (variance / DRAWS).sqrt()).all()
    assert_close(centred @ centred.mT / DRAWS, covariance, rtol=0, atol=5 * 1.5 * (2 / DRAWS) ** 0.5)


def test_a_narrow_basis_point_explains_less_elsewhere() -> None:
    """k(x, z) is a bump of squared lengthscale (s² + l_z²)/2, at most Π cosh(log c)^−½ high."""
    kernel = GeneralisedRBF(1, lengthscale=1.0).double()
    kernel.lengthscale.set_(1.0)
    x = torch.linspace(-3, 3, 7, dtype=torch.float64)[:, None]
    for c in (0.5, 1.0, 2.0):
        z = torch.tensor([[0.0, math.log(c)]], dtype=torch.float64)
        height = math.cosh(math.log(c)) ** -0.5
        bump = height * torch.exp(-0.5 * x.mT.square() / ((1 + c**2) / 2))
        close(kernel(z, x), bump)
        assert (norm2(kernel(z, x)) <= 1 + 1e-12).all()


@pytest.mark.parametrize("method", ["svgp", "svi", "ppgpr-chol"])
def test_coupled_bases_train_on_points_with_lengthscales_of_their_own(method: str) -> None:
    """Points of 2d columns do not fit the step in one function; the general one must take over."""
    X = np.random.default_rng(0).uniform(size=(120, 2))
    y = np.sin(6 * X[:, 0]) + X[:, 1]
    gp = duogp.fit(
        X,
        y,
        method,
        kernel="generalised-rbf",
        num_inducing=12,
        solver="natural" if method == "svi" else "stochastic",
        epochs=100,
        batch_size=40,
    )
    assert gp.predict(X).metrics(y)["rmse"] < 0.5 * y.std()
