"""Class numbers 0, …, C − 1 as targets: probabilities [..., C, n] and draws from them."""

from __future__ import annotations

import torch
from torch import Tensor

#: Probabilities of classes are reported no closer to 0 and 1 than this.
PROBABILITY_FLOOR = 1e-12


def of_class(values: Tensor, y: Tensor) -> Tensor:
    """The entries of [..., C, n] at the class numbers y [R, 1, n]: [..., n]."""
    index = y.long().expand(*values.shape[:-2], 1, values.shape[-1])
    return values.gather(-2, index).squeeze(-2)


def sample_class(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """One class number for each column of [..., C, n]: [..., 1, n]."""
    *batch, classes, n = probabilities.shape
    u = torch.rand(*batch, 1, n, generator=generator, device=generator.device, dtype=torch.float64)
    below = (probabilities.cumsum(-2) <= u.to(probabilities)).sum(-2, keepdim=True)
    return below.clamp(max=classes - 1).to(probabilities.dtype)


def normalised(probabilities: Tensor) -> Tensor:
    """Probabilities [..., C, n] that sum to one, with finite logs: `PROBABILITY_FLOOR` away from 0 and 1."""
    shares = probabilities / probabilities.sum(-2, keepdim=True)
    clipped = shares.clamp(PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR)
    return clipped / clipped.sum(-2, keepdim=True)
