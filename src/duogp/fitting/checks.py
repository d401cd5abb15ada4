"""Settings that a method does not read: an error where that changes what is meant, else a warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from duogp.errors import DataWarning
from duogp.fitting.factories import is_gaussian, likelihood_label, likelihood_traits
from duogp.likelihoods import Likelihood
from duogp.methods.registry import METHODS, Method
from duogp.methods.settings import Settings, as_list


def check_settings(method: Method, settings: Settings, given: Mapping[str, object]) -> None:
    """Settings that a method has no use for: an error where that changes what is meant, else a warning."""
    recipe = method.recipe
    if not recipe.has_omega and any(as_list(settings.beta2)):
        raise ValueError(f"beta2 weighs Ω, which only decoupled conditionals have; {method.name!r} has none")
    if method.data_term.needs_powers and not likelihood_traits(settings).has_powers:
        raise ValueError(f"{method.name!r} needs a Gaussian likelihood, got {likelihood_label(settings)}")
    if settings.doubled_noise and "doubled_noise" in method.options and not is_gaussian(settings):
        raise ValueError(f"doubled_noise needs a Gaussian likelihood, got {likelihood_label(settings)}")
    if recipe.points_are_rows and (len(as_list(settings.beta1)) > 1 or settings.beta1 != 1):
        raise ValueError(f"beta1 weighs a KL, and {method.name!r} has none")
    if settings.epochs is not None and settings.steps is not None:
        raise ValueError("epochs and steps both say how long to train: give one of them")
    if unused := [name for name in given if name in _unread(method, settings)]:
        warnings.warn(
            f"{method.name!r} has no use for {', '.join(unused)}: ignored", DataWarning, stacklevel=4
        )


#: Settings that only some bases, q(u) or objectives read, see `Method.options`.
PARTICULAR = frozenset().union(*(m.options for m in METHODS.values() if not m.is_baseline)) - {"beta2"}


def _unread(method: Method, settings: Settings) -> set[str]:
    """Names of the settings that make no difference to this method."""
    idle = set(PARTICULAR - method.options)
    if not method.has_extra_points:
        idle |= {"num_extra", "extra_init"}
    if not method.is_deep:
        idle |= {"num_layers", "hidden_width", "num_samples"}
    if not method.has_network:
        idle |= {"widths", "mean_widths", "extractor", "activation", "normalisation", "weight_decay"}
    if "extractor" not in method.defaults:
        idle |= {"extractor", "mean_extractor", "inducing_space"}
    if method.has_network_mean:
        idle |= {"mean"}
    if method.recipe.points_are_rows:
        idle |= {"num_inducing", "inducing_init", "learn_inducing", "batch_size", "beta1", "log_prior"}
    if settings.solver in ("closed-form", "stochastic"):
        idle |= {"natural_rate", "mean_rule"}
    if isinstance(settings.likelihood, Likelihood):
        idle |= {"initial_noise", "noise_floor", "learn_noise", "noise_prior"}
    if not isinstance(settings.kernel, str):
        idle |= {"ard", "output_scale", "initial_lengthscale", "initial_scale", "lengthscale_prior"}
    return idle
