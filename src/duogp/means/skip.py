"""The prior mean of a hidden layer: a fixed linear map of its inputs (Salimbeni and Deisenroth 2017).

Without it a composition of a few zero-mean layers no longer depends on its inputs. The map is the identity
where the layer is as wide as its inputs, their leading principal directions where it is narrower, and the
inputs beside columns of zeros where it is wider.
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
        # Decided once: reading the weight in a step would synchronise.
        self.is_identity = dims == width and bool((weight == torch.eye(dims).to(weight)).all())

    @classmethod
    def between(cls, inputs: Tensor, width: int) -> SkipMean:
        """The map from inputs distributed like these [R, n, d] to a layer of that width."""
        replicates, _, dims = inputs.shape
        if width >= dims:
            weight = torch.eye(dims, width, dtype=torch.float64).expand(replicates, dims, width).clone()
            return cls(weight.to(inputs.device))
        return cls(principal_directions(inputs.double(), width))

    def forward(self, x: Tensor) -> Tensor:
        """Values [..., R, width, n] at inputs [..., R, 1, n, d]."""
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
