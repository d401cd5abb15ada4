"""Reparametrised Monte Carlo for likelihoods with one latent function per class: f = μ + √v ε.

`NormalDraws` holds the ε. In training they are a buffer [R, S, C, P]: S antithetic draws for each of P
columns, and row i of a batch uses column i mod P, so that the errors of different rows are not the same
error. `draw` refills the buffer in place, between the steps of a captured graph. In evaluation one fixed,
larger, antithetic Sobol set serves all rows: predictions are deterministic, and do not depend on which rows
are predicted together.

`parameters.batched` copies buffers as they are. The training buffer therefore begins with a single set for
all replicates, and holds one set per replicate from the first `draw` on (before a step is captured); where
the number of replicates differs afterwards (one was removed), all use the first set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from duogp.likelihoods.base import Likelihood
from duogp.likelihoods.density import standard_deviation

#: Columns of independent draws.
PATTERN = 128
#: Numbers that one expectation holds at once, where rows are computed in slabs.
SLAB = 2**24


class NormalDraws(nn.Module):
    """Standard normals for ``dims`` latent functions; a call returns those of the mode (training or not).

    ``seeds`` of the first training draws, one for each replicate. An even number of draws comes in pairs ±ε.
    """

    training_draws: Tensor  # [R or 1, S, C, P]
    fixed_draws: Tensor  # [1, S_eval, C, 1]

    def __init__(
        self,
        dims: int,
        samples: int,
        eval_samples: int,
        seeds: Sequence[int] = (0,),
        *,
        columns: int = PATTERN,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        _require_pairs("eval_samples", eval_samples)
        sobol = torch.quasirandom.SobolEngine(dims, scramble=True, seed=seeds[0])
        uniform = sobol.draw(eval_samples // 2, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
        fixed = antithetic(torch.special.ndtri(uniform)[..., None])
        self.register_buffer("fixed_draws", fixed[None], persistent=False)
        empty = torch.empty(len(seeds), samples, dims, columns, dtype=dtype)
        self.register_buffer("training_draws", empty, persistent=False)
        self.draw([torch.Generator().manual_seed(seed) for seed in seeds])

    def forward(self) -> Tensor:
        return self.training_draws if self.training else self.fixed_draws

    @torch.no_grad()
    def draw(self, generators: Sequence[torch.Generator]) -> None:
        """Fresh training draws, one generator for each replicate."""
        shape = (len(generators), *self.training_draws.shape[1:])
        if self.training_draws.shape != shape:
            self.training_draws = self.training_draws.new_empty(shape)
        paired = shape[1] % 2 == 0
        own = (shape[1] // 2 if paired else shape[1], *shape[2:])
        for out, generator in zip(self.training_draws, generators, strict=True):
            fresh = torch.randn(own, generator=generator, device=generator.device, dtype=out.dtype)
            out.copy_(antithetic(fresh) if paired else fresh)


def _require_pairs(name: str, count: int) -> None:
    if count < 2 or count % 2:
        raise ValueError(f"{name} must be even and positive (draws come in pairs ±ε), got {count}")


class MultiClassLikelihood(Likelihood):
    """A likelihood of ``classes`` classes with one latent function each; holds `NormalDraws`."""

    target = "classes"
    outputs = 1

    def __init__(self, classes: int) -> None:
        super().__init__()
        if classes is None or classes < 2:
            name = type(self).__name__
            raise ValueError(f"{name} needs classes, the number of them, at least 2; got {classes}")
        self.classes = classes

    def draws(self, samples: int, eval_samples: int, *, seed: int = 0) -> NormalDraws:
        """Draws of all latent functions, an even number of them."""
        _require_pairs("samples", samples)
        return NormalDraws(self.classes, samples, eval_samples, (seed,))

    def num_latents(self, outputs: int) -> int:
        if outputs != 1:
            raise ValueError(f"a likelihood of classes has one output, the class number; got {outputs}")
        return self.classes

    def draw(self, generators: Sequence[torch.Generator]) -> None:
        for part in self.children():
            if isinstance(part, NormalDraws):
                part.draw(generators)


def antithetic(draws: Tensor) -> Tensor:
    """Every draw with its mirror image, along the leading axis: [S, ...] → [2S, ...]."""
    return torch.cat([draws, -draws])


def for_rows(draws: Tensor, n: int) -> Tensor:
    """Draws [..., P] of n rows, column i mod P for row i: [..., n]; a single column serves all rows."""
    columns = draws.shape[-1]
    if 1 < columns < n:
        draws = torch.cat([draws] * -(-n // columns), -1)
    return draws[..., :n]


def samples(draws: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """f = μ + √v ε along a new leading axis: [S, ..., R, C, n] for a mean [..., R, C, n]."""
    replicates, n = mean.shape[-3], mean.shape[-1]
    own = draws if draws.shape[0] == replicates else draws[:1]
    columns = for_rows(own.movedim(1, 0).to(mean.dtype), n)  # [S, R, C, n or 1]
    columns = columns.view(columns.shape[0], *(1,) * (mean.dim() - 3), *columns.shape[1:])
    return mean + standard_deviation(variance) * columns


def by_rows(function: Callable[..., Tensor], per_row: int, *tensors: Tensor) -> Tensor:
    """The function of tensors [..., n], in slabs of rows where ``per_row`` numbers each exceed `SLAB`.

    Without gradients this bounds memory. Slabs are whole patterns, so that rows keep their draws. An exported
    graph has any number of rows, hence no slabs.
    """
    if torch.compiler.is_exporting():
        return function(*tensors)
    rows = max(1, SLAB // max(1, per_row * tensors[0].shape[0]) // PATTERN) * PATTERN
    if tensors[0].shape[-1] <= rows:
        return function(*tensors)
    pieces = zip(*(t.split(rows, -1) for t in tensors), strict=True)
    return torch.cat([function(*parts) for parts in pieces], -1)
