"""`refit`: a fitted model trained further on more rows.

Scales stay those of the first fit (as in `duogp.OnlineGP`); hyperparameters, networks, inducing points and
q(u) start where they ended. While there are fewer inducing points than were asked for, they are chosen anew
among the rows, and a q(u) on one block of points is carried over: with u = f(Z), L the factor of the new
points and N(f̄(Z), C) the old posterior there,

    m = L⁻¹ (f̄(Z) − μ₀(Z)),    S = L⁻¹ C L⁻ᵀ

Where q(u) has a closed form nothing is carried over: it is solved for in every step.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from duogp.api import fit
from duogp.data.targets import require_support
from duogp.data.validation import as_row_vector
from duogp.errors import DataWarning
from duogp.fitting.builder import Builder
from duogp.fitting.dataset import Dataset
from duogp.fitting.extractors import default_widths
from duogp.fitting.plan import NUM_INDUCING, make_plan
from duogp.methods import METHODS
from duogp.methods.settings import Settings, asdict_shallow
from duogp.models.deep import DeepModel
from duogp.models.model import Model
from duogp.posterior.gp import GP
from duogp.training import Callback, settle, train
from duogp.variational import CholeskyQ

#: Adam steps of a refit: hyperparameters move little when few rows are new.
STEPS = 50


def first_fit(X: Any, y: Any, method: str, *, callbacks: Sequence[Callback] = (), **settings: Any) -> GP:
    """`duogp.fit` of a GP that will be refitted, without warnings of fewer rows than inducing points."""
    entry = METHODS[method]
    if entry.is_baseline or entry.learns_online:
        what = "no GP" if entry.is_baseline else "learned from a stream"
        raise ValueError(f"method {method!r} is {what}: choose another for Bayesian optimisation")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="num_(inducing|extra) is|.*points in two blocks")
        gp = fit(X, y, entry.name, callbacks=callbacks, **settings)
    assert isinstance(gp, GP)
    return gp


def refit(
    gp: GP,
    X: Any,
    y: Any,
    *,
    steps: int = STEPS,
    noise: Any = None,
    callbacks: Sequence[Callback] = (),
    seed: int | None = None,
    **changes: Any,
) -> GP:
    """The same model on all of these rows, started from its present parameters.

    ``steps`` of the optimiser; 0: only q(u) is solved for again, where it has a closed form. ``changes``:
    settings other than those of the fit, for example ``learning_rate``.
    """
    if gp.classes is not None:
        raise ValueError("refit is for numbers: this model was fitted to class labels")
    settings = Settings.of(asdict_shallow(gp.settings) | changes)
    if gp.method.has_network and settings.widths is None:  # which would follow the number of rows
        settings = settings.but(widths=default_widths(int(gp.model.num_data[0])))
    matrix = gp._rows(X)
    target = gp._target(y, len(matrix))
    require_support(target, gp.model.likelihood.target)
    x_scaled = gp.x_scaler.transform(matrix[:, gp.columns].astype(np.float64))
    y_scaled = gp.y_scaler.transform(target.astype(np.float64))
    row_noise = None
    if noise is not None:
        if target.shape[1] > 1:
            raise ValueError("noise= of a refit is for one output")
        row_noise = as_row_vector(noise, len(matrix), "noise") / float(gp.y_scaler.scale[0]) ** 2
    own = settings.but(
        standardize=False,  # done already
        steps=max(steps, 1),
        epochs=None,
        warm_start=0,
        early_stopping=False,
        validation_fraction=0.0,
        random_state=settings.random_state if seed is None else seed,
    )
    own = _points_as_they_are(own, gp, len(matrix))
    data = Dataset.of_rows(x_scaled, y_scaled, [np.arange(len(matrix))], own, noise=row_noise)
    every_column = np.ones(x_scaled.shape[1], dtype=bool)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DataWarning)  # given at the first fit
        plan = make_plan(data, gp.method, own, columns=every_column, split=False)
        builder = Builder(data, plan)
    model = builder.model()
    continue_from(gp.model, model)
    problem = builder.problem(model)
    if steps:
        (history,) = train(model, problem, plan.training, callbacks=callbacks)
    else:
        history = copy.copy(gp.history)
        settle(model, problem)
    return type(gp)(
        model,
        method=gp.method,
        settings=settings.but(solver=plan.solver),
        columns=gp.columns,
        x_scaler=gp.x_scaler,
        y_scaler=gp.y_scaler,
        single_output=gp.single_output,
        history=history,
        known_noise=gp.known_noise,
        column_names=gp.column_names,
    )


def _points_as_they_are(settings: Settings, gp: GP, rows: int) -> Settings:
    """Settings without a search for inducing points, where the old ones will replace them anyway."""
    present = gp.model.basis.inducing.shape[-2]
    enough = present >= min(settings.num_inducing or NUM_INDUCING, rows)
    return settings.but(inducing_init="random", num_inducing=present) if enough else settings


@torch.no_grad()
def continue_from(source: Model, target: Model) -> None:
    """Copy the state of an old model into a new one of the same method, as far as their shapes agree."""
    old, new = source.state_dict(), target.state_dict()
    exact = target.basis.points_are_rows  # which differ, and determine q(u)
    same_points = not exact and all(old[name].shape == value.shape for name, value in new.items())
    for name, value in new.items():
        if name == "num_data" or old[name].shape != value.shape:
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
