"""Deep GPs: what they are with one layer, what sampling does, and that they fit what one layer cannot."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from test_conformance import assert_gradient_is_that_of_differences
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from duogp.bases import Basis, Conditional, Coupled, LayerComponents, TwoBlock
from duogp.data.scaling import Scaler
from duogp.fitting.deep import KINDS, Architecture, build_deep_model
from duogp.inference.natural import NaturalGradient
from duogp.kernels import RBF, Kernel, Scale
from duogp.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood, make_named
from duogp.means.skip import SkipMean
from duogp.methods import METHODS
from duogp.methods.settings import Settings
from duogp.models.deep import DeepModel
from duogp.models.layers import Penalised
from duogp.models.mixing import LinearMixing
from duogp.models.model import Batch, Model, take_replicate
from duogp.models.sample_mixture import log_mean_exp
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import batched
from duogp.objectives import GammaRobust, Objective, elbo, predictive, vfitc
from duogp.posterior.deep import DeepGP
from duogp.posterior.gp import GP
from duogp.posterior.prediction import ClassPrediction
from duogp.training import History, Minibatches, Plan, Stochastic, Table, train
from duogp.training.validation import mean_nll
from duogp.variational import BlockQ, CholeskyQ, DiagonalQ
from random_models import Parts, learned, random_problem

close = partial(assert_close, rtol=1e-8, atol=1e-8)
every_kind = pytest.mark.parametrize("kind", KINDS)


# -- models -------------------------------------------------------------------------------------------------


def kernel(spread: Tensor, shape: tuple[int, ...]) -> Kernel:
    out = batched(Scale(RBF(spread.shape[-1])), shape)
    out.kernel.lengthscale.set_(1.5 * spread)
    return out


def deep(
    kind: str = "dgp",
    *,
    dims: int = 2,
    replicates: int = 1,
    inducing: int = 6,
    likelihood: Likelihood | None = None,
    outputs: int = 1,
    objective: Objective = elbo,
    dtype: torch.dtype = torch.float64,
    num_data: int = 40,
    beta2: float = 0.2,
    jitter: float | None = None,
    mixing: bool = False,
    mean: str = "linear",
    seeds: list[int] | None = None,
    rough: bool = True,
    **architecture: Any,
) -> DeepModel:
    """A small deep model; `rough`: every parameter moved off its start, hidden variances included."""
    seeds = list(range(replicates)) if seeds is None else seeds
    generators = [torch.Generator().manual_seed(100 + s) for s in seeds]
    points = torch.stack(
        [3 * torch.rand(2 * inducing, dims, generator=g, dtype=dtype) - 1.5 for g in generators]
    )
    points = points.unsqueeze(1)
    likelihood = GaussianLikelihood(outputs, noise=0.2) if likelihood is None else likelihood
    seen = likelihood.num_latents(outputs)
    settings = {"samples": 3, "eval_samples": 32, "num_residual": 3, "columns": 8, **architecture}
    model = build_deep_model(
        kind,
        inducing=points[..., :inducing, :],
        extra=points[..., inducing:, :] if kind in ("dgp-solve", "ddgpc") else None,
        kernel=kernel,
        likelihood=batched(likelihood, (len(seeds),)),
        latents=2 if mixing else seen,
        objective=objective,
        numerics=Numerics(len(seeds), jitter, dtype),
        num_data=num_data,
        generators=generators,
        architecture=Architecture(**settings),
        beta2=beta2 if kind == "dgp-dc" else 0.0,
        mean=mean,
        mixing=LinearMixing(seen, 2, generators) if mixing else None,
    )
    if rough:
        roughen(model, seeds)
    return model


@torch.no_grad()
def roughen(model: DeepModel, seeds: list[int]) -> None:
    """Each replicate by its own seed, so that one of many equals one alone."""
    generators = [torch.Generator().manual_seed(500 + s) for s in seeds]

    def normal(like: Tensor) -> Tensor:
        draws = [torch.randn(like.shape[1:], generator=g, dtype=torch.float64) for g in generators]
        return torch.stack(draws).to(like.dtype)

    for name, p in learned(model):
        if name.endswith("raw_root"):
            p.copy_(0.4 * torch.eye(p.shape[-1]) + 0.1 * normal(p))
        elif name.endswith("mean") and ".q" in f".{name}":
            p.copy_(0.5 * normal(p))
        else:
            p.add_(0.1 * normal(p))


def rows(model: DeepModel, n: int = 10, outputs: int = 1, seeds: list[int] | None = None) -> Batch:
    dims = model.layers[0].basis.inducing.shape[-1]
    dtype = model.numerics.dtype
    xs, ys = [], []
    for s in range(model.replicates) if seeds is None else seeds:
        g = torch.Generator().manual_seed(900 + s)
        x = 3 * torch.rand(n, dims, generator=g, dtype=torch.float64) - 1.5
        noise = 0.3 * torch.randn(outputs, n, generator=g, dtype=torch.float64)
        target = model.likelihood.target
        y = torch.sin(2 * x[:, 0]).expand(outputs, n) + noise
        if target == "classes":
            y = (y > 0).double() * (getattr(model.likelihood, "classes", 2) - 1)
        elif target == "count":
            y = y.abs().round()
        elif target == "positive":
            y = y.abs() + 0.1
        elif target == "unit":
            y = y.sigmoid()
        xs.append(x)
        ys.append(y)
    return Batch(torch.stack(xs).to(dtype), torch.stack(ys).to(dtype))


def gp_of(model: Model, cls: type[GP] = DeepGP, classes: np.ndarray | None = None) -> GP:
    basis = model.layers[0].basis if isinstance(model, DeepModel) else model.basis
    dims = basis.inducing.shape[-1]
    outputs = 1 if classes is not None else model.likelihood_outputs
    return cls(
        model,
        method=METHODS["svgp"],
        settings=Settings(),
        columns=np.ones(dims, dtype=bool),
        x_scaler=Scaler(np.full(dims, 0.1), np.full(dims, 2.0)),
        y_scaler=Scaler.identity(1)
        if classes is not None
        else Scaler(np.full(outputs, 3.0), np.full(outputs, 2.0)),
        single_output=outputs == 1,
        history=History(solver="stochastic"),
        classes=classes,
    )


def gradients(model: Model, batch: Batch) -> dict[str, Tensor]:
    model.zero_grad()
    model.loss(batch).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


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
    return DeepModel(
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
    X, y = x[0].numpy(), batch.y[0].mT.numpy()
    for part in ("mean", "residual", "explained", "noise"):
        np.testing.assert_allclose(
            getattr(single.predict(X), part), getattr(shallow.predict(X), part), rtol=1e-8, atol=1e-8
        )
    X = batch.x[0].numpy()
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
    expected = torch.zeros(2, dtype=torch.float64)
    for layer, f in zip(model.layers, factors, strict=True):
        expected = expected + layer.basis.kl(f, layer.basis.q_of(f)).sum(-1)
    if kind == "dgp-dc":
        stages = [
            Penalised(layer, f, model.numerics, with_omega=True)
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
    found = {kind: [type(layer.basis) for layer in deep(kind, layers=3).layers] for kind in KINDS}
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


# -- replicates, precision, likelihoods ---------------------------------------------------------------------


@every_kind
def test_replicates_are_single_models(kind: str) -> None:
    both = deep(kind, replicates=2, layers=3)
    batch = rows(both)
    both.draw([torch.Generator().manual_seed(7 + s) for s in range(2)])
    loss, found = both.loss(batch), gradients(both, batch)
    for r in range(2):
        one = deep(kind, layers=3, seeds=[r])
        one.draw([torch.Generator().manual_seed(7 + r)])
        own = rows(one, seeds=[r])
        close(one.loss(own), loss[r : r + 1])
        for name, value in gradients(one, own).items():
            close(value, found[name][r : r + 1])
        taken = take_replicate(both, r)
        assert taken.replicates == 1
        close(taken.loss(own), loss[r : r + 1])
        close(taken.eval().log_predictive(own), one.eval().log_predictive(own))


@every_kind
def test_float32_is_close_to_float64(kind: str) -> None:
    models = {dtype: deep(kind, dtype=dtype, jitter=1e-4) for dtype in (torch.float32, torch.float64)}
    single, double = models.values()
    with torch.no_grad():
        for (name, p), (_, q) in zip(double.named_parameters(), single.named_parameters(), strict=True):
            assert q.dtype == torch.float32, name
            p.copy_(q)
        double.draws.training_draws.copy_(single.draws.training_draws)
    x = rows(double).x.float()
    assert_close(single.marginals(x).mean.double(), double.marginals(x.double()).mean, rtol=1e-3, atol=1e-3)
    batch = rows(single)
    loss = single.loss(batch).sum()
    loss.backward()
    assert torch.isfinite(loss) and all(torch.isfinite(p.grad).all() for _, p in learned(single))


CLASSES = {"bernoulli": 2, "logit": 2, "robust-max": 3, "softmax": 3}
LIKELIHOODS = [*CLASSES, "gaussian", "poisson", "student-t", "heteroscedastic"]


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood_trains_and_predicts(name: str) -> None:
    classes = CLASSES.get(name)
    likelihood = make_named(name, outputs=1, classes=classes, noise=0.2, noise_floor=1e-6, learn_noise=True)
    for objective in (elbo, predictive):
        model = deep(likelihood=likelihood, objective=objective, replicates=2)
        batch = rows(model)
        model.draw([torch.Generator().manual_seed(s) for s in range(2)])
        loss = model.loss(batch)
        loss.sum().backward()
        assert loss.shape == (2,) and torch.isfinite(loss).all()
        assert all(torch.isfinite(p.grad).all() for _, p in learned(model) if p.grad is not None)
    gp = gp_of(take_replicate(model, 0), classes=None if classes is None else np.arange(classes))
    X = 2 * batch.x[0].numpy() + 0.1
    prediction = gp.predict(X)
    if classes is not None:
        assert isinstance(prediction, ClassPrediction)
        np.testing.assert_allclose(prediction.probabilities.sum(-1), 1)
        expected = np.log(prediction.probabilities[np.arange(10), batch.y[0, 0].int().numpy()])
        np.testing.assert_allclose(gp.log_density(X, batch.y[0, 0].int().numpy()), expected, rtol=1e-5)
        assert prediction.latent_mean.shape == prediction.explained.shape
        assert set(gp.sample(X, 3, seed=0, observation_noise=True).ravel()) <= set(range(classes))
    else:
        assert (prediction.explained > 0).all() and (prediction.noise > 0).all()
        assert gp.sample(X, 3, seed=0, observation_noise=True).shape == (3, 10)


def test_several_outputs_and_mixing() -> None:
    model = deep(outputs=3, mixing=True, likelihood=GaussianLikelihood(3, noise=0.2))
    batch = rows(model, outputs=3)
    assert_gradient_is_that_of_differences(model, batch)
    gp = gp_of(model)
    X = batch.x[0].numpy()
    assert gp.predict(X).mean.shape == (10, 3)
    assert gp.sample(X, 2, seed=0).shape == gp.sample(X, 2, seed=0, kind="pathwise").shape == (2, 10, 3)


# -- fitted models ------------------------------------------------------------------------------------------


@every_kind
def test_predictions_are_mixtures_deterministic_and_row_by_row(kind: str) -> None:
    model = deep(kind, layers=3)
    batch = rows(model, n=20)
    gp = gp_of(model)
    X, y = 2 * batch.x[0].numpy() + 0.1, 2 * batch.y[0, 0].numpy() + 3  # in the user's units
    prediction = gp.predict(X)
    f = model.sample_marginals(batch.x)  # live, in the mode of evaluation
    assert f.mean.shape[0] == 32
    np.testing.assert_allclose(prediction.mean, 3 + 2 * f.mean.mean(0)[0, 0].detach(), rtol=1e-6)
    total = f.variance.mean(0) + f.mean.var(0, correction=0)
    np.testing.assert_allclose(prediction.function_variance, 4 * total[0, 0].detach(), rtol=1e-6)
    density = model.log_predictive(batch)[0].detach().numpy() - math.log(2)
    np.testing.assert_allclose(gp.log_density(X, y), density, rtol=1e-6, atol=1e-8)

    again = gp_of(model).predict(X[5:9])
    np.testing.assert_allclose(again.mean, prediction.mean[5:9], rtol=1e-10)
    np.testing.assert_allclose(again.variance, prediction.variance[5:9], rtol=1e-8)
    for twin in (copy.deepcopy(gp), pickle.loads(pickle.dumps(gp))):
        np.testing.assert_array_equal(twin.predict(X).mean, prediction.mean)
    with pytest.raises(ValueError, match="no single linear form"):
        _ = gp.posterior
    assert len(gp.layer_posteriors) == len(gp.hyperparameters()["layers"]) == 3
    assert gp.inducing_points.shape == (6, 2)
    assert "inducing=6" in repr(gp)


def test_large_requests_are_answered_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model = deep()
    batch = rows(model, n=50)
    X, y = batch.x[0].numpy(), batch.y[0, 0].numpy()
    gp = gp_of(model)
    whole, density = gp.predict(X), gp.log_density(X, y)
    with torch.no_grad():
        nll = mean_nll(model, batch)
        own = model.log_predictive(batch)
        monkeypatch.setattr("duogp.models.deep.SLAB", 1)
        assert model.rows_at_once() == 16
        close(model.log_predictive(batch), own)
        close(mean_nll(model, batch), nll)
    np.testing.assert_allclose(gp.predict(X).variance, whole.variance, rtol=1e-10)
    np.testing.assert_allclose(gp.log_density(X, y), density, rtol=1e-10)
    assert [v.mean.shape for v in gp.layer_variances(X)] == [(50, 2), (50, 1)]


def test_layer_variances_add_up() -> None:
    model = deep("ddgpc", layers=3)
    gp = gp_of(model)
    X = 2 * rows(model).x[0].numpy() + 0.1
    first, second, last = gp.layer_variances(X)
    prediction = gp.predict(X)
    np.testing.assert_allclose(last.mean[:, 0], prediction.mean, rtol=1e-9)
    np.testing.assert_allclose(last.residual[:, 0], prediction.residual, rtol=1e-9)
    np.testing.assert_allclose((last.explained + last.between)[:, 0], prediction.explained, rtol=1e-9)
    assert first.mean.shape == second.mean.shape == (10, 2)
    assert (first.between == 0).all() and (second.between > 0).all()
    far = gp.layer_variances(X + 100)[0]
    prior = model.hidden[0].basis.kernel.variance().item()
    np.testing.assert_allclose(far.residual, prior, rtol=1e-6)
    np.testing.assert_allclose(far.explained, 0, atol=1e-6)


@pytest.mark.parametrize("kind", ["joint", "pathwise"])
def test_samples_have_the_moments_of_predictions(kind: str) -> None:
    model = deep(layers=2, eval_samples=1024)
    gp = gp_of(model)
    X = 2 * rows(model, n=4).x[0].numpy() + 0.1
    prediction = gp.predict(X)
    draws = gp.sample(X, 600, seed=1, kind=kind)
    assert draws.shape == (600, 4)
    error = np.sqrt(prediction.function_variance / 600)
    bias = 0.0 if kind == "joint" else 0.15  # random features
    assert (abs(draws.mean(0) - prediction.mean) < 4.5 * error + bias).all()
    np.testing.assert_allclose(draws.var(0), prediction.function_variance, rtol=0.35)
    np.testing.assert_array_equal(draws, gp.sample(X, 600, seed=1, kind=kind))


def test_sample_paths_are_functions() -> None:
    gp = gp_of(deep(layers=3))
    X = rows(gp.model, n=12).x[0].numpy()
    paths = gp.sample_paths(5, seed=0, num_features=64)
    whole = paths(X)
    assert whole.shape == (5, 12)
    np.testing.assert_allclose(paths(X[3:5]), whole[:, 3:5], rtol=1e-8)
    with pytest.raises(ValueError, match="kind must be"):
        gp.sample(X, kind="exact")


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


@pytest.mark.parametrize("q", ["diagonal", "ridge"])
@every_kind
def test_other_covariances_of_q(kind: str, q: str) -> None:
    if q == "ridge" and kind in ("dgp-solve", "dgp-dc"):
        with pytest.raises(ValueError, match=f"a ridge q.u. is for 'dgp' and 'ddgpc', not for {kind!r}"):
            deep(kind, q=q)
        return
    model = deep(kind, q=q, rough=False)
    batch = rows(model)
    model.loss(batch).sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
    blocks = [block for block, _ in model.basis.q.parts()]
    if q == "ridge":
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
    assert deep("ddgpc", num_residual=50).basis.residual_inducing.shape[-2] == 6  # at most |α|


def test_ddgpc_is_a_bound_with_epsilon_above_zero() -> None:
    surrogate, bound = deep("ddgpc"), deep("ddgpc", epsilon=0.1)
    batch = rows(bound)
    cost = bound.terms(batch)[1] - surrogate.terms(batch)[1]
    latents, size = 2, 6
    close(cost, torch.full((1,), latents * size / 2 * (0.1 - 1 - math.log(0.1)), dtype=torch.float64))


def test_inducing_points_may_be_kept() -> None:
    g = [torch.Generator().manual_seed(0)]
    model = build_deep_model(
        "ddgpc",
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
    with pytest.raises(ValueError, match="unknown deep GP 'dpg'; did you mean 'dgp'"):
        deep("dpg")
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
    with pytest.raises(ValueError, match="'ddgpc' needs extra"):
        build("ddgpc", inducing=points)
    with pytest.raises(ValueError, match="'dgp' has no use for extra"):
        build("dgp", inducing=points, extra=points)
    with pytest.raises(ValueError, match="inducing has 2 columns, inputs have 3"):
        build("dgp", inducing=points, inputs=torch.zeros(1, 5, 3))
    with pytest.raises(ValueError, match="no linear form"):
        deep().linear_form()


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
    problem = Stochastic(model, table, Minibatches(order, 60, shufflers))
    plan = Plan(epochs=1, steps=steps, learning_rate=0.02, natural_rate=natural, backend="eager")
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
