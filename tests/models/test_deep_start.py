"""Deep GPs: where their layers start, what cannot be built, and that they fit what one layer cannot."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from duogp.bases import LayerComponents
from duogp.fitting.deep import build_deep_model
from duogp.inference.natural import NaturalGradient
from duogp.likelihoods import BernoulliLikelihood, GaussianLikelihood
from duogp.means.skip import SkipMean
from duogp.methods import METHODS
from duogp.models.deep import DeepModel
from duogp.models.model import Batch
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import batched
from duogp.objectives import Objective, elbo, predictive
from duogp.training import Minibatches, Stochastic, Table, TableFeed, TrainingPlan, train
from duogp.variational import CholeskyQ, DiagonalQ, Q, RidgeQ
from helpers.deep_models import close, deep, every_kind, kernel, rows
from helpers.random_models import learned

# -- the start ----------------------------------------------------------------------------------------------


def test_skip_means_are_identity_padding_or_principal_directions() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 50, 4, generator=g, dtype=torch.float64) * torch.tensor([1.0, 9.0, 0.1, 4.0])
    rows = x.unsqueeze(1)
    close(SkipMean.between(x, 4)(rows), x.mT)
    wide = SkipMean.between(x, 6)(rows)
    close(wide[:, :4], x.mT)
    assert (wide[:, 4:] == 0).all()
    narrow = SkipMean.between(x, 2)
    W = narrow.weight
    close(W.mT @ W, torch.eye(2, dtype=torch.float64).expand(2, 2, 2))
    assert (W[:, 1, 0] > 0.98).all() and (W[:, 3, 1] > 0.9).all()  # the columns that vary most
    close(narrow(rows), (x @ W).mT)
    close(SkipMean.between(x[1:], 2).weight, W[1:])
    assert not list(narrow.parameters())


@pytest.mark.parametrize("width", [1, 2, 5])
@every_kind
def test_hidden_layers_start_as_their_skip_means(kind: str, width: int) -> None:
    model = deep(kind, width=width, layers=3, rough=False, dims=2)
    first, second = model.hidden
    assert first.width == second.width == width
    assert first.basis.inducing.shape[-1] == 2 and second.basis.inducing.shape[-1] == width
    points = first.basis.inducing
    close(second.basis.inducing.squeeze(1), first.mean(points).mT)
    f = next(model.propagate(points.squeeze(1)))
    assert_close(f.mean[0], first.mean(points), rtol=0, atol=0.02)
    assert float(f.explained.detach().max()) < 1e-6
    uniform = deep(kind, width=width, rough=False, hidden_points="uniform").basis.inducing
    assert (uniform.abs() <= 1).all() and uniform.std() > 0.2
    assert torch.isfinite(model.loss(rows(model))).all()


@pytest.mark.parametrize("q", [DiagonalQ, RidgeQ])
@every_kind
def test_other_covariances_of_q(kind: str, q: type[Q]) -> None:
    if q is RidgeQ and kind in ("dgp-solve", "dgp-dc"):
        with pytest.raises(ValueError, match=r"cannot have a q\(u\) that depends on the points"):
            _ = replace(METHODS[kind], q="ridge").recipe
        return
    model = deep(kind, q=q, rough=False)
    batch = rows(model)
    model.loss(batch).sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
    blocks = [block for block, _ in model.basis.q.parts()]
    if q is RidgeQ:
        assert blocks[0].noise is model.likelihood.noise
        assert model.hidden[0].basis.q.parts()[0][0].noise is not model.likelihood.noise
    else:
        assert isinstance(blocks[0], DiagonalQ)


def test_residual_points_are_near_but_not_among_the_inducing_points() -> None:
    model = deep("ddgpc", layers=3, replicates=2, rough=False)
    for layer in model.layers[1:]:
        basis = layer.basis
        assert isinstance(basis, LayerComponents) and basis.residual_inducing.shape == (2, 1, 3, 2)
        nearest = torch.cdist(basis.residual_inducing, basis.inducing).amin(-1)
        assert (nearest > 1e-6).all() and (nearest < 1.5).all()
        assert (basis.kl(model.factors()[1], basis.q) < 200).all()
    assert deep("ddgpc", options={"num_residual": 50}).basis.residual_inducing.shape[-2] == 6  # at most |α|


def test_ddgpc_is_a_bound_with_epsilon_above_zero() -> None:
    surrogate, bound = deep("ddgpc"), deep("ddgpc", options={"first_epsilon": 0.1})
    batch = rows(bound)
    cost = bound.terms(batch)[1] - surrogate.terms(batch)[1]
    latents, size = 2, 6
    close(cost, torch.full((1,), latents * size / 2 * (0.1 - 1 - math.log(0.1)), dtype=torch.float64))


def test_inducing_points_may_be_kept() -> None:
    g = [torch.Generator().manual_seed(0)]
    model = build_deep_model(
        "layer-components",
        inducing=torch.randn(1, 1, 5, 2, generator=g[0], dtype=torch.float64),
        extra=torch.randn(1, 1, 5, 2, generator=g[0], dtype=torch.float64),
        kernel=kernel,
        likelihood=batched(BernoulliLikelihood(), (1,)),
        latents=1,
        objective=elbo,
        numerics=Numerics(),
        num_data=10,
        generators=g,
        learn_inducing=False,
    )
    assert all("inducing" not in name for name, _ in learned(model))
    assert sum("inducing" in name for name, _ in model.named_parameters()) == 4


def test_what_cannot_be_built_is_said() -> None:
    with pytest.raises(ValueError, match="layers must be at least 1"):
        deep(layers=0)
    with pytest.raises(ValueError, match="hidden_points must be one of 'propagated', 'uniform', got 'here'"):
        deep(hidden_points="here")
    with pytest.raises(ValueError, match="eval_samples must be even"):
        deep(eval_samples=3)
    with pytest.raises(ValueError, match="samples must be at least 1"):
        deep(samples=-1)
    points = torch.zeros(1, 1, 4, 2)
    build = partial(
        build_deep_model,
        kernel=kernel,
        likelihood=GaussianLikelihood(),
        latents=1,
        objective=elbo,
        numerics=Numerics(),
        num_data=10,
        generators=[torch.Generator()],
    )
    with pytest.raises(ValueError, match="'layer-components' needs extra"):
        build("layer-components", inducing=points)
    with pytest.raises(ValueError, match="'coupled' has no use for extra"):
        build("coupled", inducing=points, extra=points)
    with pytest.raises(ValueError, match="inducing has 2 columns, inputs have 3"):
        build("coupled", inducing=points, inputs=torch.zeros(1, 5, 3))
    with pytest.raises(ValueError, match="no linear form"):
        deep().frozen()


# -- training -----------------------------------------------------------------------------------------------


def step_data(n: int = 120, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A step, which no stationary kernel likes."""
    g = torch.Generator().manual_seed(seed)
    x = torch.linspace(-1.5, 1.5, n, dtype=torch.float64)[:, None]
    y = (x > 0).double() * 2 - 1 + 0.02 * torch.randn(n, 1, generator=g, dtype=torch.float64)
    return x, y


def fitted(
    kind: str, steps: int = 200, natural: float | None = None, **settings: Any
) -> tuple[DeepModel, float]:
    """Trained on the step; and the mean NLL of other draws of it."""
    dtype = settings.get("dtype", torch.float64)
    x, y = step_data()
    model = deep(kind, dims=1, inducing=12, num_data=len(x), rough=False, columns=64, samples=1, **settings)
    table = Table(x.to(dtype), y.to(dtype), dtype=dtype)
    order = torch.arange(len(x)).expand(model.replicates, -1)
    shufflers = [torch.Generator().manual_seed(r) for r in range(model.replicates)]
    problem = Stochastic(model, TableFeed(table, Minibatches(order, 60, shufflers)))
    plan = TrainingPlan(epochs=1, steps=steps, learning_rate=0.02, natural_rate=natural, backend="eager")
    train(model, problem, plan)
    x_new, y_new = step_data(seed=1)
    batch = Batch(
        x_new.expand(model.replicates, -1, -1).to(dtype), y_new.mT.expand(model.replicates, 1, -1).to(dtype)
    )
    with torch.no_grad():
        density = model.eval().log_predictive(batch)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    return model, -float(density.mean())


def test_two_layers_fit_a_step_better_than_one() -> None:
    _, one = fitted("dgp", layers=1)
    _, two = fitted("dgp", layers=2)
    assert two < one - 0.1


@pytest.mark.parametrize("kind", ["dgp-solve", "dgp-dc", "ddgpc"])
def test_every_kind_trains(kind: str) -> None:
    start = deep(kind, dims=1, inducing=12, num_data=120, rough=False)
    x, y = step_data(seed=1)
    with torch.no_grad():
        before = -float(start.eval().log_predictive(Batch(x[None], y.mT[None])).mean())
    _, after = fitted(kind, steps=70, dtype=torch.float32)
    assert math.isfinite(after) and after < before - 0.3


@pytest.mark.parametrize("objective", [elbo, predictive])
def test_natural_gradients_move_the_last_layer(objective: Objective) -> None:
    model, nll = fitted("dgp", steps=80, natural=0.1, objective=objective, replicates=2)
    assert math.isfinite(nll) and nll < 1.0
    natural = NaturalGradient(model.basis, model.num_data, 0.1)
    assert {id(p) for p in natural.parameters} == {id(p) for p in model.basis.q.parameters()}
    assert isinstance(model.hidden[0].basis.q, CholeskyQ)
