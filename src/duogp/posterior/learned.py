"""The cross-fitted prior mean of a fitted model: what it says about new rows, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.means import CrossFit

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
        values = spread if scale is None else spread / scale**2
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
        values = self.unseen if scale is None else self.unseen / scale**2
        own = torch.as_tensor(values, dtype=torch.float64, device=slope.device)
        return slope.double().square()[..., : len(own)] * own
