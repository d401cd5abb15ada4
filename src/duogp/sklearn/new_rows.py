"""Rows to be predicted, some of which may have values that the training rows say nothing of.

A level of a category that no training row had, or a gap in a column that had none, is not known to the
model. Such a row is predicted with the values of other rows in its place (`Schema.completions`), and

    mean      E[mean]                    over the completions
    variance  E[variance] + c Var[mean]  the second term is part of the distributional variance
    density, probabilities               the mixture of those of the completions

so that intervals widen as far as the column matters, whatever the model. c corrects the variance between few
levels (`Completions.inflation`); densities and draws are those of c = 1.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from duogp.data.validation import as_row_vector
from duogp.posterior.prediction import ClassPrediction, Prediction
from duogp.sklearn.quantiles import predictive_quantiles
from duogp.sklearn.training_rows import within_reach
from duogp.tables.schema import Completions

Array = NDArray[np.float64]

#: Quantiles of each completion, of whose union the quantiles of the mixture are taken, and rows at once.
GRID = (np.arange(200) + 0.5) / 200
ROWS_AT_ONCE = 500


@dataclass(frozen=True)
class NewRows:
    """Encoded rows for a fitted model."""

    gp: Any
    matrix: NDArray  # [n, d]
    completions: Completions | None = None

    def __len__(self) -> int:
        return len(self.matrix)

    def predict(self, noise: Any = None) -> Any:
        """A `Prediction` or a `ClassPrediction`."""
        prediction = self._predict(self.matrix, noise)
        if self.completions is None:
            return prediction
        rows, matrices, inflation = self.completions
        count, size, width = matrices.shape
        every = self._predict(matrices.reshape(-1, width), self._repeated(noise))
        fields = {name: _full(every, name) for name in _fields(every)}
        parts = {name: value.reshape(count, size, *value.shape[1:]) for name, value in fields.items()}
        centre = parts["latent_mean"] if isinstance(every, ClassPrediction) else parts["mean"]
        factor = inflation.reshape(-1, *[1] * (centre.ndim - 2))
        averages = {name: value.mean(0) for name, value in parts.items()}
        averages["residual"] = averages["residual"] + factor * centre.var(0)
        changed: dict[str, Any] = {
            name: _with_rows(_full(prediction, name), rows, v) for name, v in averages.items()
        }
        if isinstance(prediction, Prediction):
            # Moments: the components of a stack are other ones for each completion.
            return Prediction(**changed, precision=prediction.precision, error=prediction.error)
        return replace(prediction, **changed)

    def quantiles(self, levels: Array, noise: Any = None) -> Array:
        """Quantiles of an observation, [levels, n, outputs]."""
        values = predictive_quantiles(self.gp, self.matrix, levels, noise)
        if self.completions is None:
            return values
        for start in range(0, len(self.completions.rows), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            values[:, self.completions.rows[part]] = self._mixture_quantiles(part, levels, noise)
        return values

    def log_density(self, y: NDArray, noise: Any = None) -> Array:
        """log p(y | x, data) of each row, [n], for y [n] or [n, outputs]."""
        extra = {} if noise is None else {"noise": noise}
        values: Array = self.gp.log_density(self.matrix, y, **extra)
        if self.completions is None:
            return values
        rows, matrices, _ = self.completions
        count, _, width = matrices.shape
        extra = {} if noise is None else {"noise": self._repeated(noise)}
        repeated = np.concatenate([y[rows]] * count)
        each = self.gp.log_density(matrices.reshape(-1, width), repeated, **extra).reshape(count, len(rows))
        values[rows] = logsumexp(each, axis=0) - np.log(count)
        return values

    def draws(self, n_samples: int, **given: Any) -> NDArray:
        """Joint draws [n_samples, n, ...], some of them with each completion of an unknown value."""
        if self.completions is None:
            return self._draws(self.matrix, n_samples, **given)
        rows, matrices, _ = self.completions
        parts = []
        for m, size in enumerate(np.bincount(np.arange(n_samples) % len(matrices))):
            matrix = self.matrix.copy()
            matrix[rows] = matrices[m]
            parts.append(self._draws(matrix, int(size), **given | {"seed": given["seed"] + m}))
        return np.concatenate(parts)

    def _predict(self, matrix: NDArray, noise: Any) -> Any:
        if noise is None:
            return self.gp.predict(matrix)
        if "noise" not in inspect.signature(self.gp.predict).parameters:
            raise ValueError(f"{self.gp.method.name!r} takes no known noise")
        return self.gp.predict(matrix, noise=noise)

    def _draws(self, matrix: NDArray, n_samples: int, **given: Any) -> NDArray:
        try:
            return self.gp.sample(matrix, n_samples, **given)
        except ValueError:  # no Cholesky factor of the joint covariance; a wrong argument fails again
            return self.gp.sample(matrix, n_samples, kind="pathwise", **given)

    def _mixture_quantiles(self, part: slice, levels: Array, noise: Any) -> Array:
        """[levels, rows, outputs] of some of the rows with completions."""
        assert self.completions is not None
        rows, matrices, inflation = self.completions
        matrices, inflation = matrices[:, part], inflation[part]
        count, size, width = matrices.shape
        flat = matrices.reshape(-1, width)
        given = (
            None if noise is None else np.tile(as_row_vector(noise, len(self), "noise")[rows[part]], count)
        )
        each = predictive_quantiles(self.gp, flat, GRID, given).reshape(len(GRID), count, size, -1)
        if self._is_real():
            centre = each.mean(0)
            away = centre - centre.mean(0)
            each = each + (np.sqrt(inflation)[:, None] - 1) * away
        found: Array = np.quantile(each.reshape(-1, size, each.shape[-1]), levels, axis=0)
        return found

    def _is_real(self) -> bool:
        """Whether targets may be any number; others would leave their support if they were spread further."""
        model = getattr(self.gp, "model", None)
        return model is None or model.likelihood.target == "real"

    def _repeated(self, noise: Any) -> Any:
        """Known noise of the rows with completions, for each of these."""
        if noise is None:
            return None
        assert self.completions is not None
        variances = as_row_vector(noise, len(self), "noise")[self.completions.rows]
        return np.tile(variances, len(self.completions.matrices))


def new_rows(gp: Any, matrix: NDArray, completions: Completions | None) -> NewRows:
    """Encoded rows [n, d] within the reach of a model."""
    if completions is not None:
        count, size, width = completions.matrices.shape
        near = within_reach(completions.matrices.reshape(-1, width), gp).reshape(count, size, width)
        completions = completions._replace(matrices=near)
    return NewRows(gp, within_reach(matrix, gp), completions)


def _fields(prediction: Any) -> tuple[str, ...]:
    if isinstance(prediction, Prediction):
        return "mean", "residual", "explained", "noise", "disagreement"
    return "probabilities", "latent_mean", "residual", "explained", "disagreement"


def _full(prediction: Any, name: str) -> NDArray:
    """A part of a prediction, shaped as its mean."""
    like = prediction.mean if isinstance(prediction, Prediction) else prediction.latent_mean
    value = getattr(prediction, name)
    return value if np.ndim(value) else np.full(like.shape, value)


def _with_rows(values: NDArray, rows: NDArray[np.intp], new: NDArray) -> NDArray:
    out = np.array(values)
    out[rows] = new
    return out
