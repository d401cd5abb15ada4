"""`Likelihood`: the parameters of p(y | f), its traits, and how a likelihood of one's own is written.

    class LaplaceLikelihood(Likelihood):
        # p(y|f) = exp(−|y − f|/s) / 2s

        def __init__(self):
            super().__init__()
            self.scale = Positive(0.5)  # learned

        def log_prob(self, y, f):
            s = self.scale()[..., None, None]
            return -(y - f).abs() / s - (2 * s).log()

`log_prob(y, f)` alone is enough: every expectation is then taken by Gauss–Hermite quadrature. Two methods may
stand beside it, and an error names them where they are missed:

    conditional_moments(f)   mean and variance of y given f, for predictions of y (as `GP.predict` makes them)
    sample(f, generator)     one y for every f, for samples with observation noise

A likelihood that knows its expectations in closed form, or has several latent functions per output, defines
`density` instead and returns a `Density` of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from duogp.likelihoods.classes import normalised, sample_class
from duogp.likelihoods.density import Density
from duogp.likelihoods.density import Moments as Moments
from duogp.likelihoods.density import standard_deviation as standard_deviation
from duogp.likelihoods.quadrature import NODES, GaussHermite, QuadratureDensity

#: What y may be: any number (it may be shifted and scaled), 0, 1, 2, ..., above 0, in (0, 1), a class number.
Target = Literal["real", "count", "positive", "unit", "classes"]

#: Methods that decide what p(y | f) is, and the traits that depend on them.
DENSITY_METHODS = ("bind", "density", "log_prob", "variance")
DENSITY_TRAITS = ("is_gaussian", "linear_in_variance", "is_log_concave", "has_powers")


class Likelihood(nn.Module):
    """Parameters of p(y | f). A subclass defines `log_prob(y, f)`, or `density` (see the module's docstring).

    ``nodes``: size of the Gauss–Hermite rule behind `log_prob`, 32 by default.

    In `log_prob`, y is [R, outputs, n] and f is [..., R, outputs, n] with one latent function per output; the
    result has the shape of f. Parameters of any shape get the leading dimension R (replicates), so they are
    read from the right: `Positive(0.5)()[..., None, None]`, or `Positive(0.5, (outputs,))()[..., None]`.

    Traits stand on the class. In a subclass that changes the density (one of `DENSITY_METHODS`), the traits
    that it does not set itself are False, so that no closed form is used for another formula.
    """

    #: what y may be; with "classes" the attribute `classes` (2 if absent) is their number
    target: ClassVar[Target] = "real"
    #: how many latent functions one output needs
    latents_per_output: int = 1
    #: y = f + noise, Gaussian, its variance the same for all f: q(u) has a closed form
    is_gaussian: bool = False
    #: E log p(y|f) is log p(y | mean) − c · variance with c the same for all rows of an output, unless rows
    #: have noise of their own: its sum over rows needs the sum of variances only (`expected_log_prob_of_sum`)
    linear_in_variance: bool = False
    #: whether log p(y|f) is concave in f, so that natural gradients keep the precision positive (MATH §11 A4)
    is_log_concave: bool = False
    #: whether expected_power and log_power_mass exist, which γ-robust needs
    has_powers: bool = False

    rule: GaussHermite

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls)
        if "log_prob" in own and "density" not in own and "bind" not in own and not cls._uses_log_prob():
            raise TypeError(
                f"{cls.__name__} defines log_prob but inherits a density that does not read it: derive it "
                "from Likelihood, or define density() too"
            )
        if any(method in own for method in DENSITY_METHODS):
            for trait in DENSITY_TRAITS:
                if trait not in own:
                    setattr(cls, trait, False)

    def __init__(self, nodes: int | None = None) -> None:
        super().__init__()
        if self._uses_log_prob():
            name = type(self).__name__
            if not hasattr(self, "log_prob"):
                raise TypeError(f"{name} defines neither log_prob(y, f) nor density(): one of them is needed")
            if self.latents_per_output != 1:
                raise TypeError(
                    f"{name} has {self.latents_per_output} latent functions per output; log_prob(y, f) is "
                    "for one: define density(), a Density with its own expectations"
                )
            nodes = NODES if nodes is None else nodes
        self.nodes = nodes
        if nodes is not None:
            self.rule = GaussHermite(nodes)

    @classmethod
    def _uses_log_prob(cls) -> bool:
        """Whether the density is that of `log_prob`, not one of the class's own."""
        return cls.bind is Likelihood.bind and cls.density is Likelihood.density

    @property
    def has_moments(self) -> bool:
        """Whether mean and variance of y given f are known, so that `predictive_moments` exists."""
        known = not self._uses_log_prob() or hasattr(self, "conditional_moments")
        return known and self.target != "classes"

    def density(self) -> Density:
        """p(y | f) with the present parameters."""
        return LogProbDensity(self.rule(), self)

    def bind(self, row_noise: Tensor | None = None) -> Density:
        """The density at rows with the given fixed noise variance [..., outputs, n] (None: none)."""
        if row_noise is not None:
            raise ValueError(
                f"known noise variances are for the Gaussian likelihood, not for {type(self).__name__}"
            )
        return self.density()

    def num_latents(self, outputs: int) -> int:
        """The number of latent functions for so many outputs."""
        return self.latents_per_output * outputs

    def draw(self, generators: Sequence[torch.Generator]) -> None:
        """Draw the random numbers of the next step, outside the captured step; one generator a replicate."""

    def initial_latent(self, y: Tensor) -> Tensor | None:
        """Where the prior mean should start for targets [..., n], one value for each output; None: at zero.

        From f = 0 to the log of large counts, a Newton step into an exponential overshoots.
        """
        return None


class QuadratureLikelihood(Likelihood):
    """A likelihood with Gauss–Hermite nodes, `rule`, for a `QuadratureDensity` of its own."""

    def __init__(self, nodes: int = NODES) -> None:
        super().__init__(nodes)


@dataclass(frozen=True)
class LogProbDensity(QuadratureDensity):
    """The density of a likelihood that defines `log_prob` itself, and perhaps moments and draws."""

    likelihood: Any

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        value: Tensor = self.likelihood.log_prob(y, f)
        if value.shape != torch.broadcast_shapes(y.shape, f.shape):
            raise ValueError(
                f"{self._name()}.log_prob returned shape {tuple(value.shape)} for y {tuple(y.shape)} and f "
                f"{tuple(f.shape)}: expected one value for each f; read parameters from the right, a number "
                "as p()[..., None, None], one per output as p()[..., None]"
            )
        return value

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        if not hasattr(self.likelihood, "conditional_moments"):
            return super().conditional_moments(f)
        mean, variance = self.likelihood.conditional_moments(f)
        return mean, variance

    def class_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        if self.likelihood.target != "classes":
            return super().class_probabilities(mean, variance)
        return self.probabilities_of(self._classes, mean, variance)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        if hasattr(self.likelihood, "sample"):
            drawn: Tensor = self.likelihood.sample(f, generator)
            return drawn
        if self.likelihood.target != "classes":
            return super().sample(f, generator)
        each = torch.cat([self.log_prob(torch.full_like(f, c), f) for c in range(self._classes)], -2)
        return sample_class(normalised(each.exp()), generator)

    @property
    def _classes(self) -> int:
        return int(getattr(self.likelihood, "classes", 2))

    def _name(self) -> str:
        return type(self.likelihood).__name__


def numpy_generator(generator: torch.Generator) -> np.random.Generator:
    """A NumPy generator that continues a torch one: NumPy has the distributions that torch cannot seed."""
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    return np.random.default_rng(int(seed))
