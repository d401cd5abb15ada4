"""The contract of a likelihood: three expectations, one per place where the log can stand.

A `Likelihood` module holds parameters; `bind` joins them with what belongs to the rows of a batch (fixed
noise) into a `Density`, which is pure mathematics. Tensors are [..., latent, n]; every method reduces the
latent axis and returns one value per datum, [..., n].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from torch import Tensor, nn


class Density(Protocol):
    """p(y | f) at the rows of a batch."""

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E log p(y|f) for f ~ N(mean, variance)."""

    def expected_log_smoothed(self, y: Tensor, mean: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
        """E_g log E_f p(y|f), f ~ N(g, inside), g ~ N(mean, outside)."""

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log E p(y|f) for f ~ N(mean, variance)."""

    def expected_power(self, y: Tensor, mean: Tensor, variance: Tensor, power: float) -> Tensor:
        """log E p(y|f)^power."""

    def log_power_mass(self, y: Tensor, power: float) -> Tensor:
        """log ∫ p(y|f)^power dy, where it does not depend on f."""


class Likelihood(nn.Module, ABC):
    """Parameters of p(y | f)."""

    #: how many latent functions one output needs
    latents_per_output = 1

    @abstractmethod
    def bind(self, row_noise: Tensor | None = None) -> Density:
        """The density at rows with the given fixed noise variance [..., outputs, n] (None: none)."""
