"""`Incoming`: new rows of a fitted GP, from the user's units to the model's device, piece by piece."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.bases import FrozenPosterior
from duogp.bases.many_rows import MATRICES
from duogp.data.arriving import Arriving
from duogp.data.validation import as_row_noise
from duogp.means.crossfit import moderate
from duogp.models.model import Model
from duogp.posterior.learned import LearnedMean
from duogp.posterior.units import Fitted

#: Kernel columns held at once during prediction, in bytes.
CHUNK_BYTES = 16 * 2**20
#: A GPU has more, and every chunk costs two milliseconds of launches and copies; never more than a quarter of
#: what is free, and few enough rows that the next are sent meanwhile.
CUDA_CHUNK_BYTES, CUDA_CHUNK_ROWS = 4 * 2**30, 2**19
#: Rows farther out, in scaled units, are moved to this distance, so that their squares stay finite.
FARTHEST = 1e100


class Incoming(Fitted):
    """What a fitted GP does with new rows before its posterior sees them."""

    model: Model
    learned: LearnedMean | None  # a cross-fitted prior mean
    known_noise: bool  # all of the noise was given row by row, none was learned

    @property
    @abstractmethod
    def posterior(self) -> FrozenPosterior:
        """The frozen posterior of f in scaled units, without the prior mean."""

    def _inputs(self, X: Any) -> Tensor:
        """Rows in scaled units on the model's device, float64."""
        return self._arriving(X).together()

    def _arriving(self, X: Any) -> Arriving:
        """The same, for who takes them piece by piece."""
        matrix = self._rows(X)
        device = self.model.beta1.device
        scale = self.x_scaler.on(device)
        if self.learned is not None:
            return self._arriving_with_mean(matrix[:, self.columns], device)
        used = None
        if not self.columns.all():
            used = torch.as_tensor(np.flatnonzero(self.columns), device=device)

        def scaled(x: Tensor) -> Tensor:
            return scale(x if used is None else x[:, used]).clamp_(-FARTHEST, FARTHEST)

        return Arriving(matrix, device, scaled)

    def _arriving_with_mean(self, matrix: NDArray, device: torch.device) -> Arriving:
        """Rows of the used columns, with what the learned mean says about them behind."""
        assert self.learned is not None
        scale, dims = self.x_scaler.on(device), matrix.shape[1]
        mean = self.learned.at(matrix, device)
        value = mean.value
        if self._learned_scale is not None:
            value = moderate(self.y_scaler.transform(value))

        def scaled(x: Tensor) -> Tensor:
            return torch.cat([scale(x[:, :dims]), x[:, dims:]], -1).clamp_(-FARTHEST, FARTHEST)

        return Arriving(np.concatenate([matrix, value], 1), device, scaled, beside=mean.spread)

    @property
    def _learned_scale(self) -> NDArray | None:
        """Scale of the targets, where the learned mean is in their units."""
        return (
            self.y_scaler.scale if self.learned is not None and self.learned.fit.goal.kind == "real" else None
        )

    def _row_noise(self, noise: Any, n: int) -> Tensor | None:
        """Known noise of new rows in scaled units, [1, outputs, n]."""
        if noise is None:
            return None
        variance = as_row_noise(noise, n).T / self.y_scaler.scale[:, None] ** 2
        return torch.as_tensor(variance, device=self.model.beta1.device)[None]

    def _require_noise(self, noise: Any, what: str) -> None:
        if self.known_noise and noise is None:
            raise ValueError(f"{what} needs noise=: this model was fitted with known noise, and learned none")

    @property
    def _points(self) -> int:
        """Columns of the largest matrix that kernel columns are multiplied with."""
        return max(self.posterior.mean_weights.shape[-1], self.posterior.residual_root.shape[-1])

    def _chunk_rows(self, matrices: int = MATRICES) -> int:
        """Rows at once, where each takes so many numbers for every inducing point."""
        device, latents = self.model.beta1.device, self.posterior.mean_weights.shape[-2]
        bytes_of_row = 8 * matrices * self._points * latents
        rows = CHUNK_BYTES // bytes_of_row
        if device.type == "cuda":
            memory = min(CUDA_CHUNK_BYTES, torch.cuda.mem_get_info(device)[0] // 4)
            rows = min(memory // bytes_of_row, CUDA_CHUNK_ROWS)
        return max(256, rows - rows % 256)  # tensor cores want rows of memory that are multiples of 16 bytes
