"""What the last layer of a network says about y.

    Gaussian  y ~ N(μ(x), σ²),   σ² = floor + softplus(r(x)), or one learned number for each output
    softmax   y = c with probability ∝ exp(r_c(x))

Raw outputs are [*, n, width], targets [*, outputs, n]; both broadcast.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from duogp.numerics.parameters import Positive

LOG_2PI = math.log(2 * math.pi)


class Head(nn.Module, ABC):
    """Raw outputs to densities of targets."""

    width: int  # of the network's last layer

    @abstractmethod
    def log_prob(self, raw: Tensor, y: Tensor) -> Tensor:
        """log p(y | raw) of every row, summed over outputs: [*, n]."""


class GaussianHead(Head):
    """A mean and a noise variance for each output, in scaled units."""

    factor: Tensor  # [outputs], what validation rows made of the noise

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


def log_normal(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """log N(y | mean, variance), elementwise."""
    return -0.5 * ((y - mean).square() / variance + variance.log() + LOG_2PI)
