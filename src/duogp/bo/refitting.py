"""Warm-started refits: a fitted model goes on from where it is, on more rows.

Scales stay those of the first fit (as in `duogp.OnlineGP`); hyperparameters, networks, inducing points and
q(u) start where they ended. While there are fewer inducing points than were asked for, they are chosen anew
among the rows, and a q(u) on one block of points is carried over: with u = f(Z), L the factor of the new
points and N(f̄(Z), C) what the old posterior says about them,

    m = L⁻¹ (f̄(Z) − μ₀(Z)),    S = L⁻¹ C L⁻ᵀ

Where q(u) has a closed form nothing has to be carried: it is solved for in every step.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from duogp.bases import Basis, Conditional, Coupled, Exact
from duogp.data.targets import require_support
from duogp.data.validation import as_matrix, as_row_vector, as_target
from duogp.errors import DataWarning
from duogp.fitting.assembly import NUM_INDUCING, prepare
from duogp.fitting.dataset import Case
from duogp.fitting.extractors import default_widths
from duogp.fitting.fit import fit
from duogp.fitting.planning import Splits
from duogp.methods import METHODS
from duogp.methods.settings import Settings, asdict_shallow
from duogp.models.deep import DeepModel
from duogp.models.model import Model
from duogp.numerics.factorisation import Factor
from duogp.posterior.gp import GP
from duogp.training import Callback, settle, train
from duogp.variational import CholeskyQ

#: Adam steps of a refit: hyperparameters move little when few rows are new.
STEPS = 50


def first_fit(X: Any, y: Any, method: str, *, callbacks: Sequence[Callback] = (), **settings: Any) -> GP:
    """`duogp.fit` of a GP that is going to be refitted: fewer rows than inducing points are no surprise."""
    recipe = METHODS[method]
    if recipe.is_baseline or recipe.defaults.get("online"):
        what = "no GP" if recipe.is_baseline else "learned from a stream"
        raise ValueError(f"method {method!r} is {what}: choose another for Bayesian optimisation")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="num_(inducing|extra) is|.*points in two blocks")
        gp = fit(X, y, recipe.name, callbacks=callbacks, **settings)
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
    """The same model on all of these rows, started from what it has learned.

    ``steps`` of the optimiser; 0: only q(u) is solved for again, where it has a closed form. ``changes``:
    settings that shall differ from those of the fit, for example ``learning_rate``.
    """
    if gp.classes is not None:
        raise ValueError("refit is for numbers: this model was fitted to class labels")
    settings = Settings.of(asdict_shallow(gp.settings) | changes)
    if gp.method.has_network and settings.widths is None:  # more rows shall not ask for another network
        settings = settings.but(widths=default_widths(int(gp.model.num_data[0])))
    matrix = as_matrix(X, "X")
    target = as_target(y, len(matrix), "y").reshape(len(matrix), -1)
    require_support(target, gp.model.likelihood.target)
    if matrix.shape[1] != len(gp.columns):
        raise ValueError(f"X has {matrix.shape[1]} columns, but the model was fitted on {len(gp.columns)}")
    if target.shape[1] != len(gp.y_scaler.scale):
        raise ValueError(f"y has {target.shape[1]} outputs, the model has {len(gp.y_scaler.scale)}")
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
    case = Case.of(x_scaled, y_scaled, [np.arange(len(matrix))], own, noise=row_noise)
    splits = Splits(np.arange(len(matrix))[None], None)
    plan = case.decide(gp.method, own, splits)
    every_column = np.ones(x_scaled.shape[1], dtype=bool)
    data = prepare(case.X, every_column, case.target, case.noise, None, splits, own)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DataWarning)  # said at the first fit
        shop = case.workshop(gp.method, own, plan, splits, data)
    model = shop.model(gp.method)
    continue_from(gp.model, model)
    problem = shop.problem(model)
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
    """No search for inducing points where the old ones will be put in their place anyway."""
    present = getattr(gp.model.basis, "inducing", None)
    if isinstance(present, Tensor) and present.shape[-2] >= min(settings.num_inducing or NUM_INDUCING, rows):
        return settings.but(inducing_init="random", num_inducing=present.shape[-2])
    return settings


@torch.no_grad()
def continue_from(source: Model, target: Model) -> None:
    """Put a new model where an old one of the same method ended, as far as their shapes agree."""
    old, new = source.state_dict(), target.state_dict()
    exact = isinstance(target.basis, Exact)  # its points are the rows, and its q(u) is what they say
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
    """Inducing points, q(u), coefficients of basis functions: what belongs to a set of points."""
    parts = name.split(".")
    return parts[0] in ("basis", "hidden") and (
        "q" in parts or parts[-1].endswith("inducing") or parts[-1] == "a"
    )


def _carry(source: Model, target: Model) -> None:
    """q(u) at new points from what the old posterior says about them; others start at the prior."""
    q, factor = target.basis.q, _whitening(target.basis, target)
    if factor is None or not isinstance(q, CholeskyQ) or not q.learns_mean:
        return
    assert isinstance(target.basis.inducing, Tensor)
    z = target.basis.inducing.double()
    mean, residual, explained = source.frozen(torch.float64).joint(z)
    L_inv = factor.L_inv.double()
    eye = torch.eye(z.shape[-2], dtype=torch.float64, device=z.device)
    S = L_inv @ (residual + explained) @ L_inv.mT
    root, info = torch.linalg.cholesky_ex(S + 1e-6 * eye)
    if bool((info != 0).any()):
        return
    q.set_((L_inv @ mean.unsqueeze(-1)).squeeze(-1), root)


def _whitening(basis: Basis, model: Model) -> Factor | None:
    """L with u = L v, for bases with one block of points."""
    if isinstance(basis, Coupled):
        return basis.factors(model.numerics)
    if isinstance(basis, Conditional):
        factors = basis.factors(model.numerics)
        return factors.mean if basis.whitening == "Q" else factors.covariance
    return None
