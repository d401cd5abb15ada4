"""`DuoGPModel` as BoTorch sees it: shapes, gradients, joint laws, conditioning, acquisition functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("botorch")

from botorch.acquisition import (
    LogExpectedImprovement,
    PosteriorMean,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.models import ModelList
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.testing import BotorchTestCase, get_random_data

import duogp
from duogp.bo import DuoGPModel, thompson
from duogp.bo.processes import Conditioned

QUICK = {"num_inducing": 12, "steps": 15, "warm_start": 0, "validation_fraction": 0.0}
#: One method for each kind of basis; solvers of all kinds.
METHODS = (
    "svgp", "dcsvgp", "ppgpr", "dcppgpr", "odsvgp", "solvegp", "decoupled-s", "hybrid", "decoupled", "exact",
    "ppgpr-dcdkl", "nnsvgp", "orthnat",
)  # fmt: skip


def data(n: int = 30, outputs: int = 1, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    columns = [torch.sin((4 + i) * X[:, 0]) + X[:, 1] ** 2 * (1 + i) for i in range(outputs)]
    Y = torch.stack(columns, -1)
    return X, Y + 0.05 * torch.randn(n, outputs, generator=generator, dtype=torch.float64)


def fitted(method: str = "dcsvgp", outputs: int = 1, **settings: object) -> DuoGPModel:
    quick = {k: v for k, v in QUICK.items() if not (method == "exact" and k == "num_inducing")}
    return DuoGPModel.fit(*data(outputs=outputs), method, **quick | settings)


@pytest.fixture(scope="module")
def model() -> DuoGPModel:
    return fitted()


@pytest.fixture(scope="module")
def double() -> DuoGPModel:
    return fitted("svgp", outputs=2)


# -- the posterior -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_the_posterior_is_that_of_the_gp(method):
    model = fitted(method)
    X = torch.rand(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    posterior = model.posterior(X)
    expected = model.gp.predict(X.numpy())
    np.testing.assert_allclose(posterior.mean[:, 0].numpy(), expected.mean, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(posterior.variance[:, 0].numpy(), expected.function_variance, rtol=1e-6)
    noisy = model.posterior(X, observation_noise=True)
    np.testing.assert_allclose(noisy.variance[:, 0].numpy(), expected.variance, rtol=1e-6)
    _, residual, explained = model.gp.posterior.joint(model.gp._inputs(X.numpy())[None, None])
    dense = (residual + explained)[0, 0].detach() * float(model.gp.y_scaler.scale[0]) ** 2
    joint = posterior.distribution.covariance_matrix
    torch.testing.assert_close(joint, dense.double(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("method", ["dcsvgp", "solvegp", "exact", "ppgpr-dcdkl"])
def test_gradients_agree_with_finite_differences(method):
    model = fitted(method, **({"activation": "silu"} if "dkl" in method else {}))
    X = torch.rand(2, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def mean(x: torch.Tensor) -> torch.Tensor:
        return model.posterior(x).mean

    def covariance(x: torch.Tensor) -> torch.Tensor:
        return model.posterior(x).distribution.covariance_matrix

    X.requires_grad_(True)
    assert torch.autograd.gradcheck(mean, (X,), eps=1e-6, atol=1e-5)
    assert torch.autograd.gradcheck(covariance, (X,), eps=1e-6, atol=1e-5)


@pytest.mark.parametrize("batch", [(), (1,), (4,), (2, 3)])
@pytest.mark.parametrize("outputs", [1, 2])
def test_batches_and_shapes(model, double, batch, outputs):
    of = model if outputs == 1 else double
    X = torch.rand(*batch, 5, 2, dtype=torch.float64)
    posterior = of.posterior(X)
    assert isinstance(posterior, GPyTorchPosterior)
    assert posterior.mean.shape == posterior.variance.shape == (*batch, 5, outputs)
    assert posterior.rsample(torch.Size([3])).shape == (3, *batch, 5, outputs)
    assert posterior.dtype == torch.float64
    assert of.num_outputs == outputs and of.batch_shape == torch.Size()
    if batch:
        one = of.posterior(X[(0,) * len(batch)])
        torch.testing.assert_close(posterior.mean[(0,) * len(batch)], one.mean)
        torch.testing.assert_close(posterior.variance[(0,) * len(batch)], one.variance)
    assert of.posterior(X.float()).mean.dtype == torch.float32


def test_some_outputs(double):
    X = torch.rand(3, 4, 2, dtype=torch.float64)
    both = double.posterior(X)
    for of in (double.subset_output([1]).posterior(X), double.posterior(X, output_indices=[1])):
        torch.testing.assert_close(of.mean, both.mean[..., 1:])
        torch.testing.assert_close(of.variance, both.variance[..., 1:])
    swapped = double.subset_output([1, 0])
    torch.testing.assert_close(swapped.posterior(X).mean, both.mean.flip(-1))
    torch.testing.assert_close(
        swapped.posterior(X, observation_noise=True).variance,
        double.posterior(X, observation_noise=True).variance.flip(-1),
    )
    assert double.num_outputs == 2  # is what it was


def test_outputs_of_one_gp_are_those_of_two(double):
    X = torch.rand(4, 2, dtype=torch.float64)
    joint = double.posterior(X).distribution.covariance_matrix.reshape(2, 4, 2, 4)  # not interleaved
    for i in (0, 1):
        alone = double.subset_output([i]).posterior(X).distribution.covariance_matrix
        torch.testing.assert_close(joint[i, :, i], alone)
    assert not joint[0, :, 1].any()


def test_mixed_outputs_are_correlated():
    mixed = fitted("svgp", outputs=2, num_latents=1, solver="stochastic")
    X = torch.rand(3, 4, 2, dtype=torch.float64)
    posterior = mixed.posterior(X)
    np.testing.assert_allclose(
        posterior.variance[0].numpy(), mixed.gp.predict(X[0].numpy()).function_variance, rtol=1e-6
    )
    covariance = posterior.distribution.covariance_matrix[0].reshape(4, 2, 4, 2)
    correlation = covariance[0, 0, 0, 1] ** 2 / (covariance[0, 0, 0, 0] * covariance[0, 1, 0, 1])
    assert correlation == pytest.approx(1.0)  # there is one latent function
    torch.testing.assert_close(mixed.subset_output([1]).posterior(X).mean, posterior.mean[..., 1:])
    with pytest.raises(NotImplementedError, match="refit"):
        mixed.condition_on_observations(X[0], torch.zeros(4, 2, dtype=torch.float64))


def test_observation_noise_as_numbers(model):
    X = torch.rand(3, 4, 2, dtype=torch.float64)
    noise = torch.rand(3, 4, 1, dtype=torch.float64)
    noisy, plain = model.posterior(X, observation_noise=noise), model.posterior(X)
    torch.testing.assert_close(noisy.variance, plain.variance + noise)


@pytest.mark.parametrize("likelihood", ["student-t", "heteroscedastic"])
def test_noise_of_other_likelihoods(likelihood):
    model = fitted("svgp", likelihood=likelihood, steps=20)
    X = torch.rand(2, 3, 2, dtype=torch.float64)
    noisy = model.posterior(X, observation_noise=True).variance
    expected = np.stack([model.gp.predict(x.numpy()).variance for x in X])
    np.testing.assert_allclose(noisy[..., 0].numpy(), expected, rtol=1e-6)
    with pytest.raises(NotImplementedError):
        model.condition_on_observations(X[0], torch.zeros(3, 1, dtype=torch.float64))


def test_known_noise():
    X, Y = data()
    model = DuoGPModel.fit(X, Y, "svgp", Yvar=torch.full_like(Y, 0.04), **QUICK)
    at = torch.rand(3, 2, dtype=torch.float64)
    difference = model.posterior(at, observation_noise=True).variance - model.posterior(at).variance
    torch.testing.assert_close(difference, torch.full_like(difference, 0.04))
    again = model.refit(X, Y, torch.full_like(Y, 0.04), steps=2)
    assert again.posterior(at).mean.shape == (3, 1)
    assert model.fantasize(at, SobolQMCNormalSampler(torch.Size([2]))).batch_shape == torch.Size([2])


# -- transforms ----------------------------------------------------------------------------------------------


def test_scaling_transforms_change_nothing_of_substance():
    X, Y = data()
    plain = DuoGPModel.fit(X, Y, "svgp", **QUICK)
    wrapped = DuoGPModel.fit(
        X, Y, "svgp", input_transform=Normalize(2), outcome_transform=Standardize(1), **QUICK
    )
    at = torch.rand(4, 3, 2, dtype=torch.float64)
    torch.testing.assert_close(wrapped.posterior(at).mean, plain.posterior(at).mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        wrapped.posterior(at).variance, plain.posterior(at).variance, rtol=1e-4, atol=1e-8
    )
    paths, same = wrapped.sample_paths(2, seed=3), plain.sample_paths(2, seed=3)
    torch.testing.assert_close(paths(at), same(at), rtol=1e-4, atol=1e-5)
    more = wrapped.condition_on_observations(at[0], torch.ones(3, 1, dtype=torch.float64))
    less = plain.condition_on_observations(at[0], torch.ones(3, 1, dtype=torch.float64))
    torch.testing.assert_close(more.posterior(at).mean, less.posterior(at).mean, rtol=1e-3, atol=1e-4)


def test_outcomes_on_a_logarithmic_scale():
    X, Y = data()
    model = DuoGPModel.fit(X, Y.exp(), "svgp", outcome_transform=Log(), **QUICK)
    draws = model.posterior(torch.rand(5, 2, dtype=torch.float64)).rsample(torch.Size([8]))
    assert bool((draws > 0).all())
    assert bool((model.sample_paths(3, seed=0)(X) > 0).all())


def test_a_posterior_transform(double):
    X = torch.rand(3, 4, 2, dtype=torch.float64)
    weights = torch.tensor([1.0, -2.0], dtype=torch.float64)
    scalar = double.posterior(X, posterior_transform=ScalarizedPosteriorTransform(weights))
    torch.testing.assert_close(scalar.mean[..., 0], double.posterior(X).mean @ weights)


# -- conditioning --------------------------------------------------------------------------------------------


def test_conditioning_is_that_of_the_exact_gp():
    """The exact GP with fixed hyperparameters, told some rows later, is the GP told all of them."""
    X, Y = data(40)
    model = DuoGPModel.fit(X[:30], Y[:30], "exact", steps=10)
    at = torch.rand(2, 6, 2, dtype=torch.float64)
    told = model.condition_on_observations(X[30:], Y[30:]).posterior(at)
    expected = model.refit(X, Y, steps=0).posterior(at)
    torch.testing.assert_close(told.mean, expected.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        told.distribution.covariance_matrix, expected.distribution.covariance_matrix, rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "solvegp"])
def test_conditioning_in_two_steps_is_conditioning_once(method):
    model = fitted(method)
    X, Y = data(8, seed=5)
    at = torch.rand(3, 2, dtype=torch.float64)
    once = model.condition_on_observations(X, Y).posterior(at)
    twice = model.condition_on_observations(X[:5], Y[:5]).condition_on_observations(X[5:], Y[5:])
    torch.testing.assert_close(twice.posterior(at).mean, once.mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(twice.posterior(at).variance, once.variance, rtol=1e-5, atol=1e-9)
    assert twice.train_inputs[0].shape == (38, 2) and twice.train_targets.shape == (38,)


def test_fantasies(model):
    X = torch.rand(5, 2, 2, dtype=torch.float64)  # five batches of two points
    fantasies = model.fantasize(X, SobolQMCNormalSampler(torch.Size([4]), seed=0))
    assert fantasies.batch_shape == (4, 5)
    at = torch.rand(4, 5, 3, 2, dtype=torch.float64)
    posterior = fantasies.posterior(at)
    assert posterior.mean.shape == (4, 5, 3, 1)
    # Each of them is the model told one fantasy.
    process = fantasies._process
    assert isinstance(process, Conditioned)
    y = process.target[2, 3].mT * model._scale + model._shift
    alone = model.condition_on_observations(X[3], y).posterior(at[2, 3])
    torch.testing.assert_close(posterior.mean[2, 3], alone.mean)
    torch.testing.assert_close(posterior.variance[2, 3], alone.variance)
    assert fantasies.posterior(at[0, 0]).mean.shape == (4, 5, 3, 1)
    assert bool((posterior.variance <= model.posterior(at).variance + 1e-9).all())
    assert model.batch_shape == torch.Size()


def test_conditioning_several_outputs(double):
    X, Y = data(4, outputs=2, seed=7)
    told = double.condition_on_observations(X, Y)
    assert told.posterior(X).mean.shape == (4, 2)
    first = double.subset_output([0]).condition_on_observations(X, Y[:, :1])
    torch.testing.assert_close(told.posterior(X).mean[:, :1], first.posterior(X).mean)
    with pytest.raises(ValueError, match=r"Y must be \[..., 4, 2\]"):
        double.condition_on_observations(X, Y[:, :1])


def test_gradients_flow_through_fantasies(model):
    X, Y = data(3, seed=8)
    at = torch.rand(2, 2, dtype=torch.float64)

    def told(x: torch.Tensor, y: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        posterior = model.condition_on_observations(x, y).posterior(where)
        return torch.cat([posterior.mean, posterior.variance])

    leaves = tuple(t.clone().requires_grad_(True) for t in (X, Y, at))
    assert torch.autograd.gradcheck(told, leaves, eps=1e-6, atol=1e-4)


# -- refits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "ppgpr", "solvegp", "exact", "ppgpr-dkl", "orthnat"])
def test_a_refit_goes_on_from_where_the_model_is(method):
    X, Y = data(60)
    quick = {k: v for k, v in QUICK.items() if not (method == "exact" and k == "num_inducing")}
    model = DuoGPModel.fit(X[:50], Y[:50], method, **quick | {"steps": 60})
    again = model.refit(X, Y, steps=1, learning_rate=1e-9)
    for name, value in model.gp.model.named_parameters():
        same = dict(again.gp.model.named_parameters())[name]
        if ".q." not in name and not (method == "exact" and name.endswith("inducing")):
            torch.testing.assert_close(same, value, rtol=1e-5, atol=1e-5, msg=name)
    assert int(again.gp.model.num_data) == 60
    error = (again.posterior(X).mean - Y).square().mean().sqrt()
    before = (model.posterior(X).mean - Y).square().mean().sqrt()
    assert error < before + 0.05
    assert again.refit(X, Y, steps=5).posterior(X[:3]).mean.shape == (3, 1)


@pytest.mark.parametrize("method", ["svgp", "ppgpr", "dcppgpr"])
def test_inducing_points_come_with_the_rows(method):
    X, Y = data(60)
    model = DuoGPModel.fit(X[:15], Y[:15], method, **QUICK | {"num_inducing": 40, "steps": 80})
    again = model.refit(X, Y, steps=1, learning_rate=1e-9)
    assert len(model.gp.inducing_points) == 15 and len(again.gp.inducing_points) == 40
    # What the model knew is not forgotten: q(u) is carried to the new points, or solved for.
    known = (again.posterior(X[:15]).mean - model.posterior(X[:15]).mean).abs().max()
    assert known < 0.3 * Y[:15].std()


# -- functions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dcsvgp", "exact"])
def test_paths_have_the_moments_of_the_posterior(method):
    # Few steps of Adam: where noise and variance are tiny, the prior's random features show in the draws.
    model = fitted(method, optimizer="adam")
    X = torch.rand(2, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    draws = model.sample_paths(2000, seed=0)(X)
    posterior = model.posterior(X)
    assert draws.shape == (2000, 2, 4, 1)
    std = posterior.variance.sqrt()
    assert ((draws.mean(0) - posterior.mean) / std).abs().max() < 0.15
    assert (draws.std(0) / std - 1).abs().max() < 0.15
    told = model.condition_on_observations(X[0], torch.zeros(4, 1, dtype=torch.float64))
    draws, posterior = told.sample_paths(2000, seed=0)(X[1]), told.posterior(X[1])
    std = posterior.variance.sqrt()
    assert ((draws.mean(0) - posterior.mean) / std).abs().max() < 0.15
    assert (draws.std(0) / std - 1).abs().max() < 0.15


def test_paths_are_functions(model):
    paths = model.sample_paths(3, seed=1)
    X = torch.rand(5, 2, dtype=torch.float64, requires_grad=True)
    together, apart = paths(X), torch.cat([paths(x[None]) for x in X], 1)
    assert len(paths) == 3
    torch.testing.assert_close(together, apart)
    torch.testing.assert_close(model.sample_paths(3, seed=1)(X), together)
    assert torch.autograd.gradcheck(paths, (X,), eps=1e-6, atol=1e-5)
    fantasies = model.fantasize(X.detach(), SobolQMCNormalSampler(torch.Size([4]), seed=0))
    assert fantasies.sample_paths(3, seed=1)(X).shape == (3, 4, 5, 1)
    given = model.condition_on_observations(X[:2], torch.zeros(2, 1, dtype=torch.float64))
    paths, batches = given.sample_paths(3, seed=1), torch.rand(4, 5, 2, dtype=torch.float64)
    torch.testing.assert_close(paths(batches)[:, 2], paths(batches[2]))


def test_thompson_chooses_among_many_candidates(model):
    candidates = torch.rand(5000, 2, dtype=torch.float64)
    chosen = thompson(model, candidates, 6, seed=0)
    assert chosen.shape == (6, 2) and len(chosen.unique(dim=0)) == 6
    torch.testing.assert_close(thompson(model, candidates, 6, seed=0), chosen)
    mean = model.posterior(candidates.unsqueeze(1)).mean.flatten()
    assert model.posterior(chosen).mean.min() > mean.quantile(0.5)


# -- acquisition functions -----------------------------------------------------------------------------------


def value(X: torch.Tensor) -> torch.Tensor:
    """Two hills of different height; the better one at (0.7, 0.3)."""
    high = torch.exp(-20 * (X - torch.tensor([0.7, 0.3], dtype=X.dtype)).square().sum(-1, keepdim=True))
    low = torch.exp(-20 * (X - torch.tensor([0.2, 0.8], dtype=X.dtype)).square().sum(-1, keepdim=True))
    return high + 0.6 * low


@pytest.fixture(scope="module")
def hills() -> DuoGPModel:
    X = torch.quasirandom.SobolEngine(2, scramble=True, seed=1).draw(40, dtype=torch.float64)
    return DuoGPModel.fit(X, value(X), "dcsvgp", num_inducing=30, steps=60, warm_start=30)


@pytest.mark.parametrize("name", ["LogEI", "qLogEI", "qLogNEI", "UCB", "qUCB", "KG", "mean", "Thompson"])
def test_acquisition_functions_find_the_hill(hills, name):
    torch.manual_seed(0)
    best, X = hills.train_Y.max(), hills.train_X
    acquisition, q = {
        "LogEI": lambda: (LogExpectedImprovement(hills, best), 1),
        "qLogEI": lambda: (qLogExpectedImprovement(hills, best), 2),
        "qLogNEI": lambda: (qLogNoisyExpectedImprovement(hills, X), 2),
        "UCB": lambda: (UpperConfidenceBound(hills, beta=1.0), 1),
        "qUCB": lambda: (qUpperConfidenceBound(hills, beta=1.0), 2),
        "KG": lambda: (qKnowledgeGradient(hills, num_fantasies=4), 1),
        "mean": lambda: (PosteriorMean(hills), 1),
        "Thompson": lambda: (PathwiseThompsonSampling(hills), 2),
    }[name]()
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    if name in ("LogEI", "UCB", "mean"):  # of one point: from the best of a grid it climbs
        with torch.no_grad():
            grid = torch.cartesian_prod(*2 * [torch.linspace(0, 1, 41).double()])[:, None]
            best, order = acquisition(grid).sort(descending=True)
        starts = {"num_restarts": 4, "batch_initial_conditions": grid[order[:4]]}
        found, reached = optimize_acqf(acquisition, bounds, q, **starts)
        assert reached > best[0] - 1e-6
    else:
        found, reached = optimize_acqf(acquisition, bounds, q, num_restarts=8, raw_samples=256)
    assert found.shape == (q, 2) and bool(torch.isfinite(reached))
    if name not in ("LogEI", "KG", "Thompson"):  # these may explore a corner instead
        distance = (found - torch.tensor([0.7, 0.3], dtype=torch.float64)).norm(dim=-1).min()
        assert distance < 0.15


def test_in_a_list_of_models(model):
    pair = ModelList(model, fitted("svgp"))
    posterior = pair.posterior(torch.rand(3, 4, 2, dtype=torch.float64))
    assert posterior.mean.shape == (3, 4, 2)


class TestAsBoTorchDoes(BotorchTestCase):
    """What BoTorch checks of its own models, with its own random data."""

    def test_posterior_and_conditioning(self):
        for m in (1, 2):
            tkwargs = {"device": self.device, "dtype": torch.float64}
            X, Y = get_random_data(batch_shape=torch.Size(), m=m, d=2, **tkwargs)
            model = DuoGPModel.fit(X, Y, "svgp", num_inducing=8, steps=10)
            test_X = torch.rand(2, 3, 2, **tkwargs)
            posterior = model.posterior(test_X)
            assert isinstance(posterior, GPyTorchPosterior)
            assert posterior.mean.shape == torch.Size([2, 3, m])
            assert posterior.variance.shape == torch.Size([2, 3, m])
            noisy = model.posterior(test_X, observation_noise=True)
            assert bool((noisy.variance > posterior.variance).all())
            new_X, new_Y = torch.rand(2, 5, 2, **tkwargs), torch.rand(2, 5, m, **tkwargs)
            conditioned = model.condition_on_observations(new_X, new_Y)
            assert isinstance(conditioned, DuoGPModel)
            assert conditioned.batch_shape == torch.Size([2])
            self.assertAllClose(
                conditioned.posterior(test_X).mean[1],
                model.condition_on_observations(new_X[1], new_Y[1]).posterior(test_X[1]).mean,
            )
            fantasy = model.fantasize(test_X, SobolQMCNormalSampler(torch.Size([3])))
            assert fantasy.posterior(test_X).mean.shape == torch.Size([3, 2, 3, m])
            empty = model.fantasize(torch.empty(0, 2, **tkwargs), SobolQMCNormalSampler(torch.Size([3])))
            assert empty.posterior(test_X[0]).mean.shape[-2:] == torch.Size([3, m])


# -- what is refused -----------------------------------------------------------------------------------------


def test_refusals(model):
    X, Y = data()
    with pytest.raises(ValueError, match="no Gaussian"):
        DuoGPModel.fit(X, Y, "dgp")
    with pytest.raises(ValueError, match="no GP"):
        DuoGPModel.fit(X, Y, "deep-ensemble")
    with pytest.raises(ValueError, match=r"X must be \[n, d\]"):
        DuoGPModel.fit(X, Y[:, 0], "svgp")
    with pytest.raises(ValueError, match="real outcomes"):
        DuoGPModel.fit(X, Y.exp(), "svgp", likelihood="gamma", **QUICK)
    with pytest.raises(ValueError, match="2 columns"):
        model.posterior(torch.rand(3, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="outputs"):
        thompson(fitted("svgp", outputs=2), X)


def test_a_gp_that_is_there_already():
    X, Y = data()
    gp = duogp.fit(X.numpy(), Y[:, 0].numpy(), "svgp", num_inducing=10, steps=10)
    model = DuoGPModel.from_gp(gp, X, Y)
    np.testing.assert_allclose(model.posterior(X).mean[:, 0].numpy(), gp.predict(X.numpy()).mean, rtol=1e-9)
