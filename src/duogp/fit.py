"""`duogp.fit`: arrays in, a fitted model out. Estimators, command line and optimisation wrap it."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.build import build_model, initial_kernel
from duogp.data.columns import informative_columns
from duogp.data.scaling import Scaler
from duogp.data.validation import as_matrix, as_row_vector, as_target
from duogp.errors import DataWarning
from duogp.gp import GP
from duogp.inducing import select_inducing
from duogp.methods import METHODS, Method
from duogp.model import Model, take_replicate
from duogp.settings import Settings, as_list
from duogp.training import (
    Callback,
    ClosedForm,
    Minibatches,
    Plan,
    Problem,
    Scaling,
    Stochastic,
    Table,
    make_schedule,
    train,
)

Rows = NDArray[np.intp]

#: Rows up to which Ω of closed-form training sees all of them at once.
FULL_OMEGA_ROWS = 5000
#: Rows up to which "auto" prefers the closed form where there is one.
CLOSED_FORM_ROWS = 500_000
#: Bytes of features that closed-form training keeps at once.
FEATURE_BYTES = {"cpu": 2 * 2**30, "cuda": 16 * 2**30}


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
) -> GP:
    """Fit a method of the registry to a table.

    ``X`` [n, d], ``y`` [n] (or [n, outputs]): arrays, frames, lists. ``validation``: rows to stop early and
    to choose β on (otherwise a ``validation_fraction`` of the training rows, where they are needed).
    ``noise``: known noise variance of each row. All other keywords are `duogp.Settings`.
    """
    matrix = as_matrix(X, "X")
    target = as_target(y, len(matrix), "y")
    n = len(matrix)
    held_out = None
    if validation is not None:
        if not (isinstance(validation, tuple | list) and len(validation) == 2):
            raise TypeError(f"validation must be a pair (X, y), got {type(validation).__name__}")
        X_val = as_matrix(validation[0], "validation X", min_rows=1)
        y_val = as_target(validation[1], len(X_val), "validation y")
        if X_val.shape[1] != matrix.shape[1]:
            raise ValueError(f"validation X has {X_val.shape[1]} columns, X has {matrix.shape[1]}")
        if y_val.shape[1:] != target.shape[1:]:
            raise ValueError(f"validation y has shape {y_val.shape}, y has {target.shape}")
        matrix, target = np.concatenate([matrix, X_val]), np.concatenate([target, y_val])
        held_out = [np.arange(n, len(matrix))]
    pad = len(matrix) - n
    if noise is not None:  # the noise of validation rows is not known apart: the median stands in
        noise = as_row_vector(noise, n, "noise")
        noise = np.concatenate([noise, np.full(pad, np.median(noise))])
    if sample_weight is not None:
        weights = as_row_vector(sample_weight, n, "sample_weight", allow_zero=True)
        if not weights.any():
            raise ValueError("sample_weight must not be zero for every row")
        sample_weight = np.concatenate([weights, np.ones(pad)])
    return fit_replicates(
        matrix,
        target,
        [np.arange(n)],
        method,
        validation_rows=held_out,
        noise=noise,
        sample_weight=sample_weight,
        callbacks=callbacks,
        **settings,
    )[0]


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
    chosen = Settings.of({**recipe.defaults, **settings})
    matrix = as_matrix(X, "X")
    target = as_target(y, len(matrix), "y")
    single_output = target.ndim == 1
    target = target.reshape(len(matrix), -1).astype(np.float64)
    row_noise = None if noise is None else as_row_vector(noise, len(matrix), "noise")
    weights = (
        None
        if sample_weight is None
        else as_row_vector(sample_weight, len(matrix), "sample_weight", allow_zero=True)
    )
    seeds = list(random_states) if random_states is not None else [chosen.random_state + r for r in range(len(rows))]
    if len(seeds) != len(rows):
        raise ValueError(f"random_states must hold one seed for each of the {len(rows)} sets of rows, got {len(seeds)}")
    splits = _splits(recipe, chosen, rows, validation_rows, len(matrix), seeds)
    plan = _plan(recipe, chosen, splits)
    columns = informative_columns(matrix[splits.train.reshape(-1)])
    if not columns.all():
        warnings.warn(f"{int((~columns).sum())} constant columns of X are ignored", DataWarning, stacklevel=3)
        columns[
            0
        ] |= not columns.any()  # nothing varies: keep one column, so that the mean can still be learned

    data = _prepare(matrix[:, columns], target, row_noise, weights, splits, chosen)
    model, problem, validation = _assemble(recipe, chosen, plan, splits, data, seeds)
    histories = train(model, problem, plan.training, validation, callbacks)

    out = []
    grid = len(plan.betas)
    for r in range(len(splits.train)):
        candidates = range(r * grid, (r + 1) * grid)
        best = (
            min(candidates, key=lambda i: _validation_nll(histories[i], plan.training.restore_best))
            if grid > 1
            else r
        )
        final = chosen.but(
            beta1=plan.betas[best % grid][0], beta2=plan.betas[best % grid][1], solver=plan.solver
        )
        out.append(
            GP(
                take_replicate(model, best),
                method=recipe,
                settings=final,
                columns=columns,
                x_scaler=data.x_scalers[r],
                y_scaler=data.y_scalers[r],
                single_output=single_output,
                history=histories[best],
            )
        )
    return out


# -- decisions -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Splits:
    train: Rows  # [R, n]
    validation: Rows | None  # [R, n_val]


@dataclass(frozen=True)
class _Decisions:
    solver: str
    omega: str
    betas: list[tuple[float, float]]
    training: Plan
    early_stopping: bool


def _wants_validation(method: Method, settings: Settings) -> bool:
    choosing = len(as_list(settings.beta1)) > 1 or len(as_list(settings.beta2)) > 1
    # Not a bound, and in closed form it overfits: only held-out rows can say when to stop.
    risky = (
        method.basis == "conditional"
        and settings.early_stopping is not False
        and _solver(method, settings, 0) == "closed-form"
    )
    return choosing or bool(settings.early_stopping) or risky


def _splits(
    method: Method,
    settings: Settings,
    rows: Sequence[Any],
    validation_rows: Sequence[Any] | None,
    n: int,
    seeds: list[int],
) -> _Splits:
    sets = [_row_indices(part, n, "rows") for part in rows]
    if not sets:
        raise ValueError("rows must hold at least one set of row indices")
    if len({len(part) for part in sets}) > 1:
        raise ValueError(f"rows must be sets of one size, got sizes {sorted({len(part) for part in sets})}")
    if len(sets[0]) < 2:
        raise ValueError(f"rows must be sets of at least 2 rows, got {len(sets[0])}")
    if validation_rows is not None:
        held_out = [_row_indices(part, n, "validation_rows") for part in validation_rows]
        if len(held_out) != len(sets) or len({len(part) for part in held_out}) > 1:
            raise ValueError(f"validation_rows must be {len(sets)} sets of one size")
        return _Splits(np.stack(sets), np.stack(held_out))
    fraction = settings.validation_fraction
    if fraction is None:
        fraction = 0.1 if _wants_validation(method, settings) else 0.0
    size = min(int(round(fraction * len(sets[0]))), len(sets[0]) - 2)
    if size < 1:
        return _Splits(np.stack(sets), None)
    train_sets, held_out = [], []
    for part, seed in zip(sets, seeds, strict=True):
        order = np.random.default_rng(seed).permutation(len(part))
        train_sets.append(part[order[size:]])
        held_out.append(part[order[:size]])
    return _Splits(np.stack(train_sets), np.stack(held_out))


def _row_indices(part: Any, n: int, name: str) -> Rows:
    indices = np.asarray(part)
    if indices.ndim != 1 or indices.dtype.kind not in "iu" or len(indices) < 1:
        raise ValueError(
            f"{name} must hold vectors of row numbers, got shape {indices.shape} of {indices.dtype}"
        )
    if indices.min() < 0 or indices.max() >= n:
        raise ValueError(
            f"{name} must hold row numbers from 0 to {n - 1}, got {indices.min()} to {indices.max()}"
        )
    return indices.astype(np.intp)


def _has_closed_form(method: Method) -> bool:
    return method.objective in ("elbo", "vfitc")


def _solver(method: Method, settings: Settings, n: int) -> str:
    if settings.solver == "closed-form" and not _has_closed_form(method):
        raise ValueError(
            f"solver='closed-form' needs an objective that is quadratic in q(u); {method.name!r} has the "
            f"{method.objective} objective: use solver='stochastic'"
        )
    if settings.solver == "auto":
        return "closed-form" if _has_closed_form(method) and n <= CLOSED_FORM_ROWS else "stochastic"
    return settings.solver


def _plan(method: Method, settings: Settings, splits: _Splits) -> _Decisions:
    n = splits.train.shape[1]
    solver = _solver(method, settings, n)
    closed = solver == "closed-form"
    beta1 = [float(b) for b in as_list(settings.beta1)]
    beta2 = [float(b) for b in as_list(settings.beta2)] or [0.0]
    betas = list(itertools.product(beta1, beta2))
    if len(betas) > 1 and splits.validation is None:
        raise ValueError(
            "a list of beta1 or beta2 values is chosen from on validation rows: set validation_fraction above 0"
        )
    if settings.early_stopping and splits.validation is None:
        raise ValueError(
            "early_stopping needs validation rows: set validation_fraction above 0 or pass validation="
        )
    omega = settings.omega or (("full" if n <= FULL_OMEGA_ROWS else "blocks") if closed else "batch")
    if omega == "full" and not closed and settings.batch_size < n:
        raise ValueError(
            "omega='full' needs every row in each step: use solver='closed-form' or batch_size ≥ n"
        )
    early = splits.validation is not None if settings.early_stopping is None else settings.early_stopping
    training = Plan(
        epochs=settings.epochs or (200 if closed else 100),
        learning_rate=settings.learning_rate or (0.05 if closed else 1e-2),
        schedule=make_schedule(settings.schedule or ("cosine" if closed else "multistep")),
        evaluate_every=settings.evaluate_every or (5 if closed else 1),
        patience=settings.patience if early else None,
        restore_best=early,
        check_every=10 if closed else 50,
        backend=settings.backend,  # type: ignore[arg-type]
        verbose=settings.verbose,
    )
    return _Decisions(solver, omega, betas, training, early)


# -- data and model --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Prepared:
    table: Table
    x_scalers: list[Scaler]
    y_scalers: list[Scaler]


def _prepare(
    X: NDArray,
    y: NDArray,
    noise: NDArray | None,
    weights: NDArray | None,
    splits: _Splits,
    settings: Settings,
) -> _Prepared:
    device, dtype = settings.torch_device, settings.torch_dtype
    x_scalers, y_scalers = [], []
    for part in splits.train:
        x_scalers.append(_scaler(X[part], settings.standardize))
        y_scalers.append(_scaler(y[part], bool(settings.standardize)))

    def tensor(a: NDArray, kind: torch.dtype = torch.float64) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(a), dtype=kind, device=device)

    weight = None if weights is None else tensor(weights)
    if (
        len(splits.train) == 1 or settings.standardize is False
    ):  # scaled once, in float64, before anything is rounded
        xs, ys = x_scalers[0], y_scalers[0]
        row_noise = None if noise is None else tensor(noise / ys.scale[0] ** 2)
        table = Table(
            tensor(xs.transform(X), dtype), tensor(ys.transform(y), dtype), row_noise, weight, None, dtype
        )
    else:
        scaling = Scaling(
            *(
                tensor(np.stack([getattr(s, name) for s in scalers])[:, None])
                for scalers in (x_scalers, y_scalers)
                for name in ("shift", "scale")
            )
        )
        table = Table(tensor(X), tensor(y), None if noise is None else tensor(noise), weight, scaling, dtype)
    return _Prepared(table, x_scalers, y_scalers)


def _scaler(A: NDArray, kind: bool | str) -> Scaler:
    if kind == "minmax":
        return Scaler.minmax(A)
    return Scaler.standard(A) if kind else Scaler.identity(A.shape[1])


def _assemble(
    method: Method, settings: Settings, plan: _Decisions, splits: _Splits, data: _Prepared, seeds: list[int]
) -> tuple[Model, Problem, Any]:
    device, table = settings.torch_device, data.table
    grid = len(plan.betas)
    n = splits.train.shape[1]
    num_inducing = settings.num_inducing
    for name in ("num_inducing", "num_extra"):
        if (asked := getattr(settings, name)) is not None and asked > n:
            warnings.warn(
                f"{name} is {asked}, but there are {n} training rows: using {n}", DataWarning, stacklevel=4
            )
    num_inducing = min(num_inducing, n)
    num_extra = None if settings.num_extra is None else min(settings.num_extra, n)

    rows = torch.as_tensor(splits.train, device=device)
    inducing, extra, generators = [], [], []
    for r in range(len(rows)):  # each split chooses its own points; β values share them
        x = _scaled_rows(table, rows, r)
        kernel = initial_kernel(settings, x.shape[-1])
        generator = torch.Generator().manual_seed(seeds[r])
        inducing.append(
            select_inducing(settings.inducing_init, x, num_inducing, kernel=kernel, generator=generator)
        )
        if num_extra is not None:
            extra.append(
                select_inducing(settings.inducing_init, x, num_extra, kernel=kernel, generator=generator)
            )
        generators += [torch.Generator().set_state(generator.get_state()) for _ in range(grid)]
    rows = rows.repeat_interleave(grid, 0)
    if grid > 1 and table.scaling is not None:
        scaling = Scaling(*(t.repeat_interleave(grid, 0) for t in table.scaling))
        table = Table(table.x, table.y, table.noise, table.weight, scaling, table.dtype)

    def stack(points: list[Tensor]) -> Tensor:
        return torch.stack(points).repeat_interleave(grid, 0).unsqueeze(1).to(settings.torch_dtype)

    betas = torch.tensor(plan.betas, dtype=torch.float64).repeat(len(splits.train), 1)
    model = build_model(
        method,
        settings,
        inducing=stack(inducing),
        extra=stack(extra) if extra else None,
        outputs=table.y.shape[1],
        num_data=n,
        beta1=betas[:, 0],
        beta2=betas[:, 1],
        omega=plan.omega,
        fixed_noise=table.noise is not None,
        generators=generators,
    )
    problem: Problem
    if plan.solver == "closed-form":
        problem = ClosedForm(model, table, rows, _chunk_rows(settings, model, plan, n))
    else:
        shufflers = [torch.Generator(device).manual_seed(seed + 1) for seed in seeds for _ in range(grid)]
        batches = Minibatches(
            rows, settings.batch_size, shufflers, blocks=plan.omega == "blocks" and model.uses_omega
        )
        problem = Stochastic(model, table, batches)
    validation = None
    if splits.validation is not None:
        validation = table.gather(
            torch.as_tensor(splits.validation, device=device).repeat_interleave(grid, 0)
        )
    return model, problem, validation


def _scaled_rows(table: Table, rows: Tensor, r: int) -> Tensor:
    x = table.x[rows[r]].double()
    if table.scaling is None:
        return x
    return (x - table.scaling.x_shift[r]) / table.scaling.x_scale[r]


def _chunk_rows(settings: Settings, model: Model, plan: _Decisions, n: int) -> int:
    if model.uses_omega and plan.omega != "full":
        return min(n, settings.omega_block)
    if model.uses_omega:
        return n
    size = sum(p.shape[-2] for name, p in model.basis.named_parameters() if name.endswith("inducing"))
    row_bytes = 8 * 8 * size * model.replicates * model.likelihood_outputs
    return max(min(n, FEATURE_BYTES[settings.torch_device.type] // row_bytes), 256)


def _validation_nll(history: Any, restored_best: bool) -> float:
    """Of the state that training left: the best one seen, or the last."""
    values = [v for v in history.series("validation_nll") if v is not None]
    return min(values, default=float("inf")) if restored_best else values[-1]
