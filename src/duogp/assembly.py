"""From arrays and decisions to what the training loop takes: a table on the device, a model, a problem."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.build import build_model, initial_kernel
from duogp.data.scaling import Scaler
from duogp.errors import DataWarning
from duogp.inducing import select_inducing
from duogp.methods import Method
from duogp.model import Batch, Model
from duogp.planning import Decisions, Splits
from duogp.settings import Settings
from duogp.training import ClosedForm, Minibatches, Problem, Scaling, Stochastic, Table

#: Inducing points unless the user says how many.
NUM_INDUCING = 500
#: Bytes of features that closed-form training keeps at once.
FEATURE_BYTES = {"cpu": 2 * 2**30, "cuda": 16 * 2**30}


@dataclass(frozen=True)
class Prepared:
    table: Table
    x_scalers: list[Scaler]
    y_scalers: list[Scaler]


def prepare(
    X: NDArray,
    y: NDArray,
    noise: NDArray | None,
    weights: NDArray | None,
    splits: Splits,
    settings: Settings,
) -> Prepared:
    device, dtype = settings.torch_device, settings.torch_dtype
    x_scalers, y_scalers = [], []
    categorical = initial_kernel(settings, X.shape[1]).categorical_columns(X.shape[1])
    for part in splits.train:
        x_scalers.append(_scaler(X[part], settings.standardize, categorical))
        y_scalers.append(_scaler(y[part], bool(settings.standardize)))

    def tensor(a: NDArray, kind: torch.dtype = torch.float64) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(a), dtype=kind, device=device)

    weight = None if weights is None else tensor(weights)
    if len(splits.train) == 1 or settings.standardize is False:
        # Scaled once, in float64, before anything is rounded.
        xs, ys = x_scalers[0], y_scalers[0]
        row_noise = None if noise is None else tensor(noise[:, None] / ys.scale**2)
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
        row_noise = None if noise is None else tensor(np.repeat(noise[:, None], y.shape[1], 1))
        table = Table(tensor(X), tensor(y), row_noise, weight, scaling, dtype)
    return Prepared(table, x_scalers, y_scalers)


def _scaler(A: NDArray, kind: bool | str, unscaled: Collection[int] = ()) -> Scaler:
    """Category codes are names, not quantities: their columns are left as they are."""
    if not kind:
        return Scaler.identity(A.shape[1])
    scaler = Scaler.minmax(A) if kind == "minmax" else Scaler.standard(A)
    shift, scale = scaler.shift.copy(), scaler.scale.copy()
    shift[list(unscaled)], scale[list(unscaled)] = 0.0, 1.0
    return Scaler(shift, scale)


def assemble(
    method: Method, settings: Settings, plan: Decisions, splits: Splits, data: Prepared, seeds: list[int]
) -> tuple[Model, Problem, Batch | None]:
    """The model of every replicate at its start, the problem that trains it, and the validation rows."""
    device, table = settings.torch_device, data.table
    grid = len(plan.betas)
    n = splits.train.shape[1]
    for name in ("num_inducing", "num_extra"):
        if (asked := getattr(settings, name)) is not None and asked > n:
            warnings.warn(
                f"{name} is {asked}, but there are {n} training rows: using {n}", DataWarning, stacklevel=4
            )
    num_inducing = min(settings.num_inducing or NUM_INDUCING, n)
    num_extra = None if settings.num_extra is None else min(settings.num_extra, n)

    rows = torch.as_tensor(splits.train, device=device)
    inducing, extra, generators = [], [], []
    # Means of category codes are no categories.
    has_codes = bool(initial_kernel(settings, table.x.shape[1]).categorical_columns(table.x.shape[1]))
    initialiser = settings.inducing_init or ("random" if has_codes else "kmeans")
    for r in range(len(rows)):  # each split chooses its own points; β values share them
        x = _scaled_rows(table, rows, r)
        kernel = initial_kernel(settings, x.shape[-1])
        generator = torch.Generator().manual_seed(seeds[r])
        inducing.append(select_inducing(initialiser, x, num_inducing, kernel=kernel, generator=generator))
        if num_extra is not None:
            extra.append(select_inducing(initialiser, x, num_extra, kernel=kernel, generator=generator))
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


def _chunk_rows(settings: Settings, model: Model, plan: Decisions, n: int) -> int:
    if model.uses_omega and plan.omega != "full":
        return min(n, settings.omega_block)
    if model.uses_omega:
        return n
    size = sum(p.shape[-2] for name, p in model.basis.named_parameters() if name.endswith("inducing"))
    row_bytes = 8 * 8 * size * model.replicates * model.likelihood_outputs
    return max(min(n, FEATURE_BYTES[settings.torch_device.type] // row_bytes), 256)
