"""The collapsed bound from Gram matrices: the general path's loss, gradients and optimum, by less work."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from duogp.bases import Basis, Conditional, Coupled
from duogp.fused import collapsed
from duogp.fused.table import sums_are_enough
from duogp.inference import closed_form
from duogp.inference.closed_form import CollapsedObjective
from duogp.kernels import (
    RBF,
    ActiveDims,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Scale,
)
from duogp.likelihoods import GaussianLikelihood
from duogp.means import ConstantMean
from duogp.models.model import Batch, Model
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import Positive, batched
from duogp.objectives import dtc, elbo
from duogp.variational import CholeskyQ
from helpers.devices import placed
from helpers.random_models import DIMS, TYPICAL, Parts, random_problem

pytestmark = pytest.mark.usefixtures("device")

N = 11

KERNELS: dict[str, Callable[[], Kernel]] = {
    "rbf": lambda: Scale(RBF(DIMS)),
    "rbf, one lengthscale": lambda: Scale(RBF(DIMS, ard=False)),
    "no scale": lambda: Matern52(DIMS),
    "two scales": lambda: Scale(Scale(Matern32(DIMS))),
    "rough": lambda: Scale(Matern12(DIMS, ard=False)),
    "stationary without a profile": lambda: Scale(RationalQuadratic(DIMS)),
    "sum": lambda: Scale(RBF(DIMS)) + Linear(DIMS),
    "scaled product": lambda: Scale(RBF(DIMS) * Periodic(DIMS)),
    "one column": lambda: Scale(ActiveDims(RBF(1), [1])) + Scale(ActiveDims(Matern32(1), [0])),
}


def basis_of(name: str, kernel: Callable[[], Kernel], parts: Parts, shared: bool = False) -> Basis:
    shape = (parts.batch_shape[0], 1) if shared else parts.batch_shape

    def new() -> Kernel:
        return batched(kernel(), shape)

    if name == "coupled":
        return Coupled(new(), parts.z.clone(), parts.q())
    return Conditional(new(), new(), parts.z.clone(), parts.q(), whitening=name[-1])  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def more_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """What kernels have here and not in the other conformance tests."""
    for name, value in {"alpha": 1.4, "period": 2.3}.items():
        monkeypatch.setitem(TYPICAL, name, value)


every_basis = pytest.mark.parametrize("basis", ["coupled", "conditional-Q", "conditional-K"])


def problem(
    basis: str, kernel: str = "rbf", *, shared: bool = False, **settings: object
) -> tuple[Model, Batch]:
    build = partial(basis_of, basis, KERNELS[kernel], shared=shared)
    own = {"n": N, "replicates": 2, "latents": 2, "beta2": 0.0, "jitter": 1e-4} | settings
    model, batch, _ = random_problem(build, **own)  # type: ignore[arg-type]
    return model, batch


def cut(batch: Batch, pieces: int) -> list[Callable[[], Batch]]:
    def piece(i: int) -> Batch:
        return Batch(
            *(
                None if v is None else v.tensor_split(pieces, dim=1 if j == 0 else -1)[i]
                for j, v in enumerate(batch)
            )
        )

    return [partial(piece, i) for i in range(pieces)]


def results(
    model: Model, batch: Batch, pieces: int, monkeypatch: pytest.MonkeyPatch, general: bool
) -> tuple[Tensor, dict[str, Tensor | None]]:
    with monkeypatch.context() as patch:
        if general:
            patch.setattr(closed_form, "sums_are_enough", lambda model: False)
        else:
            assert sums_are_enough(model)
        model.zero_grad()
        loss = CollapsedObjective(model, cut(batch, pieces)).backward()
    return loss, {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


#: Times the largest gradient. One that is zero in theory (the variance of a mean kernel cancels) is a sum of
#: terms of about that size, some thousand roundings of 2e-16 away from zero.
ROUNDING = 1e-12


def assert_same(
    model: Model, batch: Batch, monkeypatch: pytest.MonkeyPatch, pieces: int = 1, tolerance: float = 1e-8
) -> None:
    loss, found = results(model, batch, pieces, monkeypatch, general=False)
    expected_loss, expected = results(model, batch, pieces, monkeypatch, general=True)
    assert_close(loss, expected_loss, rtol=tolerance, atol=tolerance)
    largest = max(1.0, *(float(g.abs().max()) for g in expected.values() if g is not None))
    for name, gradient in expected.items():
        if gradient is None or gradient.abs().max() <= ROUNDING * largest:
            assert found[name] is None or found[name].abs().max() <= ROUNDING * largest, name
        else:
            assert_close(
                found[name],
                gradient,
                rtol=tolerance,
                atol=tolerance * max(1.0, float(gradient.abs().max())),
                msg=lambda m, name=name: f"{name}: {m}",
            )


@pytest.mark.parametrize("kernel", KERNELS)
@every_basis
def test_every_kernel(basis: str, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicates, two outputs, a linear prior mean: loss and every gradient as on the general path."""
    assert_same(*problem(basis, kernel), monkeypatch)


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("weights", [False, True], ids=["alike", "weights"])
@pytest.mark.parametrize("row_noise", [False, True], ids=["noise", "row-noise"])
@pytest.mark.parametrize("shared", [False, True], ids=["own-kernels", "one-kernel"])
@every_basis
def test_weights_noise_chunks_and_shared_kernels(
    basis: str, shared: bool, row_noise: bool, weights: bool, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = problem(basis, shared=shared, row_noise=row_noise, weights=weights)
    assert_same(model, batch, monkeypatch, pieces)


@pytest.mark.parametrize("q", ["full", "diagonal", "point", "point-unwhitened"])
@every_basis
def test_every_q_and_dtc(basis: str, q: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = problem(basis, q=q)
    for objective in (elbo, dtc):
        model.objective = objective
        assert_same(model, batch, monkeypatch)


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("row_noise", [False, True])
@pytest.mark.parametrize("shared", [False, True], ids=["own-kernels", "one-kernel"])
@every_basis
def test_the_optimum_is_that_of_features(
    basis: str, shared: bool, row_noise: bool, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = problem(basis, shared=shared, row_noise=row_noise, weights=True)
    found = CollapsedObjective(model, cut(batch, pieces)).solve()
    monkeypatch.setattr(closed_form, "sums_are_enough", lambda model: False)
    expected = CollapsedObjective(model, [lambda: batch]).solve()
    assert_close(found.mean, expected.mean, rtol=1e-9, atol=1e-9)
    assert_close(found.root, expected.root, rtol=1e-9, atol=1e-9)


@every_basis
def test_a_second_pass_finds_the_same(basis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are overwritten on the way: never those of somebody else."""
    model, batch = problem(basis, "no scale")
    loss, first = results(model, batch, 1, monkeypatch, general=False)
    again, second = results(model, batch, 1, monkeypatch, general=False)
    assert torch.equal(loss, again)
    for name, gradient in first.items():
        assert gradient is None or torch.equal(gradient, second[name]), name


@pytest.mark.parametrize("pieces", [1, 3])
@every_basis
def test_the_optimum_of_the_lowest_loss_needs_no_pass(basis: str, pieces: int) -> None:
    """To the last bit that of a pass of its own; another point has another."""
    model, batch = near_duplicates(basis, torch.float64, 1e-6)
    passes: list[int] = []

    def counted(chunk: Callable[[], Batch]) -> Batch:
        passes.append(1)
        return chunk()

    objective = CollapsedObjective(model, [partial(counted, chunk) for chunk in cut(batch, pieces)])
    noise = model.likelihood.noise
    objective.backward()
    passes.clear()
    found, expected = objective.solve(), CollapsedObjective(model, cut(batch, pieces)).solve()
    remembered = found.mean.is_cpu  # a GPU would have to be asked
    assert bool(passes) != remembered
    assert torch.equal(found.mean, expected.mean)
    assert torch.equal(found.root, expected.root)
    noise.set_(2e-3)  # type: ignore[operator]
    other = objective.solve()
    assert passes
    assert not torch.equal(other.mean, found.mean)


@every_basis
def test_only_what_is_learned_gets_a_gradient(basis: str) -> None:
    model, batch = problem(basis, row_noise=True)
    for p in model.parameters():
        p.requires_grad_(False)
    model.mean.bias.requires_grad_()  # type: ignore[union-attr, operator]
    CollapsedObjective(model, cut(batch, 2)).backward()
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["mean.bias"]


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("weights", [False, True], ids=["alike", "weights"])
@every_basis
def test_quick_products_give_the_same_gradient_to_float32(
    basis: str, weights: bool, pieces: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.type != "cpu":
        pytest.skip("float64 is as quick there")
    monkeypatch.setattr(collapsed, "QUICK_ROWS", 4)
    model, batch = problem(basis, weights=weights)
    loss, expected = results(model, batch, pieces, monkeypatch, general=False)
    model.zero_grad()
    assert collapsed.quick_is_enough(model, model.factors())
    quick = CollapsedObjective(model, cut(batch, pieces), quick=True)
    found = quick.backward()
    assert not torch.equal(found, loss)  # it was float32 indeed
    assert_close(found, loss, rtol=1e-5, atol=1e-5)
    largest = max(float(g.abs().max()) for g in expected.values() if g is not None)
    for name, p in model.named_parameters():
        if expected[name] is not None:
            assert_close(p.grad, expected[name], rtol=1e-3, atol=1e-4 * largest)
    exact = CollapsedObjective(model, cut(batch, pieces)).solve()
    assert torch.equal(quick.solve().mean, exact.mean)  # what is kept never is float32


def test_quick_products_are_not_for_little_noise_nor_for_rows_with_their_own(device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("float64 is as quick there")
    model, batch = problem("coupled")
    assert collapsed.quick_is_enough(model, model.factors())
    model.likelihood.noise.set_(1e-5)  # type: ignore[union-attr, operator]
    assert not collapsed.quick_is_enough(model, model.factors())
    model, _ = problem("coupled", "stationary without a profile")
    assert not collapsed.quick_is_enough(model, model.factors())
    model, batch = problem("coupled", row_noise=True)
    losses = [CollapsedObjective(model, [lambda: batch], quick=quick).backward() for quick in (False, True)]
    assert torch.equal(*losses)


def test_what_the_sums_do_not_suffice_for() -> None:
    model, _ = problem("coupled", objective="vfitc")
    assert not sums_are_enough(model)
    model, _ = problem("conditional-Q", beta2=0.3)
    assert not sums_are_enough(model)


def near_duplicates(basis: str, dtype: torch.dtype, jitter: float) -> tuple[Model, Batch]:
    """Pairs of inducing points 1e-5 apart, long lengthscales, little noise."""
    g = torch.Generator().manual_seed(3)
    z = torch.randn(1, 1, 40, DIMS, generator=g, dtype=torch.float64)
    z = torch.cat([z, z + 1e-5 * torch.randn(z.shape, generator=g, dtype=torch.float64)], -2)
    x = torch.randn(1, 600, DIMS, generator=g, dtype=torch.float64)
    y = (x.sum(-1).sin() + 0.03 * torch.randn(1, 600, generator=g, dtype=torch.float64)).unsqueeze(-2)
    parts = Parts((1, 1), z, z, CholeskyQ)
    model = Model(
        mean=batched(ConstantMean(0.1), (1, 1)),
        basis=basis_of(basis, lambda: Scale(Matern52(DIMS)), parts),
        likelihood=batched(GaussianLikelihood(1), (1,)),
        objective=elbo,
        numerics=Numerics(1, jitter, dtype),
        num_data=600,
    )
    model.to(dtype)
    for name, part in model.named_modules():
        if isinstance(part, Positive):
            part.set_({"lengthscale": 2.0, "variance": 1.1, "noise": 1e-3}[name.rsplit(".", 1)[-1]])
    if isinstance(model.basis, Conditional):
        model.basis.mean_kernel.kernel.lengthscale.set_(1.5)  # type: ignore[union-attr, operator]
    model.numerics.jitter = model.numerics.jitter.double()
    for name in ("beta1", "beta2", "num_data"):
        setattr(model, name, getattr(model, name).double())
    return placed(model), Batch(placed(x.to(dtype)), placed(y.to(dtype)))


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("jitter", [1e-6, 1e-8])
@every_basis
def test_near_duplicates_in_float64(
    basis: str, jitter: float, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = near_duplicates(basis, torch.float64, jitter)
    loss, found = results(model, batch, pieces, monkeypatch, general=False)
    expected_loss, expected = results(model, batch, 1, monkeypatch, general=True)
    assert_close(loss, expected_loss, rtol=1e-6, atol=1e-6)
    for name, (error,) in distances(expected, found).items():
        assert error < 1e-4, name


@pytest.mark.parametrize("pieces", [1, 3])
@every_basis
def test_near_duplicates_in_float32(basis: str, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against float64 with the same jitter: about as far away as the general path."""
    exact_loss, exact = results(*near_duplicates(basis, torch.float64, 1e-4), 1, monkeypatch, general=True)
    model, batch = near_duplicates(basis, torch.float32, 1e-4)
    loss, found = results(model, batch, pieces, monkeypatch, general=False)
    _, general = results(model, batch, 1, monkeypatch, general=True)
    assert_close(loss, exact_loss, rtol=1e-4, atol=1e-4)
    for name, (error, usual) in distances(exact, found, general).items():
        assert error < max(5 * usual, 1e-3), f"{name}: {error} against {usual}"


def distances(
    exact: dict[str, Tensor | None], *found: dict[str, Tensor | None]
) -> dict[str, tuple[float, ...]]:
    """Relative errors of gradients; one that is zero in theory is measured by the largest of the others."""
    known = {name: g.double() for name, g in exact.items() if g is not None}
    largest = max(float(g.norm()) for g in known.values())

    def error(a: Tensor | None, b: Tensor) -> float:
        return 0.0 if a is None else float((a.double() - b).norm()) / max(float(b.norm()), 1e-3 * largest)

    return {name: tuple(error(f[name], g) for f in found) for name, g in known.items()}
