"""Fit the GPs of the registry to tables: data → plan → model → training → `GP`. `duogp.api` is the door."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from duogp.fitting.auto import StackPlan, choose, plan_stack, stack
from duogp.fitting.builder import Builder, start_from
from duogp.fitting.checks import check_settings
from duogp.fitting.dataset import Dataset, with_seed
from duogp.fitting.identity import identity_of
from duogp.fitting.plan import Plan, make_plan
from duogp.fitting.training_plan import is_large_sample, on_all_rows, started_on_large_sample
from duogp.methods.registry import METHODS, Method
from duogp.methods.settings import Settings
from duogp.models.model import Model
from duogp.posterior.gp import GP
from duogp.posterior.prediction import Prediction
from duogp.posterior.stack import Stack
from duogp.training import (
    Callback,
    CheckpointOptions,
    Checkpoints,
    ClosedForm,
    Curvature,
    History,
    TrainingPlan,
    opened,
    settle,
    train,
)
from duogp.training.checkpoint import EVERY, Slot

AUTO = "auto"


def is_auto(method: str | Method) -> bool:
    """Whether the method is left to the library."""
    return isinstance(method, str) and method.lower() == AUTO


def fit_table(
    X: Any,
    y: Any,
    method: str | Method,
    *,
    validation: tuple[Any, Any] | None = None,
    noise: Any = None,
    sample_weight: Any = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: CheckpointOptions | None = None,
    settings: dict[str, Any],
) -> GP | Stack:
    """One GP on one table, or the stack of ``"auto"``; see `duogp.fit`."""
    settings = with_seed(settings, checkpoint)
    chosen = Settings.of(settings)
    data = Dataset.of_table(X, y, chosen, validation=validation, noise=noise, sample_weight=sample_weight)
    with _checkpoints(data, method, chosen, checkpoint) as kept:
        if not is_auto(method):
            (gp,) = fit_plan(data, _planned(data, METHODS[method], chosen, settings), callbacks, kept)
            return _sound(gp, data)
        choice = choose(data, settings, chosen)
        if choice is None:
            return stack(data, settings, chosen, callbacks, kept)
        name, reason = choice
        (gp,) = fit_plan(data, _planned(data, METHODS[name], chosen, settings), callbacks, kept)
        gp.history.notes.insert(0, reason)
        return _sound(gp, data)


def _sound(gp: GP, data: Dataset, most: int = 100) -> GP:
    """The model, or an error where its training ended in NaN and its predictions are none."""
    if not len(gp.history) or math.isfinite(gp.history[-1].loss):
        return gp
    found = gp.predict(data.X[data.rows[0][:most]])
    values = found.std if isinstance(found, Prediction) else found.probabilities
    if not np.isfinite(values).all():
        raise ValueError(
            f"the fit of {gp.method.name!r} has no finite predictions: look at the scales of the data, at "
            "initial_scale, initial_noise and initial_lengthscale; standardize=True brings columns of any "
            "scale to one, dtype='float64' has more room"
        )
    return gp


def _checkpoints(
    data: Dataset, method: str | Method, settings: Settings, options: CheckpointOptions | None
) -> AbstractContextManager[Checkpoints | None]:
    """The checkpoints of a fit while it runs; None where none are asked for."""
    return nullcontext() if options is None else opened(options, identity_of(data, method, settings))


def fit_replicates(
    X: Any,
    y: Any,
    rows: Sequence[Any],
    method: str | Method = "dcsvgp",
    *,
    validation_rows: Sequence[Any] | None = None,
    noise: Any = None,
    sample_weight: Any = None,
    callbacks: Sequence[Callback] = (),
    random_states: Sequence[int] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every: float = EVERY,
    checkpoint_steps: int | None = None,
    **settings: Any,
) -> list[GP]:
    """Fit one model to each set of rows of one table X [n, d], y [n] (splits, bootstrap samples) at once.

    The sets must be of one size. Each model has its own scaling, inducing points, history and seed
    (``random_states``; otherwise ``random_state`` and the numbers after it), so that it is, up to rounding,
    the model that `fit` would have given on those rows with that seed. Checkpoints are as those of `fit`.
    """
    checkpoint = CheckpointOptions.of(checkpoint_dir, checkpoint_every, checkpoint_steps)
    recipe = METHODS[method]
    if recipe.is_baseline:
        raise ValueError(f"{recipe.name!r} is no GP, and trained one set of rows at a time: use fit")
    if recipe.learns_online:
        raise ValueError(f"{recipe.name!r} learns from a stream, one model at a time: use fit or OnlineGP")
    settings = with_seed(settings, checkpoint)
    chosen = Settings.of(settings)
    data = Dataset.of_rows(
        X,
        y,
        rows,
        chosen,
        validation_rows=validation_rows,
        noise=noise,
        sample_weight=sample_weight,
        random_states=random_states,
    )
    with _checkpoints(data, recipe, chosen, checkpoint) as kept:
        return fit_plan(data, _planned(data, recipe, chosen, settings), callbacks, kept)


def plan(
    X: Any,
    y: Any,
    method: str | Method = "dcsvgp",
    *,
    validation: tuple[Any, Any] | None = None,
    noise: Any = None,
    sample_weight: Any = None,
    **settings: Any,
) -> Plan | StackPlan:
    """What `duogp.fit` would do with X [n, d], y [n] and these arguments, and why; nothing is trained.

    Print it: ``print(duogp.plan(X, y, "dcsvgp"))``. For ``"auto"`` it is a `StackPlan`.
    """
    settings = with_seed(settings)
    chosen = Settings.of(settings)
    data = Dataset.of_table(X, y, chosen, validation=validation, noise=noise, sample_weight=sample_weight)
    if not is_auto(method):
        recipe = METHODS[method]
        if recipe.is_baseline or recipe.learns_online:
            kind = "trains networks" if recipe.is_baseline else "learns from a stream"
            raise ValueError(f"{recipe.name!r} {kind}: plan is for GPs that are fitted to a table")
        return _planned(data, recipe, chosen, settings)
    choice = choose(data, settings, chosen)
    if choice is None:
        return plan_stack(data, settings, chosen)
    name, reason = choice
    found = _planned(data, METHODS[name], chosen, settings)
    found.reasons["method"] = reason
    return found


def _planned(data: Dataset, method: Method, settings: Settings, given: dict[str, Any]) -> Plan:
    check_settings(method, settings, given)
    return make_plan(data, method, settings)


def fit_plan(
    data: Dataset, plan: Plan, callbacks: Sequence[Callback], checkpoints: Checkpoints | None = None
) -> list[GP]:
    """Train every replicate of a plan, all values of β at once, and keep the best β of each."""
    slots: Slots = no_slots if checkpoints is None else checkpoints.slot
    builder, settings = Builder(data, plan), plan.settings
    model = builder.model()
    begun = start(builder, model, plan, slots)
    problem = builder.problem(model)
    training = _rest_of(plan.training, begun.histories)
    if started_on_large_sample(plan.sample_starts):
        training = on_all_rows(training)
    histories = train(
        model, problem, training, builder.validation(), callbacks, slots("main"), begun.curvature
    )
    for before in begun.histories:
        for history, own in zip(histories, before, strict=False):
            history.seconds += own.seconds
            history.rollbacks += own.rollbacks
    for r, history in enumerate(histories):
        if begun.histories and r < len(begun.histories[0]):
            steps = " and ".join(
                f"{before[r][-1].epoch} {words}"
                for before, words in zip(begun.histories, begun.words, strict=True)
            )
            history.notes.append(f"started from {steps}")
    if isinstance(problem, ClosedForm) and plan.refit:
        # Hyperparameters are chosen; the rows that chose them may now speak about q(u) too.
        settle(model, builder.closed_form(model, with_validation=True))
        for history in histories:
            history.notes.append("q(u) was solved for on all rows, those held out for validation included")
    out = []
    grid = len(plan.betas)
    for r in range(len(plan.train)):
        best = min(range(r * grid, (r + 1) * grid), key=lambda i: _or_infinity(histories[i].validation_nll))
        beta1, beta2 = plan.betas[best % grid]
        final = settings.but(beta1=beta1, beta2=beta2, solver=plan.solver)
        out.append(builder.fitted(model, histories[best], settings=final, replicate=r, candidate=best))
    return out


class Start(NamedTuple):
    """The steps that put a model where its training starts."""

    histories: list[list[History]]  # of each stage, those of the replicates
    words: list[str]  # what the steps of each stage were
    curvature: Curvature  # of the loss of all rows, as far as they have found it


#: Where the checkpoints of a training of that name are.
Slots = Callable[[str], Slot | None]


def no_slots(name: str) -> Slot | None:
    """The slots of a fit that is not checkpointed: none."""
    return None


def start(builder: Builder, model: Model, plan: Plan, slots: Slots = no_slots) -> Start:
    """Put a model where its training shall start."""
    begun = Start([], [], Curvature())
    if plan.warm_start is not None:
        coupled = builder.model(METHODS["svgp"])
        rows = plan.warm_start_rows
        problem = builder.closed_form(coupled, sample=rows)
        begun.histories.append(train(coupled, problem, plan.warm_start, slot=slots("start")))
        begun.words.append("closed-form steps of the coupled basis")
        if rows is not None:  # the kernel is a sample's, q(u) may be everyone's
            settle(coupled, builder.closed_form(coupled))
        start_from(coupled, model)
    for k, stage in enumerate(plan.sample_starts):
        training = _rest_of(stage.training, begun.histories)
        slot = slots("start" if k == 0 else f"start {k + 1}")
        problem = builder.closed_form(model, sample=stage.rows)
        begun.histories.append(train(model, problem, training, slot=slot, curvature=begun.curvature))
        begun.words.append(f"steps on a sample of {stage.rows} rows")
        # The loss of a sample is divided by all rows.
        more = plan.sample_starts[k + 1].rows if k + 1 < len(plan.sample_starts) else builder.n
        begun.curvature.scale(more / stage.rows)
        begun.curvature.of_large_sample = is_large_sample(stage)
    return begun


def _rest_of(training: TrainingPlan, before: list[list[History]]) -> TrainingPlan:
    """The plan, less the seconds that are spent."""
    if training.seconds is None or not before:
        return training
    spent = sum(stage[0].seconds for stage in before)
    return replace(training, seconds=max(training.seconds - spent, 1e-3))


def _or_infinity(value: float | None) -> float:
    return float("inf") if value is None or value != value else value
