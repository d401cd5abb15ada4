"""The linear kernel, with as many features as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from duogp.kernels import draws
from duogp.kernels.base import FeatureMap, Kernel, check_dims
from duogp.numerics.parameters import Positive, Prior


class Linear(Kernel):
    """Σ_d v_d x_d x′_d."""

    def __init__(
        self,
        dims: int = 1,
        *,
        ard: bool = True,
        variance: float | Sequence[float] = 1.0,
        prior: Prior | None = None,
    ) -> None:
        super().__init__()
        self.dims, self.ard = dims, ard
        self.variance = Positive(variance, (dims if ard else 1,), prior=prior)

    def settings(self) -> dict[str, Any]:
        return {"dims": self.dims, "ard": self.ard}

    def config(self) -> dict[str, Any]:
        """Arguments of the constructor, for saving."""
        return {**self.settings(), "variance": self.variance, "prior": self.variance.prior}

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        check_dims(self, self.dims, x1, x2)
        return (x1 * self.variance().to(x1.dtype)[..., None, :]) @ x2.mT

    def diag(self, x: Tensor) -> Tensor:
        check_dims(self, self.dims, x)
        return (x.square() * self.variance().to(x.dtype)[..., None, :]).sum(-1)

    @torch.no_grad()
    def unbiased_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        """xᵀg with g ~ N(0, diag v)."""
        root = self.variance().double().sqrt()[..., None]  # [*b, d or 1, 1]
        g = root * draws.normal((*self.batch_shape, self.dims, num), root, generator)
        return lambda x: (x.double() @ g).to(x.dtype)

    @torch.no_grad()
    def prior_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        """Exact: √v_d x_d."""
        root = self.variance().sqrt()[..., None, :]
        return lambda x: x * root.to(x.dtype)
