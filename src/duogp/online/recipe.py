"""From a method and keywords to the settings of a stream, or an error that says why there is none."""

from __future__ import annotations

import secrets
import warnings
from typing import Any

from duogp.errors import DataWarning
from duogp.fitting.planning import check_settings, is_gaussian
from duogp.methods import Method
from duogp.methods.settings import Settings, as_list

#: Mean points of Cheng and Boots' bases unless the user says how many, and columns of their quadratic form
#: that a step sees (MATH §6.4).
MEAN_POINTS = 1024
MEAN_COLUMNS = 128
#: What a table of known length needs and a stream has no use for.
IDLE_SETTINGS = (
    "epochs",
    "steps",
    "schedule",
    "validation_fraction",
    "early_stopping",
    "patience",
    "refit",
    "evaluate_every",
    "warm_start",
    "omega_block",
    "backend",
)


def grows(method: Method) -> bool:
    """Whether the method builds its bases up as rows come."""
    return bool(method.defaults.get("online"))


def online_settings(
    method: Method, num_inducing: int, num_extra: int | None, learning_rate: float, given: dict[str, Any]
) -> Settings:
    """The settings of a stream, checked; ``given`` by the user wins over what belongs to the method."""
    if num_extra is None and method.has_extra_points:
        num_extra = max(MEAN_POINTS, num_inducing) if method.basis == "subspace" else num_inducing
    own: dict[str, Any] = {}
    if grows(method) and method.basis == "subspace":
        # A preconditioner that knows the points makes a step of Adam worth several (appendix A.1).
        own = {"kernel": "generalised-rbf", "preconditioner": "nystrom", "mean_columns": MEAN_COLUMNS}
    merged = {**own, **given, "num_inducing": num_inducing, "learning_rate": learning_rate}
    if num_extra is not None:
        merged["num_extra"] = num_extra
    if merged.get("random_state", 0) is None:  # as in scikit-learn: a new seed each time
        merged["random_state"] = secrets.randbits(31)
    settings = Settings.of(merged)
    _check(method, settings, given)
    return settings


def uses_natural_gradients(method: Method, settings: Settings) -> bool:
    """Where the user or the method says so, and where q(u) is far from quadratic (not Gaussian)."""
    asked = settings.solver
    if asked == "auto":
        asked = str(method.defaults.get("solver", "auto"))
    if asked != "auto":
        return asked == "natural"
    if grows(method):
        return method.basis == "coupled"
    return method.q == "full" and method.objective in ("elbo", "vfitc") and not is_gaussian(settings)


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
    if uses_natural_gradients(method, settings) and method.q != "full":
        raise ValueError(
            f"solver='natural' needs a q(u) with a full covariance; that of {method.name!r} is {method.q}"
        )
    if grows(method) and method.basis == "subspace":
        mean, covariance = settings.num_extra or 0, settings.num_inducing or 0
        if mean < covariance:
            raise ValueError(
                f"num_extra, the points of the mean, must be at least num_inducing ({covariance}), got {mean}"
            )
    if idle := [name for name in IDLE_SETTINGS if name in given]:
        warnings.warn(f"a stream has no use for {', '.join(idle)}: ignored", DataWarning, stacklevel=4)
