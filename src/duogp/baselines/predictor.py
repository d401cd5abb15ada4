"""A fitted baseline: predictions and densities of a mixture of networks, in the user's units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.baselines.heads import GaussianHead, log_mean_exp, mixture_moments, mixture_probabilities
from duogp.baselines.networks import Committee
from duogp.baselines.options import NeuralSettings
from duogp.data.scaling import Scaler
from duogp.posterior.prediction import ClassPrediction, Prediction
from duogp.posterior.units import Fitted
from duogp.training.history import History

#: Activations held at once during prediction, in bytes.
CHUNK_BYTES = 256 * 2**20
#: Inputs are clipped here, in standard deviations (or in their own units, unscaled): outputs stay finite.
FARTHEST = 1e6
FARTHEST_UNSCALED = 1e30


@dataclass(eq=False, repr=False)
class NeuralPredictor(Fitted):
    """A mixture of networks with the predictions of a `duogp.GP`; returned by `fit_neural`.

    ``explained`` is the variance of the networks' means, ``noise`` the mean of their noise variances, and
    ``residual`` is zero: the distance of a row from the data has no influence.
    """

    network: Committee
    _: KW_ONLY
    kind: str
    settings: NeuralSettings
    columns: NDArray[np.bool_]
    x_scaler: Scaler
    y_scaler: Scaler
    single_output: bool
    history: History
    column_names: list[str] | None = None
    classes: NDArray | None = None  # the labels behind class numbers; None for regression
    method: Any = None  # its line in the registry

    def __post_init__(self) -> None:
        self.network.eval()

    def __repr__(self) -> str:
        classes, outputs = self.classes, len(self.y_scaler.scale)
        counted = f"outputs={outputs}" if classes is None else f"classes={len(classes)}"
        return (
            f"NeuralPredictor(method={self.kind!r}, inputs={len(self.columns)}, {counted}, "
            f"widths={self.network.widths}, passes={self.network.num_passes})"
        )

    @torch.no_grad()
    def predict(self, X: Any) -> Prediction | ClassPrediction:
        """Mean and variances of new rows; class probabilities where the targets are labels."""
        x = self._inputs(X)
        if self.classes is not None:
            return self._class_prediction(x)
        head = self.network.head
        assert isinstance(head, GaussianHead)
        parts = [mixture_moments(*head.moments(raw)) for raw in self._passes(x)]
        mean, explained, noise = (torch.cat(p, -1).mT.cpu().numpy() for p in zip(*parts, strict=True))
        scale = self.y_scaler.scale
        return Prediction(
            mean=self._shape(mean * scale + self.y_scaler.shift),
            residual=self._shape(np.zeros_like(mean)),
            explained=self._shape(explained * scale**2),
            noise=self._shape(noise * scale**2),
        )

    @torch.no_grad()
    def log_density(self, X: Any, y: Any) -> NDArray[np.float64]:
        """log p(y | x, data) of each row under the mixture, in the user's units.

        X [n, d], y [n] or [n, outputs] → [n].
        The outputs of a row are independent within a network, not across networks.
        """
        x = self._inputs(X)
        target = self._target(y, len(x))
        if self.classes is not None:
            p = self._class_prediction(x).probabilities
            return np.log(np.take_along_axis(p, target.astype(np.intp), 1)[:, 0])
        scaled = self.y_scaler.transform(target.astype(np.float64))
        ys = torch.as_tensor(scaled, device=x.device).mT
        out: list[Tensor] = []
        for raw in self._passes(x):
            start = sum(map(len, out))
            out.append(log_mean_exp(self.network.head.log_prob(raw, ys[:, start : start + raw.shape[-2]])))
        return torch.cat(out).cpu().numpy() - np.log(self.y_scaler.scale).sum()

    @torch.no_grad()
    def hyperparameters(self) -> dict[str, Any]:
        """Sizes of the networks and learned noise variances, in scaled units."""
        out: dict[str, Any] = {
            "widths": list(self.network.widths),
            "members": self.network.members,
            "passes": self.network.num_passes,
            "parameters": self.network.num_parameters(),
        }
        head = self.network.head
        if isinstance(head, GaussianHead):
            factor = head.factor.cpu().numpy()
            out["noise_factor"] = factor.tolist()
            if head.noise is not None:
                out["noise"] = (head.noise().double().cpu().numpy() * factor).mean(0).tolist()
        return out

    # -- helpers ---------------------------------------------------------------------------------------------

    def _passes(self, x: Tensor) -> Iterator[Tensor]:
        """Raw outputs [S, rows, width] in float64, for consecutive pieces of the rows."""
        size = 4 * x.element_size() * self.network.num_passes * max(*self.network.widths, x.shape[1])
        for piece in x.split(max(64, CHUNK_BYTES // size)):
            yield self.network.passes(piece).double()

    def _class_prediction(self, x: Tensor) -> ClassPrediction:
        assert self.classes is not None
        parts = []
        for raw in self._passes(x):
            latent = raw - raw.mean(-1, keepdim=True)  # softmax depends on differences alone
            parts.append((mixture_probabilities(raw), latent.mean(0), latent.var(0, correction=0)))
        p, mean, explained = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
        return ClassPrediction(p, self.classes, mean, np.zeros_like(mean), explained)

    def _inputs(self, X: Any) -> Tensor:
        """Rows in scaled units, in the precision and on the device of the networks."""
        weight = next(self.network.parameters())
        scaled = scaled_inputs(self._rows(X)[:, self.columns], self.x_scaler)
        return torch.as_tensor(scaled, dtype=weight.dtype, device=weight.device)


def scaled_inputs(X: NDArray, scaler: Scaler) -> NDArray[np.float64]:
    """X [n, d] in scaled units, clipped at `FARTHEST` (`FARTHEST_UNSCALED` if the scaler is the identity)."""
    unscaled = bool((scaler.scale == 1).all() and (scaler.shift == 0).all())
    limit = FARTHEST_UNSCALED if unscaled else FARTHEST
    with np.errstate(over="ignore"):
        return np.clip(scaler.transform(X.astype(np.float64)), -limit, limit)
