"""Where the log sits: an objective is a function (density, marginals, y) → one value per datum.

    ELBO       E_u E_{f|u} log p(y|f)
    VFITC      E_u log E_{f|u} p(y|f)
    predictive log E_u E_{f|u} p(y|f)
    DTC        E_u log p(y | E[f|u])

so predictive ≥ VFITC ≥ ELBO at equal parameters. All are maximised; regularisers are subtracted elsewhere.
Traits on an objective say what it reads and what follows from its form; a plain function given as an
objective has the traits of `Objective`: it reads both variance parts and is trained by stochastic gradients.
"""

from __future__ import annotations

import dataclasses
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

from torch import Tensor

from duogp.bases.marginals import Marginals, Reads, TotalMarginals, VarianceSum
from duogp.likelihoods.base import Density

DataTerm = Callable[[Density, Any, Tensor], Tensor]


class Objective(ABC):
    """A data term, one value per datum [R, n], and its traits."""

    name: str
    #: "parts": it needs `Marginals`; "variance": `TotalMarginals` will do
    reads: Reads = "parts"
    #: whether it is E log p(y|f): with a likelihood that is linear in the variance `VarianceSum` will do
    is_expected_log = False
    #: whether it is quadratic in q(u) under Gaussian noise, so that the optimal q(u) has a formula
    has_closed_form = False
    #: under Gaussian noise s² and residual r: whether rows have the noise s² + r; whether r/2s² is charged
    smooths_residual = False
    charges_residual = False
    #: whether a log-concave likelihood keeps the precision of q(u) positive under natural gradients
    keeps_precision_positive = False
    #: whether samples of hidden layers are averaged inside the log
    averages_inside_log = False
    #: whether it needs powers of the density (`Likelihood.has_powers`)
    needs_powers = False
    #: settings of a fit that it reads
    options: tuple[str, ...] = ()

    @abstractmethod
    def __call__(self, p: Density, f: Any, y: Tensor) -> Tensor:
        """The data term of every row, [R, n]."""

    def sum_over_rows(self, p: Density, f: VarianceSum, y: Tensor) -> Tensor:
        """The data term summed over rows [R], of an expected log density that is linear in the variance."""
        return p.expected_log_prob_of_sum(y, f.mean, f.total)  # type: ignore[attr-defined]

    def configured(self, **options: Any) -> Self:
        """The objective with these values of its `options`."""
        return self

    def __repr__(self) -> str:
        return self.name


class FunctionObjective(Objective):
    """A function (density, marginals, y) → one value per datum, with traits."""

    def __init__(self, function: DataTerm, name: str, **traits: Any) -> None:
        self.function, self.name = function, name
        self.__doc__, self.__module__, self.__name__ = function.__doc__, function.__module__, name
        for trait, value in traits.items():
            if not hasattr(Objective, trait):
                raise TypeError(f"an objective has no trait {trait!r}")
            setattr(self, trait, value)

    def __call__(self, p: Density, f: Any, y: Tensor) -> Tensor:
        return self.function(p, f, y)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # it holds no state

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickled by name where the name leads here, else by its function."""
        name, module = self.function.__name__, sys.modules.get(self.function.__module__)
        return (
            name if getattr(module, name, None) is self else (FunctionObjective, (self.function, self.name))
        )


def objective(**traits: Any) -> Callable[[DataTerm], FunctionObjective]:
    """Decorator: the function as an objective with the given traits."""
    return lambda function: FunctionObjective(function, function.__name__, **traits)


def as_objective(given: Objective | DataTerm) -> Objective:
    """The objective itself, or a plain function as one without traits."""
    if isinstance(given, Objective):
        return given
    return FunctionObjective(given, getattr(given, "__name__", type(given).__name__))


@objective(
    reads="variance",
    is_expected_log=True,
    has_closed_form=True,
    charges_residual=True,
    keeps_precision_positive=True,
)
def elbo(p: Density, f: Marginals | TotalMarginals, y: Tensor) -> Tensor:
    """E_u E_{f|u} log p(y|f), [R, n], of marginals [R, latent, n] and y [R, outputs, n]."""
    return p.expected_log_prob(y, f.mean, f.variance)


@objective(has_closed_form=True, keeps_precision_positive=True)
def dtc(p: Density, f: Marginals, y: Tensor) -> Tensor:
    """E_u log p(y | E[f|u]), [R, n]: no residual, so that the collapsed bound is log N(y | 0, Q_Z + s²I).

    Not a bound on anything: without the residual's price, inducing points may leave the data alone.
    """
    return p.expected_log_prob(y, f.mean, f.explained)


@objective(has_closed_form=True, smooths_residual=True, keeps_precision_positive=True)
def vfitc(p: Density, f: Marginals, y: Tensor) -> Tensor:
    """E_u log E_{f|u} p(y|f), [R, n]: the residual is inside the log, q(u) outside."""
    return p.expected_log_smoothed(y, f.mean, inside=f.residual, outside=f.explained)


@dataclasses.dataclass(frozen=True, repr=False)
class Predictive(Objective):
    """log E_u E_{f|u} p(y|f): the log density of a test row.

    ``doubled_noise``: log N(y | μ, v + 2s²) under Gaussian noise s², which the published script of DCPPGPR
    maximises because it hands the marginals of y, not of f, to its objective. Its optimal s² is half that of
    the formula, and predictions with one s² are too narrow; for comparison only.
    """

    doubled_noise: bool = False

    name = "predictive"
    reads = "variance"
    averages_inside_log = True
    options = ("doubled_noise",)

    def configured(self, **options: Any) -> Self:
        return dataclasses.replace(self, **options)

    def __call__(self, p: Density, f: Marginals | TotalMarginals, y: Tensor) -> Tensor:
        if self.doubled_noise:
            return p.log_predictive(y, f.mean, f.variance + p.noise)  # type: ignore[attr-defined]
        return p.log_predictive(y, f.mean, f.variance)


predictive = Predictive()


@dataclasses.dataclass(frozen=True, repr=False)
class GammaRobust(Objective):
    """The γ-divergence objective (Knoblauch et al. 2019), with h = γ − 1 (MATH §4).

        (γ/h) E_q[p^h] I^(−h/γ),   I = ∫ p^γ dy

    gpytorch multiplies by I^(+h/γ); ``gpytorch_sign`` reproduces that. Both tend to E_q log p (shifted by
    γ/h, which is subtracted here so that γ → 1 is the ELBO's data term).
    """

    gamma: float = 1.03
    gpytorch_sign: bool = False

    name = "gamma-robust"
    reads = "variance"
    needs_powers = True
    options = ("gamma", "gpytorch_sign")

    def __post_init__(self) -> None:
        if not self.gamma > 1:
            raise ValueError(f"gamma must be above 1, got {self.gamma}")

    def configured(self, **options: Any) -> Self:
        return dataclasses.replace(self, **options)

    def __call__(self, p: Density, f: Marginals | TotalMarginals, y: Tensor) -> Tensor:
        h = self.gamma - 1
        sign = 1.0 if self.gpytorch_sign else -1.0
        log_value = p.expected_power(y, f.mean, f.variance, h) + sign * h / self.gamma * p.log_power_mass(
            y, self.gamma
        )
        return self.gamma / h * log_value.expm1()


#: Objectives by name.
OBJECTIVES: dict[str, Objective] = {o.name: o for o in (elbo, vfitc, predictive, dtc, GammaRobust())}
