"""`DuoGPModel`: any GP of the registry as a BoTorch model.

BoTorch's acquisition functions use `posterior(X)` alone; here it is the frozen posterior of the fitted GP:
joint over q points, differentiable in X, in the units of Y. `condition_on_observations` and `fantasize`
condition the frozen process exactly (see `duogp.bo.processes`), so that look-ahead acquisition functions work
with every basis; `refit` trains the hyperparameters further on more data.

What BoTorch, gpytorch and Ax expect of a model holds: built from its data, trained by `fit_gpytorch_mll`
(which calls `custom_fit`), moved by `.to`, written by `state_dict` (see `duogp.bo.fitted_model`).
"""

from __future__ import annotations

import copy
from typing import Any, Self

import numpy as np
import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models import SingleTaskGP
from botorch.models.model import FantasizeMixin
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.sampling.base import MCSampler
from botorch.utils.datasets import SupervisedDataset
from gpytorch.distributions import MultivariateNormal
from numpy.typing import NDArray
from torch import Tensor

from duogp.bo.choice import (
    ANEW_ROWS,
    AUTO,
    EXACT,
    POINTS,
    choose_method,
    default_settings,
    mixed_kernel,
)
from duogp.bo.fitted_model import FittedModel
from duogp.bo.gpytorch_parts import CovarianceModule, MeanModule
from duogp.bo.model_rows import (
    Observed,
    appended,
    as_array,
    as_targets,
    check_data,
    dtype_name,
    floored,
    require_normal,
    unseen_rows,
)
from duogp.bo.paths import Paths
from duogp.bo.processes import FittedProcess
from duogp.bo.refit import STEPS, first_fit, is_surprised, optimisable, refit, untrained
from duogp.posterior.gp import GP


class DuoGPModel(FittedModel, FantasizeMixin):
    """A GP for BoTorch: `DuoGPModel.fit(X, Y)`, or built untrained and trained by `fit_gpytorch_mll`.

    ``method`` is one of the registry; without one the model is the exact GP while that is affordable and a
    sparse one above (`duogp.bo.choice`). Other keywords are `duogp.Settings`, and ``categorical_features``,
    columns of category codes; device and dtype are those of ``train_X`` unless they are given.

    Several outputs are independent, unless the GP mixes latent functions (``num_latents``): then their
    posterior is correlated. Batches of training data [*b, n, d] are models of their own. Inputs and outcomes
    may go through BoTorch's own transforms; scaling alone needs none, because the GP scales its data itself.
    """

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
        """The model of a `duogp.GP` that was fitted to these rows (as the transforms give them).

        X [n, d], Y and Yvar [n, outputs].
        """
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

        X [n, d], Y and Yvar [n, outputs].
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
    def train_inputs(self) -> tuple[Tensor]:
        """The inputs as they were given, untransformed, [n, d]."""
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
        """The model conditioned on draws of what would be observed at X [*b, q, d], one for each sample."""
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
