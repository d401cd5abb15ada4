"""Every decision of a fit that the settings leave open, made from the method's traits and the data.

`make_plan` decides on validation rows, solver, rows of Ω, the grid of β, inducing points, schedule, warm
start and refit; a `Plan` is printable and says why. The solver has a room of its own (`solver`), and so has
the length of training (`training_plan`).
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from duogp.data.columns import informative_columns
from duogp.data.rows import Rows, groups_of_inputs, hold_out
from duogp.errors import DataWarning
from duogp.fitting.dataset import Dataset
from duogp.fitting.factories import initial_kernel, make_likelihood
from duogp.fitting.learned import learned_columns
from duogp.fitting.solver import choose_solver
from duogp.fitting.training_plan import (
    WARM_ROWS,
    Stage,
    make_sample_starts,
    make_training,
    make_warm_start,
)
from duogp.methods.registry import Method
from duogp.methods.settings import Settings, as_list
from duogp.training import TrainingPlan
from duogp.training.schedules import cycles

#: Rows up to which Ω may see all of them at once (its cost is n³), and up to which it does so unasked.
FULL_OMEGA_ROWS = 5000
FULL_OMEGA_DEFAULT = 1000
#: Rows up to which the exact GP is fitted: memory is n², a step n³.
EXACT_ROWS = {"cpu": 5_000, "cuda": 20_000}
#: Inducing points unless the user says how many.
NUM_INDUCING = 500
#: Columns that a warning names, at most.
MOST_NAMED = 5


@dataclass(frozen=True, eq=False)
class Plan:
    """What a fit will do: print it, or read its fields; ``reasons`` are by field."""

    method: Method
    settings: Settings
    train: Rows  # [R, n]
    validation: Rows | None  # [R, n_val]
    columns: NDArray[np.bool_]  # the columns of X that are used
    solver: str  # "closed-form", "stochastic" or "natural"
    training: TrainingPlan
    omega: str = "rows"  # rows that Ω sees
    betas: list[tuple[float, float]] = field(default_factory=lambda: [(1.0, 0.0)])  # the grid of (β₁, β₂)
    warm_start: TrainingPlan | None = None  # closed-form SVGP to start from
    warm_start_rows: int | None = None  # on a sample of so many rows; None: on all
    sample_starts: tuple[Stage, ...] = ()  # on some of the rows, before all of them
    refit: bool = False  # the final q(u) of closed-form training sees the rows held out too
    num_inducing: int = NUM_INDUCING
    num_extra: int | None = None  # of the second set of points; None: there is none
    inducing_init: str = "kmeans"
    categorical: frozenset[int] = frozenset()  # of the used columns, those of category codes
    learned: int = 0  # columns of a cross-fitted mean, behind those of X
    reasons: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        n, held_out = self.train.shape[1], 0 if self.validation is None else self.validation.shape[1]
        stages = ", then on ".join(str(stage.rows) for stage in self.sample_starts)
        lines = {
            "method": f"{self.method.name}: {self.method.summary or 'a method of your own'}",
            "rows": f"{n} to train, {held_out} to validate"
            + (f", {len(self.train)} sets" * (len(self.train) > 1)),
            "columns": f"{int(self.columns.sum())} of {len(self.columns)}",
            "solver": self.solver,
            "num_inducing": f"{self.num_inducing} by {self.inducing_init}",
            "num_extra": None if self.num_extra is None else str(self.num_extra),
            "betas": ", ".join(f"β₁ = {b1:g}, β₂ = {b2:g}" for b1, b2 in self.betas),
            "omega": self.omega if self.method.recipe.has_omega and any(b for _, b in self.betas) else None,
            "warm_start": None
            if self.warm_start is None
            else f"at most {self.warm_start.epochs} closed-form steps of svgp"
            + (f" on {self.warm_start_rows} of the rows" if self.warm_start_rows else ""),
            "sample_start": f"on {stages} of the rows" if stages else None,
            "training": self._length(),
            "refit": "the rows held out come back for the final q(u)" if self.refit else None,
            "device": f"{self.settings.torch_device}, {self.settings.dtype}",
        }
        shown = {name: value for name, value in lines.items() if value is not None}
        width = max(map(len, shown))
        return "\n".join(
            f"{name:<{width}}  {value}" + (f"  ({self.reasons[name]})" if name in self.reasons else "")
            for name, value in shown.items()
        )

    def _length(self) -> str:
        t = self.training
        length = (
            f"{t.steps} steps"
            if t.steps
            else f"{t.epochs} {'steps' if self.solver == 'closed-form' else 'epochs'}"
        )
        limit = "" if t.seconds is None else f", at most {t.seconds:g} s"
        early = "" if t.patience is None else f", stopped after {t.patience} looks without improvement"
        if t.optimiser == "lbfgs":
            end = f", until they gain less than {t.tolerance:g} a row" if t.tolerance else ""
            return f"at most {length} of L-BFGS{end}{limit}{early}"
        if t.schedule is cycles and t.tolerance:
            length = f"at most {length}, until they gain less than {t.tolerance:g} a row,"
        return f"{length} at rate {t.learning_rate:g}{limit}{early}"


def make_plan(
    data: Dataset,
    method: Method,
    settings: Settings,
    *,
    columns: NDArray[np.bool_] | None = None,
    split: bool = True,
    num_rows: int | None = None,
) -> Plan:
    """The plan of a fit. ``columns`` of X to use; ``split``: whether validation rows may be split off.

    ``num_rows``: those to train on, where the data are a sample of them.
    """
    reasons: dict[str, str] = {}
    recipe = method.recipe
    train, validation = _split(data, method, settings, reasons) if split else (np.stack(data.rows), None)
    n = train.shape[1]
    whole = n if num_rows is None else num_rows
    device = settings.torch_device.type
    solver = choose_solver(method, settings, whole, reasons)
    closed = solver == "closed-form"
    if recipe.points_are_rows and n > EXACT_ROWS[device]:
        raise ValueError(
            f"{method.name!r} factorises an n × n matrix in each step: it is meant for up to "
            f"{EXACT_ROWS[device]} rows on this device, got {n}; use a sparse method such as 'sgpr', or a "
            "sample of the rows"
        )
    weights = data.weights
    if recipe.points_are_rows and weights is not None and not weights[train].all():
        raise ValueError(f"{method.name!r} needs weights above 0: leave rows without weight out of rows")
    if settings.num_latents is not None and settings.num_latents < data.target.outputs:
        warnings.warn(
            f"{data.target.outputs} outputs are mixed from {settings.num_latents} latent functions: those "
            "that have less in common are predicted badly; without num_latents each has one of its own",
            DataWarning,
            stacklevel=5,
        )
    betas = list(itertools.product(map(float, as_list(settings.beta1)), _beta2(method, settings, closed)))
    if len(betas) > 1 and validation is None:
        raise ValueError(
            "beta1 and beta2 are chosen from a list on validation rows: set validation_fraction above 0"
        )
    if settings.early_stopping and validation is None:
        raise ValueError(
            "early_stopping needs validation rows: set validation_fraction above 0 or pass validation="
        )
    likelihood = make_likelihood(settings, data.target.outputs, data.noise is not None, data.num_classes)
    early = validation is not None if settings.early_stopping is None else settings.early_stopping
    training = make_training(method, settings, whole, solver, early, likelihood)
    used = used_columns(data, settings, train) if columns is None else columns
    categorical = category_columns(settings, int(used.sum()))
    num, more, name = choose_points(method, settings, n, categorical)
    learned = learned_columns(data, method, settings)
    if learned:
        reasons["columns"] = f"and {learned} of a mean that {settings.mean_folds} folds have learned"
    own_validation = data.validation_rows is None
    warm = make_warm_start(method, settings, training, closed, int(used.sum()))
    return Plan(
        method,
        settings,
        train,
        validation,
        used,
        solver,
        training,
        _omega(settings, whole, closed),
        betas,
        warm,
        settings.warm_start_rows or (WARM_ROWS if n > WARM_ROWS else None),
        () if warm else make_sample_starts(method, training, n, settings.torch_device.type),
        settings.refit and own_validation and validation is not None and not recipe.points_are_rows,
        num,
        more,
        name,
        categorical,
        learned,
        reasons,
    )


# -- rows ----------------------------------------------------------------------------------------------------


def _split(
    data: Dataset, method: Method, settings: Settings, reasons: dict[str, str]
) -> tuple[Rows, Rows | None]:
    """Training and validation rows of every replicate."""
    if data.validation_rows is not None:
        reasons["rows"] = "validation rows were given"
        return np.stack(data.rows), np.stack(data.validation_rows)
    n = len(data.rows[0])
    fraction = settings.validation_fraction
    if fraction is None:
        why = why_validation(method, settings, n)
        fraction = 0.1 if why else 0.0
        if why:
            reasons["rows"] = why
    size = min(round(fraction * n), n - 2)
    if size < 1:
        return np.stack(data.rows), None
    groups = groups_of_inputs(data.X, data.weights)
    parts = [
        hold_out(part, size, seed, None if groups is None else groups[part])
        for part, seed in zip(data.rows, data.seeds, strict=True)
    ]
    train, held_out = (np.stack(rows) for rows in zip(*parts, strict=True))
    return train, held_out


def why_validation(method: Method, settings: Settings, n: int) -> str | None:
    """Why validation rows are needed; None where they are not."""
    if len(as_list(settings.beta1)) > 1 or len(as_list(settings.beta2)) > 1:
        return "β is chosen on validation rows"
    if settings.early_stopping is not None:
        return "early_stopping needs validation rows" if settings.early_stopping else None
    if method.has_network:
        return "networks fit too well: validation rows say when to stop"
    if not method.recipe.has_omega:
        return None
    closed = choose_solver(method, settings, n) == "closed-form"
    if closed and min(_beta2(method, settings, closed)) < 1:
        return "below β₂ = 1 the closed form overfits: validation rows say when to stop"
    return None


def used_columns(data: Dataset, settings: Settings, train: Rows) -> NDArray[np.bool_]:
    """Mask [d] of the columns that vary, with a warning for the others; all of them for a kernel object."""
    used = np.ones(data.X.shape[1], dtype=bool)
    if isinstance(settings.kernel, str):  # a kernel object counts on the columns it was made for
        used = informative_columns(data.X[train.reshape(-1)])
    if not used.all():
        which = ", ".join(map(str, np.flatnonzero(~used)[:MOST_NAMED]))
        more = ", ..." if (~used).sum() > MOST_NAMED else ""
        warnings.warn(
            f"{int((~used).sum())} constant columns of X are ignored (they vary by less than 1e-10 of their "
            f"size): {which}{more}, counted from 0",
            DataWarning,
            stacklevel=5,
        )
        used[0] |= not used.any()  # nothing varies: the prior mean can still be learned
    return used


# -- what is optimised ---------------------------------------------------------------------------------------


def _beta2(method: Method, settings: Settings, closed: bool) -> list[float]:
    """The paper's weight is one of its minibatch Ω; in closed form validation rows do Ω's work for free."""
    if settings.beta2 is None:
        return [0.0 if closed else float(method.defaults.get("beta2", 0.0))]
    return [float(b) for b in as_list(settings.beta2)]


def _omega(settings: Settings, n: int, closed: bool) -> str:
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
    return omega


def category_columns(settings: Settings, dims: int) -> frozenset[int]:
    """The columns, of so many, whose values the kernel takes for category codes."""
    return frozenset(initial_kernel(settings, torch.ones(dims)).categorical_columns(dims))


def choose_points(
    method: Method, settings: Settings, n: int, categorical: frozenset[int]
) -> tuple[int, int | None, str]:
    """Number of inducing points, number in the second set, and the name of their initialiser."""
    if method.recipe.points_are_rows:
        return n, None, "all rows"
    asked = [name for name in ("num_inducing", "num_extra") if (getattr(settings, name) or 0) > n]
    for name in asked:
        message = (
            f"{name} is {getattr(settings, name)}, but there are {n} training rows: using no more than those"
        )
        warnings.warn(message, DataWarning, stacklevel=5)
    # Means of category codes are no categories.
    name = settings.inducing_init or ("random" if categorical else "kmeans")
    num = min(settings.num_inducing or NUM_INDUCING, n)
    more = None if settings.num_extra is None else min(settings.num_extra, n)
    if not method.has_second_block:
        return num, more, name
    more = more or num
    if settings.extra_init is None:  # chosen together, of different rows
        both = (settings.num_inducing or 0) + (settings.num_extra or 0)
        if both > n:
            message = f"{both} points in two blocks were asked for, of {n} training rows: shared out"
            warnings.warn(message, DataWarning, stacklevel=5)
        num, more = share_rows(num, more, n)
    return num, more, name


def share_rows(num: int, more: int, n: int) -> tuple[int, int]:
    """Sizes of two blocks of different rows: as asked; where those are too many, the larger gives way."""
    if num + more > n and num <= n // 2:
        return num, n - num
    if num + more > n:
        more = min(more, n // 2)
        return n - more, more
    return num, more
