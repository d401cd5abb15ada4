"""From layer to layer: marginals of one, a sample of them, the inputs of the next.

    f_l = mean_l(f_{l−1}) + √variance_l(f_{l−1}) ε_l,   ε_l ~ N(0, 1) for each row, latent function and sample

which is all that doubly stochastic inference needs, because the last layer's marginals at a row depend on
the inner layers at that row only (Salimbeni and Deisenroth 2017). The first layer sees every row once; from
then on S samples are folded into the rows, x [R, S·n, d], so that a basis works as it always does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from duogp.bases import Basis, FrozenPosterior, Marginals, Penalties, clamp_variance
from duogp.bases.many_rows import ManyRows
from duogp.bases.marginals import Reads
from duogp.fused import table as fused
from duogp.numerics.factorisation import Numerics


class LayerLike(Protocol):
    """A prior mean and a basis: a hidden layer, or a model as its own last layer."""

    mean: nn.Module
    basis: Basis

    def complete(self, f: Marginals, x: Tensor) -> Marginals:
        """A basis' marginals with the prior mean; x [R, 1, n, d]."""


class Layer(nn.Module):
    """A hidden layer: as many latent functions as its q has."""

    def __init__(self, mean: nn.Module, basis: Basis) -> None:
        super().__init__()
        self.mean = mean
        self.basis = basis

    @property
    def width(self) -> int:
        return self.basis.q.mean.shape[-2]

    def complete(self, f: Marginals, x: Tensor) -> Marginals:
        return f._replace(mean=f.mean + self.mean(x))


class Stage(Protocol):
    """A layer at the factors of the moment."""

    def marginals(self, x: Tensor, samples: int) -> Marginals:
        """At x [R, 1, samples·n, d]: [R, width, samples·n]."""

    def prior_variance(self, x: Tensor) -> Tensor:
        """k(x, x) [R, width or 1, n] at x [R, 1, n, d], which rounding is relative to."""


@dataclass
class LiveLayer:
    """Marginals and nothing else."""

    layer: LayerLike
    factors: Any

    def marginals(self, x: Tensor, samples: int) -> Marginals:
        return self.layer.complete(self.layer.basis.marginals(x, self.factors), x)

    def prior_variance(self, x: Tensor) -> Tensor:
        return self.layer.basis.kernel.diag(x)


@dataclass
class PenalisedLayer(LiveLayer):
    """Moments and penalties of a layer; ``factors`` None: made for this step. ``reads``: see `Reads`."""

    numerics: Numerics
    with_omega: bool
    reads: Reads = "parts"
    penalties: Penalties | None = field(default=None, init=False)

    def marginals(self, x: Tensor, samples: int) -> Marginals:
        # Ω is of the rows of one sample: its expectation over samples is their mean.
        blocks = x.chunk(samples, -2) if self.with_omega else (x,)
        basis, factors = self.layer.basis, self.factors
        if len(blocks) > 1 and factors is None:
            factors = basis.factors(self.numerics)
        parts, costs = zip(
            *(
                fused.evaluate(basis, b, factors, self.numerics, reads=self.reads, with_omega=self.with_omega)
                for b in blocks
            ),
            strict=True,
        )
        f, self.penalties = parts[0], costs[0]
        if len(parts) > 1:
            f = type(f)(*(torch.cat(pieces, -1) for pieces in zip(*parts, strict=True)))
            self.penalties = Penalties(costs[0].kl, torch.stack([c.omega for c in costs]).mean(0))
        return self.layer.complete(f, x)


@dataclass
class FrozenLayer:
    """A layer's linear form, for prediction."""

    layer: LayerLike
    form: FrozenPosterior
    quick: ManyRows | None = None  # the same for many rows

    def marginals(self, x: Tensor, samples: int) -> Marginals:
        f = (self.form if self.quick is None else self.quick).marginals(x)
        residual = clamp_variance(f.residual, self.prior_variance(x))
        return self.layer.complete(f._replace(residual=residual), x)

    def prior_variance(self, x: Tensor) -> Tensor:
        return self.form.prior.diag(x)


def propagate(
    stages: Sequence[Stage], x: Tensor, draws: Callable[[int, int], Tensor] | None
) -> Iterator[Marginals]:
    """Marginals of every layer at rows x [R, n, d], given samples of the layer before.

    Each is [S, R, width, n], the first with S = 1; ``draws(layer, n)`` are the ε of a hidden layer.
    """
    inputs, samples, n = x, 1, x.shape[-2]
    for i, stage in enumerate(stages):
        rows = inputs.unsqueeze(-3)  # [R, 1, S·n, d]
        f = stage.marginals(rows, samples)
        yield type(f)(*(_unfold(part, samples) for part in f))
        if i + 1 < len(stages):
            assert draws is not None
            epsilon = draws(i, n)
            std = clamp_variance(f.variance, stage.prior_variance(rows)).sqrt()
            h = _unfold(f.mean, samples) + _unfold(std, samples) * epsilon.to(std.dtype)
            samples = h.shape[0]
            inputs = h.mT.movedim(0, 1).flatten(1, 2)  # [R, S·n, width]


def _unfold(values: Tensor, samples: int) -> Tensor:
    """[R, width, S·n] → [S, R, width, n]."""
    return values.unflatten(-1, (samples, -1)).movedim(-2, 0)
