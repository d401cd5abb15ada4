"""Closed-form training: the collapsed objective, its gradient and optimum, against dense algebra."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from duogp.bases import Conditional
from duogp.inference.closed_form import CollapsedObjective
from duogp.models.model import Batch, Model
from duogp.objectives import predictive
from helpers import dense
from helpers.conformance import BASES, Row, close, conditional, every_basis_and_q, every_q, separate_kernels
from helpers.devices import placed
from helpers.random_models import QS, Problem, learned, random_problem

pytestmark = pytest.mark.usefixtures("device")

N = 9
WHOLE = [slice(0, N)]
THREE = [slice(0, 3), slice(3, 6), slice(6, 9)]
UNEVEN = [slice(0, 5), slice(5, 9)]


def rows(batch: Batch, part: slice) -> Batch:
    x, y, noise, weight = batch
    cut = (None if v is None else v[..., part] for v in (noise, weight))
    return Batch(x[:, part], y[..., part], *cut)


def collapsed_objective(model: Model, batch: Batch, partition: list[slice]) -> CollapsedObjective:
    chunks: list[Callable[[], Batch]] = [partial(rows, batch, part) for part in partition]
    return CollapsedObjective(model, chunks)


def assert_collapsed_is_dense(
    model: Model, batch: Batch, partition: list[slice], omega: list[slice] | None = None
) -> None:
    """Value and gradient in everything but q, which is at its optimum and has none."""
    value = collapsed_objective(model, batch, partition).backward()
    found = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    expected = -dense.collapsed(model, batch, omega) / model.num_data
    assert_close(value, expected, rtol=1e-9, atol=1e-9)
    expected.sum().backward()
    for name, p in model.named_parameters():
        if name.startswith("basis.q."):
            assert found[name] is None
        else:
            assert_close(found[name], p.grad, rtol=1e-7, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}")


def problem_of(build: Callable, q: str = "full", objective: str = "elbo", **settings: object) -> Problem:
    return random_problem(build, q, objective, n=N, replicates=2, latents=2, **settings)


@pytest.mark.parametrize("partition", [WHOLE, UNEVEN], ids=["whole", "chunks"])
@pytest.mark.parametrize("objective", ["elbo", "vfitc"])
@every_basis_and_q
def test_collapsed_objective_is_the_dense_collapsed_bound(
    row: Row, q: str, objective: str, partition: list[slice]
) -> None:
    """β₂ = 0: value and gradient in Z, kernels, noise, prior mean; two replicates, two outputs, any Λ."""
    model, batch, _ = problem_of(row.build, q, objective, beta2=0.0, row_noise=True, weights=True)
    assert_collapsed_is_dense(model, batch, partition)


@pytest.mark.parametrize("objective", ["elbo", "vfitc"])
@every_q
@pytest.mark.parametrize("whitening", ["Q", "K"])
def test_collapsed_objective_with_the_omega_of_all_rows(whitening: str, q: str, objective: str) -> None:
    """omega="full", its nugget in the residual as well."""
    for nugget in (None, 0.05):
        build = conditional(whitening, "full", nugget=nugget)
        model, batch, _ = problem_of(build, q, objective, row_noise=True, weights=True)
        assert_collapsed_is_dense(model, batch, WHOLE)


@pytest.mark.parametrize("partition", [THREE, UNEVEN, WHOLE], ids=["equal", "uneven", "one"])
@pytest.mark.parametrize("omega", ["rows", "blocks", "batch"])
@every_q
@pytest.mark.parametrize("whitening", ["Q", "K"])
def test_collapsed_objective_with_the_omega_of_blocks(
    whitening: str, q: str, omega: str, partition: list[slice]
) -> None:
    """rows, blocks: the sum over a partition (§11 B6). batch: its mean, as the reference code has it."""
    model, batch, _ = problem_of(conditional(whitening, omega), q)
    blocks = [slice(i, i + 1) for i in range(N)] if omega == "rows" else partition
    assert_collapsed_is_dense(model, batch, partition, blocks)


@every_basis_and_q
def test_collapsed_objective_with_jitter(row: Row, q: str) -> None:
    """With jitter the collapsed bound is that of the process with u = f(Z) + √ε ξ, gradient included."""
    model, batch, _ = problem_of(row.build, q, jitter=0.02)
    assert_collapsed_is_dense(model, batch, WHOLE)


@pytest.mark.parametrize("objective", ["elbo", "vfitc"])
@every_basis_and_q
def test_the_optimum_is_where_the_objective_equals_the_collapsed_one(
    row: Row, q: str, objective: str
) -> None:
    """Writing q* into the model gives the collapsed value as ordinary loss; no gradient in q remains."""
    model, batch, _ = problem_of(row.build, q, objective)
    closed = collapsed_objective(model, batch, WHOLE)
    value = closed.backward()
    model.zero_grad()
    best = closed.solve()
    model.basis.q.set_(best.mean, best.root)
    loss = model.loss(batch)
    close(loss, value)
    loss.sum().backward()
    for _, p in learned(model.basis.q):
        assert_close(p.grad, torch.zeros_like(p), rtol=0, atol=1e-10)


@every_basis_and_q
def test_no_other_q_does_better(row: Row, q: str) -> None:
    model, batch, _ = problem_of(row.build, q)
    best = collapsed_objective(model, batch, WHOLE).backward()
    for seed in range(5):
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _, p in learned(model.basis.q):
                p.add_(placed(0.1 * torch.randn(p.shape, generator=g, dtype=torch.float64)))
        assert (model.loss(batch) > best).all()


@pytest.mark.parametrize(
    "row", [r for r in BASES if r.is_bound and "conditional" not in r.name], ids=lambda r: r.name
)
def test_collapsed_bound_is_below_the_evidence(row: Row) -> None:
    """β₁ = 1: log p(y) is an upper limit (identity 5 has the conditional basis)."""
    for seed in range(10):
        model, batch, _ = problem_of(row.build, seed=seed, beta1=1.0)
        value = -collapsed_objective(model, batch, WHOLE).backward() * N
        assert (value < dense.exact_log_evidence(model, batch)).all()


@every_q
def test_collapsed_objective_with_a_mean_kernel_of_its_own(q: str) -> None:
    model, batch, _ = problem_of(separate_kernels, q)
    assert_collapsed_is_dense(model, batch, WHOLE)


def test_replicates_may_weigh_differently() -> None:
    """One batched model, different β₁ and β₂: a validation grid trains at once."""
    model, batch, _ = problem_of(conditional("Q"))
    model.beta1.copy_(torch.tensor([0.3, 2.0]))
    model.beta2.copy_(torch.tensor([0.0, 1.5]))
    assert_collapsed_is_dense(model, batch, WHOLE)


def test_more_inducing_points_never_hurt() -> None:
    """Nested Z: the collapsed bound is monotone (Titsias 2009)."""
    values = []
    for inducing in (1, 2, 4):
        model, batch, _ = random_problem(BASES[0].build, n=N, beta1=1.0)
        z = model.basis.inducing.detach()[..., :inducing, :].clone()
        model.basis.inducing = torch.nn.Parameter(z)
        model.basis.q = placed(QS["full"](inducing, (1, 1)).double())
        values.append(-collapsed_objective(model, batch, WHOLE).backward().item())
    assert all(a < b for a, b in pairwise(values))


def test_only_quadratic_objectives_collapse() -> None:
    model, batch, _ = problem_of(BASES[0].build, objective="predictive")
    assert model.objective is predictive
    with pytest.raises(ValueError, match="closed form"):
        collapsed_objective(model, batch, WHOLE).backward()


def test_priors_count_in_closed_form_as_in_the_loss() -> None:
    """log p(hyperparameters)/N is subtracted from both."""
    from duogp.numerics.parameters import LogNormalPrior

    model, batch, _ = problem_of(BASES[0].build)
    plain = collapsed_objective(model, batch, WHOLE).backward()
    lengthscale = model.basis.kernel.kernel.lengthscale
    lengthscale.prior = LogNormalPrior(0.0, 1.0)
    model._has_priors = True
    expected = torch.distributions.LogNormal(0.0, 1.0).log_prob(lengthscale()).sum((-2, -1)) / N
    close(collapsed_objective(model, batch, WHOLE).backward(), plain - expected)
    assert not isinstance(model.basis, Conditional)
