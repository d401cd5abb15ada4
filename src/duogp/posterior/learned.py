"""The cross-fitted prior mean of a fitted model: what it says about new rows, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, softmax
from torch import Tensor

from duogp.means import CrossFit
from duogp.means.crossfit import moderate
from duogp.posterior.draws import draws_count, require_memory, require_seed
from duogp.posterior.prediction import ClassPrediction
from duogp.posterior.units import Fitted

#: Share of the noise that stays when what averaging removes is taken off it.
LEAST_NOISE = 0.25


class MeanAt(NamedTuple):
    """At n rows: the average of the folds and their spread s², each [n, C] in the units of the models."""

    value: NDArray[np.float64]
    spread: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LearnedMean:
    """K models whose average is a column of the inputs, see `means.crossfit`.

    ``unseen``: E[s²] over rows that no fold has seen, [C]; None where there were none.
    """

    fit: CrossFit
    unseen: NDArray[np.float64] | None = None

    def at(self, X: NDArray, device: torch.device | None = None) -> MeanAt:
        return MeanAt(*self.fit.at(X, device))

    def disagreement(self, spread: NDArray, slope: Tensor, scale: NDArray | None) -> Tensor:
        """Variance of a·t̄(x) in scaled units, a²s²(x)/K: [1, latents, n]; ``slope`` a [1, latents]."""
        with np.errstate(all="ignore"):
            values = spread if scale is None else moderate(spread / scale**2)
        own = torch.as_tensor(values.T / self.fit.folds, dtype=torch.float64, device=slope.device)[None]
        missing = slope.shape[-1] - own.shape[-2]
        if missing:
            own = torch.cat([own, own.new_zeros(1, missing, own.shape[-1])], -2)
        return slope.double().square().unsqueeze(-1) * own

    def removed_by_averaging(self, slope: Tensor, scale: NDArray | None) -> Tensor | None:
        """a²E[s²] in scaled units, [1, latents]: in the noise of training rows, not in that of new ones.

        A training row is given the prediction of one model, and what the models differ in is noise to the
        GP. New rows are given their average; a²s²/K of it comes back as `disagreement`.
        """
        if self.unseen is None:
            return None
        with np.errstate(all="ignore"):
            values = self.unseen if scale is None else moderate(self.unseen / scale**2)
        own = torch.as_tensor(values, dtype=torch.float64, device=slope.device)
        return slope.double().square()[..., : len(own)] * own


class LearnedOnly(Fitted):
    """A cross-fitted classifier without a GP: a member of stacks.

    ``of``: a GP of the same table; ``learned``: another mean than its own.
    """

    def __init__(self, of: Any, learned: LearnedMean | None = None) -> None:
        own = of.learned if learned is None else learned
        assert own is not None and of.classes is not None
        self.learned: LearnedMean = own
        self.columns, self.x_scaler, self.y_scaler = of.columns, of.x_scaler, of.y_scaler
        self.single_output, self.column_names, self.classes = True, of.column_names, of.classes
        self.known_noise, self.history = False, of.history

    def predict(
        self, X: Any, *, noise: Any = None, in_parts: bool = True, precision: str | None = None
    ) -> ClassPrediction:
        rows = self._rows(X)[:, self.columns]
        value, spread = self.learned.at(rows)
        assert self.classes is not None
        zero = np.zeros_like(value)
        disagreement = spread / self.learned.fit.folds
        return ClassPrediction(self.probabilities_of(value), self.classes, value, zero, zero, disagreement)

    def probabilities_of(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """From log odds [n, 1] or log probabilities [n, C] to [n, C]."""
        if value.shape[1] > 1:
            return np.asarray(softmax(value, axis=1))
        p = expit(value[:, 0])
        return np.stack([1 - p, p], 1)

    def sample(
        self, X: Any, n: int = 1, *, seed: int | None = None, observation_noise: bool = False, **_: Any
    ) -> NDArray:
        """Draws of labels, independent from row to row; without noise the log odds, which do not vary.

        X [rows, d]; labels [n, rows], log odds [n, rows], or [n, rows, classes] of more than two classes.
        """
        n, prediction = draws_count(n), self.predict(X)
        require_memory(n, len(prediction))
        if not observation_noise:
            values = np.broadcast_to(prediction.latent_mean, (n, *prediction.latent_mean.shape))
            return values[..., 0] if values.shape[-1] == 1 else values
        assert self.classes is not None
        rng = np.random.default_rng(require_seed(seed))
        u = rng.random((n, len(prediction), 1))
        codes = (u > prediction.probabilities.cumsum(1)).sum(-1).clip(0, len(self.classes) - 1)
        return self.classes[codes]

    def hyperparameters(self) -> dict[str, Any]:
        return {"folds": self.learned.fit.folds}
