"""Several outputs as mixtures of fewer latent functions: the linear model of coregionalisation.

    f_p(x) = Σ_q W_pq g_q(x),   g_q independent under q

so means mix by W and variances, residual and explained alike, by W² (elementwise).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from duogp.bases.marginals import Marginals, TotalMarginals

F = TypeVar("F", Marginals, TotalMarginals)


class LinearMixing(nn.Module):
    """W [R, outputs, latents]. Starts near an assignment of latents to outputs in turn."""

    def __init__(self, outputs: int, latents: int, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        turn = torch.eye(latents, dtype=torch.float64).repeat(-(-outputs // latents), 1)[:outputs]
        noise = [torch.randn(outputs, latents, generator=g, dtype=torch.float64) for g in generators]
        self.weight = nn.Parameter(turn + 0.1 * torch.stack(noise))

    def forward(self, f: F) -> F:
        """Marginals of the latent functions as marginals of the outputs."""
        mean, *variances = torch.broadcast_tensors(*f)
        weight = self.weight.to(mean)
        squared = weight.square()
        return type(f)(weight @ mean, *(squared @ v for v in variances))

    def mix(self, values: Tensor) -> Tensor:
        """W g for draws [..., latents, n]."""
        return self.weight.to(values) @ values
