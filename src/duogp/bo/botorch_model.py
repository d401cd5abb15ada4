"""`DuoGPModel`: any GP of the registry as a BoTorch model.

BoTorch's acquisition functions use `posterior(X)` alone; here it is the frozen posterior of the fitted GP:
joint over q points, differentiable in X, in the units of Y. `condition_on_observations` and `fantasize`
condition the frozen process exactly (see `duogp.bo.processes`), so that look-ahead acquisition functions work
with every basis; `refit` trains the hyperparameters further on more data.

What BoTorch, gpytorch and Ax expect of a model holds: built from its data, trained by `fit_gpytorch_mll`
(which calls `custom_fit`), moved by `.to`, written by `state_dict`. Parameters are those of the trained GP
(`cores`); what is derived from them, the frozen posterior, is computed when it is first needed, and again
after they change.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast

import numpy as np
import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models import SingleTaskGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import FantasizeMixin
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.sampling.base import MCSampler
from botorch.utils.datasets import SupervisedDataset
from gpytorch.distributions import MultivariateNormal
from gpytorch.models import GP as GPyTorchGP
from numpy.typing import NDArray
from torch import Tensor, nn

from duogp.bo.choice import (
    ANEW_ROWS,
    AUTO,
    EXACT,
    POINTS,
    choose_method,
    default_settings,
    mixed_kernel,
)
from duogp.bo.gpytorch_parts import CovarianceModule, MeanModule
from duogp.bo.model_rows import (
    InputScaling,
    Observed,
    appended,
    as_array,
    as_targets,
    check_data,
    dtype_name,
    flat,
    floored,
    refuse_learnable,
    require_normal,
    unseen_rows,
)
from duogp.bo.model_state import after_loading, with_own_rows, without_rows
from duogp.bo.normals import botorch_likelihood, joint_normal
from duogp.bo.processes import Conditioned, Draws, FittedProcess, Process, Selected, Stacked
from duogp.bo.refit import STEPS, first_fit, is_surprised, optimisable, refit, untrained
from duogp.data.scaling import Scaler
from duogp.likelihoods import GaussianLikelihood
from duogp.posterior.gp import GP


class DuoGPModel(GPyTorchModel, GPyTorchGP, FantasizeMixin):
    """A GP for BoTorch: `DuoGPModel.fit(X, Y)`, or built untrained and trained by `fit_gpytorch_mll`.

    ``method`` is one of the registry; without one the model is the exact GP while that is affordable and a
    sparse one above (`duogp.bo.choice`). Other keywords are `duogp.Settings`, and ``categorical_features``,
    columns of category codes; device and dtype are those of ``train_X`` unless they are given.

    Several outputs are independent, unless the GP mixes latent functions (``num_latents``): then their
    posterior is correlated. Batches of training data [*b, n, d] are models of their own. Inputs and outcomes
    may go through BoTorch's own transforms; scaling alone needs none, because the GP scales its data itself.
    """

    train_X: Tensor
    train_Y: Tensor
    train_Yvar: Tensor | None
    x_shift: Tensor
    x_scale: Tensor
    y_shift: Tensor
    y_scale: Tensor
    cores: nn.ModuleList

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | None = None,
        method: str | None = None,
        **settings: Any,
    ) -> None:
        self._begin(train_X, train_Y, train_Yvar, input_transform, outcome_transform)
        self._choose(method, settings)
        self._install(
            [untrained(X, y, self._method, noise=noise, **self._settings) for X, y, noise in self._tables()]
        )

    def _begin(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None,
        input_transform: InputTransform | None,
        outcome_transform: OutcomeTransform | None,
    ) -> None:
        """Data and transforms, which are learned here, as in BoTorch's models."""
        super().__init__()
        check_data(train_X, train_Y, train_Yvar)
        refuse_learnable(input_transform)
        self.register_buffer("train_X", train_X.detach(), persistent=False)
        self.register_buffer("train_Y", train_Y.detach(), persistent=False)
        noise = None if train_Yvar is None else train_Yvar.detach()
        self.register_buffer("train_Yvar", noise, persistent=False)
        self._observed: list[Observed] = []
        self._derived: Process | None = None
        self._is_loaded = False
        self.register_state_dict_post_hook(without_rows)
        self.register_load_state_dict_pre_hook(with_own_rows)
        self.register_load_state_dict_post_hook(after_loading)
        with torch.no_grad():
            inputs = train_X
            if input_transform is not None:
                self.input_transform = input_transform.to(train_X).train()
                inputs = input_transform(train_X)
                input_transform.eval()
            if outcome_transform is not None:
                self.outcome_transform = outcome_transform.to(train_Y).train()
                outcome_transform(train_Y, train_Yvar, X=inputs)
                outcome_transform.eval()

    def _choose(self, method: str | None, settings: dict[str, Any]) -> None:
        """The method and all settings of the fit."""
        self._asked = (method, dict(settings))
        if codes := settings.pop("categorical_features", None):
            settings.setdefault("kernel", mixed_kernel(self.transform_inputs(self.train_X).shape[-1], codes))
        settings.setdefault("device", str(self.train_X.device))
        settings.setdefault("dtype", dtype_name(self.train_X.dtype))
        if method is None or method == AUTO:
            settings = default_settings(settings)
            X, y, noise = self._tables()[0]
            method = choose_method(X, y, settings, noise=noise)
            if method != EXACT:
                settings.setdefault("num_inducing", POINTS)
        elif optimisable(method).is_deep:
            raise ValueError(
                f"the posterior of {method!r} is no Gaussian: it works inside duogp.bo.optimise, not here"
            )
        self._method, self._settings = method, settings

    def _install(self, gps: Sequence[GP]) -> None:
        """Take over fitted GPs, one for each index of the batch: their parameters and scales become state."""
        for gp in gps:
            require_normal(gp)
            gp.model.requires_grad_(False).eval()
        self.gps = list(gps)
        self.cores = nn.ModuleList([gp.model for gp in gps])
        device = gps[0].model.beta1.device
        batch = self.train_X.shape[:-2]

        def stacked(values: Callable[[GP], NDArray[np.float64]]) -> Tensor:
            rows = np.stack([values(gp) for gp in gps])
            return torch.as_tensor(rows, dtype=torch.float64, device=device).reshape(*batch, 1, -1)

        self.register_buffer("x_shift", stacked(lambda gp: gp.x_scaler.shift))
        self.register_buffer("x_scale", stacked(lambda gp: gp.x_scaler.scale))
        self.register_buffer("y_shift", stacked(lambda gp: gp.y_scaler.shift))
        self.register_buffer("y_scale", stacked(lambda gp: gp.y_scaler.scale))
        self._outputs = list(range(self.y_shift.shape[-1]))
        self._refresh()

    def _refresh(self) -> None:
        """Derive again what follows from parameters: the noise now, the frozen posterior at its first use."""
        self._derived = None
        self.likelihood = botorch_likelihood(self, self._noise_of_rows())
        self.eval()

    # -- how it is made --------------------------------------------------------------------------------------

    @classmethod
    def fit(
        cls,
        X: Tensor,
        Y: Tensor,
        method: str | None = None,
        *,
        Yvar: Tensor | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | None = None,
        **settings: Any,
    ) -> Self:
        """The model of X [*b, n, d] and Y [*b, n, m], trained; ``Yvar`` [*b, n, m]: known noise variances."""
        model = cls.__new__(cls)
        model._begin(X, Y, Yvar, input_transform, outcome_transform)
        model._choose(method, settings)
        model._train()
        return model

    @classmethod
    def from_gp(
        cls,
        gp: GP,
        X: Tensor,
        Y: Tensor,
        Yvar: Tensor | None = None,
        *,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | None = None,
    ) -> Self:
        """The model of a `duogp.GP` that was fitted to these rows (as the transforms give them)."""
        require_normal(gp)
        model = cls.__new__(cls)
        model._begin(X, Y, Yvar, input_transform, outcome_transform)
        model._asked = (gp.method.name, {})
        model._method, model._settings = gp.method.name, {}
        own = copy.copy(gp)
        own.model = copy.deepcopy(gp.model).to(X.device)
        own.settings = gp.settings.but(device=str(X.device))
        own._form = own._likelihood64 = None
        model._install([own])
        return model

    @classmethod
    def construct_inputs(
        cls,
        training_data: SupervisedDataset,
        categorical_features: list[int] | None = None,
        fidelity_features: list[int] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Arguments of the constructor from a BoTorch data set; options are ``method`` and settings.

        Fidelities are inputs like any other.
        """
        if categorical_features:
            options["categorical_features"] = categorical_features
        return {**super().construct_inputs(training_data), **options}

    def custom_fit(self, mll: Any = None, **kwargs: Any) -> Any:
        """Train hyperparameters; what BoTorch's `fit_gpytorch_mll` calls. From where they are, if loaded."""
        self._train()
        return self if mll is None else mll.eval()

    def _train(self) -> None:
        start = self.gps if self._is_loaded else None
        fitted = []
        with torch.enable_grad():
            for i, (X, y, noise) in enumerate(self._tables()):
                if start is None:
                    fitted.append(first_fit(X, y, self._method, noise=noise, **self._settings))
                else:
                    fitted.append(refit(start[i], X, y, noise=noise, steps=STEPS))
        self._install(fitted)

    def refit(
        self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None, *, steps: int | None = None, **changes: Any
    ) -> Self:
        """A new model of all of these observations, started from the parameters of this one.

        Rows that this model has not seen are predicted first. Where it is off by more of its own standard
        deviations than it may be, it is not trained further but fitted anew, transforms and scales included;
        so is an exact GP of few rows, unless ``steps`` are given (50 otherwise). With ``steps=0``
        hyperparameters and inducing points stay in any case, and q(u) is solved for where it has a closed
        form.
        """
        check_data(X, Y, Yvar)
        self._require_one("refit")
        before, after = getattr(self, "input_transform", None), self._transform
        inputs, outcomes, variances = self._transformed(X, Y, Yvar)
        y = as_targets(outcomes)
        noise = None if variances is None else as_targets(floored(variances, outcomes))
        new = unseen_rows(X, self.train_X)
        anew = steps is None and self.gp.model.basis.points_are_rows and len(X) <= ANEW_ROWS
        steps = STEPS if steps is None else steps
        method, settings = self._asked
        if steps and not anew:
            own = None if noise is None else noise[new]
            anew = is_surprised(self.gp, as_array(inputs)[new], y[new], noise=own)
            anew |= method in (None, AUTO) and self._method_for(inputs, y, noise) != self._method
        if anew and self._settings:
            transforms = {"input_transform": before, "outcome_transform": after}
            copies: dict[str, Any] = {name: copy.deepcopy(t) for name, t in transforms.items()}
            return type(self).fit(X, Y, method, Yvar=Yvar, **copies, **settings | changes)
        gp = refit(self.gp, as_array(inputs), y, steps=steps, noise=noise, **changes)
        model = type(self).__new__(type(self))
        model._begin(X, Y, Yvar, None, None)
        if before is not None:
            model.input_transform = before
        if after is not None:
            model.outcome_transform = after
        model._asked, model._method, model._settings = self._asked, self._method, self._settings
        model._install([gp])
        return model

    def _method_for(self, inputs: Tensor, y: NDArray[np.float64], noise: Any) -> str:
        """The default for so many rows; it is asked again only where their number leaves the exact GP."""
        if self._method != EXACT:
            return self._method
        return choose_method(as_array(inputs), y, self._settings, noise=noise)

    @property
    def _supports_cache_root(self) -> bool:
        """Whether BoTorch may keep the root of one covariance for each output: not of mixed ones."""
        return self._mixing() is None

    # -- the interface of a BoTorch model --------------------------------------------------------------------

    @property
    def gp(self) -> GP:
        """The fitted GP; of batched data there are several, in `gps`."""
        self._require_one("gp")
        return self.gps[0]

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    @property
    def batch_shape(self) -> torch.Size:
        """Of the training data, and of the fantasies or batches that the model was conditioned on."""
        return self._process.batch_shape

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """The inputs as they were given, untransformed."""
        return (self.train_X,)

    @property
    def train_targets(self) -> Tensor:
        """Transformed outcomes, [*b, n] or [*b, m, n]."""
        with torch.no_grad():
            outcomes = self._transformed(self.train_X, self.train_Y)[1]
        return outcomes.squeeze(-1) if self.num_outputs == 1 else outcomes.mT

    def single_task_gp(self) -> SingleTaskGP:
        """BoTorch's `SingleTaskGP` with the posterior of this exact GP, for what insists on that class.

        `NoisyExpectedImprovement` does. One output, one data set.
        """
        process = self._whole()
        one = isinstance(process, FittedProcess) and self.num_outputs == 1 and not self._observed
        if not one or not self.gps[0].model.basis.points_are_rows:
            raise ValueError("only an exact GP of one output and one data set is a SingleTaskGP")
        assert isinstance(process, FittedProcess)
        _, outcomes, noise = self._transformed(self.train_X, self.train_Y, self.train_Yvar)
        shift, scale = self._shift.squeeze(), self._scale.squeeze()
        model = SingleTaskGP(
            self.train_X,
            outcomes,
            noise,
            covar_module=CovarianceModule(process.form.prior, process.scaled, scale.square()),
            mean_module=MeanModule(process.mean, process.scaled, shift, scale),
            outcome_transform=None,
        )
        if noise is None:
            model.likelihood = copy.deepcopy(self.likelihood)
        for name in ("input_transform", "outcome_transform"):
            if hasattr(self, name):
                setattr(model, name, copy.deepcopy(getattr(self, name)))
        return model.eval()

    def _set_transformed_inputs(self) -> None:
        """Does nothing: the frozen posterior does not use the training inputs."""

    def _revert_to_original_inputs(self) -> None:
        """See `_set_transformed_inputs`."""

    def forward(self, X: Tensor) -> MultivariateNormal:
        """The joint normal of f at X [*b, q, d], in the units of Y where the outcome transform is linear."""
        posterior = self.posterior(X)
        if isinstance(posterior, GPyTorchPosterior):
            return posterior.distribution
        return self._normal(self.transform_inputs(X), None, X)

    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """The joint posterior of f (or of observations) at X [*b, q, d], in the units of Y."""
        if output_indices is not None:
            chosen = self.subset_output(output_indices)
            if isinstance(observation_noise, Tensor) and observation_noise.shape[-1] == self.num_outputs:
                observation_noise = observation_noise[..., output_indices]
            return chosen.posterior(X, None, observation_noise, posterior_transform)
        self.eval()
        inputs = self.transform_inputs(X)
        variances = self._noise(inputs, observation_noise)
        posterior: Posterior = GPyTorchPosterior(self._normal(inputs, variances, X))
        if (transform := self._transform) is not None:
            posterior = transform.untransform_posterior(posterior, X=inputs)
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def subset_output(self, idcs: list[int]) -> Self:
        """The model of some of the outputs, in the order given."""
        out = self._copy()
        idcs = [i % self.num_outputs for i in idcs]
        out._outputs = [self._outputs[i] for i in idcs]
        out._observed = [Observed(o.X, o.Y[..., idcs], o.noise[..., idcs]) for o in self._observed]
        out.train_Y = self.train_Y[..., idcs]
        out.train_Yvar = None if self.train_Yvar is None else self.train_Yvar[..., idcs]
        if (transform := self._transform) is not None:
            out.outcome_transform = transform.subset_output(idcs)
        out._refresh()
        return out

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> Self:
        """The model given Y [*b′, n, m] observed at X [*b, n, d], exactly; hyperparameters stay.

        Fantasies Y of one X share a factorisation. ``noise``: known variances of the transformed Y, instead
        of the learned noise. Gradients flow to X and Y.
        """
        if Y.shape[-1] != self.num_outputs or Y.shape[-2] != X.shape[-2]:
            raise ValueError(
                f"Y must be [..., {X.shape[-2]}, {self.num_outputs}], as X is {tuple(X.shape)}, "
                f"got {tuple(Y.shape)}"
            )
        self.eval()
        inputs, outcomes, _ = self._transformed(X, Y)
        out = self._told(inputs, outcomes, noise)
        batch = torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2], self.train_X.shape[:-2])
        out.train_X = appended(self.train_X, X, batch)
        out.train_Y = appended(self.train_Y, Y, batch)
        if self.train_Yvar is not None:
            mean = self.train_Yvar.mean(-2, keepdim=True)
            out.train_Yvar = appended(self.train_Yvar, mean.expand(*Y.shape[-2:]), batch)
        return out

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, noise: Tensor | None = None) -> Self:
        """The model given transformed ``targets`` [*b, n] at untransformed inputs: for `ModelListGP`."""
        Y = targets.unsqueeze(-1) if self.num_outputs == 1 else targets.mT
        known = None if noise is None else (noise.unsqueeze(-1) if self.num_outputs == 1 else noise.mT)
        out = self._told(self.transform_inputs(inputs), Y, known)
        if (transform := self._transform) is not None:
            Y = transform.untransform(Y)[0]
        batch = torch.broadcast_shapes(inputs.shape[:-2], Y.shape[:-2], self.train_X.shape[:-2])
        out.train_X = appended(self.train_X, inputs, batch)
        out.train_Y = appended(self.train_Y, Y, batch)
        return out

    def fantasize(
        self, X: Tensor, sampler: MCSampler, observation_noise: Tensor | None = None, **kwargs: Any
    ) -> Self:
        """The model conditioned on draws of what would be observed at X (`FantasizeMixin.fantasize`)."""
        if observation_noise is None and self.train_Yvar is not None:  # the mean of Yvar
            observation_noise = self._noise(X, True)
        return super().fantasize(X, sampler, observation_noise, **kwargs)

    # -- functions drawn from the posterior ------------------------------------------------------------------

    def sample_paths(self, n: int = 1, seed: int | None = None, num_features: int = 1024) -> Paths:
        """n functions drawn from the posterior: callable on tensors, differentiable, at linear cost."""
        if n < 1:
            raise ValueError(f"n must be a positive integer, got {n}")
        if seed is None:  # follows torch.manual_seed, as everywhere in BoTorch
            seed = int(torch.randint(2**62, (1,)))
        generator = torch.Generator().manual_seed(seed)
        return Paths(self, n, self._process.sample_paths(n, generator, num_features))

    # -- state -----------------------------------------------------------------------------------------------

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or cast everything (`to`, `cuda`, `double`); what is derived is derived again."""
        super()._apply(fn, recurse)
        if hasattr(self, "gps"):
            self._observed = [Observed(*map(fn, observed)) for observed in self._observed]
            device = str(self.cores[0].beta1.device)
            if "device" in self._settings:
                self._settings = self._settings | {"device": device}
            for gp in self.gps:
                gp.settings = gp.settings.but(device=device)
                gp._form = gp._likelihood64 = None
            self._refresh()
        return self

    def load_state_dict(  # type: ignore[override]
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        keep_transforms: bool = True,
        assign: bool = False,
    ) -> Any:
        """Load hyperparameters, q(u), scales and transforms, of a model of the same method.

        As in BoTorch the training data belong to the constructor, not to the state: an exact GP knows its
        own rows under the loaded hyperparameters. ``keep_transforms`` is accepted and holds in any case.
        """
        return nn.Module.load_state_dict(self, state_dict, strict=strict, assign=assign)

    def _after_loading(self) -> None:
        """Let GPs follow their loaded state; an exact one learns its rows again."""
        tables = self._tables()
        for i, gp in enumerate(self.gps):
            shift, scale = (flat(t, 2)[i].numpy(force=True) for t in (self.x_shift, self.x_scale))
            gp.x_scaler = Scaler(shift[0], scale[0])
            shift, scale = (flat(t, 2)[i].numpy(force=True) for t in (self.y_shift, self.y_scale))
            gp.y_scaler = Scaler(shift[0], scale[0])
            gp._form = gp._likelihood64 = None
        if self.gps[0].model.basis.points_are_rows:
            gps = [
                refit(gp, X, y, noise=noise, steps=0)
                for gp, (X, y, noise) in zip(self.gps, tables, strict=True)
            ]
            self._install(gps)
        self._is_loaded = True
        self._refresh()

    # -- inside ----------------------------------------------------------------------------------------------

    def _tables(self) -> list[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64] | None]]:
        """X, y and noise variances of every index of the batch, transformed, as `duogp.fit` takes them."""
        with torch.no_grad():
            inputs, outcomes, variances = self._transformed(self.train_X, self.train_Y, self.train_Yvar)
        if inputs.shape[-2] != outcomes.shape[-2]:
            raise ValueError(
                f"the input transform makes {inputs.shape[-2]} rows of {outcomes.shape[-2]} while training: "
                "transforms that repeat rows are for prediction (transform_on_train=False)"
            )
        X, Y = flat(inputs, 2), flat(outcomes, 2)
        noise: list[Any] = [None] * len(X)
        if variances is not None:
            noise = [as_targets(v) for v in flat(floored(variances, outcomes), 2)]
        return [(as_array(x), as_targets(y), v) for x, y, v in zip(X, Y, noise, strict=True)]

    def _copy(self) -> Self:
        """A copy that shares modules and data, for changes by assignment."""
        out = copy.copy(self)
        out._modules, out._buffers = dict(self._modules), dict(self._buffers)
        return out

    def _require_one(self, what: str) -> None:
        if len(self.gps) > 1:
            raise NotImplementedError(f"{what} is for one data set: this model has batches of them, see gps")

    @property
    def _transform(self) -> OutcomeTransform | None:
        return cast("OutcomeTransform | None", getattr(self, "outcome_transform", None))

    @property
    def _process(self) -> Process:
        """The posterior, in the user's inputs and the scaled units of the fits."""
        if self._derived is None:
            self._derived = self._build()
        return self._derived

    def _build(self) -> Process:
        process = self._whole()
        if self._mixing() is None and self._outputs != list(range(self.gps[0].model.basis.q.mean.shape[-2])):
            process = Selected(process, self._outputs)  # other outputs, or the log of the noise
        for observed in self._observed:
            y = self._scaled_outcomes(observed.Y)
            noise = (observed.noise / self._scale.square()).mT
            process = Conditioned(process, observed.X.to(y), y, noise)
        return process

    def _whole(self) -> Process:
        """All latent functions, before any conditioning."""
        each = []
        for gp, shift, scale in zip(self.gps, flat(self.x_shift, 2), flat(self.x_scale, 2), strict=True):
            mean = gp.model.mean
            each.append(FittedProcess(gp.posterior, mean, InputScaling(gp.columns, shift[0], scale[0])))
        batch = self.y_shift.shape[:-2]
        return Stacked(each, batch) if batch else each[0]

    def _mixing(self) -> Tensor | None:
        """W of mixed latent functions, [*b, m, latents]; None where every output has its own."""
        if self.gps[0].model.mixing is None:
            return None
        weights = torch.stack([gp.model.mixing.weight[0].double() for gp in self.gps])  # type: ignore[union-attr]
        return weights.reshape(*self.y_shift.shape[:-2], *weights.shape[1:])[..., self._outputs, :]

    @property
    def _scale(self) -> Tensor:
        """Of the outputs, [*b, 1, m]."""
        return self.y_scale[..., self._outputs].double()

    @property
    def _shift(self) -> Tensor:
        return self.y_shift[..., self._outputs].double()

    def _scaled_outcomes(self, Y: Tensor) -> Tensor:
        """Transformed outcomes [..., n, m] in the units of the processes: [..., m, n]."""
        return ((Y.to(self._scale) - self._shift) / self._scale).mT

    def _told(self, inputs: Tensor, outcomes: Tensor, noise: Tensor | None) -> Self:
        """The model given transformed outcomes at transformed inputs; its training data are the caller's."""
        gaussian = isinstance(self.gps[0].model.likelihood, GaussianLikelihood)
        if self._mixing() is not None or not gaussian:
            raise NotImplementedError(
                "conditioning is for independent outputs with Gaussian noise: use refit instead"
            )
        out = self._copy()
        if inputs.shape[-2]:
            variances = self._noise(inputs, True if noise is None else noise)
            assert variances is not None
            variances = variances.expand(*torch.broadcast_shapes(variances.shape, outcomes.shape[-2:]))
            observed = Observed(inputs, outcomes, variances)
            out._observed = [*self._observed, observed]
            process = self._process
            y = self._scaled_outcomes(outcomes)
            scaled_noise = (variances / self._scale.square()).mT
            out._derived = Conditioned(process, inputs.to(y), y, scaled_noise)
        return out

    def _transformed(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> tuple[Tensor, Tensor, Any]:
        """Inputs, outcomes and their noise variances after BoTorch's transforms."""
        inputs = self.transform_inputs(X)
        if (transform := self._transform) is None:
            return inputs, Y, Yvar
        return inputs, *transform(Y, Yvar, X=inputs)

    def _in_units(self, values: Tensor) -> Tensor:
        """Latent functions [..., latents, q] as outputs [..., q, m] in the units of the transformed Y."""
        weights = self._mixing()
        mixed = values if weights is None else weights @ values
        return mixed.mT * self._scale + self._shift

    def _normal(self, inputs: Tensor, noise: Tensor | None, like: Tensor) -> MultivariateNormal:
        """The joint normal of the outputs at transformed inputs."""
        mean, covariance = self._process.joint(self._double(inputs))
        return joint_normal(self._in_units(mean), covariance, self._scale, self._mixing(), noise, like)

    def _double(self, inputs: Tensor) -> Tensor:
        """Inputs in float64, where the model is."""
        if inputs.shape[-1] != len(self.gps[0].columns):
            raise ValueError(f"X must have {len(self.gps[0].columns)} columns, got {inputs.shape[-1]}")
        return inputs.to(device=self.y_scale.device, dtype=torch.float64)

    def _noise_of_rows(self) -> Tensor | None:
        """Known noise variances of the transformed training outcomes, [*b, n, m]."""
        if self.train_Yvar is None:
            return None
        with torch.no_grad():
            _, outcomes, variances = self._transformed(self.train_X, self.train_Y, self.train_Yvar)
        return floored(variances, outcomes)

    def _noise(self, inputs: Tensor, asked: bool | Tensor) -> Tensor | None:
        """Noise variances at the inputs: [..., q or 1, m] in the units of the transformed Y."""
        if isinstance(asked, Tensor):
            variances = asked.to(self._scale)
            if variances.shape[-1] not in (1, self.num_outputs):
                raise ValueError(
                    f"observation_noise must be [..., q, {self.num_outputs}], got {tuple(asked.shape)}"
                )
            return variances.expand(*variances.shape[:-1], self.num_outputs)
        if not asked:
            return None
        if (known := self._noise_of_rows()) is not None:
            return known.to(self._scale).mean(-2, keepdim=True)
        return self.learned_noise(inputs)

    def learned_noise(self, inputs: Tensor | None = None) -> Tensor:
        """Learned noise variances in the units of the transformed Y: [*b, 1, m], or [*b, q, m] at inputs."""
        if isinstance(self.gps[0].model.likelihood, GaussianLikelihood):
            each = torch.stack([gp.model.likelihood.noise()[0].double() for gp in self.gps])  # type: ignore[operator]
            scaled = each.reshape(*self.y_scale.shape[:-1], -1)[..., self._outputs]
        else:
            assert inputs is not None
            scaled = self._local_noise(self._double(inputs))
        return scaled * self._scale.square()

    def _local_noise(self, x: Tensor) -> Tensor:
        """Scaled noise variances of a likelihood whose noise depends on x or f: [*b, q, m]."""
        self._require_one("noise that depends on x")
        whole = self._whole()
        rows = x.reshape(1, -1, x.shape[-1])
        points = whole.at(rows.squeeze(0).unsqueeze(-2))  # every row on its own: [rows, latent, 1]
        variance = whole.covariance(points, points).squeeze(-1).clamp_min(0.0)
        density = self.gp._likelihood.bind(None)
        moments = density.predictive_moments(points.mean, variance, torch.zeros_like(variance))
        noise = moments.noise[..., 0].expand(len(points.mean), -1)[:, self._outputs]
        return noise.reshape(*x.shape[:-1], self.num_outputs)


class Paths:
    """Functions drawn from a posterior: ``paths(X)`` is [n, *b, q, m] for X [*b, q, d]."""

    def __init__(self, model: DuoGPModel, n: int, path: Draws) -> None:
        self.model, self.n, self.path = model, n, path

    def __len__(self) -> int:
        return self.n

    def __call__(self, X: Tensor) -> Tensor:
        model = self.model
        inputs = model.transform_inputs(X)
        values = model._in_units(self.path(model._double(inputs)))
        if (transform := model._transform) is not None:
            values, _ = transform.untransform(values, X=inputs)
        return values.to(X)
