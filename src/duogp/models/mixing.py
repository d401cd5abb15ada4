"""Several outputs as mixtures of fewer latent functions: the linear model of coregionalisation.

    f_p(x) = Σ_q W_pq g_q(x),   g_q independent under q

so means mix by W and variances, residual and explained alike, by W² (elementwise).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from duogp.bases.marginals import Marginals


class LinearMixing(nn.Module):
    """W [R, outputs, latents]. Starts near an assignment of latents to outputs in turn."""

    def __init__(self, outputs: int, latents: int, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        turn = torch.eye(latents, dtype=torch.float64).repeat(-(-outputs // latents), 1)[:outputs]
        noise = [torch.randn(outputs, latents, generator=g, dtype=torch.float64) for g in generators]
        self.weight = nn.Parameter(turn + 0.1 * torch.stack(noise))

    def forward(self, f: Marginals) -> Marginals:
        mean, residual, explained = torch.broadcast_tensors(*f)
        weight = self.weight.to(mean)
        squared = weight.square()
        return Marginals(weight @ mean, squared @ residual, squared @ explained)

    def mix(self, values: Tensor) -> Tensor:
        """W g for draws [..., latents, n]."""
        return self.weight.to(values) @ values
