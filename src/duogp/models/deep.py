"""A deep model: hidden layers in front of an ordinary one.

The last layer is what `Model` already is (prior mean, basis, mixing, likelihood, objective), so `basis` is
its basis, and natural gradients move its q(u). The loss per datum is

    −(1/B) Σ data + (1/N) Σ_l (β₁KL_l + β₂Ω_l)

with the data term averaged over samples of the hidden layers (`mixture`), and Ω_l that of the batch's rows as
layer l sees them, averaged likewise. β₁ = β₂ = 1 and the ELBO give an unbiased estimate of a lower bound on
log p(y) wherever they do so for every layer by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from duogp.bases.frozen import FrozenPosterior
from duogp.bases.marginals import Marginals
from duogp.models.draws import LayerDraws
from duogp.models.layers import Layer, LayerLike, LiveLayer, PenalisedLayer, Stage, propagate
from duogp.models.model import Batch, Model
from duogp.models.sample_mixture import MixtureDensity, mixture_moments, over_samples

#: Numbers held at once for one layer's features in evaluation, where S samples multiply the rows.
SLAB = 2**24


class DeepModel(Model):
    """R replicates of a deep GP. Without hidden layers it is `Model`.

    ``samples`` of the hidden layers in a training step, ``eval_samples`` (fixed) otherwise; ``columns`` rows
    of a batch have draws of their own, further ones repeat them. ``last``: the arguments of `Model`.
    """

    def __init__(
        self,
        hidden: Sequence[Layer],
        *,
        samples: int = 1,
        eval_samples: int = 128,
        columns: int = 1024,
        offset: nn.Module | None = None,
        **last: Any,
    ) -> None:
        super().__init__(**last)
        self.offset = offset  # a prior mean of the outputs as a function of the inputs, not of hidden layers
        self.hidden = nn.ModuleList(hidden)
        self.draws: LayerDraws | None = None
        if len(hidden):
            widths = [layer.width for layer in hidden]
            dtype = self.numerics.dtype
            self.draws = LayerDraws(widths, self.replicates, samples, eval_samples, columns, dtype)
        has_omega = any(layer.basis.has_omega for layer in self.layers)
        self.uses_omega = has_omega and bool((self.beta2 != 0).any())
        self._has_priors = any(getattr(m, "prior", None) is not None for m in self.modules())

    @property
    def layers(self) -> list[LayerLike]:
        """All of them; the model is its own last layer."""
        return [*cast("list[LayerLike]", list(self.hidden)), self]

    @property
    def samples(self) -> int:
        """Samples of the hidden layers in the present mode."""
        return 1 if self.draws is None else self.draws.samples

    def draw(self, generators: Sequence[torch.Generator]) -> None:
        if self.draws is not None:
            self.draws.draw(generators)
        for layer in self.hidden:
            cast(Layer, layer).basis.draw(generators)
        super().draw(generators)

    def factors(self) -> tuple[Any, ...]:
        """Of every layer."""
        return tuple(layer.basis.factors(self.numerics) for layer in self.layers)

    def num_variational_parameters(self) -> int:
        """Of one output: all of the hidden layers, and one latent function of the last."""
        hidden = (cast(Layer, layer) for layer in self.hidden)
        inner = sum(layer.width * layer.basis.num_variational_parameters() for layer in hidden)
        return inner + self.basis.num_variational_parameters()

    # -- marginals -------------------------------------------------------------------------------------------

    def propagate(self, x: Tensor, stages: Sequence[Stage] | None = None) -> Iterator[Marginals]:
        """Marginals of every layer in turn, [S, R, width, n], at rows x [R, n, d]."""
        stages = self.live() if stages is None else stages
        for i, f in enumerate(propagate(stages, x, self.draws), 1):
            yield f if i < len(stages) or self.offset is None else self._with_offset(f, x)

    def _with_offset(self, f: Marginals, x: Tensor) -> Marginals:
        assert self.offset is not None
        return f._replace(mean=f.mean + self.offset(x.unsqueeze(-3)))

    def live(self, factors: Sequence[Any] | None = None) -> list[LiveLayer]:
        factors = self.factors() if factors is None else factors
        return [LiveLayer(layer, f) for layer, f in zip(self.layers, factors, strict=True)]

    def sample_marginals(self, x: Tensor, factors: Sequence[Any] | None = None) -> Marginals:
        """What the likelihood sees given each sample of the hidden layers: [S, R, outputs, n]."""
        *_, f = self.propagate(x, self.live(factors))
        return f

    def marginals(self, x: Tensor, factors: Sequence[Any] | None = None) -> Marginals:
        """Moments of the mixture over samples, [R, outputs, n]; its density is `log_predictive`'s."""
        return mixture_moments(self.sample_marginals(x, factors))

    def log_predictive(self, batch: Batch, factors: Sequence[Any] | None = None) -> Tensor:
        """log p(y | x, data) of every row, [R, n]: the log-mean-exp over samples."""
        factors = self.factors() if factors is None else factors
        out = []
        in_slabs = not (self.training or torch.is_grad_enabled())
        for part in batch.split(self.rows_at_once()) if in_slabs else [batch]:
            f = self.sample_marginals(part.x, factors)
            density = MixtureDensity(self.likelihood.bind(part.noise))
            out.append(density.log_predictive(part.y, f.mean, f.variance))
        return torch.cat(out, -1)

    def rows_at_once(self) -> int:
        """Rows whose samples fit into memory together, without gradients."""
        points = max(
            p.shape[-2] * layer.basis.q.mean.shape[-2]
            for layer in self.layers
            for name, p in layer.basis.named_parameters()
            if name.endswith("inducing")
        )
        return max(16, SLAB // (self.replicates * self.samples * points))

    # -- the loss --------------------------------------------------------------------------------------------

    def sum_terms(self, batch: Batch) -> tuple[Tensor, Tensor]:
        data, regulariser = self.terms(batch)
        return data.sum(-1), regulariser

    def terms(self, batch: Batch, factors: Sequence[Any] | None = None) -> tuple[Tensor, Tensor]:
        layers = self.layers
        factors = [None] * len(layers) if factors is None else factors
        stages = [
            PenalisedLayer(
                layer,
                f,
                self.numerics,
                with_omega=self.uses_omega and layer.basis.has_omega,
                reads=self.objective.reads if layer is self else "parts",
            )
            for layer, f in zip(layers, factors, strict=True)
        ]
        *_, f = self.propagate(batch.x, stages)
        data = over_samples(self.objective, self.likelihood.bind(batch.noise), f, batch.y)
        if batch.weight is not None:
            data = data * batch.weight
        regulariser = torch.zeros_like(self.beta1)
        for stage in stages:
            penalties = stage.penalties
            assert penalties is not None
            regulariser = regulariser + self.regulariser(stage.layer.basis, penalties, batch.x.shape[-2])
        return data, regulariser

    # -- the frozen posterior --------------------------------------------------------------------------------

    def frozen_layers(self, dtype: torch.dtype = torch.float64) -> list[FrozenPosterior]:
        """Every layer frozen, factorised in the given precision (without prior means)."""
        with self.numerics.in_precision(dtype):
            return [layer.basis.frozen(f) for layer, f in zip(self.layers, self.factors(), strict=True)]

    def frozen(self, dtype: torch.dtype = torch.float64, factors: Any | None = None) -> FrozenPosterior:
        if len(self.hidden):
            raise ValueError("a deep model is no linear form; each of its layers is: see frozen_layers")
        if factors is not None and self.numerics.dtype == dtype:
            return self.layers[0].basis.frozen(factors[0])
        return self.frozen_layers(dtype)[0]
