"""Initial inducing points: always `num` distinct rows, the same for the same generator."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from duogp.bases import inducing
from duogp.bases.inducing import INITIALISERS, UnitRBF, select_inducing
from duogp.errors import DataWarning

NAMES = sorted(INITIALISERS)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def inputs(n: int, d: int = 2, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(n, d, generator=generator(99), dtype=torch.float64).to(dtype)


def distinct(z: torch.Tensor) -> int:
    return torch.unique(z, dim=0).shape[0]


def are_rows_of(z: torch.Tensor, x: torch.Tensor) -> bool:
    return bool((z[:, None] == x[None]).all(-1).any(1).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_shape_dtype_distinctness_and_determinism(name, dtype):
    x = inputs(300, 3, dtype)
    before = torch.random.get_rng_state()
    z = select_inducing(name, x, 20, generator=generator())
    assert z.shape == (20, 3)
    assert z.dtype == dtype
    assert distinct(z) == 20
    assert torch.equal(z, select_inducing(name, x, 20, generator=generator()))
    assert torch.equal(before, torch.random.get_rng_state())  # the global generator is left alone
    assert z.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("name", ["random", "kmeans"])
def test_another_seed_gives_another_start(name):
    x = inputs(300)
    one, two = (select_inducing(name, x, 20, generator=generator(seed)) for seed in (0, 1))
    assert not torch.equal(one, two)


@pytest.mark.parametrize("name", ["random", "greedy"])
def test_subsets_are_rows_of_x(name):
    x = inputs(200)
    assert are_rows_of(select_inducing(name, x, 30, generator=generator()), x)


@pytest.mark.parametrize("name", NAMES)
def test_as_many_points_as_rows(name):
    x = inputs(25)
    z = select_inducing(name, x, 25, generator=generator())
    assert distinct(z) == 25
    assert are_rows_of(z, x)


@pytest.mark.parametrize("name", NAMES)
def test_one_row(name):
    x = torch.tensor([[3.0, 4.0]])
    assert torch.equal(select_inducing(name, x, 1, generator=generator()), x)


@pytest.mark.parametrize("name", NAMES)
def test_repeated_rows_are_skipped_while_others_are_left(name):
    x = torch.cat([inputs(40)[:1].expand(5_000, 2), inputs(40)])  # one row 5001 times, 39 rarities
    z = select_inducing(name, x, 40, generator=generator())
    assert distinct(z) == 40
    assert are_rows_of(z, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("name", NAMES)
def test_too_few_distinct_rows_are_told_apart(name, offset, dtype):
    x = (inputs(5, 3) + offset).to(dtype)
    x[:, 1] = 7.0
    with pytest.warns(DataWarning, match="25 of them repeat others"):
        z = select_inducing(name, x.repeat(10, 1), 30, generator=generator())
    assert distinct(z) == 30
    assert bool((z[:, 1] == 7.0).all())  # a constant column stays constant
    exact = (z[:, None] == x[None]).all(-1).any(1)
    assert int(exact.sum()) >= distinct(x)  # the originals are all there
    assert (
        float(torch.cdist(z.double(), x.double()).amin(1).max()) < 0.05 + 40 * torch.finfo(dtype).eps * offset
    )


@pytest.mark.parametrize("value", [0.0, 1e-12, 1e12, 1e300])
@pytest.mark.parametrize("name", NAMES)
def test_identical_rows(name, value):
    x = torch.full((10, 2), value, dtype=torch.float64)
    with pytest.warns(DataWarning, match="5 of them repeat others"):
        z = select_inducing(name, x, 6, generator=generator())
    assert distinct(z) == 6
    assert torch.isfinite(z).all()


def test_greedy_is_pivoted_cholesky():
    x, kernel = inputs(60), UnitRBF()
    z = select_inducing("greedy", x, 8, kernel=kernel, generator=generator())
    for m in range(1, 8):  # each next point has the largest conditional variance given those before
        L = torch.linalg.cholesky(kernel(z[:m], z[:m]))
        phi = torch.linalg.solve_triangular(L, kernel(z[:m], x), upper=False)
        variance = kernel.diag(x) - phi.square().sum(0)
        row = int((x == z[m]).all(-1).nonzero()[0])
        assert float(variance[row]) == pytest.approx(float(variance.max()), rel=1e-9)


def test_greedy_serves_the_worst_input_better_than_random():
    x, kernel = inputs(400), UnitRBF()

    def unexplained(z: torch.Tensor) -> float:
        L = torch.linalg.cholesky(kernel(z, z) + 1e-10 * torch.eye(len(z), dtype=z.dtype))
        return float((1 - torch.linalg.solve_triangular(L, kernel(z, x), upper=False).square().sum(0)).max())

    greedy, random = (
        unexplained(select_inducing(n, x, 15, generator=generator())) for n in ("greedy", "random")
    )
    assert greedy < random


def test_greedy_reads_the_kernel_it_is_given_and_averages_batches():
    class Second(UnitRBF):
        """Sees only the second column, in two copies."""

        def __call__(self, x1, x2):
            return super().__call__(x1[..., 1:], x2[..., 1:]).expand(2, -1, -1)

        def diag(self, x):
            return super().diag(x).expand(2, -1)

    x = torch.stack([torch.linspace(0, 9, 50), torch.tensor([0.0, 20.0]).repeat(25)], dim=1)
    z = select_inducing("greedy", x, 2, kernel=Second(), generator=generator())
    assert set(z[:, 1].tolist()) == {0.0, 20.0}
    # the kernel is exhausted after two points; the rest is filled with distinct rows
    assert distinct(select_inducing("greedy", x, 10, kernel=Second(), generator=generator())) == 10


def test_greedy_keeps_to_its_memory_budget(monkeypatch):
    monkeypatch.setattr(inducing, "GREEDY_BUDGET", 1_000)
    sizes = []

    class Spy(UnitRBF):
        def __call__(self, x1, x2):
            sizes.append(x1.shape[0])
            return super().__call__(x1, x2)

    z = select_inducing("greedy", inputs(2_000), 10, kernel=Spy(), generator=generator())
    assert max(sizes) == 100
    assert distinct(z) == 10


def test_greedy_refuses_a_kernel_that_is_not_finite():
    class Broken(UnitRBF):
        def diag(self, x):
            return super().diag(x) * float("nan")

    with pytest.raises(ValueError, match=r"kernel.diag\(x\)"):
        select_inducing("greedy", inputs(5), 2, kernel=Broken())


def test_kmeans_finds_the_clusters_also_in_mini_batches(monkeypatch):
    centres = 10 * inputs(6)
    x = (centres[:, None] + 0.01 * inputs(600).reshape(6, 100, 2)).reshape(-1, 2)
    z = select_inducing("kmeans", x, 6, generator=generator())
    assert float(torch.cdist(centres, z).amin(1).max()) < 0.05
    monkeypatch.setattr(inducing, "KMEANS_FULL_BUDGET", 0)
    monkeypatch.setattr(inducing, "KMEANS_ROWS", 400)
    small = select_inducing("kmeans", x, 6, generator=generator())
    assert distinct(small) == 6
    assert torch.equal(small, select_inducing("kmeans", x, 6, generator=generator()))


@pytest.mark.filterwarnings("ignore::duogp.errors.DataWarning")
@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    rows=st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 1)), min_size=1, max_size=25),
    data=st.data(),
    scale=st.sampled_from([1e-12, 1.0, 1e9]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_any_data_gives_num_distinct_finite_rows(name, rows, data, scale, dtype):
    x = torch.tensor(rows, dtype=dtype) * scale
    num = data.draw(st.integers(1, len(rows)))
    z = select_inducing(name, x, num, generator=generator())
    assert z.shape == (num, 2)
    assert distinct(z) == num
    assert torch.isfinite(z).all()
    assert torch.equal(z, select_inducing(name, x, num, generator=generator()))


def test_errors_say_what_is_expected():
    x = inputs(5)
    with pytest.raises(ValueError, match="'greedy', 'kmeans', 'random', got 'sobol'"):
        select_inducing("sobol", x, 2)
    with pytest.raises(ValueError, match="num is 6 but x has only 5 rows"):
        select_inducing("random", x, 6)
    with pytest.raises(ValueError, match="num must be at least 1, got 0"):
        select_inducing("random", x, 0)
    with pytest.raises(ValueError, match=r"x must be a floating-point matrix.*\(5,\)"):
        select_inducing("random", x[:, 0], 2)
