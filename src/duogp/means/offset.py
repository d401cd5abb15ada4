"""The prior mean that stands in columns of x: what a cross-fitted model has predicted for the row."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from duogp.means.parametric import Mean


class OffsetMean(Mean):
    """μ_l(x) = c_l + a_l x_{d − C + l}: the last C columns of x, one for each of the first latent functions.

    c and a are learned, from 0 and ``slope`` on: a poor prediction is shrunk. Latent functions after the
    first C (a log noise) have the constant alone.
    """

    def __init__(self, columns: int, latents: int, slope: float = 1.0) -> None:
        super().__init__()
        self.columns, self.latents, self.initial_slope = columns, latents, slope
        self.constant = nn.Parameter(torch.zeros(()))
        self.slope = nn.Parameter(torch.tensor(float(slope)))

    def forward(self, x: Tensor) -> Tensor:
        values = x[..., -self.columns :].mT.squeeze(-3)  # [*b, C, n]
        if self.latents > self.columns:
            missing = values.new_zeros(()).expand(
                *values.shape[:-2], self.latents - self.columns, values.shape[-1]
            )
            values = torch.cat([values, missing], -2)
        constant, slope = (p.to(x.dtype).unsqueeze(-1) for p in (self.constant, self.slope))
        return constant + slope * values
