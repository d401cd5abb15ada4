"""A kernel of the number of categories that differ."""

from __future__ import annotations

import torch
from torch import Tensor

from duogp.kernels import draws
from duogp.kernels.base import FeatureMap
from duogp.kernels.stationary import Stationary


class Hamming(Stationary):
    """exp(−Σ_d 1[x_d ≠ x′_d] / l_d) on integer codes held as floats; differentiable in l only."""

    def covariance(self, x1: Tensor, x2: Tensor, lengthscale: Tensor) -> Tensor:
        inverse = lengthscale.to(x1.dtype).reciprocal()
        weight = inverse.expand(*lengthscale.shape[:-1], self.dims)  # [*b, 1, d]
        total = torch.zeros((), dtype=x1.dtype, device=x1.device)
        for d in range(self.dims):
            differs = (x1[..., :, None, d] - x2[..., None, :, d]).detach().abs() > 0.5
            total = total + differs.to(x1.dtype) * weight[..., d, None]
        return torch.exp(-total)

    def categorical_columns(self, dims: int) -> set[int]:
        return set(range(dims))

    def frequencies(self, num: int, generator: torch.Generator | None) -> Tensor:
        # E cos ωδ must be 1 at δ = 0 and ρ = exp(−1/l) at every other integer: ω = 0 with probability ρ, and
        # otherwise uniform on the circle, where E cos ωδ = 0.
        rho = self._event(self.lengthscale).reciprocal().neg().exp()
        shape = (*self.batch_shape, self.dims, num)
        still = draws.uniform(shape, rho, generator) < rho
        return torch.where(still, 0.0, draws.angle(shape, rho, generator))

    def unbiased_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        features = super().unbiased_features(num, generator)
        return lambda x: features(x.round())
