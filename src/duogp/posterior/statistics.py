"""Statistics of rows in the user's units: three functions to map and reduce them on other machines.

    sums = reduce(duogp.merge, (duogp.statistics(gp, chunk) for chunk in chunks))
    gp = duogp.solve(gp, sums)

keeps the hyperparameters of ``gp`` and gives it the optimal q(u) of all the rows.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.data.scaling import Scaler
from duogp.data.sources import Chunk
from duogp.data.validation import as_row_noise, as_row_vector
from duogp.inference import sufficient
from duogp.inference.sufficient import SufficientStatistics, merge
from duogp.models.model import Batch
from duogp.posterior.gp import GP
from duogp.training.history import History

__all__ = ["SufficientStatistics", "bound", "merge", "scaled_batch", "solve", "statistics"]


def statistics(model: GP, chunk: Any) -> SufficientStatistics:
    """The sums of a chunk of rows at the hyperparameters of a fitted GP with a closed form.

    ``chunk``: a pair (X, y), a `duogp.data.sources.Chunk`, or a tuple (X, y, noise, weights), None where
    there is no noise or are no weights. Plain float64 tensors; `merge` adds them, `solve` solves from them.
    """
    _require_sums(model)
    return sufficient.statistics(model.model, user_batch(model, chunk))


def solve(model: GP, sums: SufficientStatistics) -> GP:
    """A copy of the GP with the optimal q(u) of the rows that were summed; hyperparameters stay."""
    _require_sums(model)
    inner = copy.deepcopy(model.model)
    best = sufficient.solve(inner, SufficientStatistics(*(_on(s, inner.beta1.device) for s in sums)))
    inner.basis.q.set_(best.mean, best.root)
    inner.num_data.copy_(sums.rows)
    if not all(bool(torch.isfinite(p).all()) for p in inner.basis.q.parameters()):
        raise ValueError(
            "the statistics are not finite, or those of other hyperparameters: no q(u) fits them"
        )
    history = History(solver="closed-form")
    history.notes.append(f"q(u) was solved for from the merged statistics of {int(sums.rows[0])} rows")
    return model.with_model(inner, history)


def bound(model: GP, sums: SufficientStatistics) -> float:
    """The collapsed bound on log p(y) of the rows that were summed, in nats of scaled targets."""
    _require_sums(model)
    return float(sufficient.bound(model.model, sums)[0])


def scaled_batch(
    chunk: Chunk,
    x_scaler: Scaler,
    y_scaler: Scaler,
    columns: NDArray[np.bool_],
    dtype: torch.dtype,
    device: torch.device,
) -> Batch:
    """A chunk as a batch [1, n, ·] of the used columns in a model's units, scaled in float64."""
    y = y_scaler.transform(chunk.y)
    noise = None if chunk.noise is None else (chunk.noise / y_scaler.scale**2 * np.ones_like(y)).T
    tensors = (
        None if v is None else torch.as_tensor(np.ascontiguousarray(v), dtype=dtype, device=device)[None]
        for v in (y.T, noise, chunk.weight)
    )
    if device.type == "cpu":
        x = torch.as_tensor(np.ascontiguousarray(x_scaler.transform(chunk.x[:, columns])))
    else:
        x = scaled_on(device, chunk.x if columns.all() else chunk.x[:, columns], x_scaler)
    return Batch(x.to(dtype)[None], *tensors)  # type: ignore[arg-type]


def scaled_on(device: torch.device, x: NDArray, scaler: Scaler) -> Tensor:
    """`scaler.transform` of float64 rows [n, d], on a device: the same numbers, three passes sooner."""
    return scaler.on(device)(torch.as_tensor(np.ascontiguousarray(x), dtype=torch.float64, device=device))


def user_batch(model: GP, chunk: Any) -> Batch:
    """A chunk of the user's rows, checked and scaled."""
    if not isinstance(chunk, tuple | list) or len(chunk) < 2:
        raise TypeError(f"chunk must be a pair (X, y) or a Chunk, got {type(chunk).__name__}")
    X, y, noise, weight = [*chunk, None, None][:4]
    x = np.asarray(model._rows(X), dtype=np.float64)
    n = len(x)
    if noise is None and model.known_noise:
        raise ValueError("this GP was fitted with known noise of its rows: a chunk needs them, (X, y, noise)")
    rows = Chunk(
        x,
        model._target(y, n).astype(np.float64),
        None if noise is None else as_row_noise(noise, n),
        None if weight is None else as_row_vector(weight, n, allow_zero=True),
    )
    dtype = model.model.basis.q.mean.dtype
    return scaled_batch(rows, model.x_scaler, model.y_scaler, model.columns, dtype, model.model.beta1.device)


def _require_sums(model: Any) -> None:
    if not isinstance(model, GP):
        raise TypeError(f"statistics are those of a fitted GP, got {type(model).__name__}")
    if model.learned is not None:
        raise ValueError("there are no statistics of a GP with a cross-fitted mean: its folds know all rows")
    if model.classes is not None or not hasattr(model.model, "basis"):
        raise ValueError("statistics are those of regression by a shallow GP with a closed form")
    sufficient.require_sums(model.model)


def _on(value: torch.Tensor | None, device: torch.device) -> Any:
    return None if value is None else value.to(device)
