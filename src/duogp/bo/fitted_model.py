"""`FittedModel`: fitted GPs as one process in the user's units, with what BoTorch's modules have as state.

Parameters are those of the trained GPs (`cores`); what is derived from them, the frozen posterior, is
computed when it is first needed, and again after they change. `duogp.bo.botorch_model` is what a user sees.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast

import numpy as np
import torch
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from gpytorch.distributions import MultivariateNormal
from gpytorch.models import GP as GPyTorchGP
from numpy.typing import NDArray
from torch import Tensor, nn

from duogp.bo.model_rows import (
    InputScaling,
    Observed,
    as_array,
    as_targets,
    check_data,
    flat,
    floored,
    refuse_learnable,
    require_normal,
)
from duogp.bo.model_state import after_loading, with_own_rows, without_rows
from duogp.bo.normals import botorch_likelihood, joint_normal
from duogp.bo.processes import Conditioned, FittedProcess, Process, Selected, Stacked
from duogp.bo.refit import refit
from duogp.data.scaling import Scaler
from duogp.likelihoods import GaussianLikelihood
from duogp.posterior.gp import GP


class FittedModel(GPyTorchModel, GPyTorchGP):
    """Data, transforms, fitted GPs (one for each index of a batch) and the posterior that follows."""

    train_X: Tensor
    train_Y: Tensor
    train_Yvar: Tensor | None
    x_shift: Tensor
    x_scale: Tensor
    y_shift: Tensor
    y_scale: Tensor
    cores: nn.ModuleList
    _settings: dict[str, Any]  # of the fits

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

    def _copy(self) -> Self:
        """A copy that shares modules and data, for changes by assignment."""
        out = copy.copy(self)
        out._modules, out._buffers = dict(self._modules), dict(self._buffers)
        return out

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

    def _require_one(self, what: str) -> None:
        if len(self.gps) > 1:
            raise NotImplementedError(f"{what} is for one data set: this model has batches of them, see gps")

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

    # -- data ------------------------------------------------------------------------------------------------

    @property
    def _transform(self) -> OutcomeTransform | None:
        return cast("OutcomeTransform | None", getattr(self, "outcome_transform", None))

    def _transformed(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> tuple[Tensor, Tensor, Any]:
        """Inputs, outcomes and their noise variances after BoTorch's transforms."""
        inputs = self.transform_inputs(X)
        if (transform := self._transform) is None:
            return inputs, Y, Yvar
        return inputs, *transform(Y, Yvar, X=inputs)

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

    # -- the posterior ---------------------------------------------------------------------------------------

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

    def _in_units(self, values: Tensor) -> Tensor:
        """Latent functions [..., latents, q] as outputs [..., q, m] in the units of the transformed Y."""
        weights = self._mixing()
        mixed = values if weights is None else weights @ values
        return mixed.mT * self._scale + self._shift

    def _double(self, inputs: Tensor) -> Tensor:
        """Inputs in float64, where the model is."""
        if inputs.shape[-1] != len(self.gps[0].columns):
            raise ValueError(f"X must have {len(self.gps[0].columns)} columns, got {inputs.shape[-1]}")
        return inputs.to(device=self.y_scale.device, dtype=torch.float64)

    def _normal(self, inputs: Tensor, noise: Tensor | None, like: Tensor) -> MultivariateNormal:
        """The joint normal of the outputs at transformed inputs."""
        mean, covariance = self._process.joint(self._double(inputs))
        return joint_normal(self._in_units(mean), covariance, self._scale, self._mixing(), noise, like)

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

    # -- noise -----------------------------------------------------------------------------------------------

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
