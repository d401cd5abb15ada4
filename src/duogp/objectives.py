"""Where the log sits: each objective is a pure function (density, marginals, y) → one value per datum.

    ELBO       E_u E_{f|u} log p(y|f)
    VFITC      E_u log E_{f|u} p(y|f)
    predictive log E_u E_{f|u} p(y|f)
    DTC        E_u log p(y | E[f|u])

so predictive ≥ VFITC ≥ ELBO at equal parameters. All are maximised; regularisers are subtracted elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from duogp.bases.marginals import Marginals
from duogp.likelihoods.base import Density

Objective = Callable[[Density, Marginals, Tensor], Tensor]


def elbo(p: Density, f: Marginals, y: Tensor) -> Tensor:
    """E_u E_{f|u} log p(y|f)."""
    return p.expected_log_prob(y, f.mean, f.variance)


def dtc(p: Density, f: Marginals, y: Tensor) -> Tensor:
    """E_u log p(y | E[f|u]): the residual left out, so that the collapsed bound is log N(y | 0, Q_Z + s²I).

    Not a bound on anything: without the residual's price, inducing points may leave the data alone.
    """
    return p.expected_log_prob(y, f.mean, f.explained)


def vfitc(p: Density, f: Marginals, y: Tensor) -> Tensor:
    """E_u log E_{f|u} p(y|f): the residual is inside the log, q(u) outside."""
    return p.expected_log_smoothed(y, f.mean, inside=f.residual, outside=f.explained)


def predictive(p: Density, f: Marginals, y: Tensor) -> Tensor:
    """log E_u E_{f|u} p(y|f): what the test set will ask."""
    return p.log_predictive(y, f.mean, f.variance)


@dataclass(frozen=True)
class GammaRobust:
    """The γ-divergence objective (Knoblauch et al. 2019), h = γ − 1 (MATH §4):

        (γ/h) E_q[p^h] I^(−h/γ),   I = ∫ p^γ dy

    gpytorch multiplies by I^(+h/γ); ``gpytorch_sign`` reproduces that. Both tend to E_q log p (shifted by
    γ/h, which is subtracted here so that γ → 1 is the ELBO's data term).
    """

    gamma: float = 1.03
    gpytorch_sign: bool = False

    def __post_init__(self) -> None:
        if not self.gamma > 1:
            raise ValueError(f"gamma must be above 1, got {self.gamma}")

    def __call__(self, p: Density, f: Marginals, y: Tensor) -> Tensor:
        h = self.gamma - 1
        sign = 1.0 if self.gpytorch_sign else -1.0
        log_value = p.expected_power(y, f.mean, f.variance, h) + sign * h / self.gamma * p.log_power_mass(
            y, self.gamma
        )
        return self.gamma / h * log_value.expm1()


def reads_parts(objective: Objective) -> bool:
    """Whether an objective looks at the two parts of the variance, or only at their sum; unknown ones may."""
    return not (objective in (elbo, predictive) or isinstance(objective, GammaRobust))
