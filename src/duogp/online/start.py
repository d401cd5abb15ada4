"""The first model of a stream: scales, lengthscales and first points from its first rows.

Lengthscales by the median trick (Cheng and Boots 2017, appendix C.2; MATH §6.4): √d times the median of
|xᵢ − xⱼ| in every column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.data.scaling import Scaler
from duogp.data.targets import Target
from duogp.fitting.builder import Builder
from duogp.fitting.dataset import Dataset
from duogp.fitting.learned import learned_spec
from duogp.fitting.plan import make_plan
from duogp.methods import Method
from duogp.methods.settings import Settings
from duogp.models.model import Batch, Model
from duogp.online.growth import tie

#: Rows whose pairs the median is taken over: half a million pairs are enough for a median.
MEDIAN_ROWS = 1000


@dataclass(frozen=True)
class Scales:
    """Scalers and tensor types: from rows in the units of the user to batches in those of the model."""

    columns: NDArray[np.bool_]
    x: Scaler
    y: Scaler
    dtype: torch.dtype
    device: torch.device

    def batch(self, X: NDArray, y: NDArray, weight: NDArray | None) -> Batch:
        """X [n, d], y [n, outputs] as a batch of one replicate; scaled in float64, then rounded."""
        return Batch(
            self._tensor(self.x.transform(X[:, self.columns])),
            self._tensor(self.y.transform(y).T),
            None,
            None if weight is None else self._tensor(weight),
        )

    def _tensor(self, values: NDArray) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values)[None], dtype=self.dtype, device=self.device)


def median_distances(X: NDArray, rng: np.random.Generator) -> NDArray[np.float64]:
    """Median of |xᵢ − xⱼ| over pairs of rows of X [n, d], for every column, [d]; never zero.

    Of a column in which most pairs agree it is the standard deviation instead, and 1 of a constant column.
    """
    if len(X) > MEDIAN_ROWS:
        X = X[rng.choice(len(X), MEDIAN_ROWS, replace=False)]
    i, j = np.triu_indices(len(X), 1)
    out = np.array([np.median(np.abs(column[i] - column[j])) for column in X.T])
    spread = X.std(0)
    floor = 1e-6 * np.maximum(spread, np.finfo(np.float64).tiny)
    return np.where(out > floor, out, np.where(spread > 0, spread, 1.0))


def first_model(
    method: Method,
    settings: Settings,
    X: NDArray,
    target: Target,
    weights: NDArray | None,
    noise_share: float | None,
) -> tuple[Model, Scales]:
    """A model at its prior and the scales of the first rows; one that grows has a single point.

    ``noise_share``: the noise at the start as a share of the variance of y; None: that of the settings.
    """
    if method.learns_online:
        settings = settings.but(num_inducing=1, num_extra=None, inducing_init="random")
    variance = 1.0
    if target.kind == "real" and not settings.standardize:
        variance = float(np.mean(target.values.var(0))) or 1.0
        settings = settings.but(initial_scale=settings.initial_scale or variance)
    if noise_share is not None:
        settings = settings.but(initial_noise=noise_share * variance)
    seed, columns, rows = settings.random_state, np.ones(X.shape[1], dtype=bool), np.arange(len(X))
    data = Dataset(X, target, None, weights, [rows], None, [seed], None)
    # A stream has no end to stop before and no rows to start from in closed form.
    asked = settings.but(solver="stochastic", early_stopping=None, warm_start=None)
    if learned_spec(asked) is not None:
        raise ValueError("a stream has no folds: mean must be 'zero', 'constant', 'linear' or a module")
    builder = Builder(data, make_plan(data, method, asked, columns=columns, split=False))
    medians = median_distances(builder.x_scalers[0].transform(X), np.random.default_rng(seed))
    builder.spread = torch.as_tensor(medians)[None, None]
    model = builder.model()
    if method.learns_online:
        model.basis = tie(model.basis, settings.mean_columns)
    x_scaler, y_scaler = builder.x_scalers[0], builder.y_scalers[0]
    return model.train(), Scales(columns, x_scaler, y_scaler, settings.torch_dtype, settings.torch_device)
