"""Settings of a stream, from a method and the user's keywords."""

from __future__ import annotations

import warnings
from typing import Any

from duogp.errors import DataWarning
from duogp.fitting.checks import check_settings
from duogp.fitting.dataset import with_seed
from duogp.fitting.factories import is_gaussian
from duogp.methods import Method
from duogp.methods.settings import Settings, as_list

#: Points of a mean that is a kernel expansion, by default, and columns of its quadratic form
#: that a step uses (MATH §6.4).
MEAN_POINTS, MEAN_COLUMNS = 1024, 128
#: Adam's rate, by whether q(u) is moved by natural gradients.
RATES = {True: 0.05, False: 0.01}
#: Settings of a fit to a table of known length that have no meaning for a stream.
IDLE_SETTINGS: tuple[str, ...] = ("epochs", "steps", "schedule", "validation_fraction", "early_stopping")
IDLE_SETTINGS += ("patience", "refit", "evaluate_every", "warm_start", "omega_block", "backend", "adam_betas")


def online_settings(
    method: Method,
    num_inducing: int,
    num_extra: int | None,
    learning_rate: float | None,
    given: dict[str, Any],
) -> Settings:
    """The settings of a stream, checked; those ``given`` by the user replace those of the method."""
    if num_extra is None and method.has_extra_points:
        many = method.recipe.mean_is_kernel_expansion
        num_extra = max(MEAN_POINTS, num_inducing) if many else num_inducing
    own: dict[str, Any] = {}
    if method.learns_online and method.recipe.mean_is_kernel_expansion:
        # A preconditioner that depends on the points makes a step of Adam worth several (appendix A.1).
        own = {"kernel": "generalised-rbf", "preconditioner": "nystrom", "mean_columns": MEAN_COLUMNS}
    merged = {**own, **given, "num_inducing": num_inducing, "learning_rate": learning_rate}
    if num_extra is not None:
        merged["num_extra"] = num_extra
    settings = Settings.of(with_seed(merged))
    _check(method, settings, given)
    if learning_rate is None:
        settings = settings.but(learning_rate=RATES[uses_natural_gradients(method, settings)])
    return settings


def uses_natural_gradients(method: Method, settings: Settings) -> bool:
    """Whether q(u) is moved by natural gradients: as asked for by the user or by the method.

    Otherwise where the objective is far from quadratic in q(u), and in bases that grow, if its covariance is
    full.
    """
    asked: str = settings.solver
    if asked == "auto":
        asked = str(method.defaults.get("solver", "auto"))
    if asked != "auto":
        return asked == "natural"
    far = method.data_term.keeps_precision_positive and not is_gaussian(settings)
    return method.q_class.has_natural_gradient and (method.learns_online or far)


def _check(method: Method, settings: Settings, given: dict[str, Any]) -> None:
    if method.defaults.get("solver") == "closed-form":
        raise ValueError(
            f"{method.name!r} is solved in closed form, from all rows, and cannot learn from a stream: use "
            "'svi', 'ivsgpr' or 'svdgp'"
        )
    if settings.solver == "closed-form":
        raise ValueError("solver='closed-form' needs all rows at once: use 'natural' or 'stochastic'")
    check_settings(method, settings, given)
    for name in ("beta1", "beta2"):
        if len(as_list(getattr(settings, name))) > 1:
            raise ValueError(f"{name} is chosen from a list on validation rows, which a stream has not")
    if settings.omega == "full":
        raise ValueError("omega='full' needs every row in each step: use 'rows', 'batch' or 'blocks'")
    if uses_natural_gradients(method, settings) and not method.q_class.has_natural_gradient:
        raise ValueError(
            f"solver='natural' needs a q(u) with a full covariance; that of {method.name!r} is {method.q}"
        )
    mean, covariance = settings.num_extra or 0, settings.num_inducing or 0
    if method.learns_online and method.recipe.mean_is_kernel_expansion and mean < covariance:
        raise ValueError(
            f"num_extra, the points of the mean, must be at least num_inducing ({covariance}), got {mean}"
        )
    if idle := [name for name in IDLE_SETTINGS if name in given]:
        warnings.warn(f"a stream has no use for {', '.join(idle)}: ignored", DataWarning, stacklevel=4)
