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

and three replace quadrature by a closed form, one value for each output, f ~ N(mean, variance):

    expected_log(y, mean, variance)                 E log p(y|f)
    log_marginal(y, mean, variance)                 log E p(y|f)
    predictive_moments(mean, residual, explained)   `Moments` of y

A likelihood with several latent functions per output defines `density` instead and returns a `Density` of its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, cast

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

Method = TypeVar("Method", bound=Callable[..., Any])

#: Methods that decide what p(y | f) is, and the traits that depend on them.
DENSITY_METHODS = ("bind", "density", "log_prob", "variance")
DENSITY_TRAITS = ("distribution", "is_gaussian", "linear_in_variance", "is_log_concave", "has_powers")
#: Methods of a likelihood with `log_prob` that replace quadrature.
CLOSED_FORMS = ("expected_log", "log_marginal", "predictive_moments")


class Likelihood(nn.Module):
    """Parameters of p(y | f). A subclass defines `log_prob(y, f)`, or `density` (see the module's docstring).

    ``nodes``: size of the Gauss–Hermite rule behind `log_prob`, 32 by default.

    In `log_prob`, y is [R, outputs, n] and f is [..., R, outputs, n] with one latent function per output; the
    result has the shape of f. Parameters of any shape get the leading dimension R (replicates), so they are
    read from the right: `Positive(0.5)()[..., None, None]`, or `Positive(0.5, (outputs,))()[..., None]`.

    Traits stand on the class. In a subclass that changes the density (one of `DENSITY_METHODS`), the traits
    that it does not set itself are those of this class, so that no closed form is used for another formula.
    """

    #: what y may be; with "classes" the attribute `classes` (2 if absent) is their number
    target: ClassVar[Target] = "real"
    #: the distribution of y given f, where other parts of the library may know its formula; "": unknown
    distribution: str = ""
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
        known = cls.distribution and "distribution" not in own  # moments and draws of another formula
        closed = any(hasattr(cls, name) and name not in own for name in CLOSED_FORMS)
        unread = known or closed or not cls._uses_log_prob()
        if "log_prob" in own and "density" not in own and "bind" not in own and unread:
            raise TypeError(
                f"{cls.__name__} defines log_prob but inherits a density that does not read it: derive it "
                "from Likelihood, or define density() too"
            )
        if any(method in own for method in DENSITY_METHODS):
            for trait in DENSITY_TRAITS:
                if trait not in own:
                    setattr(cls, trait, getattr(Likelihood, trait))

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
        if nodes is None and hasattr(self, "log_prob"):
            nodes = NODES
        self.nodes = nodes  # of the Gauss–Hermite rule; None without one
        if nodes is not None:
            self.rule = GaussHermite(nodes)

    @classmethod
    def _uses_log_prob(cls) -> bool:
        """Whether the density is that of `log_prob`, not one of the class's own."""
        return cls.bind is Likelihood.bind and cls.density is Likelihood.density

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
    """The density of a likelihood by its `log_prob`; closed forms, moments and draws where it has them."""

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

    def expected_log(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return self._own("expected_log", super().expected_log)(y, mean, variance)

    def log_marginal(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return self._own("log_marginal", super().log_marginal)(y, mean, variance)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return self._own("conditional_moments", super().conditional_moments)(f)

    def predictive_moments(self, mean: Tensor, residual: Tensor, explained: Tensor) -> Moments:
        return self._own("predictive_moments", super().predictive_moments)(mean, residual, explained)

    def class_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        if self.likelihood.target != "classes":
            return super().class_probabilities(mean, variance)
        return self.probabilities_of(self._classes, mean, variance)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        if hasattr(self.likelihood, "sample") or self.likelihood.target != "classes":
            return self._own("sample", super().sample)(f, generator)
        each = torch.cat([self.log_prob(torch.full_like(f, c), f) for c in range(self._classes)], -2)
        return sample_class(normalised(each.exp()), generator)

    def _own(self, name: str, general: Method) -> Method:
        """The likelihood's method of that name, or the general one."""
        return cast(Method, getattr(self.likelihood, name, general))

    @property
    def _classes(self) -> int:
        return int(getattr(self.likelihood, "classes", 2))

    def _name(self) -> str:
        return type(self.likelihood).__name__


def numpy_generator(generator: torch.Generator) -> np.random.Generator:
    """A NumPy generator that continues a torch one: NumPy has the distributions that torch cannot seed."""
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    return np.random.default_rng(int(seed))
