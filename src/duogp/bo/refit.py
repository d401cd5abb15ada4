"""`first_fit`, `refit`: a model fitted to the rows of an optimisation, and trained further on more of them.

Scales stay those of the first fit (as in `duogp.OnlineGP`); hyperparameters, networks, inducing points and
q(u) start where they ended. While there are fewer inducing points than were asked for, they are chosen anew
among the rows, and a q(u) on one block of points is carried over: with u = f(Z), L the factor of the new
points and N(f̄(Z), C) the old posterior there,

    m = L⁻¹ (f̄(Z) − μ₀(Z)),    S = L⁻¹ C L⁻ᵀ

Where q(u) has a closed form nothing is carried over: it is solved for in every step.

A model that is trained further and further on few rows may grow too sure of itself. The next batch tells: it
is predicted before it is learned, and a model whose errors there are too large (`is_surprised`) is not worth
going on from: the caller fits anew.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import chi2

from duogp.data.targets import require_support
from duogp.data.validation import as_row_noise
from duogp.errors import DataWarning, NumericalError
from duogp.fitting.builder import Builder
from duogp.fitting.checks import check_settings
from duogp.fitting.dataset import Dataset, with_seed
from duogp.fitting.extractors import default_widths
from duogp.fitting.plan import NUM_INDUCING, Plan, make_plan
from duogp.fitting.table import fit_plan
from duogp.methods import METHODS, Method
from duogp.methods.settings import Settings, asdict_shallow
from duogp.models.deep import DeepModel
from duogp.models.model import Model
from duogp.posterior.gp import GP
from duogp.posterior.prediction import Prediction
from duogp.training import Callback, ClosedForm, History, settle, train
from duogp.variational import CholeskyQ

#: Adam steps of a refit: hyperparameters move little when few rows are new.
STEPS = 50
#: A batch is a surprise where its mean squared standardised error is one that fewer than one batch in a
#: thousand would show, and its root above 2: points are chosen where the model hopes for too much.
RARE, LARGE = 1e-3, 4.0


def first_fit(
    X: Any, y: Any, method: str, *, noise: Any = None, callbacks: Sequence[Callback] = (), **settings: Any
) -> GP:
    """`duogp.fit` of a GP that will be refitted: every column of X is used, as it may vary later."""
    data, plan = _planned(X, y, method, noise, settings)
    with _no_word_of_few_rows():
        (gp,) = fit_plan(data, plan, callbacks)
    require_finite(gp)
    return gp


def untrained(X: Any, y: Any, method: str, *, noise: Any = None, **settings: Any) -> GP:
    """The GP that `first_fit` starts from: first hyperparameters, and q(u) solved for where it can be."""
    data, plan = _planned(X, y, method, noise, settings)
    with _no_word_of_few_rows():
        builder = Builder(data, plan)
    model = builder.model()
    problem = builder.problem(model)
    settle(model, problem if isinstance(problem, ClosedForm) else None)
    history = History(solver=plan.solver, notes=["not trained"])
    return builder.fitted(model, history, settings=plan.settings.but(solver=plan.solver))


def _planned(X: Any, y: Any, method: str, noise: Any, settings: dict[str, Any]) -> tuple[Dataset, Plan]:
    entry = optimisable(method)
    settings = with_seed(settings)
    chosen = Settings.of(settings)
    with _no_word_of_few_rows():
        check_settings(entry, chosen, settings)
        data = Dataset.of_table(X, y, chosen, noise=noise)
        columns = np.ones(data.X.shape[1], dtype=bool)
        return data, make_plan(data, entry, chosen, columns=columns)


def optimisable(method: str) -> Method:
    """A method of the registry that can be a model of Bayesian optimisation."""
    entry = METHODS[method]
    if entry.is_baseline or entry.learns_online:
        what = "no GP" if entry.is_baseline else "learned from a stream"
        raise ValueError(f"method {method!r} is {what}: choose another for Bayesian optimisation")
    return entry


@contextmanager
def _no_word_of_few_rows() -> Iterator[None]:
    """Without the warnings that are true of every optimisation: fewer rows than inducing points."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="num_(inducing|extra) is|.*points in two blocks")
        yield


def require_finite(gp: GP) -> None:
    """An error for a fit that ended in NaN, as a kernel of another library may."""
    for name, value in gp.model.named_parameters():
        if not bool(torch.isfinite(value).all()):
            raise NumericalError(
                f"the fit of {gp.method.name!r} ended with {name} that is not finite: choose another kernel, "
                "other bounds of its parameters, or scale the data"
            )
    if gp.method.is_deep:
        return
    form = gp.posterior
    for part in (form.mean_weights, form.residual_root, form.explained_root):
        if not bool(torch.isfinite(part).all()):
            raise NumericalError(
                f"the fit of {gp.method.name!r} ended with a posterior that is not finite: its kernel gives "
                "NaN at the training rows"
            )


def is_surprised(gp: GP, X: Any, y: Any, *, noise: Any = None) -> bool:
    """Whether a fitted model is off by more of its own standard deviations at new rows than it may be."""
    if not len(X):
        return False
    prediction = gp.predict(X)
    assert isinstance(prediction, Prediction)
    target = np.asarray(y, dtype=np.float64).reshape(prediction.mean.shape)
    variance = np.asarray(prediction.variance)
    if noise is not None:
        variance = variance + np.asarray(noise, dtype=np.float64).reshape(target.shape)
    return too_large((target - prediction.mean) / np.sqrt(variance))


def too_large(errors: NDArray[np.float64]) -> bool:
    """Whether standardised errors [...] are larger than chance and hope explain."""
    count = errors.size
    return bool(np.mean(errors**2) > max(LARGE, chi2.isf(RARE, count) / count))


def refit(
    gp: GP,
    X: Any,
    y: Any,
    *,
    steps: int = STEPS,
    noise: Any = None,
    callbacks: Sequence[Callback] = (),
    seed: int | None = None,
    method: str | None = None,
    **changes: Any,
) -> GP:
    """The same model on all of these rows, started from its present parameters.

    ``steps`` of the optimiser; 0: only q(u) is solved for again, where it has a closed form. ``method``:
    another one, that starts from the kernel, the noise and the posterior of this one. ``changes``:
    settings other than those of the fit, for example ``learning_rate``. Where a closed form below β₂ = 1
    needs validation rows to say when to stop, a refit holds some out as the first fit did.
    """
    if gp.classes is not None:
        raise ValueError("refit is for numbers: this model was fitted to class labels")
    if gp.learned is not None:
        raise ValueError("a cross-fitted mean belongs to the rows of its fit: fit anew, or use mean='linear'")
    settings = Settings.of(asdict_shallow(gp.settings) | changes)
    entry = gp.method if method is None else METHODS[method]
    if gp.method.has_network and settings.widths is None:  # which would follow the number of rows
        settings = settings.but(widths=default_widths(int(gp.model.num_data[0])))
    matrix = gp._rows(X)
    target = gp._target(y, len(matrix))
    require_support(target, gp.model.likelihood.target)
    x_scaled = gp.x_scaler.transform(matrix[:, gp.columns].astype(np.float64))
    y_scaled = gp.y_scaler.transform(target.astype(np.float64))
    row_noise = None
    if noise is not None:
        row_noise = as_row_noise(noise, len(matrix)) / gp.y_scaler.scale**2
    own = settings.but(
        standardize=False,  # done already
        steps=max(steps, 1),
        epochs=None,
        warm_start=0,
        random_state=settings.random_state if seed is None else seed,
    )
    validates = steps > 0 and _stops_by_validation(gp, settings)
    if not validates:
        own = own.but(early_stopping=False, validation_fraction=0.0)
    if entry.recipe == gp.method.recipe:  # the same basis
        own = _points_as_they_are(own, gp, len(matrix))
    data = Dataset.of_rows(x_scaled, y_scaled, [np.arange(len(matrix))], own, noise=row_noise)
    every_column = np.ones(x_scaled.shape[1], dtype=bool)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DataWarning)  # given at the first fit
        plan = make_plan(data, entry, own, columns=every_column, split=validates)
        builder = Builder(data, plan)
    model = builder.model()
    continue_from(gp.model, model)
    problem = builder.problem(model)
    if steps:
        (history,) = train(model, problem, plan.training, builder.validation(), callbacks)
        if plan.refit and isinstance(problem, ClosedForm):
            settle(model, builder.closed_form(model, with_validation=True))
    else:
        history = copy.copy(gp.history)
        settle(model, problem)
    found = gp.with_model(model, history, method=entry, settings=settings.but(solver=plan.solver))
    require_finite(found)
    return found


def _stops_by_validation(gp: GP, settings: Settings) -> bool:
    """Whether the two kernels of a closed form are held together by validation rows alone."""
    alone = (
        gp.method.recipe.has_omega and gp.history.solver == "closed-form" and settings.beta2 in (None, 0.0)
    )
    return alone and settings.validation_fraction != 0.0 and settings.early_stopping is not False


def _points_as_they_are(settings: Settings, gp: GP, rows: int) -> Settings:
    """Settings without a search for inducing points, where the old ones will replace them anyway."""
    present = gp.model.basis.inducing.shape[-2]
    enough = present >= min(settings.num_inducing or NUM_INDUCING, rows)
    return settings.but(inducing_init="random", num_inducing=present) if enough else settings


@torch.no_grad()
def continue_from(source: Model, target: Model) -> None:
    """Copy the state of an old model into a new one, as far as their names and shapes agree."""
    old, new = source.state_dict(), target.state_dict()
    exact = target.basis.points_are_rows  # which differ, and determine q(u)
    same_points = not exact and all(
        name in old and old[name].shape == value.shape for name, value in new.items()
    )
    for name, value in new.items():
        if name == "num_data" or name not in old or old[name].shape != value.shape:
            continue
        if same_points or not _is_of_points(name):
            value.copy_(old[name])
    target.load_state_dict(new)
    if not same_points and not exact and not isinstance(target, DeepModel):
        _carry(source, target)


def _is_of_points(name: str) -> bool:
    """Whether an entry of a state belongs to a set of points: the points, q(u), or coefficients of theirs."""
    parts = name.split(".")
    return parts[0] in ("basis", "hidden") and (
        "q" in parts or parts[-1].endswith("inducing") or parts[-1] == "a"
    )


def _carry(source: Model, target: Model) -> None:
    """Write the old posterior at the new points into q(u), where that has a full covariance on one block."""
    q = target.basis.q
    if not isinstance(q, CholeskyQ) or not q.learns_mean:
        return
    factor = target.basis.whitening_factor(target.numerics)
    if factor is None:
        return
    z = target.basis.inducing.double()
    mean, residual, explained = source.frozen(torch.float64).joint(z)
    L_inv = factor.L_inv.double()
    eye = torch.eye(z.shape[-2], dtype=torch.float64, device=z.device)
    S = L_inv @ (residual + explained) @ L_inv.mT
    root, info = torch.linalg.cholesky_ex(S + 1e-6 * eye)
    if not bool((info != 0).any()):
        q.set_((L_inv @ mean.unsqueeze(-1)).squeeze(-1), root)
