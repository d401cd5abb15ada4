"""`DuoGPModel` keeps BoTorch's conventions: construction, training, state, devices, batches, known noise."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

pytest.importorskip("botorch")

import gpytorch
from botorch.acquisition.analytic import LogNoisyExpectedImprovement
from botorch.cross_validation import batch_cross_validation, gen_loo_cv_folds
from botorch.exceptions.errors import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize, Standardize, Warp
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.datasets import SupervisedDataset
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood

from duogp.bo import DuoGPModel
from duogp.errors import NumericalError
from helpers.botorch_models import QUICK, data, fitted

FEW = {"steps": 15}


def at(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


def same_posterior(a: DuoGPModel, b: DuoGPModel, tolerance: float = 1e-9) -> None:
    X = at(3, 4)
    for noise in (False, True):
        one, other = (m.posterior(X, observation_noise=noise) for m in (a, b))
        torch.testing.assert_close(one.mean, other.mean, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(one.variance, other.variance, rtol=1e3 * tolerance, atol=tolerance)


# -- construction and training -------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 2])
def test_at_equal_hyperparameters_the_default_is_single_task_gp(outputs):
    """Loops of the two differ by where hyperparameters end, by nothing else."""
    X, Y = data(25, outputs)
    ours, theirs = DuoGPModel.fit(X, Y), SingleTaskGP(X, Y)
    core, scale = ours.gp.model, torch.as_tensor(ours.gp.x_scaler.scale)
    mean = theirs.mean_module.constant
    with torch.no_grad():
        lengths = core.basis.kernel.lengthscale() * scale
        theirs.covar_module.lengthscale = lengths.reshape(theirs.covar_module.lengthscale.shape)
        theirs.likelihood.noise = core.likelihood.noise().reshape(theirs.likelihood.noise.shape)
        mean.copy_(core.mean.constant.reshape(mean.shape))
    one, other = ours.posterior(at(2, 5)), theirs.eval().posterior(at(2, 5))
    torch.testing.assert_close(one.mean, other.mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(
        one.distribution.covariance_matrix, other.distribution.covariance_matrix, rtol=0, atol=1e-8
    )


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_default_is_the_model_of_single_task_gp_on_the_cube(outputs):
    """The same kernel, priors and scales, and the same optimum of the hyperparameters."""
    X, Y = data(25, outputs)
    theirs = SingleTaskGP(X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(theirs.likelihood, theirs))
    one, other = DuoGPModel.fit(X, Y).posterior(at(50)), theirs.posterior(at(50))
    torch.testing.assert_close(one.mean, other.mean, rtol=0, atol=5e-3)
    torch.testing.assert_close(one.variance.sqrt(), other.variance.sqrt(), rtol=0.02, atol=1e-3)


def test_it_is_built_from_data_and_trained_by_fit_gpytorch_mll():
    X, Y = data()
    transforms = {"input_transform": Normalize(2), "outcome_transform": Standardize(1)}
    model = DuoGPModel(X, Y, None, *transforms.values(), **FEW)
    start = model.posterior(at(5)).mean
    mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert mll.model is model and not model.training
    assert (model.posterior(at(5)).mean - start).abs().max() > 1e-3
    again = {"input_transform": Normalize(2), "outcome_transform": Standardize(1)}
    same_posterior(model, DuoGPModel.fit(X, Y, **again, **FEW))


@pytest.mark.parametrize("method", ["exact", "svgp", "ppgpr"])
def test_an_untrained_model_has_a_posterior(method):
    X, Y = data(12)
    settings = {} if method == "exact" else {"num_inducing": 6}
    posterior = DuoGPModel(X, Y, method=method, **settings).posterior(at(2, 3))
    assert posterior.mean.shape == (2, 3, 1) and bool((posterior.variance > 0).all())


def test_inputs_are_constructed_from_a_data_set():
    X, Y = data()
    given = SupervisedDataset(
        X, Y, Yvar=0.01 * torch.ones_like(Y), feature_names=["a", "b"], outcome_names=["y"]
    )
    inputs = DuoGPModel.construct_inputs(given, method="svgp", num_inducing=7, fidelity_features=[1])
    assert inputs.keys() == {"train_X", "train_Y", "train_Yvar", "method", "num_inducing"}
    model = DuoGPModel(**inputs)
    assert model.gp.method.name == "svgp" and len(model.gp.inducing_points) == 7


def test_training_and_evaluation_modes():
    model = fitted("svgp")
    before = model.posterior(at(3)).mean
    assert model.train().training and not model.eval().training
    model.train()
    torch.testing.assert_close(model.posterior(at(3)).mean, before)
    assert not model.training  # as in BoTorch, a posterior is asked in evaluation mode


def test_cross_validation_fits_a_batch_of_models():
    X, Y = data(5)
    folds = gen_loo_cv_folds(X, Y)
    found = batch_cross_validation(DuoGPModel, ExactMarginalLogLikelihood, folds, model_init_kwargs=FEW)
    assert found.posterior.mean.shape == (5, 1, 1)


# -- state ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "outputs", "settings"),
    [
        (None, 1, {}),
        (None, 2, {}),
        ("svgp", 2, {"num_inducing": 8}),
        ("dcsvgp", 1, {"num_inducing": 8, "warm_start": 0}),
        ("svgp", 2, {"num_inducing": 8, "num_latents": 1, "solver": "stochastic"}),
        ("svgp", 1, {"num_inducing": 8, "likelihood": "student-t"}),
    ],
)
def test_a_state_reproduces_the_posterior(method, outputs, settings):
    X, Y = data(20, outputs)

    def transforms() -> dict[str, object]:
        return {"input_transform": Normalize(2), "outcome_transform": Standardize(outputs)}

    model = DuoGPModel.fit(X, Y, method, **transforms(), **FEW, **settings)
    other = DuoGPModel(X, Y, method=method, **transforms(), **settings)
    other.load_state_dict(model.state_dict(), strict=True)
    same_posterior(model, other)
    torch.testing.assert_close(other.sample_paths(2, seed=0)(at(3)), model.sample_paths(2, seed=0)(at(3)))


def test_a_state_is_complete_and_strict():
    X, Y = data(15)
    model, other = DuoGPModel.fit(X, Y, **FEW), DuoGPModel(X, Y)
    state = model.state_dict()
    assert not any(name.endswith("inducing") for name in state)  # the rows are the constructor's
    incomplete = {name: value for name, value in state.items() if "lengthscale" not in name}
    with pytest.raises(RuntimeError, match="lengthscale"):
        other.load_state_dict(incomplete)
    pair, copies = ModelListGP(model, fitted("svgp")), ModelListGP(other, fitted("svgp", steps=3))
    copies.load_state_dict(pair.state_dict())
    for one, same in zip(pair.models, copies.models, strict=True):
        same_posterior(one, same)


def test_a_state_is_of_hyperparameters_that_other_rows_can_have():
    X, Y = data(25)
    model = DuoGPModel.fit(X[:15], Y[:15], **FEW)
    later = DuoGPModel(X, Y)
    later.load_state_dict(model.state_dict())
    same_posterior(later, model.refit(X, Y, steps=0), 1e-7)
    trained = later.custom_fit()  # goes on from there
    assert trained is later and later.gp.model.num_data == 25


@pytest.mark.parametrize("make", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(make):
    for model in (fitted("svgp", outputs=2), fitted("exact")):
        told = model.condition_on_observations(at(2), torch.zeros(2, model.num_outputs, dtype=torch.float64))
        for each in (model, told):
            same_posterior(each, make(each))


# -- devices and precision -----------------------------------------------------------------------------------


def test_what_is_derived_is_derived_again_when_a_model_is_moved():
    """No frozen tensor outlives a move: a clone of everything stands for one to another device."""
    for model in (fitted("svgp"), fitted("exact")):
        before = model.posterior(at(3)).mean
        frozen = model.gps[0].posterior
        model._apply(lambda t: t.clone())
        torch.testing.assert_close(model.posterior(at(3)).mean, before)
        assert model.gps[0].posterior is not frozen


def test_the_model_is_where_its_data_are(device):
    X, Y = (t.to(device) for t in data(20, 2))
    for settings in ({}, {"method": "svgp", "num_inducing": 8}):
        model = DuoGPModel.fit(X, Y, **FEW, **settings)
        assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {device.type}
        posterior = model.posterior(at(3).to(device), observation_noise=True)
        assert posterior.mean.device.type == device.type
        assert model.sample_paths(2, seed=0)(at(3).to(device)).device.type == device.type
        fantasies = model.fantasize(at(2).to(device), SobolQMCNormalSampler(torch.Size([3]), seed=0))
        there = fantasies.posterior(at(3).to(device))
        here = copy.deepcopy(model).to("cpu")
        assert {t.device.type for t in (*here.parameters(), *here.buffers())} == {"cpu"}
        torch.testing.assert_close(here.posterior(at(3), observation_noise=True).mean, posterior.mean.cpu())
        assert here.refit(X.cpu(), Y.cpu(), steps=1).posterior(at(3)).mean.device.type == "cpu"
        assert there.mean.device.type == device.type


def test_results_go_to_where_the_question_came_from(device):
    X, Y = data(15)
    model = DuoGPModel.fit(X, Y, device=str(device), **FEW)  # an explicit setting wins
    assert model.gp.model.beta1.device.type == device.type
    posterior = model.posterior(at(2, 3), observation_noise=True)
    assert posterior.mean.device.type == posterior.variance.device.type == "cpu"
    told = model.condition_on_observations(at(2), torch.zeros(2, 1, dtype=torch.float64))
    assert (
        told.posterior(at(3)).mean.device.type == "cpu" and model.sample_paths(2)(at(3)).device.type == "cpu"
    )


def test_precision_follows_the_data():
    X, Y = data(15)
    single = DuoGPModel.fit(X.float(), Y.float(), **FEW)
    assert single.gp.settings.dtype == "float32"
    assert {p.dtype for p in single.parameters()} == {torch.float32}
    assert single.posterior(at(3).float()).mean.dtype == torch.float32
    double = DuoGPModel.fit(X.float(), Y.float(), dtype="float64", **FEW)
    assert double.gp.settings.dtype == "float64"
    expected = double.posterior(at(3).float()).mean
    torch.testing.assert_close(single.posterior(at(3).float()).mean, expected, rtol=0.1, atol=0.1)


def test_casts_keep_the_posterior():
    model = fitted("exact")
    told = model.condition_on_observations(at(2), torch.zeros(2, 1, dtype=torch.float64))
    for each in (model, told):
        cast = copy.deepcopy(each).float()
        assert {t.dtype for t in cast.parameters()} == {torch.float32}
        found = cast.posterior(at(3).float()).mean.double()
        torch.testing.assert_close(found, each.posterior(at(3)).mean, rtol=1e-2, atol=1e-2)
        same_posterior(each, copy.deepcopy(each).double())


# -- batches, noise, outputs ---------------------------------------------------------------------------------


def test_batches_of_training_data_are_models_of_their_own():
    sets = [data(14, 2, seed) for seed in range(2)]
    X, Y = (torch.stack(parts) for parts in zip(*sets, strict=True))
    model = DuoGPModel.fit(X, Y, **FEW)
    assert model.batch_shape == (2,) and model.num_outputs == 2
    posterior = model.posterior(at(5, 1, 3), observation_noise=True)
    assert posterior.mean.shape == (5, 2, 3, 2)
    told = model.condition_on_observations(at(2, 2), torch.zeros(2, 2, 2, dtype=torch.float64))
    paths = model.sample_paths(3, seed=0)(at(5, 1, 3))
    assert told.batch_shape == (2,) and paths.shape == (3, 5, 2, 3, 2)
    for i, (x, y) in enumerate(sets):
        alone = DuoGPModel.fit(x, y, **FEW)
        expected = alone.posterior(at(5, 3), observation_noise=True)
        torch.testing.assert_close(posterior.mean[:, i], expected.mean)
        torch.testing.assert_close(posterior.variance[:, i], expected.variance)
        given = alone.condition_on_observations(at(2, 2)[i], torch.zeros(2, 2, dtype=torch.float64))
        torch.testing.assert_close(told.posterior(at(3)).mean[i], given.posterior(at(3)).mean)
    with pytest.raises(NotImplementedError, match="batches"):
        model.refit(X, Y)


def test_known_noise_of_several_outputs():
    X, Y = data(20, 2)
    Yvar = torch.tensor([0.01, 0.09], dtype=torch.float64).expand_as(Y)
    model = DuoGPModel.fit(X, Y, Yvar=Yvar, **FEW)
    assert isinstance(model.likelihood, FixedNoiseGaussianLikelihood)
    added = model.posterior(at(3), observation_noise=True).variance - model.posterior(at(3)).variance
    torch.testing.assert_close(added, Yvar[:3])
    for i in (0, 1):
        alone = DuoGPModel.fit(X, Y[:, i : i + 1], Yvar=Yvar[:, i : i + 1], steps=200)
        both = DuoGPModel.fit(X, Y, Yvar=Yvar, steps=200)
        torch.testing.assert_close(
            both.posterior(X).mean[:, i : i + 1], alone.posterior(X).mean, atol=0.02, rtol=0
        )
    assert model.fantasize(at(2), SobolQMCNormalSampler(torch.Size([3]))).batch_shape == (3,)
    assert model.subset_output([1]).train_Yvar.shape == (20, 1)
    again = model.refit(X, Y, Yvar, steps=2)
    assert again.posterior(at(3), observation_noise=True).mean.shape == (3, 2)


def test_values_that_are_known_exactly():
    X, Y = data(12)
    model = DuoGPModel.fit(X, Y, Yvar=torch.zeros_like(Y), **FEW)
    torch.testing.assert_close(model.posterior(X).mean, Y, atol=1e-2, rtol=1e-2)


def test_the_likelihood_is_gpytorchs():
    model = fitted("exact", outputs=2)
    assert isinstance(model.likelihood, GaussianLikelihood)
    added = model.posterior(at(1), observation_noise=True).variance - model.posterior(at(1)).variance
    torch.testing.assert_close(model.likelihood.noise.flatten(), added.flatten(), rtol=1e-6, atol=1e-12)


def test_a_call_is_the_joint_normal():
    model = fitted("svgp")
    normal = model(at(4))
    assert isinstance(normal, gpytorch.distributions.MultivariateNormal)
    torch.testing.assert_close(normal.mean, model.posterior(at(4)).mean[:, 0])


def test_an_exact_gp_is_a_single_task_gp():
    X, Y = data(15)
    transforms = {"input_transform": Normalize(2), "outcome_transform": Standardize(1)}
    for settings in ({}, {"Yvar": 0.01 * torch.ones_like(Y)}, transforms):
        model = DuoGPModel.fit(X, Y, **FEW, **settings)
        other = model.single_task_gp()
        torch.testing.assert_close(
            other.posterior(at(3)).mean, model.posterior(at(3)).mean, rtol=1e-6, atol=1e-6
        )
        torch.testing.assert_close(
            other.posterior(at(3)).variance, model.posterior(at(3)).variance, rtol=1e-4, atol=1e-7
        )
    known = DuoGPModel.fit(X, Y, Yvar=0.01 * torch.ones_like(Y), **FEW)
    assert LogNoisyExpectedImprovement(known.single_task_gp(), X, num_fantasies=4)(at(3, 1)).shape == (3,)
    with pytest.raises(UnsupportedError):  # BoTorch asks for the class itself
        LogNoisyExpectedImprovement(known, X, num_fantasies=4)
    with pytest.raises(ValueError, match="exact GP"):
        fitted("svgp").single_task_gp()


def test_categories():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(30, 2, generator=generator, dtype=torch.float64)
    X[:, 1] = torch.randint(0, 3, (30,), generator=generator)
    Y = torch.sin(4 * X[:, :1]) + torch.tensor([0.0, 2.0, -1.0], dtype=torch.float64)[X[:, 1].long()][:, None]
    model = DuoGPModel.fit(X, Y, categorical_features=[1])
    torch.testing.assert_close(model.posterior(X).mean, Y, atol=0.1, rtol=0)
    codes = torch.tensor([[0.5, 0.0], [0.5, 1.0], [0.5, 2.0]], dtype=torch.float64)
    assert model.posterior(codes).mean.flatten().argsort().tolist() == [2, 0, 1]
    assert model.sample_paths(2, seed=0)(codes).shape == (2, 3, 1)


# -- what is refused -----------------------------------------------------------------------------------------


def test_transforms_with_parameters_to_learn_are_refused():
    X, Y = data(12)
    warp = Warp(d=2, indices=[0, 1], batch_shape=torch.Size())
    with pytest.raises(ValueError, match=r"Warp has parameters to learn \(concentration"):
        DuoGPModel.fit(X, Y, input_transform=warp)
    fixed = DuoGPModel.fit(X, Y, input_transform=warp.requires_grad_(False), **FEW)
    assert fixed.posterior(at(3)).mean.shape == (3, 1)


class Broken(gpytorch.kernels.RBFKernel):
    def forward(self, x1, x2, **params):
        return super().forward(x1, x2, **params) * float("nan")


@pytest.mark.filterwarnings("ignore::duogp.errors.NumericalWarning")
@pytest.mark.parametrize("method", ["exact", "svgp"])
def test_a_kernel_that_ends_in_nan_is_an_error(method):
    X, Y = data(12)
    quick = QUICK if method == "svgp" else FEW
    with pytest.raises(NumericalError, match="not finite"):
        DuoGPModel.fit(X, Y, method, kernel=Broken(ard_num_dims=2), **quick)


def test_shapes_that_do_not_agree():
    X, Y = data(12)
    with pytest.raises(ValueError, match="Yvar must be"):
        DuoGPModel.fit(X, Y, Yvar=torch.ones(12, 2))
    with pytest.raises(ValueError, match=r"X must be \[n, d\]"):
        DuoGPModel(X, Y[:5])
    with pytest.raises(TypeError, match="tensors"):
        DuoGPModel(X.numpy(), Y.numpy())
