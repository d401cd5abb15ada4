"""A fitted deep GP: predictions are mixtures over samples of the hidden layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.bases import FrozenPosterior, Marginals
from duogp.data.arriving import Arriving
from duogp.likelihoods import Density
from duogp.models.deep import DeepModel
from duogp.models.layers import FrozenLayer
from duogp.models.sample_mixture import MixtureDensity, mixture_moments
from duogp.posterior.gp import GP, _count, _find, _generator, _plain
from duogp.posterior.prediction import ClassPrediction, Prediction
from duogp.posterior.sampling import joint_draws, path_draws

#: Rows up to which `sample` factorises joint covariances, one for each draw and layer.
JOINT_ROWS = 300


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
    _stages: list[FrozenLayer] | None = None

    @property
    def posterior(self) -> FrozenPosterior:
        """Of a model without hidden layers only; with them, each layer has one (`layer_posteriors`)."""
        if len(self.model.hidden):
            raise ValueError("a deep GP has no single linear form: see layer_posteriors")
        return self.layer_posteriors[0]

    @property
    def layer_posteriors(self) -> list[FrozenPosterior]:
        """The frozen posterior of every layer in scaled units, without prior means."""
        return [stage.form for stage in self._frozen]

    @property
    def _frozen(self) -> list[FrozenLayer]:
        if self._stages is None:
            with torch.no_grad():
                forms = self.model.frozen_layers(torch.float64)
            self._stages = [FrozenLayer(layer, f) for layer, f in zip(self.model.layers, forms, strict=True)]
        return self._stages

    # -- prediction ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def predict(self, X: Any, *, noise: Any = None, in_parts: bool = True) -> Prediction | ClassPrediction:
        if self.classes is None:
            return super().predict(X, noise=noise, in_parts=in_parts)
        pieces = []
        for start, f in self._marginals(self._arriving(X)):
            density = self._density(None, start, f.mean.shape[-1])
            pieces.append([density.class_probabilities(f.mean, f.variance), *mixture_moments(f)])
        found = [torch.cat(values, -1)[0].mT.cpu().numpy() for values in zip(*pieces, strict=True)]
        return ClassPrediction(found[0], self.classes, *found[1:])

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

    def _marginals(self, x: Arriving | Tensor, *, in_parts: bool = True) -> Iterator[tuple[int, Marginals]]:
        """Given each sample of the hidden layers: [S, 1, outputs, n]; always in parts."""
        start = 0
        for piece in x.split(self._chunk_rows()):
            *_, f = self.model.propagate(piece[None], self._frozen)
            yield start, Marginals(*torch.broadcast_tensors(*f))
            start += len(piece)

    def _density(self, row_noise: Tensor | None, start: int, rows: int) -> Density:
        return cast(Density, MixtureDensity(super()._density(row_noise, start, rows)))

    def _chunk_rows(self, matrices: int = 4) -> int:
        return self.model.rows_at_once()

    # -- samples ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(
        self,
        X: Any,
        n: int = 1,
        *,
        seed: int | None = None,
        kind: str = "auto",
        observation_noise: bool = False,
        noise: Any = None,
    ) -> NDArray[np.float64]:
        """n joint draws of f at the rows of X, every layer drawn as a function; ``kind`` as in `GP.sample`.

        "joint" factorises a covariance for each draw and layer: "auto" is joint up to 300 rows.
        """
        if observation_noise:
            self._require_noise(noise, "sample(observation_noise=True)")
        if kind not in ("auto", "joint", "pathwise"):
            raise ValueError(f"kind must be 'auto', 'joint' or 'pathwise', got {kind!r}")
        x, generator = self._inputs(X), _generator(seed)
        if kind == "joint" or (kind == "auto" and len(x) <= JOINT_ROWS):
            draws = joint_draws(self._frozen, x[None, None], _count(n), generator)
        else:
            evaluate = path_draws(self._frozen, _count(n), generator)
            draws = torch.cat([evaluate(part[None, None]) for part in x.split(self._chunk_rows())], -1)
        draws = self._mixed(draws)
        if not observation_noise:
            return self._draws_to_user(draws)
        density = self._likelihood.bind(self._row_noise(noise, len(x)))
        values = density.sample(draws.unsqueeze(1), generator)[:, 0]
        if self.classes is not None:
            return self.classes[values[:, 0].long().cpu().numpy()]
        return self._draws_to_user(values)

    def sample_paths(
        self, n: int = 1, *, seed: int | None = None, num_features: int = 1024
    ) -> Callable[[Any], NDArray]:
        with torch.no_grad():
            evaluate = path_draws(self._frozen, _count(n), _generator(seed), num_features)

        @torch.no_grad()
        def paths(X: Any) -> NDArray[np.float64]:
            return self._draws_to_user(self._mixed(evaluate(self._inputs(X)[None, None])))

        return paths

    # -- what was learned ------------------------------------------------------------------------------------

    @torch.no_grad()
    def hyperparameters(self) -> dict[str, Any]:
        """As `GP.hyperparameters` of the last layer, with the kernels of all ``layers`` beside them."""
        out = super().hyperparameters()
        out["layers"] = []
        for layer in self.model.layers:
            own = {"kernel": _plain(layer.basis.kernel.describe())}
            if (mean_kernel := getattr(layer.basis, "mean_kernel", None)) is not None:
                own["mean_kernel"] = _plain(mean_kernel.describe())
            out["layers"].append({"lengthscale": _find(own["kernel"], "lengthscale"), **own})
        return out

    @property
    def inducing_points(self) -> NDArray[np.float64]:
        """The first layer's points that carry the covariance, [M, d] in the units of X."""
        inducing = self.model.layers[0].basis.inducing
        assert isinstance(inducing, Tensor)
        points = inducing[0, 0].detach().double().cpu().numpy()
        out = np.full((len(points), len(self.columns)), np.nan)
        out[:, self.columns] = self.x_scaler.inverse(points)
        return out

    def num_variational_parameters(self) -> int:
        return self.model.num_variational_parameters()
