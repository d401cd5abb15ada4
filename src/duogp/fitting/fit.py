"""`duogp.fit`: arrays in, a fitted model out. Estimators, command line and optimisation wrap it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np

from duogp.baselines import NeuralPredictor, fit_neural
from duogp.data.labels import encode
from duogp.data.targets import raw_target, with_validation
from duogp.data.validation import as_matrix, as_row_vector, column_names
from duogp.fitting.assembly import transplant
from duogp.fitting.auto import choose, race
from duogp.fitting.build import target_kind
from duogp.fitting.dataset import Case, with_seed
from duogp.fitting.planning import check_settings
from duogp.methods import METHODS, Method
from duogp.methods.settings import Settings
from duogp.online.table import fit_stream
from duogp.posterior.gp import GP
from duogp.training import Callback, ClosedForm, History, settle, train


@overload
def fit(
    X: Any,
    y: Any,
    method: Literal["mc-dropout", "deep-ensemble"],
    *,
    validation: tuple[Any, Any] | None = None,
    sample_weight: Any = None,
    **settings: Any,
) -> NeuralPredictor: ...


@overload
def fit(
    X: Any,
    y: Any,
    method: str = "dcsvgp",
    *,
    validation: tuple[Any, Any] | None = None,
    noise: Any = None,
    sample_weight: Any = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> GP: ...


def fit(
    X: Any,
    y: Any,
    method: str = "dcsvgp",
    *,
    validation: tuple[Any, Any] | None = None,
    noise: Any = None,
    sample_weight: Any = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> GP | NeuralPredictor:
    """Fit a method of the registry to a table, or ``"auto"``: the one that does best on validation rows.

    ``X`` [n, d], ``y`` [n] (or [n, outputs]): arrays, frames, lists; with a ``likelihood`` of classes
    ("classes", "bernoulli", "robust-max", "softmax") labels of any type. ``validation``: rows to stop early
    and to choose β on (otherwise a ``validation_fraction`` of the training rows, where they are needed).
    ``noise``: known noise variance of each row. All other keywords are `duogp.Settings`.

    Deep methods return a `DeepGP`; the baselines "mc-dropout" and "deep-ensemble" are no GPs:
    theirs is a `duogp.baselines.NeuralPredictor`, and their settings `duogp.baselines.NeuralSettings`.
    """
    auto = isinstance(method, str) and method.lower() == "auto"
    recipe = METHODS["svgp" if auto else method]
    if recipe.is_baseline:
        _refuse(recipe, "trains networks", noise=noise, callbacks=callbacks or None)
        if (solver := settings.pop("solver", "auto")) not in ("auto", "stochastic"):
            raise ValueError(
                f"solver={solver!r} is not possible: {recipe.name!r} trains networks; use solver='stochastic'"
            )
        found = fit_neural(
            X, y, recipe.name, validation=validation, sample_weight=sample_weight, settings=settings
        )
        found.method = recipe
        return found
    names = column_names(X)
    kind = target_kind(Settings(likelihood=settings.get("likelihood", "gaussian")))
    matrix = as_matrix(X, "X")
    target = raw_target(y, len(matrix), kind)
    n = len(matrix)
    held_out = None
    if validation is not None:
        matrix, target = with_validation(matrix, target, validation, kind)
        held_out = [np.arange(n, len(matrix))]
    pad = len(matrix) - n
    rows = np.arange(n)
    if noise is not None:  # the noise of validation rows is not known apart: the median stands in
        noise = as_row_vector(noise, n, "noise")
        noise = np.concatenate([noise, np.full(pad, np.median(noise))])
    if sample_weight is not None:
        weights = as_row_vector(sample_weight, n, "sample_weight", allow_zero=True)
        if not weights.any():
            raise ValueError("sample_weight must not be zero for every row")
        sample_weight = np.concatenate([weights, np.ones(pad)])
        rows = np.flatnonzero(weights)  # a row of no weight must count nowhere, be it for scale or points
    if recipe.defaults.get("online"):
        _refuse(
            recipe, "learns from a stream", validation=validation, noise=noise, callbacks=callbacks or None
        )
        gp = fit_stream(matrix, target, method, sample_weight, settings)
        gp.column_names = names
        return gp
    if auto:
        labels = len(encode(target, "y")[1]) if kind == "classes" else 2
        choice = choose(len(rows), settings, labels if labels > 2 else 1)
        if choice is None:
            case = Case.of(
                matrix,
                target,
                [rows],
                Settings.of(with_seed(settings)),
                validation_rows=held_out,
                noise=noise,
                sample_weight=sample_weight,
            )
            gp = race(case, settings, callbacks)
            gp.column_names = names
            return gp
        method, settings = choice.method, choice.settings | settings
    (gp,) = fit_replicates(
        matrix,
        target,
        [rows],
        method,
        validation_rows=held_out,
        noise=noise,
        sample_weight=sample_weight,
        callbacks=callbacks,
        **settings,
    )
    gp.column_names = names
    if auto and choice is not None:
        gp.history.notes.insert(0, choice.reason)
    return gp


def fit_replicates(
    X: Any,
    y: Any,
    rows: Sequence[Any],
    method: str = "dcsvgp",
    *,
    validation_rows: Sequence[Any] | None = None,
    noise: Any = None,
    sample_weight: Any = None,
    callbacks: Sequence[Callback] = (),
    random_states: Sequence[int] | None = None,
    **settings: Any,
) -> list[GP]:
    """Fit one model to each set of rows of one table (splits, bootstrap samples), all trained at once.

    The sets must be of one size. Each model has its own scaling, inducing points, history and seed
    (``random_states``; otherwise ``random_state`` and the numbers after it), so that it is, up to rounding,
    the model that `fit` would have given on those rows with that seed.
    """
    recipe = METHODS[method]
    if recipe.defaults.get("online"):
        raise ValueError(f"{recipe.name!r} learns from a stream, one model at a time: use fit or OnlineGP")
    if recipe.is_baseline:
        raise ValueError(f"{recipe.name!r} is no GP, and trained one set of rows at a time: use fit")
    settings = with_seed(settings)
    chosen = Settings.of(settings)
    check_settings(recipe, chosen, settings)
    case = Case.of(
        X,
        y,
        rows,
        chosen,
        validation_rows=validation_rows,
        noise=noise,
        sample_weight=sample_weight,
        random_states=random_states,
    )
    splits = case.splits(recipe, chosen)
    plan = case.decide(recipe, chosen, splits)
    data = case.prepare(splits, chosen)
    shop = case.workshop(recipe, chosen, plan, splits, data)
    model = shop.model(recipe)
    warm: list[History] = []
    if plan.warm_start is not None:
        start = shop.model(METHODS["svgp"])
        warm = train(start, shop.closed_form(start, sample=chosen.warm_start_rows), plan.warm_start)
        if chosen.warm_start_rows is not None:  # the kernel is a sample's, q(u) may be everyone's
            settle(start, shop.closed_form(start))
        transplant(start, model)
    problem = shop.problem(model)
    histories = train(model, problem, plan.training, shop.validation(), callbacks)
    _tell(histories, warm)
    if isinstance(problem, ClosedForm) and plan.refit:
        # Hyperparameters are chosen; the rows that chose them may now speak about q(u) too.
        settle(model, shop.closed_form(model, with_validation=True))
        for history in histories:
            history.notes.append("q(u) was solved for on all rows, those held out for validation included")

    out = []
    grid = len(plan.betas)
    for r in range(len(splits.train)):
        candidates = range(r * grid, (r + 1) * grid)
        best = r
        if grid > 1:
            best = min(candidates, key=lambda i: _or_infinity(histories[i].validation_nll))
        beta1, beta2 = plan.betas[best % grid]
        final = chosen.but(beta1=beta1, beta2=beta2, solver=plan.solver)
        gp = case.fitted(
            model,
            histories[best],
            method=recipe,
            settings=final,
            data=data,
            replicate=r,
            candidate=best,
        )
        out.append(gp)
    return out


def _refuse(recipe: Method, why: str, **given: Any) -> None:
    """Arguments of `fit` that a method has no use for."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{recipe.name!r} {why}: it takes no {name}")


def _or_infinity(value: float | None) -> float:
    return float("inf") if value is None or value != value else value


def _tell(histories: list[History], warm: list[History]) -> None:
    """Let a history speak of the warm start before it."""
    for history, before in zip(histories, warm, strict=False):
        history.seconds += before.seconds
        history.rollbacks += before.rollbacks
        history.notes.append(f"started from {before[-1].epoch} closed-form steps of the coupled basis")
