"""What the settings leave open, decided from the method and the data: splits, solver, β grid, schedule."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.errors import DataWarning
from duogp.fitting.build import likelihood_name
from duogp.likelihoods import GaussianLikelihood, Likelihood
from duogp.methods import METHODS, Method
from duogp.methods.settings import Settings, as_list
from duogp.training import Plan, make_schedule

Rows = NDArray[np.intp]

#: Rows up to which Ω may see all of them at once (its cost is n³), and up to which it does so unasked.
FULL_OMEGA_ROWS = 5000
FULL_OMEGA_DEFAULT = 1000
#: Closed-form SVGP steps from which the decoupled conditionals start.
WARM_START_STEPS = 100
#: Rows up to which "auto" prefers the closed form where there is one: a step costs about an epoch.
CLOSED_FORM_ROWS = {"cpu": 50_000, "cuda": 500_000}
#: Epochs of minibatches unless told otherwise: a hundred, but on small tables as many as make so many steps.
EPOCHS, MIN_STEPS = 100, 500
#: Step size of natural gradients, by whether the likelihood is log-concave. Where it is not, a quick q(u)
#: settles before the kernel has moved.
NATURAL_RATE = {True: 0.1, False: 0.02}
#: Of the weights of networks, unless the user says otherwise.
WEIGHT_DECAY = 1e-4
#: Rows up to which the exact GP is fitted: memory is n², a step n³.
EXACT_ROWS = {"cpu": 5_000, "cuda": 20_000}


@dataclass(frozen=True)
class Splits:
    train: Rows  # [R, n]
    validation: Rows | None  # [R, n_val]


@dataclass(frozen=True)
class Decisions:
    solver: str
    omega: str
    betas: list[tuple[float, float]]  # the grid of (β₁, β₂), chosen from on the validation rows
    training: Plan
    warm_start: Plan | None  # closed-form SVGP to start from
    refit: bool  # the final q(u) of closed-form training sees the rows held out too


def _wants_validation(method: Method, settings: Settings, n: int) -> bool:
    choosing = len(as_list(settings.beta1)) > 1 or len(as_list(settings.beta2)) > 1
    if choosing or settings.early_stopping is not None:
        return choosing or bool(settings.early_stopping)
    if method.has_network:  # the known failure of networks is to fit too well
        return True
    # Below β₂ = 1 it is not a bound, and in closed form it overfits: only held-out rows say when to stop.
    closed = _solver(method, settings, n) == "closed-form"
    return method.basis == "conditional" and closed and min(_beta2(method, settings, closed)) < 1


def make_splits(
    method: Method,
    settings: Settings,
    rows: Sequence[Any],
    validation_rows: Sequence[Any] | None,
    n: int,
    seeds: list[int],
) -> Splits:
    sets = [_row_indices(part, n, "rows") for part in rows]
    if not sets:
        raise ValueError("rows must hold at least one set of row indices")
    if len({len(part) for part in sets}) > 1:
        raise ValueError(f"rows must be sets of one size, got sizes {sorted({len(part) for part in sets})}")
    if len(sets[0]) < 2:
        raise ValueError(f"rows must be sets of at least 2 rows, got {len(sets[0])}")
    if validation_rows is not None:
        held_out = [_row_indices(part, n, "validation_rows") for part in validation_rows]
        if len(held_out) != len(sets) or len({len(part) for part in held_out}) > 1:
            raise ValueError(f"validation_rows must be {len(sets)} sets of one size")
        return Splits(np.stack(sets), np.stack(held_out))
    fraction = settings.validation_fraction
    if fraction is None:
        fraction = 0.1 if _wants_validation(method, settings, len(sets[0])) else 0.0
    size = min(round(fraction * len(sets[0])), len(sets[0]) - 2)
    if size < 1:
        return Splits(np.stack(sets), None)
    train_sets, held_out = [], []
    for part, seed in zip(sets, seeds, strict=True):
        order = np.random.default_rng(seed).permutation(len(part))
        train_sets.append(part[order[size:]])
        held_out.append(part[order[:size]])
    return Splits(np.stack(train_sets), np.stack(held_out))


def _row_indices(part: Any, n: int, name: str) -> Rows:
    indices = np.asarray(part)
    if indices.dtype == bool and indices.shape == (n,):
        indices = np.flatnonzero(indices)
    if indices.ndim != 1 or indices.dtype.kind not in "iu" or len(indices) < 1:
        raise ValueError(
            f"{name} must hold vectors of row numbers, got shape {indices.shape} of {indices.dtype}"
        )
    if indices.min() < 0 or indices.max() >= n:
        raise ValueError(
            f"{name} must hold row numbers from 0 to {n - 1}, got {indices.min()} to {indices.max()}"
        )
    return indices.astype(np.intp)


def is_gaussian(settings: Settings) -> bool:
    spec = settings.likelihood
    if isinstance(spec, Likelihood):
        return isinstance(spec, GaussianLikelihood)
    return likelihood_name(spec) == "gaussian"


def _closed_form_obstacle(method: Method, settings: Settings) -> str | None:
    """Why q(u) has no formula here; None where it has one."""
    if method.objective not in ("elbo", "vfitc", "dtc"):
        return f"{method.name!r} has the {method.objective} objective, which is not quadratic in q(u)"
    if not is_gaussian(settings):
        return f"the likelihood is {settings.likelihood!r}, not Gaussian"
    if method.q not in ("full", "diagonal", "point"):
        return f"the covariance of {method.name!r} is {method.q}"
    if method.has_network:
        return f"{method.name!r} trains a network, which a solved q(u) lets overfit"
    if method.is_deep:
        return f"{method.name!r} has hidden layers, through which nothing is quadratic"
    if settings.num_latents is not None:
        return "mixed outputs (num_latents) tie the latent functions to each other"
    return None


def _solver(method: Method, settings: Settings, n: int) -> str:
    asked = settings.solver
    if asked == "auto":
        asked = str(method.defaults.get("solver", "auto"))
    obstacle = _closed_form_obstacle(method, settings)
    if asked == "closed-form" and obstacle and settings.solver == "auto":
        raise ValueError(f"{method.name!r} is a closed form, and there is none: {obstacle}; use 'svgp'")
    if asked == "closed-form" and obstacle:
        raise ValueError(f"solver='closed-form' is not possible: {obstacle}; use solver='stochastic'")
    if method.basis == "exact" and asked != "closed-form":
        raise ValueError(f"{method.name!r} is a closed form: it has no solver {asked!r}")
    if asked == "natural" and method.q != "full":
        raise ValueError(
            f"solver='natural' needs a q(u) with a full covariance; that of {method.name!r} is {method.q}"
        )
    if asked != "auto":
        return asked
    if obstacle is None:
        return "closed-form" if n <= CLOSED_FORM_ROWS[settings.torch_device.type] else "stochastic"
    # Without a formula for q(u), natural gradients come nearest to one.
    natural = method.q == "full" and method.objective in ("elbo", "vfitc") and not is_gaussian(settings)
    natural = natural and not method.is_deep  # what the last layer sees moves with the layers before it
    return "natural" if natural else "stochastic"


def check_settings(method: Method, settings: Settings, given: Mapping[str, Any]) -> None:
    """Settings that a method has no use for: an error where that changes what is meant, else a warning."""
    if method.basis != "conditional" and any(as_list(settings.beta2)):
        raise ValueError(f"beta2 weighs Ω, which only decoupled conditionals have; {method.name!r} has none")
    if method.objective == "gamma-robust" and not is_gaussian(settings):
        raise ValueError(f"{method.name!r} needs a Gaussian likelihood, got {settings.likelihood!r}")
    if method.basis == "exact" and (len(as_list(settings.beta1)) > 1 or settings.beta1 != 1):
        raise ValueError(f"beta1 weighs a KL, and {method.name!r} has none")
    if settings.epochs is not None and settings.steps is not None:
        raise ValueError("epochs and steps both say how long to train: give one of them")
    idle = []
    if method.basis != "conditional":
        idle += ["whitening", "omega", "omega_block", "mean_jitter"]
    if not method.has_extra_points:
        idle += ["num_extra", "extra_init"]
    if method.q != "ridge":
        idle += ["ridge"]
    if method.basis != "subspace":
        idle += ["preconditioner"]
    if method.basis not in ("hybrid", "orthogonal-a", "subspace"):
        idle += ["mean_columns"]
    if not method.is_deep:
        idle += ["num_layers", "hidden_width", "num_samples"]
    if method.basis != "layer-components":
        idle += ["num_residual", "printed_kl"]
    if not method.has_network:
        idle += ["widths", "mean_widths", "extractor", "activation", "normalisation", "weight_decay"]
        idle += ["mean_extractor", "inducing_space"]
    elif method.basis == "neural":
        idle += ["extractor", "mean_extractor", "inducing_space", "mean"]
    if method.basis == "exact":
        idle += ["num_inducing", "inducing_init", "learn_inducing", "batch_size", "beta1"]
    if method.objective != "gamma-robust":
        idle += ["gamma", "gpytorch_sign"]
    if method.basis != "components-eps":
        idle += ["epsilon"]
    if method.q != "point" or method.basis == "exact":
        idle += ["log_prior"]
    if settings.solver in ("closed-form", "stochastic"):
        idle += ["natural_rate", "mean_rule"]
    if isinstance(settings.likelihood, Likelihood):
        idle += ["initial_noise", "noise_floor", "learn_noise"]
    if not isinstance(settings.kernel, str):
        idle += ["ard", "output_scale", "initial_lengthscale", "initial_scale"]
    if unused := [name for name in idle if name in given]:
        warnings.warn(
            f"{method.name!r} has no use for {', '.join(unused)}: ignored", DataWarning, stacklevel=4
        )


def _beta2(method: Method, settings: Settings, closed: bool) -> list[float]:
    """The paper's weight is one of its minibatch Ω; in closed form validation rows do Ω's work for free."""
    if settings.beta2 is None:
        return [0.0 if closed else float(method.defaults.get("beta2", 0.0))]
    return [float(b) for b in as_list(settings.beta2)]


def _minibatch_epochs(n: int, batch_size: int) -> tuple[int, int]:
    """How many, and after how many to look at the validation rows: a hundred times in all."""
    epochs = max(EPOCHS, -(-MIN_STEPS // -(-n // batch_size)))
    return epochs, epochs // EPOCHS


def make_decisions(
    method: Method, settings: Settings, splits: Splits, *, own_validation: bool, log_concave: bool = True
) -> Decisions:
    """``own_validation``: the held-out rows were split off here, not given by the user to be left alone;
    ``log_concave``: the likelihood is, so that natural gradients may be quick."""
    n = splits.train.shape[1]
    solver = _solver(method, settings, n)
    closed = solver == "closed-form"
    limit = EXACT_ROWS[settings.torch_device.type]
    if method.basis == "exact" and n > limit:
        raise ValueError(
            f"{method.name!r} factorises an n × n matrix in each step: it is meant for up to {limit} rows on "
            f"this device, got {n}; use a sparse method such as 'sgpr', or a sample of the rows"
        )
    beta1 = [float(b) for b in as_list(settings.beta1)]
    beta2 = _beta2(method, settings, closed)
    betas = list(itertools.product(beta1, beta2))
    if len(betas) > 1 and splits.validation is None:
        raise ValueError(
            "beta1 and beta2 are chosen from a list on validation rows: set validation_fraction above 0"
        )
    if settings.early_stopping and splits.validation is None:
        raise ValueError(
            "early_stopping needs validation rows: set validation_fraction above 0 or pass validation="
        )
    omega = settings.omega or (("full" if n <= FULL_OMEGA_DEFAULT else "blocks") if closed else "rows")
    if omega == "full" and n > FULL_OMEGA_ROWS:
        raise ValueError(
            f"omega='full' factorises an n × n matrix in each step: it is meant for up to {FULL_OMEGA_ROWS} "
            f"rows, got {n}; use omega='blocks'"
        )
    if omega == "full" and not closed and settings.batch_size < n:
        raise ValueError(
            "omega='full' needs every row in each step: use solver='closed-form' or batch_size ≥ n"
        )
    early = splits.validation is not None if settings.early_stopping is None else settings.early_stopping
    epochs, every = (200, 5) if closed else _minibatch_epochs(n, settings.batch_size)
    if settings.epochs is not None and not closed:
        every = 1
    rate = (0.03 if method.basis == "conditional" else 0.05) if closed else 1e-2
    training = Plan(
        epochs=settings.epochs or epochs,
        learning_rate=settings.learning_rate or rate,
        schedule=make_schedule(settings.schedule or ("cosine" if closed else "multistep")),
        evaluate_every=settings.evaluate_every or every,
        patience=(settings.patience or (40 if method.has_network else 10)) if early else None,
        restore_best=early,
        check_every=10 if closed else 50,
        natural_rate=(settings.natural_rate or NATURAL_RATE[log_concave]) if solver == "natural" else None,
        mean_rule=settings.mean_rule,
        steps=settings.steps,
        seconds=settings.time_budget,
        weight_decay=WEIGHT_DECAY if settings.weight_decay is None else settings.weight_decay,
        backend=settings.backend,  # type: ignore[arg-type]
        verbose=settings.verbose,
    )
    steps = settings.warm_start
    if steps is None:
        steps = WARM_START_STEPS if closed and method.basis == "conditional" else 0
    if steps and method.is_deep:
        raise ValueError(f"warm_start trains a shallow model, and {method.name!r} is a deep one")
    if steps and _closed_form_obstacle(METHODS["svgp"], settings):
        raise ValueError("warm_start trains a coupled model in closed form: it needs a Gaussian likelihood")
    warm = replace(
        training,
        epochs=steps,
        learning_rate=0.05,
        schedule=make_schedule("cosine"),
        check_every=10,
        natural_rate=None,
        steps=None,
    )
    refit = settings.refit and own_validation and splits.validation is not None and method.basis != "exact"
    return Decisions(solver, omega, betas, training, warm if steps else None, refit)
