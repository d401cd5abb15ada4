"""Direct steps give the loss and every gradient of the general path (float64), and keep nothing of a step."""

from __future__ import annotations

import pytest
import torch

from duogp.bases import Conditional, Coupled, TwoBlock
from duogp.fused import direct as direct_steps
from duogp.fused import direct_products, table
from duogp.fused.direct import DirectStep
from duogp.kernels import RBF, Linear, Matern12, Matern52, Scale
from duogp.likelihoods import BernoulliLikelihood, GaussianLikelihood
from duogp.means import ConstantMean, LinearMean
from duogp.models.model import Batch, Model
from duogp.numerics import onednn
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import LogNormalPrior, batched
from duogp.objectives import OBJECTIVES
from duogp.variational import CholeskyQ, DiagonalQ

DIMS, POINTS = 3, 7
KERNELS = {
    "rbf": lambda: RBF(DIMS),
    "scaled": lambda: Scale(Matern52(DIMS), 1.7),
    "one lengthscale": lambda: Scale(RBF(DIMS, ard=False), 0.6),
    "rough": lambda: Matern12(DIMS),
    "prior": lambda: Scale(RBF(DIMS, prior=LogNormalPrior(0.3, 0.5)), 1.2),
}


def normal(seed: int):
    g = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)


def coupled(kernel: str, draw, points: int = POINTS, q=CholeskyQ):
    made = batched(KERNELS[kernel](), (1, 1))
    return Coupled(made, draw(1, 1, points, DIMS), q(points, (1, 1)))


def conditional(kernel: str, draw, points: int = POINTS):
    made, own = batched(KERNELS[kernel](), (1, 1)), batched(Scale(Matern52(DIMS)), (1, 1))
    q = CholeskyQ(points, (1, 1))
    return Conditional(made, own, draw(1, 1, points, DIMS), q, omega="rows", mean_jitter=1e-2)


def orthogonal(kernel: str, draw, points: int = POINTS):
    made, others = batched(KERNELS[kernel](), (1, 1)), points // 2 + 1
    q = CholeskyQ(points, (1, 1), mean_size=points + others)
    return TwoBlock(made, draw(1, 1, points, DIMS), draw(1, 1, others, DIMS), q, mean_only=True)


@pytest.fixture(params=[1, 2, 4], autouse=True)
def slices(request, monkeypatch) -> None:
    """As many threads as share the columns of a batch: small batches would have one."""
    given = request.param
    monkeypatch.setattr(direct_steps, "slices_of", lambda n, dtype: given if n % given == 0 else 1)


BUILDERS = {"coupled": coupled, "conditional": conditional, "orthogonal": orthogonal}


def case(
    name="coupled",
    kernel="scaled",
    objective="elbo",
    rows=40,
    likelihood="gaussian",
    points=POINTS,
    mean="linear",
    beta2=0.3,
):
    """A model with random parameters, and a batch."""
    draw = normal(0)
    noise = {"gaussian": GaussianLikelihood, "bernoulli": BernoulliLikelihood}[likelihood]()
    model = Model(
        mean=batched(ConstantMean(0.4) if mean == "constant" else LinearMean(DIMS), (1, 1)),
        basis=BUILDERS[name](kernel, draw, points),
        likelihood=batched(noise, (1,)),
        objective=OBJECTIVES[objective],
        numerics=Numerics(1, 1e-3),
        num_data=100,
        beta1=0.7,
        beta2=beta2 if name == "conditional" else 0.0,
    ).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * draw(*p.shape))
    y = draw(1, 1, rows)
    batch = Batch(draw(1, rows, DIMS), y if likelihood == "gaussian" else y.sign())
    return model, batch


def outcome(model: Model, batch: Batch, direct: DirectStep | None):
    model.zero_grad()
    loss = model.backward(batch, direct)
    return loss, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def by_definition(model: Model, batch: Batch):
    """The loss by `Basis.evaluate` and autograd: no fused step either."""
    model.zero_grad()
    factors = model.factors()
    data, regulariser = model.terms(batch, factors)
    loss = (regulariser - model.prior()) / model.num_data - data.sum(-1) / batch.x.shape[-2]
    loss.sum().backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same(model: Model, batch: Batch, tolerance: float = 1e-8) -> None:
    direct = model.direct(batch)
    assert direct is not None, "there is no direct step for this case"
    expected, others = by_definition(model, batch)
    others = {name: g.clone() for name, g in others.items()}
    for _ in range(2):  # the second step finds the memory of the first
        loss, gradients = outcome(model, batch, direct)
        torch.testing.assert_close(loss, expected, rtol=tolerance, atol=tolerance)
        assert gradients.keys() == others.keys()
        for name, g in others.items():
            torch.testing.assert_close(
                gradients[name], g, rtol=tolerance, atol=tolerance * max(1.0, float(g.abs().max())), msg=name
            )


@pytest.mark.parametrize("mean", ["constant", "linear"])
@pytest.mark.parametrize("rows", [6, 40])  # fewer and more rows than 1.5 for each inducing point
@pytest.mark.parametrize("objective", ["elbo", "vfitc", "predictive"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", BUILDERS)
def test_a_direct_step_is_the_general_one(
    name: str, kernel: str, objective: str, rows: int, mean: str
) -> None:
    assert_same(*case(name, kernel, objective, rows, mean=mean))


@pytest.mark.parametrize("rows", [50, 700])
@pytest.mark.parametrize("name", BUILDERS)
def test_triangles_in_several_blocks(name: str, rows: int) -> None:
    assert_same(*case(name, rows=rows, points=263))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", BUILDERS)
def test_square_solves_of_several_threads(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_products, "SQUARE_SOLVES", 2)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_same(*case(name))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", BUILDERS)
def test_gradients_of_two_steps_are_summed(name: str) -> None:
    """The first ones may lie in memory that the second step writes to."""
    model, batch = case(name)
    direct = model.direct(batch)
    _, once = outcome(model, batch, direct)
    model.backward(batch, direct)
    for n, p in model.named_parameters():
        if n in once:
            assert p.grad is not None
            torch.testing.assert_close(p.grad, 2.0 * once[n], rtol=1e-12, atol=1e-12, msg=n)


@pytest.mark.skipif(not onednn.is_there(), reason="torch has no oneDNN here")
@pytest.mark.parametrize("rows", [50, 700])
@pytest.mark.parametrize("name", BUILDERS)
def test_products_by_onednn(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In single precision: the same loss and gradients as by torch's own products, to rounding."""
    model, batch = case(name, rows=rows, points=263)
    model, batch = model.float(), Batch(batch.x.float(), batch.y.float())
    expected, others = outcome(model, batch, model.direct(batch))
    monkeypatch.setattr(onednn, "is_quicker", lambda: True)
    monkeypatch.setattr(onednn, "LEAST_WORK", 1)
    loss, gradients = outcome(model, batch, model.direct(batch))
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    for n, g in others.items():
        torch.testing.assert_close(gradients[n], g, rtol=0, atol=1e-3 * float(g.abs().max()), msg=n)


@pytest.mark.parametrize("name", BUILDERS)
def test_another_likelihood(name: str) -> None:
    assert_same(*case(name, likelihood="bernoulli"))


@pytest.mark.parametrize("name", BUILDERS)
def test_noise_and_weights_of_rows(name: str) -> None:
    model, batch = case(name)
    draw = normal(5)
    assert_same(model, batch._replace(noise=draw(1, 1, 40).square(), weight=draw(1, 40).square()))


@pytest.mark.parametrize("name", BUILDERS)
def test_only_what_is_learned_gets_a_gradient(name: str) -> None:
    model, batch = case(name)
    model.basis.inducing.requires_grad_(False)
    model.basis.kernel.variance.raw.requires_grad_(False)
    assert_same(model, batch)


@pytest.mark.parametrize("name", BUILDERS)
def test_gradients_are_added_and_belong_to_one_step(name: str) -> None:
    model, batch = case(name)
    direct = model.direct(batch)
    _, first = outcome(model, batch, direct)
    kept = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.backward(batch, direct)
    for n, p in model.named_parameters():
        torch.testing.assert_close(p.grad, 2 * first[n])
        if kept[n] is not p.grad:  # what a caller holds is not written over
            torch.testing.assert_close(kept[n], first[n])


@pytest.mark.parametrize("name", BUILDERS)
def test_a_failed_factorisation_is_noted(name: str) -> None:
    model, batch = case(name)
    direct = model.direct(batch)
    model.numerics.jitter.fill_(-2.0)
    model.backward(batch, direct)
    assert bool(model.numerics.failed.all())


def test_what_has_no_direct_step() -> None:
    model, batch = case()
    x = batch.x.unsqueeze(-3)
    assert table.find_direct(model.basis, x, reads="sum") is not None
    assert table.find_direct(model.basis, x.requires_grad_(), reads="sum") is None
    assert table.find_direct(model.basis, x.detach().expand(2, -1, -1, -1), reads="sum") is None
    draw = normal(1)
    other = coupled("scaled", draw, q=DiagonalQ).double()
    assert table.find_direct(other, x.detach(), reads="sum") is None
    other = Coupled(batched(Linear(DIMS), (1, 1)), draw(1, 1, 4, DIMS), CholeskyQ(4, (1, 1))).double()
    assert table.find_direct(other, x.detach(), reads="sum") is None
    model.basis.__class__ = type("Mine", (Coupled,), {})
    assert table.find_direct(model.basis, x.detach(), reads="sum") is None


def test_every_entry_is_tested() -> None:
    assert {type(case(name)[0].basis) for name in BUILDERS} == set(table.DIRECT)


def test_a_model_of_another_class_has_its_own_formulas() -> None:
    model, batch = case()
    model.__class__ = type("Mine", (Model,), {})
    assert model.direct(batch) is None


@pytest.mark.parametrize("rows", [6, 40])
def test_decoupled_conditionals_without_omega(rows: int) -> None:
    assert_same(*case("conditional", rows=rows, beta2=0.0))
