"""`optimise`: the best of a function or task by any strategy, with the run on disk."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duogp.bo.candidates import Floats
from duogp.bo.choice import AUTO, EXACT
from duogp.bo.functions import FEW_EVALUATIONS, draw_incumbent, optimise_function
from duogp.bo.journal import FIGURE, OPTIONS, Evaluated, Journal, read_batches, read_options
from duogp.bo.regions import PAPER_SUCCESSES, SUCCESS_TOLERANCE
from duogp.bo.results import Result
from duogp.bo.spaces import Space
from duogp.bo.strategies import Proposal, RandomSearch, Strategy
from duogp.bo.studies.goals import MAXIMISE, direction_of
from duogp.bo.surrogates import BoTorchSurrogate, GPSurrogate, Surrogate
from duogp.bo.turbo import Turbo
from duogp.errors import DuoGPWarning
from duogp.methods import METHODS
from duogp.training.progress import Progress

#: Strategies that are not methods of the registry.
RANDOM, BOTORCH = "random", "botorch"
#: GP of TuRBO on tasks, evaluations and points of a batch where none are given.
METHOD, EVALUATIONS, BATCH_SIZE = AUTO, 1000, 10
#: Seconds between two figures of the incumbent.
REDRAW = 10.0


class Task(Protocol):
    """A function on the cube [0, 1]^d to maximise."""

    name: str
    dims: int
    bounds: NDArray[np.float64]  # [2, d], the cube in the task's own units

    def __call__(self, X: Floats) -> Floats:
        """Values [n] of points [n, d] of the cube [0, 1]^d."""


def make_strategy(
    method: str,
    dims: int,
    *,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    regions: int = 1,
    initial: int | ArrayLike | None = None,
    candidates: int | None = None,
    perturbed: int | None = None,
    successes: int | None = None,
    **settings: Any,
) -> Strategy:
    """Random search ("random"), or TuRBO with a method of the registry or BoTorch's exact GP ("botorch").

    ``initial``: how many points to begin with, or these points [n, dims] of the cube.
    """
    first = _checked_initial(initial, dims)
    if method in (RANDOM, BOTORCH) and settings:
        raise ValueError(f"method {method!r} has no settings, got {', '.join(settings)}")
    if method == RANDOM:
        return RandomSearch(dims, batch_size, seed, first if isinstance(first, np.ndarray) else None)
    surrogate: Surrogate
    if method == BOTORCH:
        surrogate = BoTorchSurrogate()
    else:
        try:
            METHODS[EXACT if method == AUTO else method]
        except ValueError as error:
            raise ValueError(f"{error}; beside them there are {AUTO!r}, {RANDOM!r} and {BOTORCH!r}") from None
        surrogate = GPSurrogate.of(method, **settings)
    return Turbo(
        dims,
        surrogate,
        batch_size=batch_size,
        seed=seed,
        regions=regions,
        initial=first,
        candidates=candidates,
        perturbed=perturbed,
        successes=successes,
    )


def optimise(
    task: Task | str | Callable[..., Any],
    method: str | None = None,
    *,
    bounds: ArrayLike | None = None,
    space: Space | Mapping[str, Any] | None = None,
    direction: str = MAXIMISE,
    evaluations: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    regions: int = 1,
    initial: int | ArrayLike | None = None,
    candidates: int | None = None,
    perturbed: int | None = None,
    successes: int | None = None,
    task_options: Mapping[str, Any] | None = None,
    plot: bool = True,
    verbose: bool = False,
    callback: Callable[..., None] | None = None,
    **settings: Any,
) -> Result:
    """The evaluations of a run that optimises a function or a task, those of the initial design included.

    ``task``: a function of one point, with ``bounds`` [(low, high), …] (it is given an array in these units)
    or a ``space`` (it is given a dictionary of values), see `optimise_function`. Or an object with ``name``,
    ``dims``, ``bounds`` and a call that takes a batch of points of the cube, or a name of `duogp.bo.tasks`;
    what follows is for these.

    ``direction``: "maximise" or "minimise"; tasks are maximised.
    ``method``: a GP of the registry inside TuRBO, "botorch" (its exact GP inside TuRBO) or "random".
    ``regions``: 1 is TuRBO-1, more are TuRBO-m; each starts with ``initial`` points, 2d by default. Given as
    an array [n, d] of points of the cube, ``initial`` are the first points of the run.
    ``perturbed``: coordinates in which a candidate differs from a region's best point, on average: that of
    the task, else 20.
    ``successes``: batches in a row that improve on the best and so double a region, 10; the paper has 3.
    ``settings`` are those of the GP, with ``steps`` of a refit and ``first_steps`` of the first fit, and with
    ``minibatch`` for the rows of a stochastic step.

    With a ``folder`` every batch is written as soon as it is evaluated, and a run that was stopped continues
    with the proposal that would have come next. ``callback`` is called with every batch and its values.

    A value that is not finite, and a call that raises, are failed evaluations: NaN in the result, and not
    repeated. The run ends only where no evaluation at all succeeds.
    """
    if bounds is not None or space is not None:
        others: dict[str, Any] = {
            "regions": regions != 1,
            "perturbed": perturbed,
            "successes": successes,
            "task_options": task_options,
        }
        if given := [name for name, value in others.items() if value]:
            raise ValueError(f"{', '.join(given)}: only for tasks, not for a function with bounds or a space")
        return optimise_function(
            cast("Callable[..., Any]", task),
            bounds,
            space,
            method=method,
            direction=direction,
            evaluations=FEW_EVALUATIONS if evaluations is None else evaluations,
            batch_size=batch_size or 1,
            seed=seed,
            folder=folder,
            initial=initial,
            candidates=candidates,
            plot=plot,
            verbose=verbose,
            callback=callback,
            **settings,
        )
    if not isinstance(task, str) and not hasattr(task, "dims"):
        raise ValueError("a function needs bounds=[(low, high), …] or a space= to optimise it over")
    if direction_of(direction) != MAXIMISE:
        raise ValueError("tasks are maximised: give a function with bounds or a space to minimise it")
    task = cast("Task | str", task)
    method = METHOD if method is None else method
    batch_size = BATCH_SIZE if batch_size is None else batch_size
    evaluations = EVALUATIONS if evaluations is None else evaluations
    if evaluations < 1:
        raise ValueError(f"evaluations must be a positive integer, got {evaluations}")
    options = dict(task_options or {})
    what = _task(task, options)
    turbo: dict[str, Any] = {"regions": regions, "candidates": candidates}
    turbo["initial"] = _checked_initial(initial, what.dims)
    perturbed = getattr(what, "perturbed", None) if perturbed is None else perturbed
    if perturbed is not None:
        turbo["perturbed"] = perturbed
    strategy = make_strategy(
        method, what.dims, batch_size=batch_size, seed=seed, successes=successes, **turbo, **settings
    )
    optimum = None if (best := getattr(what, "optimum", None)) is None else float(best)
    journal = None
    batches: list[Evaluated] = []
    if folder is not None:
        chosen = {"task": what.name, "task_options": _plain(options), "method": method, "seed": seed}
        chosen |= {"batch_size": batch_size, **_plain(turbo), "settings": _plain(settings)}
        if successes != PAPER_SUCCESSES:  # runs on disk without the number follow the paper's rule
            chosen["successes"] = SUCCESS_TOLERANCE if successes is None else successes
        chosen |= {"dims": what.dims, "bounds": np.asarray(what.bounds).tolist(), "optimum": optimum}
        journal = Journal(folder, chosen, what.dims)
        batches = journal.batches()
        for batch in batches:
            strategy.tell(*batch)
        if batches:
            journal.load_models(len(batches) - 1, strategy)
    known = sum(len(batch.y) for batch in batches)
    if hasattr(what, "evaluated"):  # its noise depends on the number of evaluations
        what.evaluated = known

    def result() -> Result:
        return Result.of(what.name, method, batches, what.bounds, optimum)

    def draw() -> None:
        if journal is not None and plot and batches:
            draw_incumbent(journal.folder / FIGURE, result())

    drawn = time.monotonic()
    ours: AbstractContextManager[Any] = closing(cast(Any, what)) if isinstance(task, str) else nullcontext()
    held: AbstractContextManager[Any] = nullcontext() if journal is None else closing(journal)
    with held, ours, Progress(f"{what.name}, {method}", evaluations, verbose) as bar:
        bar.advance("", known)
        while known < evaluations:
            proposal = strategy.ask(evaluations - known)
            if journal is not None:
                journal.save_models(len(batches), strategy)
            y = _evaluate(what, proposal, any_before=any(np.isfinite(batch.y).any() for batch in batches))
            if journal is not None:
                journal.append(len(batches), proposal, y)
                journal.drop_models_before(len(batches))
            strategy.tell(proposal, y)
            batches.append(Evaluated(proposal, y))
            known += len(y)
            best = result().best_y
            bar.advance(f"best {best:.5g}  {strategy.status}", len(y))
            if time.monotonic() - drawn > REDRAW:
                draw()
                drawn = time.monotonic()
            if callback is not None:
                callback(proposal, y)
    draw()
    return result()


def _task(task: Task | str, options: dict[str, Any]) -> Task:
    if isinstance(task, str):
        from duogp.bo.tasks import make

        return make(task, **options)
    if options:
        raise ValueError("task_options are for tasks given by name")
    return task


def _evaluate(task: Task, proposal: Proposal, any_before: bool) -> Floats:
    """The values of a batch; NaN where one is not finite, and for all of it where the task raises."""
    failure: Exception | None = None
    try:
        y = np.asarray(task(proposal.X), dtype=np.float64)
    except Exception as error:
        y, failure = np.full(len(proposal), np.nan), error
    if y.shape != (len(proposal),):
        raise ValueError(f"task {task.name!r} must return {len(proposal)} values, got shape {y.shape}")
    wrong = np.flatnonzero(~np.isfinite(y))
    if not len(wrong):
        return y
    told = f"task {task.name!r} failed at {proposal.X[wrong[0]].tolist()} (of the cube): "
    told += "its value is not finite" if failure is None else f"{type(failure).__name__}: {failure}"
    if len(wrong) == len(y) and not any_before:
        raise RuntimeError(f"{told}; no evaluation has succeeded") from failure
    warnings.warn(f"{told}; {len(wrong)} of {len(y)} evaluations", DuoGPWarning, stacklevel=3)
    return np.where(np.isfinite(y), y, np.nan)


def _checked_initial(initial: int | ArrayLike | None, dims: int) -> int | Floats | None:
    """``initial`` as points [n, d] of the cube, checked; as it is where it is a number or not given."""
    if initial is None or np.ndim(initial) == 0:
        return cast("int | None", initial)
    points = np.asarray(initial, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != dims or not len(points):
        raise ValueError(f"initial must be a number or points [n, {dims}], got shape {points.shape}")
    if not ((points >= 0) & (points <= 1)).all():
        raise ValueError("initial: points must be finite and lie in the cube [0, 1]^d")
    return points


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON values; arrays as a fingerprint, other objects as their representation."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray):
            digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            return f"array {list(value.shape)} of {value.dtype}, SHA-256 {digest[:16]}"
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        return value if isinstance(value, (str, int, float, type(None))) else repr(value)

    return {name: plain(value) for name, value in settings.items()}


def result_of(folder: str | os.PathLike[str]) -> Result:
    """The evaluations in the folder of a run, finished or not."""
    known = read_options(folder)
    if known is None:
        raise FileNotFoundError(f"{str(folder)!r} is not the folder of a run: it has no {OPTIONS}")
    batches, _ = read_batches(folder, known["dims"])
    return Result.of(known["task"], known["method"], batches, known["bounds"], known.get("optimum"))
