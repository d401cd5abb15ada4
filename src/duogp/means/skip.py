"""The mean of a hidden layer: its inputs, handed on (Salimbeni and Deisenroth 2017).

Without it a composition of zero-mean layers forgets its inputs after a few of them. The map is linear, fixed
and one of three: the identity where the layer is as wide as its inputs, their leading principal directions
where it is narrower, and the inputs beside columns of zeros where it is wider.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SkipMean(nn.Module):
    """μ(x) = Wᵀx, one value for each latent function: [..., R, 1, n, d] → [..., R, width, n]."""

    weight: Tensor  # W [R, d, width]
    replicate_buffers = ("weight",)

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        dims, width = weight.shape[-2:]
        # Decided here and not by looking at the numbers again in each step.
        self.is_identity = dims == width and bool((weight == torch.eye(dims).to(weight)).all())

    @classmethod
    def between(cls, inputs: Tensor, width: int) -> SkipMean:
        """From inputs like these [R, n, d] to a layer of that width."""
        replicates, _, dims = inputs.shape
        if width >= dims:
            weight = torch.eye(dims, width, dtype=torch.float64).expand(replicates, dims, width).clone()
            return cls(weight.to(inputs.device))
        return cls(principal_directions(inputs.double(), width))

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_identity:
            x = x @ self.weight.to(x.dtype).unsqueeze(-3)
        return x.squeeze(-3).mT


def principal_directions(x: Tensor, count: int) -> Tensor:
    """The leading directions of rows [R, n, d], as columns [R, d, count]; their largest entry is positive."""
    centred = x - x.mean(-2, keepdim=True)
    _, V = torch.linalg.eigh(centred.mT @ centred)  # in ascending order
    V = V.flip(-1)[..., :count]
    largest = V.gather(-2, V.abs().argmax(-2, keepdim=True))
    return V * largest.sign()
