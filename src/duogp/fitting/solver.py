"""Which solver trains a method: its closed form, natural gradients, or minibatches alone."""

from __future__ import annotations

from duogp.fitting.factories import is_gaussian, likelihood_label
from duogp.methods.registry import Method
from duogp.methods.settings import Settings

#: Rows up to which "auto" prefers the closed form where there is one: a step costs about an epoch.
CLOSED_FORM_ROWS = {"cpu": 50_000, "cuda": 500_000}


def closed_form_obstacle(method: Method, settings: Settings) -> str | None:
    """Why the optimal q(u) has no formula here; None where it has one."""
    if not method.data_term.has_closed_form:
        return f"{method.name!r} has the {method.data_term} objective, which is not quadratic in q(u)"
    if not is_gaussian(settings):
        return f"the likelihood is {likelihood_label(settings)}, not Gaussian"
    if not method.recipe.has_closed_form:
        return f"the basis of {method.name!r} declares no closed form"
    if not method.q_class.has_closed_form:
        return f"the covariance of {method.name!r} is {method.q_name}"
    if method.has_network:
        return f"{method.name!r} trains a network, which overfits if q(u) is solved for at every step"
    if method.is_deep:
        return f"{method.name!r} has hidden layers, through which nothing is quadratic"
    if settings.num_latents is not None:
        return "mixed outputs (num_latents) tie the latent functions to each other"
    return None


def choose_solver(method: Method, settings: Settings, n: int, reasons: dict[str, str] | None = None) -> str:
    """The solver: as asked for, as the method says, or by traits and rows.

    It is "closed-form", "stochastic" or "natural".
    """
    reasons = {} if reasons is None else reasons
    asked: str = settings.solver
    if asked == "auto":
        asked = str(method.defaults.get("solver", "auto"))
    obstacle = closed_form_obstacle(method, settings)
    if asked == "closed-form" and obstacle and settings.solver == "auto":
        raise ValueError(f"{method.name!r} is a closed form, and there is none: {obstacle}; use 'svgp'")
    if asked == "closed-form" and obstacle:
        raise ValueError(f"solver='closed-form' is not possible: {obstacle}; use solver='stochastic'")
    if method.recipe.points_are_rows and asked != "closed-form":
        raise ValueError(f"{method.name!r} is a closed form: it has no solver {asked!r}")
    natural = method.recipe.has_natural_gradient and method.q_class.has_natural_gradient
    if asked == "natural" and not method.q_class.has_natural_gradient:
        found = f"that of {method.name!r} is {method.q_name}"
        raise ValueError(f"solver='natural' needs a q(u) with a full covariance; {found}")
    if asked == "natural" and not natural:
        raise ValueError(f"solver='natural' is not possible: the basis of {method.name!r} declares none")
    if asked != "auto":
        reasons["solver"] = "asked for" if settings.solver != "auto" else f"part of {method.name!r}"
        return asked
    if obstacle is None:
        limit = CLOSED_FORM_ROWS[settings.torch_device.type]
        reasons["solver"] = (
            f"q(u) has a formula, and {n} rows are {'up to' if n <= limit else 'more than'} {limit}"
        )
        return "closed-form" if n <= limit else "stochastic"
    reasons["solver"] = obstacle
    # Without a formula for q(u), natural gradients come nearest to one; what the last layer of a deep GP sees
    # moves with the layers before it.
    natural = natural and method.data_term.keeps_precision_positive
    natural = natural and not is_gaussian(settings) and not method.is_deep
    return "natural" if natural else "stochastic"
