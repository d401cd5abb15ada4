"""The contract of a likelihood: three expectations, one per place where the log can stand.

A `Likelihood` module holds parameters; `bind` joins them with what belongs to the rows of a batch (fixed
noise) into a `Density`, which is pure mathematics. Tensors are [R, outputs or latents, n]; the expectations
reduce that axis and return one value per datum, [R, n]. Mean and variances may broadcast against each other.

Variances may come in slightly negative from rounding. Nothing clamps them except where a root is taken
(`standard_deviation`), and there the gradient passes as if nothing had happened (MATH §11 C5).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple, NoReturn, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

#: What y may be: any number (it may be shifted and scaled), 0, 1, 2, ..., above 0, in (0, 1), a class number.
Target = Literal["real", "count", "positive", "unit", "classes"]

#: Probabilities of classes are reported no closer to 0 and 1 than this.
PROBABILITY_FLOOR = 1e-12


class Moments(NamedTuple):
    """A new observation by the law of total variance, each [R, outputs, n]."""

    mean: Tensor
    residual: Tensor  # E_g Var_{f|g} E[y|f]
    explained: Tensor  # Var_g E_{f|g} E[y|f]
    noise: Tensor  # E Var[y|f]


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

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of y given f [..., latents, n]: each [..., outputs, n]."""

    def predictive_moments(self, mean: Tensor, residual: Tensor, explained: Tensor) -> Moments:
        """Mean and variances of y, f ~ N(g, residual), g ~ N(mean, explained)."""

    def class_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """P(y = c) [R, C, n] for f ~ N(mean, variance); they sum to one."""

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """One y for every f [..., R, latents, n]: [..., R, outputs, n]; not inside a training step."""


class PlainDensity:
    """A density that refuses, by name, what not every likelihood has; subclasses answer what they can."""

    def expected_power(self, y: Tensor, mean: Tensor, variance: Tensor, power: float) -> Tensor:
        self._refuse("powers whose mass ∫ p(y|f)^γ dy is free of f, so γ-robust cannot use it")

    def log_power_mass(self, y: Tensor, power: float) -> Tensor:
        self._refuse("powers whose mass ∫ p(y|f)^γ dy is free of f, so γ-robust cannot use it")

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        self._refuse("moments: its targets are class numbers; ask for class_probabilities")

    def predictive_moments(self, mean: Tensor, residual: Tensor, explained: Tensor) -> Moments:
        self._refuse("moments: its targets are class numbers; ask for class_probabilities")

    def class_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        self._refuse("classes; ask for predictive_moments")

    def _refuse(self, what: str) -> NoReturn:
        raise ValueError(f"{type(self).__name__} has no {what}")


class Options(NamedTuple):
    """What a likelihood known by name may be made from; each takes what concerns it."""

    name: str
    outputs: int
    classes: int | None
    noise: float  # variance of the observation noise at the start
    noise_floor: float
    learn_noise: bool


class Likelihood(nn.Module, ABC):
    """Parameters of p(y | f)."""

    target: ClassVar[Target]
    #: how many latent functions one output needs
    latents_per_output: int = 1
    #: whether log p(y|f) is concave in f, so that natural gradients keep the precision positive (MATH §11 A4)
    is_log_concave: bool = False
    is_gaussian: bool = False
    linear_in_variance: bool = False
    #: whether expected_power and log_power_mass exist
    has_powers: bool = False

    @abstractmethod
    def bind(self, row_noise: Tensor | None = None) -> Density:
        """The density at rows with the given fixed noise variance [..., outputs, n] (None: none)."""

    @classmethod
    def named(cls, options: Options) -> Self:
        """What stands behind a name of `LIKELIHOODS`; without parameters, just the class."""
        return cls()

    def num_latents(self, outputs: int) -> int:
        """Latent functions that so many outputs need."""
        return self.latents_per_output * outputs

    def draw(self, generators: Sequence[torch.Generator]) -> None:
        """Draw what the next step needs to draw (outside the captured step); one generator a replicate."""

    def initial_latent(self, y: Tensor) -> Tensor | None:
        """Where the prior mean should start for targets [..., n], one value for each output; None at zero.

        A step from f = 0 to the log of large counts is Newton's into an exponential, and overshoots.
        """
        return None

    def _refuse_row_noise(self, row_noise: Tensor | None) -> None:
        if row_noise is not None:
            raise ValueError(
                f"known noise variances are for the Gaussian likelihood, not for {type(self).__name__}"
            )


def numpy_generator(generator: torch.Generator) -> np.random.Generator:
    """A NumPy generator that continues a torch one: NumPy has the distributions that torch cannot seed."""
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    return np.random.default_rng(int(seed))


def num_class_latents(classes: int, outputs: int) -> int:
    """One latent function for every class of the one target."""
    if outputs != 1:
        raise ValueError(f"a likelihood of classes has one output, the class number; got {outputs}")
    return classes


def check_classes(classes: int | None, name: str) -> int:
    if classes is None or classes < 2:
        raise ValueError(f"{name} needs classes, the number of them, at least 2; got {classes}")
    return classes


def floored(variance: Tensor) -> Tensor:
    """A variance no lower than the rounding of functions of order one, gradients straight through."""
    floor = 8 * torch.finfo(variance.dtype).eps / 2
    return variance + (variance.clamp_min(floor) - variance).detach()


def standard_deviation(variance: Tensor) -> Tensor:
    """√variance. At zero (q(u) a point) the floor keeps its slope finite.

    Rules that are symmetric about the mean then still have the right gradient with respect to the variance,
    ½E h″, to the root of the precision.
    """
    return floored(variance).sqrt()


def of_class(values: Tensor, y: Tensor) -> Tensor:
    """The entries of [..., C, n] that class numbers y [R, 1, n] point at: [..., n]."""
    index = y.long().expand(*values.shape[:-2], 1, values.shape[-1])
    return values.gather(-2, index).squeeze(-2)


def sample_class(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """One class number for each column of [..., C, n]: [..., 1, n]."""
    *batch, _, n = probabilities.shape
    u = torch.rand(*batch, 1, n, generator=generator, device=generator.device, dtype=torch.float64)
    below = (probabilities.cumsum(-2) <= u.to(probabilities)).sum(-2, keepdim=True)
    return below.clamp(max=probabilities.shape[-2] - 1).to(probabilities.dtype)


def sample_normal(mean: Tensor, variance: Tensor, generator: torch.Generator) -> Tensor:
    mean, variance = torch.broadcast_tensors(mean, variance)
    z = torch.randn(mean.shape, generator=generator, device=generator.device, dtype=mean.dtype)
    return mean + variance.sqrt() * z.to(mean.device)


def normalised(probabilities: Tensor) -> Tensor:
    """Probabilities [..., C, n] that sum to one and stay off 0 and 1, where logs are waiting."""
    clipped = (probabilities / probabilities.sum(-2, keepdim=True)).clamp(
        PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR
    )
    return clipped / clipped.sum(-2, keepdim=True)
