"""A fitted deep GP: predictions are mixtures over samples of the hidden layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.bases import FrozenPosterior, Marginals
from duogp.bases.many_rows import Precision
from duogp.bases.marginals import TotalMarginals
from duogp.likelihoods import Density
from duogp.models.deep import DeepModel
from duogp.models.layers import FrozenLayer
from duogp.models.sample_mixture import MixtureDensity, mixture_moments
from duogp.posterior.described import first_value, plain_description
from duogp.posterior.gp import GP
from duogp.posterior.precision import Road
from duogp.posterior.prediction import Prediction
from duogp.posterior.sampling import joint_draws, path_draws
from duogp.posterior.units import FREEZING


class LayerVariances(NamedTuple):
    """One layer at n rows, averaged over samples of the layers before it; arrays [n, width]."""

    mean: NDArray[np.float64]
    residual: NDArray[np.float64]  # distributional: far from where this layer's points are
    explained: NDArray[np.float64]  # within-data: what is uncertain about its inducing values
    between: NDArray[np.float64]  # of the mean, between samples: what the layers before are uncertain about


class DeepGP(GP):
    """What `duogp.fit` returns for deep methods.

    Variances follow the law of total variance over a fixed set of samples: `explained` holds what the last
    layer's q(u) is uncertain about and what its inputs are; `layer_variances` tells them apart.
    """

    model: DeepModel
    JOINT_ROWS = 300  # one covariance for each draw and layer
    _forms: list[FrozenPosterior] | None = None

    @property
    def posterior(self) -> FrozenPosterior:
        """Of a model without hidden layers only; with them, each layer has one (`layer_posteriors`)."""
        if len(self.model.hidden):
            raise ValueError("a deep GP has no single linear form: see layer_posteriors")
        return self.layer_posteriors[0]

    @property
    def layer_posteriors(self) -> list[FrozenPosterior]:
        """The frozen posterior of every layer in scaled units, without prior means."""
        if self._forms is None:
            with FREEZING, torch.no_grad():
                if self._forms is None:
                    self._forms = self.model.frozen_layers(torch.float64)
        return self._forms

    @property
    def _frozen(self) -> list[FrozenLayer]:
        return [FrozenLayer(*pair) for pair in zip(self.model.layers, self.layer_posteriors, strict=True)]

    # -- prediction ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def layer_variances(self, X: Any) -> list[LayerVariances]:
        """Every layer's uncertainty, the first layer first.

        Hidden layers are in the scaled units of the inputs, the last in the units of the targets where those
        are real numbers.
        """
        x = self._inputs(X)
        layers: list[list[list[Tensor]]] = [[] for _ in self._frozen]
        for piece in x.split(self._chunk_rows()):
            for found, f in zip(layers, self.model.propagate(piece[None], self._frozen), strict=True):
                f = Marginals(*torch.broadcast_tensors(*f))
                between = f.mean.var(0, correction=0)
                found.append([*(part.mean(0) for part in f), between])
        out = [
            LayerVariances(*(torch.cat(v, -1)[0].mT.cpu().numpy() for v in zip(*found, strict=True)))
            for found in layers
        ]
        scale = self.y_scaler.scale
        if self.model.likelihood.target == "real" and out[-1].mean.shape[-1] == len(scale):
            last = out[-1]
            variances = (part * scale**2 for part in last[1:])
            out[-1] = LayerVariances(last.mean * scale + self.y_scaler.shift, *variances)
        return out

    def predict_mean(self, X: Any) -> NDArray[np.float64]:
        if self.classes is not None:
            return super().predict_mean(X)  # which refuses
        return cast(Prediction, self.predict(X)).mean  # the samples of the hidden layers need their variances

    def _quick_form(self, precision: Precision, *, in_parts: bool = True) -> list[FrozenLayer]:
        """The layers, each in its form for many rows; always in parts."""
        return [replace(stage, quick=stage.form.many_rows(precision)) for stage in self._frozen]

    def _road(self, rows: int, in_parts: bool, precision: Precision | None) -> Road:
        return super()._road(rows, True, precision)

    @property
    def _points(self) -> int:
        """Rows of X whose samples are as many as the points of the largest layer."""
        sizes = (max(f.mean_weights.shape[-1], f.residual_root.shape[-1]) for f in self.layer_posteriors)
        return max(1, max(sizes) // self.model.samples)

    def _marginals_at(self, x: Tensor, *, in_parts: bool = True, form: Any = None) -> Marginals:
        """Given each sample of the hidden layers: [S, 1, outputs, n]; always in parts."""
        *_, f = self.model.propagate(x[None], self._frozen if form is None else form)
        return Marginals(*torch.broadcast_tensors(*f))

    def _density(self, row_noise: Tensor | None, start: int, rows: int) -> Density:
        return cast(Density, MixtureDensity(super()._density(row_noise, start, rows)))

    def _shown(self, f: Marginals | TotalMarginals) -> Marginals:
        assert isinstance(f, Marginals)  # its own marginals are always in parts
        return mixture_moments(f)

    def _chunk_rows(self, matrices: int = 4) -> int:
        return self.model.rows_at_once()

    # -- samples: every layer drawn as a function -----------------------------------------------------------

    def _joint_draws(self, x: Tensor, n: int, generator: torch.Generator) -> Tensor:
        return joint_draws(self._frozen, x, n, generator) + self._offset(x)

    def _path_draws(
        self, n: int, generator: torch.Generator, num_features: int = 1024
    ) -> Callable[[Tensor], Tensor]:
        paths = path_draws(self._frozen, n, generator, num_features)
        return lambda x: paths(x) + self._offset(x)

    def _offset(self, x: Tensor) -> Tensor:
        """The learned mean at rows [1, 1, rows, d]: [latents, rows]; zero without one."""
        return x.new_zeros(()) if self.model.offset is None else self.model.offset(x)[0]

    # -- what was learned ------------------------------------------------------------------------------------

    @torch.no_grad()
    def hyperparameters(self) -> dict[str, Any]:
        """As `GP.hyperparameters` of the last layer, with the kernels of all ``layers`` beside them."""
        out = super().hyperparameters()
        out["layers"] = []
        for layer in self.model.layers:
            own = {"kernel": plain_description(layer.basis.kernel.describe())}
            if (mean_kernel := getattr(layer.basis, "mean_kernel", None)) is not None:
                own["mean_kernel"] = plain_description(mean_kernel.describe())
            out["layers"].append({"lengthscale": first_value(own["kernel"], "lengthscale"), **own})
        return out

    @property
    def inducing_points(self) -> NDArray[np.float64]:
        """The first layer's points that carry the covariance, [M, d] in the units of X."""
        inducing = self.model.layers[0].basis.inducing
        assert isinstance(inducing, Tensor)
        points = inducing[0, 0, :, : int(self.columns.sum())].detach().double().cpu().numpy()
        out = np.full((len(points), len(self.columns)), np.nan)
        out[:, self.columns] = self.x_scaler.inverse(points)
        return out

    def num_variational_parameters(self) -> int:
        return self.model.num_variational_parameters()
