"""Fit a GP in closed form to a source of chunks, whose rows never stand in memory together.

One pass finds scales and a uniform sample (`data.survey`). Inducing points and hyperparameters start from a
fit of that sample in memory; then L-BFGS goes on with the bound of all rows, two passes an evaluation, and
the last pass solves for q(u). With `torch.distributed` initialised every process reads its own chunks; the
sums are added over all, and all end with the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from duogp.data.columns import informative_columns
from duogp.data.scaling import Scaler
from duogp.data.sources import Chunk, Source, below, row_hashes
from duogp.data.survey import Survey, survey
from duogp.fitting.builder import CPU_CHUNK_ROWS, Builder
from duogp.fitting.checks import check_settings
from duogp.fitting.dataset import Dataset, with_seed
from duogp.fitting.learned import learned_spec
from duogp.fitting.plan import SAMPLE_ROWS, Plan, make_plan
from duogp.fitting.solver import closed_form_obstacle
from duogp.fitting.table import is_auto
from duogp.methods.registry import METHODS, Method
from duogp.methods.settings import Settings, as_list
from duogp.models.model import Model
from duogp.numerics.groups import Group, current_group
from duogp.posterior.gp import GP
from duogp.posterior.statistics import scaled_batch
from duogp.training import Callback, History, TrainingPlan, train
from duogp.training.stream import Stream, StreamedClosedForm, streamed_nll

#: Rows of the sample from which scales of kernels, noise and inducing points start.
START_SAMPLE = 20_000
#: Evaluations of the bound of all rows, unless the user says how many.
MOST_EVALUATIONS = 100
#: Evaluations before the loss may be called at rest: the start is a good one.
FEWEST_EVALUATIONS = 10
#: Rows at once on a GPU.
CUDA_BATCH_ROWS = 16_384


def fit_source(
    source: Source,
    method: str | Method,
    *,
    callbacks: Sequence[Callback] = (),
    settings: dict[str, Any],
    sample_rows: int = START_SAMPLE,
    group: Group | None = None,
) -> GP:
    """A GP of one of the methods with a closed form, from the rows of a source; see `duogp.fit`.

    ``epochs`` or ``steps`` limit the evaluations of the bound of all rows. Rows of a ``validation_fraction``
    are chosen by a hash of their values and held out; ``history.validation_nll`` is theirs.
    """
    group = current_group() if group is None else group
    if is_auto(method):
        raise ValueError("'auto' needs all rows in memory: for a source of chunks use 'svgp' or 'sgpr'")
    recipe = METHODS[method]
    settings = _one_seed(settings, group)
    chosen = Settings.of(settings)
    require_streamable(recipe, chosen, group)
    check_settings(recipe, chosen, settings)
    seed, fraction = chosen.random_state, chosen.validation_fraction or 0.0
    training_rows = partial(_for_training, fraction=fraction, seed=seed)
    found = survey(
        source.chunks(group.rank, group.world), sample=sample_rows, seed=seed, keep=training_rows, group=group
    )
    n = int(found.moments.rows)
    if n < 2:
        raise ValueError(f"the source has {n} rows to train on; at least 2 are required")
    columns, x_scaler, y_scaler = _scales(found, chosen)
    builder, plan = _on_sample(found.sample, recipe, chosen, columns, x_scaler, y_scaler)
    model = builder.model()
    starts = _start(builder, model, plan)
    model.num_data.fill_(float(n))
    group.same([*model.parameters(), *model.buffers()])

    device = chosen.torch_device
    scaled = partial(
        scaled_batch,
        x_scaler=x_scaler,
        y_scaler=y_scaler,
        columns=columns,
        dtype=chosen.torch_dtype,
        device=device,
    )
    rows = CPU_CHUNK_ROWS if device.type == "cpu" else CUDA_BATCH_ROWS
    stream = Stream(source, scaled, keep=training_rows, sample=found.sample, rows=rows, group=group)
    (history,) = train(model, StreamedClosedForm(model, stream), _passes(plan, chosen), None, callbacks)
    history.seconds += sum(before.seconds for before in starts)
    words = "" if group.world == 1 else f" by {group.world} processes"
    history.notes.append(
        f"{n} rows were streamed{words}; hyperparameters and inducing points started from a sample of "
        f"{len(found.sample.x)}"
    )
    if fraction:
        held_out = partial(_for_validation, fraction=fraction, seed=seed)
        rest = Stream(source, scaled, keep=held_out, sample=found.sample, rows=rows, group=group)
        nll, count = streamed_nll(model, rest)
        if count:
            history.validation_nll = nll
            history.notes.append(f"{count} rows were held out by a hash of their values")
    return GP(
        model,
        method=recipe,
        settings=chosen.but(solver="closed-form"),
        columns=columns,
        x_scaler=x_scaler,
        y_scaler=y_scaler,
        single_output=bool(getattr(source, "single_output", found.sample.y.shape[1] == 1)),
        history=history,
        known_noise=found.sample.noise is not None and not getattr(model.likelihood, "learns_noise", True),
        column_names=getattr(source, "names", None),
    )


def require_streamable(method: Method, settings: Settings, group: Group) -> None:
    """An error for what is not possible on streamed rows."""
    instead = "use 'svgp' or 'sgpr', or a table in memory"
    if method.is_baseline or method.learns_online:
        raise ValueError(f"{method.name!r} is not trained on a source of chunks: {instead}")
    if settings.solver not in ("auto", "closed-form"):
        raise ValueError(f"a source of chunks is trained in closed form, not by solver={settings.solver!r}")
    if obstacle := closed_form_obstacle(method, settings):
        raise ValueError(f"a source of chunks is trained in closed form, and {obstacle}: {instead}")
    if method.recipe.points_are_rows:
        raise ValueError(f"the points of {method.name!r} are the rows themselves: {instead}")
    if method.recipe.has_omega:
        raise ValueError(
            f"{method.name!r} is stopped by validation rows, or by Ω of rows that stand together: {instead}"
        )
    if learned_spec(settings) is not None:
        raise ValueError(f"a cross-fitted mean needs all rows in memory: {instead}")
    if settings.early_stopping or len(as_list(settings.beta1)) > 1:
        raise ValueError("early stopping and lists of beta1 are not possible on a source of chunks")
    if settings.time_budget is not None and group.world > 1:
        raise ValueError(
            "time_budget is not possible with several processes: their clocks differ; use steps="
        )


# -- rows ----------------------------------------------------------------------------------------------------


def _for_validation(chunk: Chunk, *, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Rows that are held out; rows of no weight count nowhere."""
    return _of_weight(chunk) & below(row_hashes(chunk, seed), fraction)


def _for_training(chunk: Chunk, *, fraction: float, seed: int) -> NDArray[np.bool_]:
    if not fraction:
        return _of_weight(chunk)
    return _of_weight(chunk) & ~below(row_hashes(chunk, seed), fraction)


def _of_weight(chunk: Chunk) -> NDArray[np.bool_]:
    return np.ones(len(chunk.x), dtype=bool) if chunk.weight is None else chunk.weight > 0


def _one_seed(settings: dict[str, Any], group: Group) -> dict[str, Any]:
    """``random_state=None`` is a new seed each time, and one for all processes."""
    if settings.get("random_state", 0) is not None:
        return settings
    seed = torch.tensor(float(with_seed(settings)["random_state"]), dtype=torch.float64)
    group.same([seed])
    return settings | {"random_state": int(seed)}


# -- the start -----------------------------------------------------------------------------------------------


def _scales(found: Survey, settings: Settings) -> tuple[NDArray[np.bool_], Scaler, Scaler]:
    """The columns that vary, and the scalers of those and of the targets, from all rows."""
    of_x, of_y = found.part(of_y=False), found.part(of_y=True)
    columns = np.ones(found.dims, dtype=bool)
    if isinstance(settings.kernel, str):
        columns = informative_columns(np.stack([of_x.low, of_x.high]))
        columns[0] |= not columns.any()
    scaler = of_x.scaler(settings.standardize)
    x_scaler = Scaler(scaler.shift[columns], scaler.scale[columns])
    return columns, x_scaler, of_y.scaler(bool(settings.standardize))


def _on_sample(
    sample: Chunk,
    method: Method,
    settings: Settings,
    columns: NDArray[np.bool_],
    x_scaler: Scaler,
    y_scaler: Scaler,
) -> tuple[Builder, Plan]:
    """The builder of a fit of the scaled sample in memory: it chooses the points and starts the kernels."""
    own = settings.but(
        standardize=False, solver="closed-form", validation_fraction=0.0, epochs=None, steps=None
    )
    data = Dataset.of_table(
        x_scaler.transform(sample.x[:, columns]),
        y_scaler.transform(sample.y),
        own,
        noise=None if sample.noise is None else sample.noise / y_scaler.scale**2,
        sample_weight=sample.weight,
    )
    plan = make_plan(data, method, own, columns=np.ones(int(columns.sum()), dtype=bool), split=False)
    return Builder(data, plan), plan


def _start(builder: Builder, model: Model, plan: Plan) -> list[History]:
    """Train on some rows of the sample, where there are many, and then on all of it."""
    out: list[History] = []
    if plan.sample_start is not None:
        out += train(model, builder.closed_form(model, sample=SAMPLE_ROWS), plan.sample_start)
    return out + train(model, builder.closed_form(model), plan.training)


def _passes(plan: Plan, settings: Settings) -> TrainingPlan:
    """How long to train on all rows; a step is an evaluation. Reading files cannot be captured."""
    steps = settings.steps or settings.epochs or MOST_EVALUATIONS
    return replace(
        plan.training,
        epochs=steps,
        steps=None,
        fewest_steps=FEWEST_EVALUATIONS,
        check_every=5,
        backend="eager",
    )
