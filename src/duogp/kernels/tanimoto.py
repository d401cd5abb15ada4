"""The Tanimoto kernel of counts and fingerprints."""

from __future__ import annotations

import torch
from torch import Tensor

from duogp.kernels.base import Kernel


class Tanimoto(Kernel):
    """⟨x, x′⟩ / (‖x‖² + ‖x′‖² − ⟨x, x′⟩): the share of two fingerprints that they have in common.

    For vectors of zeros and ones it is their intersection over their union (the Jaccard index). Positive
    definite for all real vectors: with c = ‖x‖² + ‖x′‖² it is Σⱼ (⟨x, x′⟩ / c)ʲ, j ≥ 1, and 1/c is positive
    definite. It has no parameters, and two vectors of zeros are alike: k(0, 0) = 1. Inputs are meant as they
    are: fit with ``standardize=False``. It has no random features, so there are joint draws only.
    """

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        inner = x1 @ x2.mT
        union = x1.square().sum(-1)[..., :, None] + x2.square().sum(-1)[..., None, :] - inner
        empty = union <= 0  # both are zero
        ones = torch.ones_like(union)
        return torch.where(empty, ones, inner / torch.where(empty, ones, union))

    def diag(self, x: Tensor) -> Tensor:
        return x.new_ones(()).expand(x.shape[:-1])
