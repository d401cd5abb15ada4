"""`optimise_function`: a plain function over bounds or a search space, evaluated by a study."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from duogp.bo.journal import FIGURE
from duogp.bo.plots import save_incumbent
from duogp.bo.results import Result
from duogp.bo.spaces import Space
from duogp.bo.studies import STRATEGIES, Study, Trial
from duogp.bo.studies.goals import MAXIMISE, direction_of
from duogp.bo.studies.trials import FAILED, PENDING
from duogp.errors import DuoGPWarning
from duogp.methods import METHODS
from duogp.training.progress import Progress

#: Evaluations where none are given.
FEW_EVALUATIONS = 100
#: Failures, without a success before, after which a run ends.
HOPELESS = 10
#: Seconds between two figures of the incumbent.
REDRAW = 10.0


def optimise_function(
    function: Callable[..., Any],
    bounds: ArrayLike | None = None,
    space: Space | Mapping[str, Any] | None = None,
    *,
    method: str | None = None,
    direction: str = MAXIMISE,
    evaluations: int = FEW_EVALUATIONS,
    batch_size: int = 1,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    initial: Any = None,
    candidates: int | None = None,
    plot: bool = True,
    verbose: bool = False,
    callback: Callable[[Trial], None] | None = None,
    **settings: Any,
) -> Result:
    """The evaluations of a function of one point, by a `Study` that is run to its end.

    ``method``: a strategy of a study ("model" by default), or a GP of the registry inside TuRBO.
    ``initial``: a number, or points as the function takes them. ``callback`` is called with every trial.
    Trials that were pending when a run was stopped are evaluated first.
    """
    if (bounds is None) == (space is None):
        raise ValueError("give bounds or a space, not both")
    if evaluations < 1:
        raise ValueError(f"evaluations must be a positive integer, got {evaluations}")
    where = Space.box(bounds) if bounds is not None else Space.of(cast("Space", space))
    if bounds is not None and initial is not None and np.ndim(initial):
        initial = [dict(zip(where.names, map(float, point), strict=True)) for point in initial]
    options: dict[str, Any] = settings | ({} if candidates is None else {"candidates": candidates})
    if method is None or method in STRATEGIES:
        options["strategy"] = method or STRATEGIES[0]
    else:
        METHODS[method]
        options |= {"strategy": "turbo", "method": method}
    name = getattr(function, "__name__", type(function).__name__)
    study = Study(where, direction=direction, seed=seed, initial=initial, folder=folder, **options)

    def value_at(trial: Trial) -> Any:
        point = trial.point
        return function(point if bounds is None else np.array(list(point.values()), dtype=np.float64))

    def result() -> Result:
        """All evaluations with a result."""
        trials = [trial for trial in study.trials if trial.state != PENDING]
        y = np.array([np.nan if t.values is None else next(iter(t.values.values())) for t in trials])
        low_high = np.array([[0.0] * where.width, [1.0] * where.width])
        if bounds is not None:
            low_high = np.asarray(bounds, dtype=np.float64).T
        points = [trial.point for trial in trials]
        X = where.encode(points) if points else np.empty((0, where.width))
        batch = np.arange(len(y)) // batch_size
        kept = None if bounds is not None else points
        method_name = method or study.strategy
        return Result(name, method_name, X, y, batch, low_high, None, direction_of(direction), kept)

    drawn = time.monotonic()
    with study, Progress(f"{name}, {method or study.strategy}", evaluations, verbose) as bar:
        bar.advance("", min(evaluations, len(study) - len(study.pending)))
        while (waiting := study.pending) or len(study) < evaluations:
            for trial in waiting or study.ask(min(batch_size, evaluations - len(study))):
                told = run_trial(study, trial, value_at)
                best = study.best
                bar.advance("" if best is None else f"best {next(iter((best.values or {}).values())):.5g}", 1)
                if callback is not None:
                    callback(told)
            if study.folder is not None and plot and time.monotonic() - drawn > REDRAW:
                draw_incumbent(study.folder / FIGURE, result())
                drawn = time.monotonic()
    if study.folder is not None and plot:
        draw_incumbent(study.folder / FIGURE, result())
    return result()


def run_trial(study: Study, trial: Trial, value_at: Callable[[Trial], Any]) -> Trial:
    """Evaluate a trial and tell its value; an error is a failed trial, unless none has ever succeeded."""
    cause: Exception | None = None
    try:
        value = value_at(trial)
        study.goals.values(math.nan if value is None else value)  # what is no number is a failure, too
    except Exception as error:
        cause = error
    told = (
        study.tell(trial, value) if cause is None else study.fail(trial, f"{type(cause).__name__}: {cause}")
    )
    if told.state == FAILED:
        warnings.warn(f"trial {trial.number} failed: {told.reason}", DuoGPWarning, stacklevel=3)
        if not study.done and len(study) - len(study.pending) >= HOPELESS:
            raise RuntimeError(f"all {len(study)} evaluations failed, the last: {told.reason}") from cause
    return told


def draw_incumbent(path: Path, run: Result) -> None:
    """Write the figure of the incumbent, where there is one."""
    if np.isfinite(run.y).any():
        save_incumbent(path, run)
