"""Thompson sampling by sampled functions: over a set of candidates, and in BoTorch's acquisition functions.

A draw at 5,000 candidates is a function evaluated there, at a cost linear in their number, without the
covariance of the candidates. BoTorch's `PathwiseThompsonSampling`, `get_matheron_path_model` and other users
of `draw_matheron_paths` get our paths through its dispatcher.
"""

from __future__ import annotations

from typing import Any

import torch
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from torch import Tensor

from duogp.bo.botorch_model import DuoGPModel
from duogp.bo.candidates import distinct_maximisers
from duogp.bo.paths import Paths

#: Candidates evaluated at once.
CHUNK = 8192


@torch.no_grad()
def thompson(
    model: DuoGPModel,
    candidates: Tensor,
    q: int = 1,
    *,
    seed: int | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """q of the candidates [n, d], each the best under its own draw, no candidate twice: [q, d].

    ``weights`` [m]: the value to maximise is this combination of the outputs.
    """
    if candidates.dim() != 2:
        raise ValueError(f"candidates must be [n, d], got {tuple(candidates.shape)}")
    if model.num_outputs > 1 and weights is None:
        raise ValueError(f"the model has {model.num_outputs} outputs: give weights to make one value of them")
    if model.batch_shape:
        raise ValueError(f"the model has batches {tuple(model.batch_shape)}: thompson is for one model")
    paths = model.sample_paths(q, seed)
    values = torch.cat([paths(part) for part in candidates.split(CHUNK)], -2)  # [q, n, m]
    value = values[..., 0] if weights is None else values @ weights.to(values)
    return candidates[distinct_maximisers(value.double().cpu().numpy())]


class DrawnPaths(SamplePath):
    """`Paths` in BoTorch's interface: x [*b, n, d] ↦ [*sample_shape, *b, n].

    Where x has the sample dimensions among its batches, each draw is evaluated at its own part of x.
    """

    def __init__(self, paths: Paths, sample_shape: torch.Size) -> None:
        super().__init__()
        self.paths, self.sample_shape = paths, sample_shape

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Does nothing: the draws are no ensemble of models."""

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        several = self.paths.model.num_outputs > 1
        if several:  # the caller has inserted a dimension for the outputs before the points
            x = x.squeeze(-3)
        shape, batch = self.sample_shape, x.shape[:-2]
        dims = len(shape)
        if not dims:
            return self._outputs(self.paths(x), several)[0]
        if len(batch) < dims or batch[-dims:] != shape:  # every draw at all of x
            return self._outputs(self.paths(x), several).unflatten(0, shape)
        lead = len(batch) - dims
        each = self._outputs(self.paths(x.flatten(lead, -3)), several)  # [samples, *lead, samples, ...]
        return each.diagonal(dim1=0, dim2=1 + lead).movedim(-1, lead).unflatten(lead, shape)

    @staticmethod
    def _outputs(values: Tensor, several: bool) -> Tensor:
        """Values [..., n, m] as BoTorch's paths give them: [..., n], or [..., m, n]."""
        return values.mT if several else values.squeeze(-1)


@DrawMatheronPaths.register(DuoGPModel)
def _draw(model: DuoGPModel, *, sample_shape: torch.Size, **_: Any) -> DrawnPaths:
    return DrawnPaths(model.sample_paths(max(sample_shape.numel(), 1)), sample_shape)
