"""The ε of hidden layers, f = mean + √variance ε: `NormalDraws` of the widths of all of them side by side."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from duogp.likelihoods.monte_carlo import NormalDraws, for_rows


class LayerDraws(NormalDraws):
    """Standard normals for hidden layers of the given widths, one set of training draws per replicate."""

    replicate_buffers = ("training_draws",)

    def __init__(
        self,
        widths: Sequence[int],
        replicates: int,
        samples: int,
        eval_samples: int,
        columns: int,
        dtype: torch.dtype,
    ) -> None:
        for name, count in (("samples", samples), ("columns", columns)):
            if count < 1:
                raise ValueError(f"{name} must be at least 1, got {count}")
        ends = list(itertools.accumulate(widths))
        super().__init__(ends[-1], samples, eval_samples, range(replicates), columns=columns, dtype=dtype)
        self._parts = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]

    @property
    def samples(self) -> int:
        """How many the present mode has."""
        return super().forward().shape[1]

    def forward(self, layer: int, n: int) -> Tensor:  # type: ignore[override]
        """ε of a hidden layer at n rows: [S, R or 1, width, n or 1]."""
        return for_rows(super().forward()[:, :, self._parts[layer]].movedim(1, 0), n)
