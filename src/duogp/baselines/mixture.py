"""Several networks as one prediction: each speaks with the same weight, passes [S, ...].

p(y) = (1/S) Σ_s p_s(y),   E[y] = mean_s μ_s,   Var[y] = var_s μ_s + mean_s σ_s²
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from duogp.metrics import SMALLEST_PROBABILITY


class Moments(NamedTuple):
    mean: Tensor
    explained: Tensor  # how far the networks disagree
    noise: Tensor  # what they hold to be noise


def moments(mean: Tensor, noise: Tensor) -> Moments:
    """Of a mixture of Gaussians with means and variances [S, ...]."""
    return Moments(mean.mean(0), mean.var(0, correction=0), noise.mean(0))


def log_mean_exp(log_density: Tensor) -> Tensor:
    """log (1/S) Σ_s exp, over the first dimension."""
    return log_density.logsumexp(0) - math.log(len(log_density))


def probabilities(raw: Tensor) -> Tensor:
    """Class probabilities [n, C] of raw outputs [S, n, C]; no class is held to be impossible."""
    p = raw.softmax(-1).mean(0).clamp_min(SMALLEST_PROBABILITY)
    return p / p.sum(-1, keepdim=True)
