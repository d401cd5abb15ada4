"""Cross-fitted prior means of a fit: which settings ask for one, and the fitted models of every replicate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from duogp.data.scaling import Scaler
from duogp.fitting.dataset import Dataset
from duogp.means import CrossFit, Ridge, Trees
from duogp.means.crossfit import Goal, cross_fit, moderate
from duogp.methods.registry import Method
from duogp.methods.settings import Settings

if TYPE_CHECKING:
    from duogp.fitting.plan import Plan

#: Cross-fitted means that have a name.
NAMED: dict[str, type[Any]] = {"trees": Trees, "ridge": Ridge}


def learned_spec(settings: Settings) -> Any:
    """What is cross-fitted (`Trees`, `Ridge`, `Logistic`, a scikit-learn model); None where nothing is."""
    mean = settings.mean
    if isinstance(mean, str):
        named = NAMED.get(mean.lower())
        return None if named is None else named()
    return None if isinstance(mean, nn.Module) else mean


def goal_of(data: Dataset) -> Goal:
    """What trees are to predict: the kind of the target, its classes and its outputs."""
    return Goal(data.target.kind, data.num_classes, data.target.outputs)


def learned_columns(data: Dataset, method: Method, settings: Settings) -> int:
    """Columns that a cross-fitted mean adds to the inputs; 0 for any other mean."""
    if learned_spec(settings) is None:
        return 0
    if method.has_network_mean:
        raise ValueError(f"the prior mean of {method.name!r} is its network: it takes no mean=")
    if settings.num_latents is not None:
        raise ValueError("num_latents mixes latent functions, and a cross-fitted mean is one of each output")
    if method.is_deep and not settings.mean_as_input:
        raise ValueError(
            "the first layer of a deep GP sees every column: mean_as_input=False is not possible"
        )
    return goal_of(data).columns


def cross_fits(data: Dataset, plan: Plan, deadline: float | None = None) -> list[CrossFit]:
    """The cross-fitted mean of every set of training rows, fitted once for all methods."""
    spec, folds = learned_spec(plan.settings), plan.settings.mean_folds
    found = []
    for rows, seed in zip(plan.train, data.seeds, strict=True):
        key = (repr(spec), folds, seed, rows.tobytes(), plan.columns.tobytes())
        if key not in data.cross_fits:
            data.cross_fits[key] = cross_fit(
                spec,
                data.X[rows][:, plan.columns],
                data.target.values[rows],
                goal_of(data),
                weights=None if data.weights is None else data.weights[rows],
                folds=folds,
                seed=seed,
                deadline=deadline,
            )
        found.append(data.cross_fits[key])
    return found


def learned_values(
    data: Dataset, plan: Plan, fits: list[CrossFit], y_scalers: list[Scaler]
) -> NDArray[np.float64]:
    """What the means say about every row, scaled: [R, N, C]; out of fold for the training rows."""
    out = []
    for rows, fit, scaler in zip(plan.train, fits, y_scalers, strict=True):
        others = np.setdiff1d(np.arange(len(data.X)), rows)
        values = np.zeros((len(data.X), fit.goal.columns))
        assert fit.held_out is not None
        values[rows] = fit.held_out
        if len(others):
            values[others] = fit.at(data.X[others][:, plan.columns], plan.settings.torch_device)[0]
        out.append(in_scaled_units(values, fit.goal, scaler))
    return np.stack(out)


def in_scaled_units(values: NDArray, goal: Goal, scaler: Scaler) -> NDArray:
    """Latent values of real targets are shifted and scaled like these; others are what they are."""
    return moderate(scaler.transform(values)) if goal.kind == "real" else values
