"""`DuoGPModel`: any GP of the registry as a BoTorch model.

BoTorch's acquisition functions use `posterior(X)` alone; here it is the frozen posterior of the fitted GP:
joint over q points, differentiable in X, in the units of Y. `condition_on_observations` and `fantasize`
condition the frozen process exactly (see `duogp.bo.processes`), so that look-ahead acquisition functions work
with every basis; `refit` trains the hyperparameters further on more data.
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

from duogp.bo.processes import Conditioned, Draws, FittedProcess, Process, Selected
from duogp.bo.refit import STEPS, first_fit, refit
from duogp.likelihoods import GaussianLikelihood, Likelihood
from duogp.methods import METHODS
from duogp.posterior.deep import DeepGP
from duogp.posterior.gp import GP


class DuoGPModel(Model, FantasizeMixin):
    """A fitted GP for BoTorch, made by `DuoGPModel.fit` or from a `duogp.GP`.

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
        self._whole: Process = FittedProcess(frozen.frozen(torch.float64), frozen.mean)
        self._weights = None if frozen.mixing is None else frozen.mixing.weight[0].double()  # W [m, latents]
        self._process: Process = self._whole
        if self._weights is None and frozen.basis.q.mean.shape[-2] > len(self._outputs):
            self._process = Selected(self._whole, self._outputs)  # the other latents are the log of the noise
        self._likelihood = copy.deepcopy(frozen.likelihood).double().eval()

        def tensor(values: Any, kind: torch.dtype = torch.float64) -> Tensor:
            return torch.as_tensor(values, dtype=kind, device=device)

        if gp.learned is not None:
            raise ValueError(
                "a cross-fitted mean has no gradient for acquisition functions: use mean='linear'"
            )
        self._columns = tensor(np.flatnonzero(gp.columns), torch.long)
        self._x_shift, self._x_scale = tensor(gp.x_scaler.shift), tensor(gp.x_scaler.scale)
        self._y_shift, self._y_scale = tensor(gp.y_scaler.shift), tensor(gp.y_scaler.scale)
        self.eval()
        self._known_noise = None  # its mean [1, 1], in the units of the GP's targets
        if train_Yvar is not None:
            variances = self._transformed(train_X, train_Y, train_Yvar)[2]
            self._known_noise = variances.detach().double().mean(-2, keepdim=True).to(device)

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
        """A method of the registry fitted to X [n, d] and Y [n, m]; other keywords are `duogp.Settings`.

        ``Yvar`` [n, 1]: known noise variances. Transforms are learned here, as in BoTorch's models.
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
            settings = settings | {"noise": _targets(variances)}
        gp = first_fit(_array(inputs), _targets(outcomes), method, **settings)
        return cls(gp, X, Y, Yvar, input_transform=input_transform, outcome_transform=outcome_transform)

    def refit(
        self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None, *, steps: int = STEPS, **changes: Any
    ) -> Self:
        """A new model of all of these observations, started from the parameters of this one.

        With ``steps=0`` hyperparameters and inducing points stay, and q(u) is solved for where it has a
        closed form. Transforms and scales stay those of the first fit.
        """
        _check_data(X, Y, Yvar)
        inputs, outcomes, variances = self._transformed(X, Y, Yvar)
        noise = None if variances is None else _targets(variances)
        gp = refit(self.gp, _array(inputs), _targets(outcomes), steps=steps, noise=noise, **changes)
        before = getattr(self, "input_transform", None)
        return type(self)(gp, X, Y, Yvar, input_transform=before, outcome_transform=self._transform)

    # -- the interface of a BoTorch model --------------------------------------------------------------------

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the fantasies or batches that the model was conditioned on; empty after a fit."""
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
        """Does nothing: the frozen posterior does not use the training inputs."""

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
        """The model of some of the outputs, in the order given."""
        out = self._copy()
        out._outputs = [self._outputs[i] for i in idcs]
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
        """The model given Y [*b′, n, m] observed at X [*b, n, d], exactly; hyperparameters stay.

        Fantasies Y of one X share a factorisation. ``noise``: known variances of the transformed Y, instead
        of the learned noise. Gradients flow to X and Y.
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
        inputs, outcomes, _ = self._transformed(X, Y)
        variances = self._noise(inputs, True if noise is None else noise)
        assert variances is not None
        out = self._copy()
        if X.shape[-2]:
            y = ((outcomes.double() - self._y_shift) / self._y_scale).mT
            scaled_noise = (variances / self._y_scale.square()).mT
            out._process = Conditioned(self._process, self._scaled(inputs), y, scaled_noise)
        batch = torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2], self.train_X.shape[:-2])
        out.train_X = _appended(self.train_X, X, batch)
        out.train_Y = _appended(self.train_Y, Y, batch)
        return out

    def fantasize(
        self, X: Tensor, sampler: MCSampler, observation_noise: Tensor | None = None, **kwargs: Any
    ) -> Self:
        """The model conditioned on draws of what would be observed at X (`FantasizeMixin.fantasize`)."""
        noise = self._known_noise if observation_noise is None else observation_noise  # the mean of Yvar
        return super().fantasize(X, sampler, noise, **kwargs)

    # -- functions drawn from the posterior ------------------------------------------------------------------

    def sample_paths(self, n: int = 1, seed: int | None = None, num_features: int = 1024) -> Paths:
        """n functions drawn from the posterior: callable on tensors, differentiable, at linear cost."""
        if n < 1:
            raise ValueError(f"n must be a positive integer, got {n}")
        if seed is None:  # follows torch.manual_seed, as everywhere in BoTorch
            seed = int(torch.randint(2**62, (1,)))
        generator = torch.Generator().manual_seed(seed)
        return Paths(self, n, self._process.sample_paths(n, generator, num_features))

    # -- inside ----------------------------------------------------------------------------------------------

    def _copy(self) -> Self:
        """A copy that shares modules and data, for changes by assignment."""
        out = copy.copy(self)
        out._modules = dict(self._modules)
        return out

    @property
    def _transform(self) -> OutcomeTransform | None:
        return cast("OutcomeTransform | None", getattr(self, "outcome_transform", None))

    def _transformed(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> tuple[Tensor, Tensor, Any]:
        """Inputs, outcomes and their noise variances after BoTorch's transforms."""
        inputs = self.transform_inputs(X)
        if (transform := self._transform) is None:
            return inputs, Y, Yvar
        return inputs, *transform(Y, Yvar, X=inputs)

    def _scaled(self, X: Tensor) -> Tensor:
        """Inputs in the scaled units of the fit, without constant columns, in float64."""
        x = X.to(device=self._columns.device, dtype=torch.float64)
        if x.shape[-1] != len(self.gp.columns):
            raise ValueError(f"X must have {len(self.gp.columns)} columns, got {x.shape[-1]}")
        return (x.index_select(-1, self._columns) - self._x_shift) / self._x_scale

    def _in_units(self, values: Tensor) -> Tensor:
        """Latent functions [..., latents, q] as outputs [..., q, m] in the units of the GP's targets."""
        mixed = values if self._weights is None else self._weights @ values
        return mixed.mT * self._y_scale + self._y_shift

    def _normal(
        self, mean: Tensor, covariance: Tensor, noise: Tensor | None, dtype: torch.dtype
    ) -> MultivariateNormal:
        """The joint normal of the outputs at q points, from that of the latent functions."""
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
        """Noise variances at the inputs: [..., q or 1, m] in the units of the GP's targets."""
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

    def _local_noise(self, inputs: Tensor) -> Tensor:
        """Scaled noise variances of a likelihood whose noise depends on x or f: [*b, q, m]."""
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

    def __init__(self, model: DuoGPModel, n: int, path: Draws) -> None:
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
    """A normal whose covariance is factorised, with jitter, only when it is sampled from."""
    return MultivariateNormal(mean.to(dtype), to_linear_operator(covariance.to(dtype)))


def _array(values: Tensor) -> NDArray[np.float64]:
    return values.detach().double().cpu().numpy()


def _targets(values: Tensor) -> NDArray[np.float64]:
    """Y, or its noise variances, as `duogp.fit` takes them: one output as a vector."""
    return _array(values[..., 0] if values.shape[-1] == 1 else values)


def _appended(old: Tensor, new: Tensor, batch: Sequence[int]) -> Tensor:
    parts = (t.detach().to(old).expand(*batch, *t.shape[-2:]) for t in (old, new))
    return torch.cat(list(parts), -2)
