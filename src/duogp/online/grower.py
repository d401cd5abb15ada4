"""`Grower`: rows of every minibatch become basis points, until the bases are full.

Coupled bases grow to ``num_inducing`` points. Those of Cheng and Boots first grow tied, to ``num_inducing``;
then the mean is freed and grows alone, to ``num_extra``.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from duogp.kernels import generalised_points
from duogp.methods.settings import Settings
from duogp.models.model import Batch
from duogp.online.growth import Block, distinct_rows, growing_block, novel_rows
from duogp.online.stepper import Stepper

#: Rows examined for every point that is added.
CANDIDATES = 4
#: Most minibatches that are skipped after searches without a new point.
LONGEST_PAUSE = 64


class Grower:
    """Appends points to the basis of a model, at most ``growth`` from a minibatch."""

    def __init__(self, stepper: Stepper, settings: Settings, growth: int, rng: np.random.Generator) -> None:
        self.stepper, self.settings, self.growth, self.rng = stepper, settings, growth, rng
        self._pause = self._fruitless = 0  # minibatches to skip, searches in a row without a new point

    def feed(self, batch: Batch) -> None:
        """Append rows of the minibatch that are new to the basis, as far as there is room."""
        if self._pause > 0:
            self._pause -= 1
            return
        block, room = self._next_block()
        if room <= 0 and block.when_full is not None:
            self.stepper.grow(block.when_full())
            block, room = self._next_block()
        if room <= 0:
            return
        # At most half of a batch: the noise is estimated from the other rows.
        count = min(self.growth, room, max(1, batch.x.shape[-2] // 2))
        if self._append(block, batch.x[0], count):
            self._fruitless = 0
        else:
            self._fruitless += 1
            self._pause = min(2**self._fruitless, LONGEST_PAUSE)

    def _next_block(self) -> tuple[Block, int]:
        """The block that grows next, and the number of points it still lacks."""
        block = growing_block(self.stepper.model.basis, self.settings.mean_columns)
        return block, (getattr(self.settings, block.limit) or 0) - block.points.shape[-2]

    def _append(self, block: Block, x: Tensor, count: int) -> bool:
        kernel, numerics = self.stepper.model.basis.kernel, self.stepper.model.numerics
        order = self.rng.permutation(len(x))[: CANDIDATES * count]
        x = x[torch.as_tensor(order, device=x.device)]
        if block.independent:
            chosen = novel_rows(kernel, block.points, x, count, float(numerics.jitter.max()))
        else:
            chosen = distinct_rows(kernel, block.points, x, count)
        if len(chosen) == 0:
            return False
        points = x[torch.as_tensor(chosen, device=x.device)][None, None]
        if block.points.shape[-1] != points.shape[-1]:
            points = generalised_points(points)
        self.stepper.grow(block.append(points, numerics))
        return True
