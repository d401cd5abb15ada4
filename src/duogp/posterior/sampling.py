"""Functions drawn from a posterior, and from a deep one: a draw of every layer, composed.

Joint draws factorise the covariance of all rows in each layer, once for every draw of its inputs. Pathwise
draws are compositions of functions (Matheron's rule in each layer), at linear cost, with random features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from duogp.bases import FrozenPosterior
from duogp.models.layers import FrozenLayer
from duogp.numerics.factorisation import jittered_root


def joint_draws(stages: Sequence[FrozenLayer], x: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """n draws of the last layer's latent functions at rows x [1, 1, rows, d]: [n, latents, rows]."""
    inputs = [x]  # shared by all draws in the first layer, then one for each
    for stage in stages:
        laws = [root_of_joint(stage.form, h) for h in inputs]
        draws = []
        for i in range(n):
            mean, root = laws[i % len(laws)]
            mean = mean + stage.layer.mean(inputs[i % len(laws)])
            xi = torch.randn(mean.shape, generator=generator, dtype=torch.float64).to(mean.device)
            draws.append(mean + (root @ xi.unsqueeze(-1)).squeeze(-1))
        inputs = [f.mT.unsqueeze(1) for f in draws]
    return torch.cat(draws)


def path_draws(
    stages: Sequence[FrozenLayer], n: int, generator: torch.Generator, num_features: int = 1024
) -> Callable[[Tensor], Tensor]:
    """n functions: x [1, 1, rows, d] ↦ [n, latents, rows]."""
    paths = [stage.form.sample_paths(n, generator, num_features) for stage in stages]

    def evaluate(x: Tensor) -> Tensor:
        inputs = x.unsqueeze(0)  # [n or 1, 1, 1, rows, d]
        for stage, path in zip(stages, paths, strict=True):
            f = path(inputs) + _means(stage, inputs)  # [n, 1, latents, rows]
            inputs = f.mT.unsqueeze(-3)
        return f[:, 0]

    return evaluate


def _means(stage: FrozenLayer, inputs: Tensor) -> Tensor:
    """Prior means of inputs [n or 1, 1, 1, rows, d]: the draws as rows, as a mean knows them."""
    draws, rows = inputs.shape[0], inputs.shape[-2]
    mean = stage.layer.mean(inputs.reshape(1, 1, draws * rows, -1))  # [1, latents, draws·rows]
    return mean.unflatten(-1, (draws, rows)).movedim(-2, 0)


def root_of_joint(form: FrozenPosterior, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [1, latents, rows] without the prior's, and a root of the covariance, at x [1, 1, rows, d]."""
    mean, residual, explained = form.joint(x)
    covariance = (residual + explained).double()
    scale = form.prior.diag(x).mean(-1).expand(covariance.shape[:-2])
    failure = "the joint covariance of these rows cannot be factorised: use kind='pathwise'"
    return mean, jittered_root(covariance, scale, failure=failure)
