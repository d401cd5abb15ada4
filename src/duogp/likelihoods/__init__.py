"""p(y | f): expectations in closed form, by quadrature, or by reparametrised Monte Carlo."""

from __future__ import annotations

import difflib
import inspect
import math
import re
from typing import Any

from duogp.likelihoods.base import Likelihood, QuadratureLikelihood, Target
from duogp.likelihoods.bernoulli import BernoulliLikelihood
from duogp.likelihoods.beta import BetaLikelihood
from duogp.likelihoods.density import Density, Moments
from duogp.likelihoods.gamma import GammaLikelihood
from duogp.likelihoods.gaussian import GaussianDensity, GaussianLikelihood
from duogp.likelihoods.heteroscedastic import HeteroscedasticGaussianLikelihood
from duogp.likelihoods.poisson import PoissonLikelihood
from duogp.likelihoods.quadrature import QuadratureDensity
from duogp.likelihoods.robust_max import RobustMaxLikelihood
from duogp.likelihoods.softmax import SoftmaxLikelihood
from duogp.likelihoods.student_t import StudentTLikelihood

LIKELIHOODS: dict[str, type[Likelihood]] = {
    "gaussian": GaussianLikelihood,
    "student-t": StudentTLikelihood,
    "heteroscedastic": HeteroscedasticGaussianLikelihood,
    "bernoulli": BernoulliLikelihood,
    "probit": BernoulliLikelihood,
    "logit": BernoulliLikelihood,
    "robust-max": RobustMaxLikelihood,
    "softmax": SoftmaxLikelihood,
    "poisson": PoissonLikelihood,
    "gamma": GammaLikelihood,
    "beta": BetaLikelihood,
}

#: the former name
PlainDensity = Density

__all__ = [
    "LIKELIHOODS",
    "BernoulliLikelihood",
    "BetaLikelihood",
    "Density",
    "GammaLikelihood",
    "GaussianDensity",
    "GaussianLikelihood",
    "HeteroscedasticGaussianLikelihood",
    "Likelihood",
    "Moments",
    "PlainDensity",
    "PoissonLikelihood",
    "QuadratureDensity",
    "QuadratureLikelihood",
    "RobustMaxLikelihood",
    "SoftmaxLikelihood",
    "StudentTLikelihood",
    "Target",
    "make_named",
]


def make_named(
    name: str,
    *,
    outputs: int,
    classes: int | None = None,
    noise: float,
    noise_floor: float,
    learn_noise: bool,
) -> Likelihood:
    """A likelihood from its name ("student-t", "Student T"), made with the options that its class takes.

    ``noise``: the variance of the observation noise at the start, raised to twice its floor.
    """
    key = re.sub(r"[^a-z]+", "-", str(name).lower().strip())
    if key not in LIKELIHOODS:
        near = difflib.get_close_matches(key, LIKELIHOODS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        raise ValueError(f"unknown likelihood {name!r}{hint} The names are {', '.join(LIKELIHOODS)}")
    kind, noise = LIKELIHOODS[key], max(noise, 2 * noise_floor)
    if classes is not None and (known := getattr(kind, "classes", classes)) != classes:
        raise ValueError(f"{key} is for {known} classes, got {classes}: use 'robust-max' or 'softmax'")
    options: dict[str, Any] = {"outputs": outputs, "classes": classes}
    options |= {"noise": noise, "floor": noise_floor, "learn": learn_noise}
    options |= {"scale": math.sqrt(noise), "scale_floor": math.sqrt(noise_floor), "learn_scale": learn_noise}
    if key in ("probit", "logit"):
        options["link"] = key
    taken = inspect.signature(kind).parameters
    return kind(**{option: value for option, value in options.items() if option in taken})
