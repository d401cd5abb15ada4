"""Fit a GP to a source of chunks, whose rows never stand in memory together.

One pass finds scales, class labels and a uniform sample (`streamed_rows`). Inducing points and
hyperparameters start from a fit of that sample in memory. In closed form L-BFGS goes on with the bound of all
rows, two passes an evaluation, and the last pass solves for q(u); minibatches and natural gradients go on
with the steps that a table in memory would get, an epoch being one pass. With `torch.distributed` initialised
every process reads its own chunks, sums are added over all, and all end with the same model.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from duogp.data.sources import Source
from duogp.fitting.builder import Builder
from duogp.fitting.checks import check_settings
from duogp.fitting.dataset import with_seed
from duogp.fitting.identity import identity_of, text_of
from duogp.fitting.learned import learned_spec
from duogp.fitting.plan import Plan, make_plan, why_validation
from duogp.fitting.solver import choose_solver, closed_form_obstacle
from duogp.fitting.streamed_rows import StreamedRows
from duogp.fitting.table import Slots, is_auto, no_slots, start
from duogp.fitting.training_plan import looks_of, on_all_rows, on_larger_sample, started_on_large_sample
from duogp.methods.registry import METHODS, Method
from duogp.methods.settings import Settings, as_list
from duogp.models.deep import DeepModel
from duogp.models.model import Model
from duogp.numerics.groups import Group, current_group
from duogp.posterior.deep import DeepGP
from duogp.posterior.gp import GP
from duogp.training import (
    Callback,
    CheckpointOptions,
    Checkpoints,
    History,
    Stochastic,
    TrainingPlan,
    opened,
    train,
)
from duogp.training.checkpoint import Slot
from duogp.training.shared_slot import SharedSlot
from duogp.training.stream import StreamedClosedForm, StreamFeed, streamed_nll

#: Rows of the sample from which scales of kernels, noise and inducing points start, and of that of the rows
#: held out on which training is watched; in closed form, where passes over all rows are what costs, more.
START_SAMPLE, CLOSED_FORM_SAMPLE = 20_000, 200_000
#: Evaluations of the bound of all rows, unless the user says how many.
MOST_EVALUATIONS = 100
#: Minibatch steps unless the user says how many, but one epoch at least.
MOST_STEPS = 30_000


def fit_source(
    source: Source,
    method: str | Method,
    *,
    callbacks: Sequence[Callback] = (),
    settings: dict[str, Any],
    checkpoint: CheckpointOptions | None = None,
    sample_rows: int | None = None,
    lanes: int | None = None,
    group: Group | None = None,
) -> GP:
    """A GP of one of the methods, from the rows of a source; see `duogp.fit`.

    ``epochs`` or ``steps`` limit the evaluations of the bound of all rows, or minibatches and passes. Rows of
    a ``validation_fraction`` are chosen by a hash of their values and held out; ``history.validation_nll`` is
    theirs. ``lanes``: what minibatches are drawn from (`duogp.training.stream`), one for each process unless
    given: with the same lanes, any number of processes that divides theirs gives the same model.
    ``sample_rows``: those of the sample in memory, unless the table is so wide that they would fill it.
    """
    group = current_group() if group is None else group
    if is_auto(method):
        raise ValueError("'auto' needs all rows in memory: for a source of chunks use 'svgp' or 'dcsvgp'")
    recipe = METHODS[method]
    settings = _one_seed(settings, checkpoint, group)
    chosen = Settings.of(settings)
    require_streamable(recipe, chosen, group)
    check_settings(recipe, chosen, settings)
    chosen = chosen.but(solver=streamed_solver(recipe, chosen))
    fraction = chosen.validation_fraction
    if fraction is None:
        fraction = 0.1 if why_validation(recipe, chosen, sys.maxsize) else 0.0
    if sample_rows is None:
        sample_rows = CLOSED_FORM_SAMPLE if chosen.solver == "closed-form" else START_SAMPLE
    rows = StreamedRows.of(source, chosen, fraction=fraction, sample=sample_rows, lanes=lanes, group=group)
    with _checkpoints(rows, recipe, checkpoint) as kept:
        slots = no_slots if checkpoint is None else partial(SharedSlot, kept, group=group)
        model, history = _trained(rows, recipe, callbacks, slots)
    _describe(history, rows)
    if fraction:
        nll, count = streamed_nll(model, rows.stream(held_out=True))
        if count:
            history.validation_nll = nll
            history.notes.append(f"{count} rows were held out by a hash of their values")
    kind = DeepGP if isinstance(model, DeepModel) else GP
    return kind(
        model,
        method=recipe,
        settings=chosen,
        columns=rows.columns,
        x_scaler=rows.x_scaler,
        y_scaler=rows.y_scaler,
        single_output=rows.single_output,
        history=history,
        known_noise=rows.found.sample.noise is not None
        and not getattr(model.likelihood, "learns_noise", True),
        column_names=getattr(source, "names", None),
        classes=rows.classes,
    )


def streamed_solver(method: Method, settings: Settings) -> str:
    """The solver of streamed rows: the closed form where there is one and nothing but the bound stops it."""
    asked = settings.solver if settings.solver != "auto" else method.defaults.get("solver", "auto")
    if asked == "auto" and closed_form_obstacle(method, settings) is None and not method.recipe.has_omega:
        return "closed-form"
    return choose_solver(method, settings, sys.maxsize)


def require_streamable(method: Method, settings: Settings, group: Group) -> None:
    """An error for what is not possible on streamed rows."""
    instead = "use 'svgp' or 'dcsvgp', or a table in memory"
    if method.is_baseline or method.learns_online:
        raise ValueError(f"{method.name!r} is not trained on a source of chunks: {instead}")
    if method.recipe.points_are_rows:
        raise ValueError(f"the points of {method.name!r} are the rows themselves: {instead}")
    if learned_spec(settings) is not None:
        raise ValueError(f"a cross-fitted mean needs all rows in memory: {instead}")
    if len(as_list(settings.beta1)) > 1 or len(as_list(settings.beta2)) > 1:
        raise ValueError("lists of beta1 and beta2 are not possible on a source of chunks: give one of each")
    if settings.omega == "blocks":
        raise ValueError("omega='blocks' is a partition of rows that stand together: use omega='rows'")
    if group.world == 1:
        return
    apart = {
        "time_budget": (settings.time_budget is not None, "their clocks differ; use steps="),
        "mean_rule": (settings.mean_rule != "adam", "its curvature is that of one process' rows"),
        "normalisation": (settings.normalisation == "batch", "moments are those of one process' rows"),
        "omega": (settings.omega not in (None, "rows"), "it couples the rows of a batch; use 'rows'"),
    }
    for name, (given, why) in apart.items():
        if given:
            raise ValueError(f"{name} is not possible with several processes: {why}")


# -- training ------------------------------------------------------------------------------------------------


def _trained(
    rows: StreamedRows,
    method: Method,
    callbacks: Sequence[Callback],
    slots: Slots,
) -> tuple[Model, History]:
    """The model, from its start on the sample to its end on all rows."""
    closed = rows.settings.solver == "closed-form"
    builder, plan = _on_sample(rows, method)
    model = builder.model()
    begun = start(builder, model, plan, slots)
    watched, curvature = builder.validation(), begun.curvature
    if closed:
        training = plan.training
        if started_on_large_sample(plan.sample_starts):
            training = on_larger_sample(training)
        slot = slots("sample")
        found = train(model, builder.closed_form(model), training, watched, slot=slot, curvature=curvature)
        begun.histories.append(found)
    model.num_data.fill_(float(rows.n))
    rows.group.same([*model.parameters(), *model.buffers()])
    if rows.group.world > 1:
        curvature.follow(rows.group)
    if closed:
        problem = StreamedClosedForm(model, rows.stream())
        passes, slot = _passes(plan, rows.settings), slots("main")
        (history,) = train(model, problem, passes, watched, callbacks, slot, curvature)
    else:
        history = _minibatches(model, rows, plan, callbacks, watched, slots("main"))
    history.seconds += sum(before.seconds for (before,) in begun.histories)
    return model, history


def _minibatches(
    model: Model,
    rows: StreamedRows,
    plan: Plan,
    callbacks: Sequence[Callback],
    watched: Any,
    slot: Slot | None,
) -> History:
    """Minibatch steps, natural gradients among them, on the lanes of this process."""
    settings = rows.settings
    device = settings.torch_device
    generator = torch.Generator(device).manual_seed(settings.random_state + 1)
    feed = StreamFeed(rows.stream(on_host=True), rows.counts, settings.batch_size, [generator], device=device)
    training = plan.training
    if settings.epochs is None and settings.steps is None and settings.time_budget is None:
        epochs = min(training.epochs, max(1, -(-MOST_STEPS // feed.steps)))
        training = replace(training, epochs=epochs, evaluate_every=looks_of(epochs))
    with closing(feed):
        problem = Stochastic(model, feed, rows.group)
        (history,) = train(model, problem, training, watched, callbacks, slot)
    return history


def _on_sample(rows: StreamedRows, method: Method) -> tuple[Builder, Plan]:
    """The builder of a fit of the scaled sample in memory: it chooses the points and starts the kernels."""
    settings = rows.settings
    closed = settings.solver == "closed-form"
    own = settings.but(standardize=False, validation_fraction=0.0)
    if closed:  # epochs and steps are those on all rows
        own = own.but(epochs=None, steps=None, tolerance=settings.tolerance or Settings.tolerance)
    watched = not closed or method.recipe.has_omega or bool(settings.early_stopping)
    data = rows.dataset(own, watched=watched)
    if data.validation_rows is None and own.early_stopping is None:
        own = own.but(early_stopping=False)
    every = rows.columns[rows.columns]  # those that vary, of which the scaled sample consists
    plan = make_plan(data, method, own, columns=every, num_rows=rows.n)
    return Builder(data, plan), plan


def _passes(plan: Plan, settings: Settings) -> TrainingPlan:
    """How long to train on all rows; a step is an evaluation. Reading files cannot be captured."""
    return replace(
        on_all_rows(plan.training),
        epochs=settings.steps or settings.epochs or MOST_EVALUATIONS,
        tolerance=settings.tolerance,
        steps=None,
        backend="eager",
    )


def _describe(history: History, rows: StreamedRows) -> None:
    words = "" if rows.group.world == 1 else f" by {rows.group.world} processes"
    history.notes.append(
        f"{rows.n} rows were streamed{words}; hyperparameters and inducing points started from a sample of "
        f"{len(rows.found.sample.x)}"
    )


# -- seeds and checkpoints -----------------------------------------------------------------------------------


def _one_seed(settings: dict[str, Any], checkpoint: CheckpointOptions | None, group: Group) -> dict[str, Any]:
    """``random_state=None`` is a new seed each time, and one for all processes."""
    if settings.get("random_state", 0) is not None:
        return settings
    own = with_seed(settings, checkpoint if group.leads else None)["random_state"]
    seed = torch.tensor(float(own), dtype=torch.float64)
    group.same([seed])
    return settings | {"random_state": int(seed)}


def _checkpoints(
    rows: StreamedRows, method: Method, options: CheckpointOptions | None
) -> AbstractContextManager[Checkpoints | None]:
    """The checkpoints of a fit while it runs, which the leader writes; None where there are none."""
    if options is None or not rows.group.leads:
        return nullcontext()
    data = rows.dataset(rows.settings, watched=True)
    identity = identity_of(data, method, rows.settings) | {
        "rows of the source": str(rows.n),
        "their moments": text_of(rows.found.moments.as_row()),
        "lanes": text_of(rows.counts),
    }
    return opened(options, identity)
