"""Output heads: p(y | last layer) of one network, and of the mixture of S networks with equal weights.

    Gaussian  y ~ N(μ(x), σ²),   σ² = floor + softplus(r(x)), or one learned number for each output
    softmax   y = c with probability ∝ exp(r_c(x))
    mixture   p(y) = (1/S) Σ_s p_s(y),   E[y] = mean_s μ_s,   Var[y] = var_s μ_s + mean_s σ_s²

Raw outputs are [*, n, width], targets [*, outputs, n]; both broadcast. A mixture is over the first dimension.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from duogp.likelihoods.gaussian import log_normal
from duogp.metrics import SMALLEST_PROBABILITY
from duogp.numerics.parameters import Positive


class Head(nn.Module, ABC):
    """The density of targets given raw outputs."""

    width: int  # of the network's last layer

    @abstractmethod
    def log_prob(self, raw: Tensor, y: Tensor) -> Tensor:
        """log p(y | raw) of every row, summed over outputs: [*, n]."""


class GaussianHead(Head):
    """A mean and a noise variance for each output, in scaled units."""

    factor: Tensor  # [outputs], multiplies the noise variance; chosen on validation rows

    def __init__(self, outputs: int, *, heteroscedastic: bool, floor: float) -> None:
        super().__init__()
        self.outputs, self.floor = outputs, floor
        self.width = 2 * outputs if heteroscedastic else outputs
        self.noise = None if heteroscedastic else Positive(0.5, (outputs,), floor=floor)
        self.register_buffer("factor", torch.ones(outputs, dtype=torch.float64))

    def moments(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and noise variance, [*, outputs, n] each."""
        raw = raw.mT
        if self.noise is None:
            mean, spread = raw.split(self.outputs, -2)
            noise = self.floor + functional.softplus(spread)
        else:
            mean, noise = raw, self.noise().unsqueeze(-1)
        noise = noise.to(raw.dtype) * self.factor.to(raw.dtype).unsqueeze(-1)
        return mean, noise.expand_as(mean)

    def log_prob(self, raw: Tensor, y: Tensor) -> Tensor:
        return log_normal(y, *self.moments(raw)).sum(-2)


class SoftmaxHead(Head):
    """One raw output for each class; targets are class numbers."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.width = classes

    def log_prob(self, raw: Tensor, y: Tensor) -> Tensor:
        log_p = functional.log_softmax(raw, -1)
        codes = y.mT.long().expand(*log_p.shape[:-1], 1)
        return log_p.gather(-1, codes).squeeze(-1)


def mixture_moments(mean: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance of the means and mean noise variance of S Gaussians [S, ...]."""
    return mean.mean(0), mean.var(0, correction=0), noise.mean(0)


def log_mean_exp(log_density: Tensor) -> Tensor:
    """log (1/S) Σ_s exp, over the first dimension: [S, ...] → [...]."""
    return log_density.logsumexp(0) - math.log(len(log_density))


def mixture_probabilities(raw: Tensor) -> Tensor:
    """Class probabilities [n, C] of raw outputs [S, n, C], each at least `SMALLEST_PROBABILITY`."""
    p = raw.softmax(-1).mean(0).clamp_min(SMALLEST_PROBABILITY)
    return p / p.sum(-1, keepdim=True)
