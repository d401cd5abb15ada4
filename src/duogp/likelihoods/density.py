"""`Density`: p(y | f) at the rows of a batch, and the expectations that objectives and predictions need.

Tensors are [R, outputs or latents, n]; expectations reduce that axis and return one value per datum, [R, n].
Mean and variances may broadcast against each other.

A variance may be slightly negative from rounding. It is clamped only where a root is taken
(`standard_deviation`), with the gradient of the unclamped value (MATH §11 C5).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor


class Moments(NamedTuple):
    """Mean of a new observation and its variance in three parts (total variance), each [R, outputs, n]."""

    mean: Tensor
    residual: Tensor  # E_g Var_{f|g} E[y|f]
    explained: Tensor  # Var_g E_{f|g} E[y|f]
    noise: Tensor  # E Var[y|f]


class Density(ABC):
    """p(y | f) at the rows of a batch: three expectations, one per place where the log can stand, and more.

    A method that a density does not define raises an error that names it.
    """

    @abstractmethod
    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E log p(y|f) for f ~ N(mean, variance), [..., n]."""

    @abstractmethod
    def expected_log_smoothed(self, y: Tensor, mean: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
        """E_g log E_f p(y|f), f ~ N(g, inside), g ~ N(mean, outside), [..., n]."""

    @abstractmethod
    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log E p(y|f) for f ~ N(mean, variance), [..., n]."""

    def expected_power(self, y: Tensor, mean: Tensor, variance: Tensor, power: float) -> Tensor:
        """log E p(y|f)^power, [..., n]."""
        return self.log_power_mass(y, power)

    def log_power_mass(self, y: Tensor, power: float) -> Tensor:
        """log ∫ p(y|f)^power dy, [..., n], where it does not depend on f."""
        self._refuse("powers whose mass ∫ p(y|f)^γ dy is free of f, so γ-robust cannot use it")

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of y given f [..., latents, n]: each [..., outputs, n]."""
        self._refuse(
            "conditional_moments(f): define it to return mean and variance of y given f; "
            "where targets are class numbers, class_probabilities takes its place"
        )

    def predictive_moments(self, mean: Tensor, residual: Tensor, explained: Tensor) -> Moments:
        """Mean and variances of y, each [..., n], for f ~ N(g, residual), g ~ N(mean, explained)."""
        self.conditional_moments(mean)
        self._refuse("predictive_moments(mean, residual, explained)")

    def class_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """P(y = c) [R, C, n] for f ~ N(mean, variance); they sum to one."""
        self._refuse("class_probabilities: its targets are numbers, which have predictive_moments")

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """One y for every f [..., R, latents, n]: [..., R, outputs, n]; not inside a training step."""
        self._refuse("sample(f, generator): define it to return one y for every f")

    def _refuse(self, what: str) -> NoReturn:
        raise ValueError(f"{self._name()} has no {what}")

    def _name(self) -> str:
        return type(self).__name__


def floored(variance: Tensor) -> Tensor:
    """A variance [...] no lower than the rounding of functions of order one, gradients straight through."""
    floor = 8 * torch.finfo(variance.dtype).eps / 2
    return variance + (variance.clamp_min(floor) - variance).detach()


def standard_deviation(variance: Tensor) -> Tensor:
    """√variance, elementwise [...]. At zero (q(u) a point) the floor keeps its slope finite.

    Rules that are symmetric about the mean then still have the right gradient with respect to the variance,
    ½E h″, to the root of the precision.
    """
    return floored(variance).sqrt()


def sample_normal(mean: Tensor, variance: Tensor, generator: torch.Generator) -> Tensor:
    """A draw of N(mean, variance), elementwise: [...] of the shape that both broadcast to."""
    mean, variance = torch.broadcast_tensors(mean, variance)
    z = torch.randn(mean.shape, generator=generator, device=generator.device, dtype=mean.dtype)
    return mean + variance.sqrt() * z.to(mean.device)
