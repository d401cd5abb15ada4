"""`DuoGPModel`: any GP of the registry as a BoTorch model.

Everything downstream of BoTorch sees only `posterior(X)`; ours is that of the fitted GP, frozen: joint over
q points, differentiable in X, in the units of Y. `condition_on_observations` and `fantasize` condition the
frozen process exactly (see `duogp.bo.posterior`), so that look-ahead acquisition functions work with every
basis; `refit` lets the hyperparameters follow the data, started from where they are.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self, cast

import numpy as np
import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import FantasizeMixin, Model
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.sampling.base import MCSampler
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator import to_linear_operator
from numpy.typing import NDArray
from torch import Tensor

from duogp.bo.posterior import Conditioned, Frozen, Path, Process, Selected
from duogp.bo.refitting import STEPS, first_fit, refit
from duogp.likelihoods import GaussianLikelihood, Likelihood
from duogp.methods import METHODS
from duogp.posterior.deep import DeepGP
from duogp.posterior.gp import GP


class DuoGPModel(Model, FantasizeMixin):
    """A fitted GP for BoTorch; made by `DuoGPModel.fit`, or around a `duogp.GP` that is there already.

    Several outputs are independent, unless the GP mixes latent functions (``num_latents``): then their
    posterior is correlated. Inputs and outcomes may go through BoTorch's own transforms; scaling alone needs
    none, because the GP scales its data itself.
    """

    def __init__(
        self,
        gp: GP,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        *,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | None = None,
    ) -> None:
        super().__init__()
        if isinstance(gp, DeepGP):
            raise ValueError("the posterior of a deep GP is no Gaussian: use it inside duogp.bo.optimise")
        if gp.model.likelihood.target != "real":
            raise ValueError("a BoTorch model is of real outcomes: choose a likelihood of real numbers")
        self.gp = gp
        self.train_X, self.train_Y, self.train_Yvar = train_X, train_Y, train_Yvar
        if input_transform is not None:
            self.input_transform = input_transform
        if outcome_transform is not None:
            self.outcome_transform = outcome_transform
        frozen = copy.deepcopy(gp.model).requires_grad_(False).eval()
        device = frozen.beta1.device
        self._outputs = list(range(len(gp.y_scaler.scale)))
        self._whole: Process = Frozen(frozen.frozen(torch.float64), frozen.mean)
        self._weights = None if frozen.mixing is None else frozen.mixing.weight[0].double()  # W [m, latents]
        self._process: Process = self._whole
        if self._weights is None and frozen.basis.q.mean.shape[-2] > len(self._outputs):
            self._process = Selected(self._whole, self._outputs)  # behind f stands the log of its noise
        self._likelihood = copy.deepcopy(frozen.likelihood).double().eval()

        def tensor(values: Any, kind: torch.dtype = torch.float64) -> Tensor:
            return torch.as_tensor(values, dtype=kind, device=device)

        self._columns = tensor(np.flatnonzero(gp.columns), torch.long)
        self._x_shift, self._x_scale = tensor(gp.x_scaler.shift), tensor(gp.x_scaler.scale)
        self._y_shift, self._y_scale = tensor(gp.y_scaler.shift), tensor(gp.y_scaler.scale)
        self.eval()
        self._known_noise = None if train_Yvar is None else self._average_noise(train_Y, train_Yvar)

    @classmethod
    def fit(
        cls,
        X: Tensor,
        Y: Tensor,
        method: str = "dcsvgp",
        *,
        Yvar: Tensor | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | None = None,
        **settings: Any,
    ) -> Self:
        """Fit a method of the registry to X [n, d] and Y [n, m]; other keywords are `duogp.Settings`.

        ``Yvar`` [n, 1]: known noise variances. Transforms are learned here, as BoTorch's models do.
        """
        _check_data(X, Y, Yvar)
        if METHODS[method].is_deep:
            raise ValueError(
                f"the posterior of {method!r} is no Gaussian: it works inside duogp.bo.optimise, not here"
            )
        inputs, outcomes, variances = X, Y, Yvar
        with torch.no_grad():
            if input_transform is not None:
                input_transform.to(X).train()
                inputs = input_transform(X)
                input_transform.eval()
            if outcome_transform is not None:
                outcome_transform.to(Y).train()
                outcomes, variances = outcome_transform(Y, Yvar, X=inputs)
                outcome_transform.eval()
        if variances is not None:
            settings = settings | {"noise": _column(variances)}
        gp = first_fit(_array(inputs), _targets(outcomes), method, **settings)
        return cls(gp, X, Y, Yvar, input_transform=input_transform, outcome_transform=outcome_transform)

    def refit(
        self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None, *, steps: int = STEPS, **changes: Any
    ) -> Self:
        """A new model of all of these observations, started from what this one has learned.

        With ``steps=0`` hyperparameters and inducing points stay, and q(u) is solved for where it has a
        closed form. Transforms and scales stay those of the first fit.
        """
        _check_data(X, Y, Yvar)
        with torch.no_grad():
            inputs = self.transform_inputs(X)
            outcomes, variances = Y, Yvar
            if (transform := self._transform) is not None:
                outcomes, variances = transform(Y, Yvar, X=inputs)
        noise = None if variances is None else _column(variances)
        gp = refit(self.gp, _array(inputs), _targets(outcomes), steps=steps, noise=noise, **changes)
        return type(self)(
            gp,
            X,
            Y,
            Yvar,
            input_transform=getattr(self, "input_transform", None),
            outcome_transform=self._transform,
        )

    # -- what BoTorch asks for -------------------------------------------------------------------------------

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    @property
    def batch_shape(self) -> torch.Size:
        """Of fantasies or batches that the model was conditioned on; empty after a fit."""
        return self._process.batch_shape

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """The inputs as they were given, untransformed."""
        return (self.train_X,)

    @property
    def train_targets(self) -> Tensor:
        return self.train_Y.squeeze(-1) if self.num_outputs == 1 else self.train_Y.mT

    @property
    def likelihood(self) -> Likelihood:
        return self._likelihood

    def _set_transformed_inputs(self) -> None:
        """Training inputs are kept as they were given: the frozen posterior has no use for them."""

    def _revert_to_original_inputs(self) -> None:
        """See `_set_transformed_inputs`."""

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
        mean, covariance = self._process.joint(self._scaled(inputs))
        variances = self._noise(inputs, observation_noise)
        posterior: Posterior = GPyTorchPosterior(self._normal(mean, covariance, variances, X.dtype))
        if (transform := self._transform) is not None:
            posterior = transform.untransform_posterior(posterior, X=inputs)
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def subset_output(self, idcs: list[int]) -> Self:
        """Some of the outputs, in the order asked for."""
        kept = [self._outputs[i] for i in idcs]
        out = copy.copy(self)
        out._modules = dict(self._modules)
        out._outputs = kept
        if self._weights is None:
            out._process = Selected(self._process, [i % self.num_outputs for i in idcs])
        else:
            out._weights = self._weights[idcs]
        out._y_shift, out._y_scale = self._y_shift[idcs], self._y_scale[idcs]
        out.train_Y = self.train_Y[..., idcs]
        if (transform := self._transform) is not None:
            out.outcome_transform = transform.subset_output(idcs)
        return out

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> Self:
        """The model after Y [*b′, n, m] was observed at X [*b, n, d], exactly; hyperparameters stay.

        Fantasies Y of one X share a factorisation. ``noise``: known variances of Y, in the space that the
        outcome transform leads to, instead of the learned noise. Gradients flow to X and Y.
        """
        if self._weights is not None or not isinstance(self._likelihood, GaussianLikelihood):
            raise NotImplementedError(
                "conditioning is for independent outputs with Gaussian noise: use refit instead"
            )
        if Y.shape[-1] != self.num_outputs or Y.shape[-2] != X.shape[-2]:
            raise ValueError(
                f"Y must be [..., {X.shape[-2]}, {self.num_outputs}], as X is {tuple(X.shape)}, "
                f"got {tuple(Y.shape)}"
            )
        self.eval()
        inputs, outcomes = self.transform_inputs(X), Y
        if (transform := self._transform) is not None:
            outcomes, _ = transform(Y, X=inputs)
        variances = self._noise(inputs, True if noise is None else noise)
        assert variances is not None
        y = (outcomes.double() - self._y_shift) / self._y_scale
        out = copy.copy(self)
        out._modules = dict(self._modules)
        if X.shape[-2]:
            out._process = Conditioned(
                self._process, self._scaled(inputs), y.mT, (variances / self._y_scale.square()).mT
            )
        batch = torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2], self.train_X.shape[:-2])
        out.train_X = _appended(self.train_X, X, batch)
        out.train_Y = _appended(self.train_Y, Y, batch)
        return out

    def fantasize(
        self, X: Tensor, sampler: MCSampler, observation_noise: Tensor | None = None, **kwargs: Any
    ) -> Self:
        """The model conditioned on draws of what would be observed at X (`FantasizeMixin.fantasize`)."""
        if observation_noise is None:  # known of old points; of new ones the average is expected
            observation_noise = self._known_noise
        return super().fantasize(X, sampler, observation_noise, **kwargs)

    # -- functions drawn from the posterior ------------------------------------------------------------------

    def sample_paths(self, n: int = 1, seed: int | None = None, num_features: int = 1024) -> Paths:
        """n functions drawn from the posterior: callable on tensors, differentiable, linear in the points."""
        if n < 1:
            raise ValueError(f"n must be a positive integer, got {n}")
        generator = torch.Generator()
        if seed is None:  # torch.manual_seed decides, as everywhere in BoTorch
            seed = int(torch.randint(2**62, (1,)))
        generator.manual_seed(seed)
        return Paths(self, n, self._process.sample_paths(n, generator, num_features))

    # -- inside ----------------------------------------------------------------------------------------------

    @property
    def _transform(self) -> OutcomeTransform | None:
        return cast("OutcomeTransform | None", getattr(self, "outcome_transform", None))

    def _scaled(self, X: Tensor) -> Tensor:
        x = X.to(device=self._columns.device, dtype=torch.float64)
        if x.shape[-1] != len(self.gp.columns):
            raise ValueError(f"X must have {len(self.gp.columns)} columns, got {x.shape[-1]}")
        return (x.index_select(-1, self._columns) - self._x_shift) / self._x_scale

    def _mixed(self, values: Tensor) -> Tensor:
        """Latent functions [..., latents, q] as outputs [..., m, q]."""
        return values if self._weights is None else self._weights @ values

    def _in_units(self, values: Tensor) -> Tensor:
        """Scaled values [..., m, q] as [..., q, m] in the units of the GP's targets."""
        return self._mixed(values).mT * self._y_scale + self._y_shift

    def _normal(
        self, mean: Tensor, covariance: Tensor, noise: Tensor | None, dtype: torch.dtype
    ) -> MultivariateNormal:
        scale = self._y_scale
        values = self._in_units(mean)  # [*b, q, m]
        batch = torch.broadcast_shapes(values.shape[:-2], covariance.shape[:-3])
        q, m = values.shape[-2:]
        values = values.expand(*batch, q, m)
        if self._weights is not None:  # Σ_l W_pl W_rl C_l, points first, then outputs
            mixed = torch.einsum("pl,rl,...lij->...ipjr", self._weights, self._weights, covariance)
            mixed = mixed * (scale[:, None, None] * scale)
            full = mixed.reshape(*mixed.shape[:-4], q * m, q * m)
            if noise is not None:
                full = full + torch.diag_embed(noise.expand(*batch, q, m).flatten(-2))
            if m == 1:
                return _lazy(values[..., 0], full, dtype)
            return MultitaskMultivariateNormal(values.to(dtype), to_linear_operator(full.to(dtype)))
        covariance = covariance.expand(*batch, m, q, q) * scale.square()[:, None, None]
        if noise is not None:
            covariance = covariance + torch.diag_embed(noise.mT.expand(*batch, m, q))
        if m == 1:
            return _lazy(values[..., 0], covariance[..., 0, :, :], dtype)
        return MultitaskMultivariateNormal.from_batch_mvn(_lazy(values.mT, covariance, dtype), task_dim=-1)

    def _noise(self, inputs: Tensor, asked: bool | Tensor) -> Tensor | None:
        """Variances of observations at the inputs: [..., q or 1, m] in the units of the GP's targets."""
        if isinstance(asked, Tensor):
            variances = asked.to(device=self._columns.device, dtype=torch.float64)
            if variances.shape[-1] not in (1, self.num_outputs):
                raise ValueError(
                    f"observation_noise must be [..., q, {self.num_outputs}], got {tuple(asked.shape)}"
                )
            return variances.expand(*variances.shape[:-1], self.num_outputs)
        if not asked:
            return None
        if self._known_noise is not None:
            return self._known_noise
        if isinstance(self._likelihood, GaussianLikelihood):
            scaled = self._likelihood.noise()[:, self._outputs]  # [1, m]
        else:
            scaled = self._local_noise(inputs)
        return scaled * self._y_scale.square()

    @torch.no_grad()
    def _average_noise(self, Y: Tensor, Yvar: Tensor) -> Tensor:
        """Of known variances, in the space of the GP's targets: [1, 1]."""
        variances: Tensor | None = Yvar
        if (transform := self._transform) is not None:
            variances = transform(Y, Yvar, X=self.transform_inputs(self.train_X))[1]
        assert variances is not None
        return variances.double().mean(-2, keepdim=True).to(self._columns.device)

    def _local_noise(self, inputs: Tensor) -> Tensor:
        """Of likelihoods whose noise differs from place to place: [*b, q, m], scaled."""
        x = self._scaled(inputs)
        rows = x.reshape(1, -1, x.shape[-1])
        points = self._whole.at(rows.squeeze(0).unsqueeze(-2))  # every row on its own: [rows, latent, 1]
        variance = self._whole.covariance(points, points).squeeze(-1).clamp_min(0.0)
        density = self._likelihood.bind(None)
        moments = density.predictive_moments(points.mean, variance, torch.zeros_like(variance))
        noise = moments.noise[..., 0].expand(len(points.mean), -1)[:, self._outputs]
        return noise.reshape(*x.shape[:-1], self.num_outputs)


class Paths:
    """Functions drawn from a posterior: ``paths(X)`` is [n, *b, q, m] for X [*b, q, d]."""

    def __init__(self, model: DuoGPModel, n: int, path: Path) -> None:
        self.model, self.n, self.path = model, n, path

    def __len__(self) -> int:
        return self.n

    def __call__(self, X: Tensor) -> Tensor:
        model = self.model
        inputs = model.transform_inputs(X)
        values = model._in_units(self.path(model._scaled(inputs)))
        if (transform := model._transform) is not None:
            values, _ = transform.untransform(values, X=inputs)
        return values.to(X.dtype)


def _check_data(X: Tensor, Y: Tensor, Yvar: Tensor | None) -> None:
    if X.dim() != 2 or Y.dim() != 2 or len(X) != len(Y):
        raise ValueError(f"X must be [n, d] and Y [n, m], got {tuple(X.shape)} and {tuple(Y.shape)}")
    if Yvar is not None and (Yvar.shape != Y.shape or Y.shape[-1] != 1):
        raise ValueError(f"Yvar is for one output, [n, 1] like Y, got {tuple(Yvar.shape)}")


def _lazy(mean: Tensor, covariance: Tensor, dtype: torch.dtype) -> MultivariateNormal:
    """A normal whose covariance is factorised when it is sampled from, with jitter where that is needed."""
    return MultivariateNormal(mean.to(dtype), to_linear_operator(covariance.to(dtype)))


def _array(values: Tensor) -> NDArray[np.float64]:
    return values.detach().double().cpu().numpy()


def _column(values: Tensor) -> NDArray[np.float64]:
    return _array(values).reshape(-1)


def _targets(values: Tensor) -> NDArray[np.float64]:
    """For `duogp.fit`, to which one output is a vector."""
    return _column(values) if values.shape[-1] == 1 else _array(values)


def _appended(old: Tensor, new: Tensor, batch: Sequence[int]) -> Tensor:
    parts = (t.detach().to(old).expand(*batch, *t.shape[-2:]) for t in (old, new))
    return torch.cat(list(parts), -2)
