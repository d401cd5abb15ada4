"""Which rows become basis points, and when: until the bases are full, some of every minibatch.

Coupled bases grow to ``num_inducing`` points. Those of Cheng and Boots first grow tied, to ``num_inducing``;
then the mean is freed and grows alone, to ``num_extra``.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from duogp.bases import Coupled, Subspace
from duogp.kernels import generalised_points
from duogp.methods.settings import Settings
from duogp.models.model import Batch
from duogp.online.growth import append_coupled, append_mean, append_tied, distinct_rows, free_mean, novel_rows
from duogp.online.stepper import Stepper

#: Candidates looked at for every point that is added, and the longest pause after looks that found none.
CANDIDATES = 4
LONGEST_PAUSE = 64


class Grower:
    """Feeds a model with points, at most ``growth`` from a minibatch."""

    def __init__(self, stepper: Stepper, settings: Settings, growth: int, rng: np.random.Generator) -> None:
        self.stepper, self.growth, self.rng = stepper, growth, rng
        self.columns = settings.mean_columns
        self.num_inducing, self.num_extra = settings.num_inducing or 0, settings.num_extra or 0
        self._pause = self._fruitless = 0  # minibatches to let pass, looks that found nothing

    def feed(self, batch: Batch) -> None:
        """Add rows of the minibatch to the bases, as long as there is room and something new about them."""
        if self._pause > 0:
            self._pause -= 1
            return
        basis = self.stepper.model.basis
        if isinstance(basis, Subspace) and basis.shared and basis.q.size >= self.num_inducing:
            self.stepper.grow(free_mean(basis, self.columns))
        if (room := self._room()) <= 0:
            return
        # Half of a batch at most: its rows must still have something to say about the noise.
        count = min(self.growth, room, max(1, batch.x.shape[-2] // 2))
        if self._append(batch.x[0], count):
            self._fruitless = 0
        else:
            self._fruitless += 1
            self._pause = min(2**self._fruitless, LONGEST_PAUSE)

    def _room(self) -> int:
        basis = self.stepper.model.basis
        if isinstance(basis, Subspace) and not basis.shared:
            return self.num_extra - basis.mean_inducing.shape[-2]
        return self.num_inducing - basis.q.size

    def _append(self, x: Tensor, count: int) -> bool:
        model = self.stepper.model
        basis, numerics = model.basis, model.numerics
        order = self.rng.permutation(len(x))[: CANDIDATES * count]
        x = x[torch.as_tensor(order, device=x.device)]
        if isinstance(basis, Subspace) and not basis.shared:
            chosen = distinct_rows(basis.kernel, basis.mean_inducing, x, count)
        else:
            assert isinstance(basis, Coupled | Subspace)
            chosen = novel_rows(basis.kernel, basis.inducing, x, count, float(numerics.jitter.max()))
        if len(chosen) == 0:
            return False
        points = x[torch.as_tensor(chosen, device=x.device)][None, None]
        if basis.inducing.shape[-1] != points.shape[-1]:
            points = generalised_points(points)
        if isinstance(basis, Coupled):
            grown = append_coupled(basis, points)
        elif basis.shared:
            grown = append_tied(basis, points, numerics, self.columns)
        else:
            grown = append_mean(basis, points, numerics, self.columns)
        self.stepper.grow(grown)
        return True
