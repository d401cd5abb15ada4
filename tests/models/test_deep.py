"""Deep GPs as models: what they are with one layer and with two, and what sampling does."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from duogp.bases import Basis, Conditional, Coupled, LayerComponents, TwoBlock
from duogp.models.deep import DeepModel
from duogp.models.layers import PenalisedLayer
from duogp.models.model import Batch, Model
from duogp.models.sample_mixture import log_mean_exp
from duogp.objectives import GammaRobust, Objective, elbo, predictive, vfitc
from duogp.posterior.gp import GP
from duogp.variational import BlockQ
from helpers.conformance import assert_gradient_is_that_of_differences
from helpers.deep_models import RECIPES, close, deep, every_kind, gp_of, gradients, rows
from helpers.devices import placed
from helpers.random_models import Parts, random_problem

pytestmark = pytest.mark.usefixtures("device")

# -- one layer ----------------------------------------------------------------------------------------------


def _solve(p: Parts) -> Basis:
    return TwoBlock(p.kernel(), p.z, p.extra, BlockQ(p.q(), p.q(p.extra.shape[-2])))


SHALLOW: dict[str, Callable[[Parts], Basis]] = {
    "coupled": lambda p: Coupled(p.kernel(), p.z, p.q()),
    "solve": _solve,
    "conditional": lambda p: Conditional(p.kernel(), p.kernel(), p.z, p.q()),
}


def as_deep(model: Model, **settings: Any) -> DeepModel:
    own = copy.deepcopy(model)
    twin = DeepModel(
        [],
        mean=own.mean,
        basis=own.basis,
        likelihood=own.likelihood,
        objective=own.objective,
        numerics=own.numerics,
        num_data=int(own.num_data[0]),
        beta1=own.beta1,
        beta2=own.beta2,
        **settings,
    )
    return placed(twin)


@pytest.mark.parametrize("objective", ["elbo", "vfitc", "predictive", "gamma-robust"])
@pytest.mark.parametrize("name", SHALLOW)
def test_one_layer_is_the_shallow_model(name: str, objective: str) -> None:
    """Loss, gradients, marginals, densities, with row noise and weights."""
    model, batch, x = random_problem(
        SHALLOW[name], objective=objective, replicates=2, latents=2, row_noise=True, weights=True, jitter=1e-3
    )
    twin = as_deep(model)
    assert twin.uses_omega == model.uses_omega == (name == "conditional")
    close(twin.loss(batch), model.loss(batch))
    found, expected = gradients(twin, batch), gradients(model, batch)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        close(found[key], value)
    for f, g in zip(twin.marginals(x), model.marginals(x), strict=True):
        close(f, g)
    f = model.marginals(batch.x)
    density = model.likelihood.bind(batch.noise).log_predictive(batch.y, f.mean, f.variance)
    close(twin.log_predictive(batch), density)


@pytest.mark.parametrize("name", SHALLOW)
def test_one_layer_predicts_as_the_shallow_model(name: str) -> None:
    model, batch, x = random_problem(SHALLOW[name], latents=2, jitter=1e-3)
    shallow, single = gp_of(model, GP), gp_of(as_deep(model))
    X, y = x[0].numpy(force=True), batch.y[0].mT.numpy(force=True)
    for part in ("mean", "residual", "explained", "noise"):
        np.testing.assert_allclose(
            getattr(single.predict(X), part), getattr(shallow.predict(X), part), rtol=1e-8, atol=1e-8
        )
    X = batch.x[0].numpy(force=True)
    np.testing.assert_allclose(single.log_density(X, y), shallow.log_density(X, y), rtol=1e-8)
    np.testing.assert_allclose(single.inducing_points, shallow.inducing_points)
    learned_values = single.hyperparameters()
    assert len(learned_values.pop("layers")) == 1
    assert learned_values == shallow.hyperparameters()
    assert single.num_variational_parameters() == shallow.num_variational_parameters()
    assert single.posterior.mean_weights.shape == shallow.posterior.mean_weights.shape


# -- two layers ---------------------------------------------------------------------------------------------


@every_kind
def test_a_hidden_layer_that_does_nothing_is_not_there(kind: str) -> None:
    """No variance around the identity: the last layer sees the inputs, whatever is drawn."""
    model = deep(kind, width=2)
    hidden = model.hidden[0]
    with torch.no_grad():
        for name in ("kernel", "mean_kernel"):
            if hasattr(hidden.basis, name):
                getattr(hidden.basis, name).variance.set_(1e-22)
        for q, _ in hidden.basis.q.parts():
            q.mean.zero_()
    batch = rows(model)
    shallow = Model(
        model.mean, model.basis, model.likelihood, elbo, model.numerics, 40, model.beta1, model.beta2
    )
    for f, g in zip(model.sample_marginals(batch.x), shallow.marginals(batch.x), strict=True):
        assert_close(f, g.expand_as(f), rtol=1e-8, atol=1e-8)
    for f, g in zip(model.marginals(batch.x), shallow.marginals(batch.x), strict=True):
        assert_close(f, g.expand_as(f), rtol=1e-8, atol=1e-8)
    assert_close(model.terms(batch)[0], shallow.terms(batch)[0], rtol=1e-8, atol=1e-8)


@every_kind
def test_penalties_are_summed_over_layers(kind: str) -> None:
    """β₁ KL of every layer, and β₂Ω of the rows that each layer sees, averaged over samples."""
    model = deep(kind, layers=3, replicates=2)
    batch = rows(model)
    factors = model.factors()
    expected = placed(torch.zeros(2, dtype=torch.float64))
    for layer, f in zip(model.layers, factors, strict=True):
        expected = expected + layer.basis.kl(f, layer.basis.q_of(f)).sum(-1)
    if kind == "dgp-dc":
        stages = [
            PenalisedLayer(layer, f, model.numerics, with_omega=True)
            for layer, f in zip(model.layers, factors, strict=True)
        ]
        inputs = [batch.x[None]]
        for i, f in enumerate(list(model.propagate(batch.x, stages))[:-1]):
            inputs.append((f.mean + f.variance.sqrt() * model.draws(i, 10)).mT)
        for layer, f, h in zip(model.layers, factors, inputs, strict=True):
            omegas = [
                layer.basis.evaluate(x.unsqueeze(1), f, model.numerics, with_omega=True)[1].omega for x in h
            ]
            scale = layer.basis.omega_scale(10, model.num_data)
            expected = expected + 0.2 * scale * torch.stack(omegas).mean(0)
    close(model.terms(batch)[1], expected)


@every_kind
def test_a_step_may_do_without_factors(kind: str) -> None:
    """Bases that need none have a shorter way, with the same values and gradients."""
    model = deep(kind, layers=3, replicates=2)
    batch = rows(model)
    found = []
    for factors in (None, model.factors()):
        data, regulariser = model.terms(batch, factors)
        loss = data.sum() - regulariser.sum()
        learned = [p for p in model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, learned, allow_unused=True)
        found.append([data, regulariser, *(g for g in gradients if g is not None)])
    for short, long in zip(*found, strict=True):
        assert_close(short, long, rtol=1e-6, atol=1e-8)


def test_layers_of_every_kind_are_what_they_are_called() -> None:
    found = {kind: [type(layer.basis) for layer in deep(kind, layers=3).layers] for kind in RECIPES}
    assert found == {
        "dgp": 3 * [Coupled],
        "dgp-solve": 3 * [TwoBlock],
        "dgp-dc": 3 * [Conditional],
        "ddgpc": [TwoBlock, LayerComponents, LayerComponents],
    }


# -- sampling -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 4])
def test_the_sampled_elbo_is_unbiased(samples: int) -> None:
    """Against many samples, within three standard errors; antithetic pairs included."""
    model = deep(layers=3, samples=samples)
    reference = deep(layers=3, samples=20_000)
    batch = rows(model, n=6)
    with torch.no_grad():
        expected = float(reference.loss(batch))
        generator = [torch.Generator().manual_seed(5)]
        values = []
        for _ in range(300 // samples):
            model.draw(generator)
            values.append(float(model.loss(batch)))
    error = np.std(values) / math.sqrt(len(values))
    assert abs(np.mean(values) - expected) < 3 * error + 3 * error * math.sqrt(300 / 20_000)
    assert error > 1e-4


def test_the_fixed_set_is_near_the_limit() -> None:
    reference = deep(layers=3, samples=20_000)
    model = deep(layers=3, eval_samples=256).eval()
    batch = rows(model, n=6)
    with torch.no_grad():
        f, g = model.marginals(batch.x), reference.marginals(batch.x)
    assert_close(f.mean, g.mean, rtol=0, atol=0.02)
    assert_close(f.variance, g.variance, rtol=0.05, atol=0.02)


@every_kind
def test_the_log_moves_inside_as_objectives_say(kind: str) -> None:
    """predictive ≥ VFITC ≥ ELBO at equal draws, row by row."""
    values = {}
    for objective in (elbo, vfitc, predictive):
        model = deep(kind, objective=objective, samples=5)
        values[objective] = model.terms(rows(model))[0]
    assert (values[predictive] >= values[vfitc] - 1e-10).all()
    assert (values[vfitc] >= values[elbo] - 1e-10).all()
    assert (values[predictive] > values[elbo] + 1e-4).any()


def test_the_predictive_objective_is_a_log_mean_exp_over_samples() -> None:
    model = deep(objective=predictive, samples=4)
    batch = rows(model)
    f = model.sample_marginals(batch.x)
    assert f.mean.shape == (4, 1, 1, 10)
    each = model.likelihood.bind().log_predictive(batch.y, f.mean, f.variance)
    expected = each.exp().mean(0).log()
    close(model.terms(batch)[0], expected)
    close(model.log_predictive(batch), expected)
    close(log_mean_exp(each), expected)
    robust = deep(objective=GammaRobust(1.05), samples=4)
    assert_close(robust.terms(batch)[0], GammaRobust(1.05)(model.likelihood.bind(), f, batch.y).mean(0))


def test_draws_belong_to_replicates_rows_and_layers() -> None:
    model = deep(layers=3, replicates=2, samples=2, columns=4)
    draws = model.draws
    first, second = draws(0, 10), draws(1, 10)
    assert first.shape == (2, 2, 2, 10)
    close(first[0], -first[1])  # a pair
    close(first[..., :4], first[..., 4:8])  # further rows repeat
    for other in (second, first.roll(1, -1), first.flip(1)):
        assert (first != other).any()
    before = draws.training_draws.data_ptr()
    model.draw([torch.Generator().manual_seed(s) for s in (1, 2)])
    assert draws.training_draws.data_ptr() == before  # in place: a captured step sees the new numbers
    assert (draws(0, 10) != first).all()
    assert model.samples == 2 and model.eval().samples == 32
    close(draws(0, 10), draws(0, 3))
    assert not model.state_dict().keys() & {"draws.training_draws", "draws.fixed_draws"}


@every_kind
def test_gradient_is_that_of_differences_at_given_draws(kind: str) -> None:
    model = deep(kind, layers=2, inducing=4, samples=2, jitter=1e-4)
    batch = rows(model, n=5)
    assert_gradient_is_that_of_differences(model, batch)


@every_kind
def test_a_step_asks_the_host_for_nothing(kind: str) -> None:
    """Fake tensors have shapes but no values: whatever wants a value fails here, as a captured step would."""
    model = deep(kind, replicates=2, samples=2)
    x, y, *_ = rows(model)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        loss = model.loss(Batch(fake.from_tensor(x), fake.from_tensor(y)))
        loss.sum().backward()
    assert loss.shape == (2,)


@pytest.mark.parametrize("objective", [vfitc, predictive])
def test_gradient_of_other_objectives(objective: Objective) -> None:
    model = deep(layers=3, inducing=4, samples=2, objective=objective, jitter=1e-4)
    assert_gradient_is_that_of_differences(model, rows(model, n=4))
