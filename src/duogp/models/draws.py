"""The ε of hidden layers, f = mean + √variance ε.

In training they are a buffer [R, S, W, P], W the widths of all hidden layers side by side: row i of a batch
uses column i mod P. `draw` refills it in place between steps, so that a captured step sees new numbers, each
replicate by its own generator. An even number of samples comes in pairs ±ε, which cancels every odd error.

In evaluation one fixed antithetic Sobol set serves all rows: predictions are deterministic, smooth in x, and
do not depend on which rows are asked together.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from duogp.likelihoods.monte_carlo import antithetic


class LayerDraws(nn.Module):
    """Standard normals for hidden layers of the given widths; those of the mode the module is in."""

    training_draws: Tensor  # [R, S, W, P]
    fixed_draws: Tensor  # [1, S_eval, W, 1]
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
        super().__init__()
        for name, count in (("samples", samples), ("columns", columns)):
            if count < 1:
                raise ValueError(f"{name} must be at least 1, got {count}")
        if eval_samples < 2 or eval_samples % 2:
            raise ValueError(f"eval_samples must be even and positive, got {eval_samples}")
        ends = list(itertools.accumulate(widths))
        self._parts = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
        start = torch.zeros(replicates, samples, ends[-1], columns, dtype=dtype)
        sobol = torch.quasirandom.SobolEngine(ends[-1], scramble=True, seed=0)
        uniform = sobol.draw(eval_samples // 2, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
        fixed = antithetic(torch.special.ndtri(uniform)[..., None])
        self.register_buffer("training_draws", start, persistent=False)
        self.register_buffer("fixed_draws", fixed[None], persistent=False)
        self.draw([torch.Generator().manual_seed(r) for r in range(replicates)])

    @property
    def samples(self) -> int:
        """How many the present mode has."""
        return self._now.shape[1]

    def forward(self, layer: int, n: int) -> Tensor:
        """ε of a hidden layer at n rows: [S, R or 1, width, n or 1]."""
        epsilon = self._now[:, :, self._parts[layer]].movedim(1, 0)
        columns = epsilon.shape[-1]
        if columns == 1:
            return epsilon
        return epsilon.repeat(1, 1, 1, -(-n // columns))[..., :n] if n > columns else epsilon[..., :n]

    @torch.no_grad()
    def draw(self, generators: Sequence[torch.Generator]) -> None:
        """Fresh training draws, one generator for each replicate."""
        samples, *shape = self.training_draws.shape[1:]
        paired = samples % 2 == 0
        for out, generator in zip(self.training_draws, generators, strict=True):
            count = samples // 2 if paired else samples
            fresh = torch.randn(count, *shape, generator=generator, device=generator.device, dtype=out.dtype)
            out.copy_(antithetic(fresh) if paired else fresh)

    @property
    def _now(self) -> Tensor:
        return self.training_draws if self.training else self.fixed_draws
