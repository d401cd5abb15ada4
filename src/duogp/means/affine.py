"""Affine maps as arrays: what is left of a linear or logistic regression when it is fitted."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Log odds of a class that the rows do not have.
ABSENT = -20.0
#: Standardised columns farther out are taken for this: predictions of far rows stay moderate.
REACH = 10.0
#: Ridges that are tried, in units of the total weight of the rows.
RIDGES = np.logspace(-5, 1, 13)


@dataclass(frozen=True, eq=False)
class Affine:
    """x ↦ Wᵀz + b at z = (x − shift) / scale, clipped: rows [n, d] ↦ [n, outputs]."""

    weight: Tensor  # [d, outputs]
    bias: Tensor  # [outputs]
    shift: Tensor  # [d]
    scale: Tensor  # [d]

    @property
    def inputs(self) -> int:
        return self.weight.shape[0]

    @property
    def outputs(self) -> int:
        return self.weight.shape[1]

    def to(self, device: torch.device) -> Affine:
        return Affine(*(values.to(device) for values in self.arrays().values()))

    def __call__(self, x: Tensor) -> Tensor:
        z = ((x - self.shift) / self.scale).clamp(-REACH, REACH)
        z = z.nan_to_num(nan=0.0, posinf=REACH, neginf=-REACH)  # a gap is an average
        return z @ self.weight + self.bias

    def arrays(self) -> dict[str, Tensor]:
        return {"weight": self.weight, "bias": self.bias, "shift": self.shift, "scale": self.scale}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Tensor], inputs: int) -> Affine:
        """A map of saved arrays; a ValueError where they are none.

        weight [d, outputs], bias [outputs], shift [d], scale [d].
        """
        if arrays.keys() != {"weight", "bias", "shift", "scale"}:
            raise ValueError("an affine map has the arrays weight, bias, shift and scale")
        weight = arrays["weight"]
        outputs = weight.shape[-1] if weight.dim() == 2 else -1
        shapes = [tuple(arrays[name].shape) for name in ("weight", "bias", "shift", "scale")]
        if shapes != [(inputs, outputs), (outputs,), (inputs,), (inputs,)]:
            raise ValueError(f"the arrays of an affine map of {inputs} columns do not fit together")
        if not all(bool(a.isfinite().all()) for a in arrays.values()) or not (arrays["scale"] > 0).all():
            raise ValueError("the arrays of an affine map must be finite, and its scales positive")
        return cls(**{name: values.double() for name, values in arrays.items()})


@dataclass(frozen=True)
class Logistic:
    """Logistic regression on standardised columns; ``strength`` of the likelihood against the ridge."""

    strength: float = 1.0

    def fit(self, X: NDArray, y: NDArray, classes: int, weights: NDArray | None) -> Affine:
        """Fitted to labels y from 0 to classes − 1: log odds of the second class, or logits of each.

        X [n, d], y [n], weights [n] or None.
        """
        from sklearn.linear_model import LogisticRegression

        rows, shift, scale = _standardised(X)
        present = np.unique(y)
        if len(present) == 1:
            W, b = np.zeros((1, X.shape[1])), np.zeros(1)
        else:
            model: Any = LogisticRegression(C=self.strength, max_iter=300)
            model.fit(rows, y, sample_weight=weights)
            W, b = model.coef_, model.intercept_
        if classes > 2:
            weight, bias = np.zeros((classes, X.shape[1])), np.full(classes, ABSENT)
            if len(W) == 1:  # two classes, or one, of many
                weight[present[-1]], bias[present] = W[0], 0.0
                bias[present[-1]] = b[0]
            else:
                weight[present], bias[present] = W, b
            W, b = weight, bias
        elif len(present) == 1:
            b = np.array([-ABSENT if present[0] else ABSENT])
        return _affine(W.T.copy(), b, shift, scale)


@dataclass(frozen=True)
class Ridge:
    """Linear regression on standardised columns, cross-fitted; of several ridges the best on unseen rows."""

    ridges: tuple[float, ...] = tuple(RIDGES)

    def fit(
        self, X: NDArray, y: NDArray, fold: NDArray[np.intp], weights: NDArray | None = None
    ) -> list[Affine]:
        """One model for each fold, of the rows outside it: X [n, d], y [n], the fold of every row [n].

        With Z the standardised columns of these rows, less their mean, and W their weights, ZᵀWZ = VΛVᵀ
        gives the slopes V(Λ + αI)⁻¹VᵀZᵀW(y − ȳ) of all ridges α at once. All folds have the ridge with the
        least squared error on the rows that each has not seen.
        """
        Z, shift, scale = _standardised(X)
        w = np.ones(len(X)) if weights is None else weights
        error = np.zeros(len(self.ridges))
        slopes, heights = [], []  # of every fold: [ridges, d], [ridges]
        for k in range(fold.max() + 1):
            rows, others = fold == k, fold != k
            total = max(w[others].sum(), np.finfo(np.float64).tiny)
            centre, average = w[others] @ Z[others] / total, w[others] @ y[others] / total
            root = np.sqrt(w[others])[:, None]
            A, b = (Z[others] - centre) * root, (y[others] - average) * root[:, 0]
            values, V = np.linalg.eigh(A.T @ A)
            shrunk = values.clip(0.0) + total * np.asarray(self.ridges)[:, None]
            slopes.append((V.T @ (A.T @ b) / shrunk) @ V.T)
            heights.append(average - slopes[-1] @ centre)
            unseen = heights[-1][:, None] + slopes[-1] @ Z[rows].T  # [ridges, rows]
            error += (w[rows] * (unseen - y[rows]) ** 2).sum(1)
        best = int(np.argmin(error))
        return [
            _affine(slope[best][:, None], height[best : best + 1], shift, scale)
            for slope, height in zip(slopes, heights, strict=True)
        ]


def _standardised(X: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Columns less their mean in units of their spread, both finite; gaps are zero. Mean and spread."""
    known = np.where(np.isfinite(X), X, np.nan)
    with np.errstate(over="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of columns without a number
        shift, scale = np.nanmean(known, 0), np.nanstd(known, 0)
    shift = np.where(np.isfinite(shift), shift, 0.0)
    scale = np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)
    return np.nan_to_num(np.clip((X - shift) / scale, -REACH, REACH)), shift, scale


def _affine(weight: NDArray, bias: NDArray, shift: NDArray, scale: NDArray) -> Affine:
    return Affine(*(torch.as_tensor(a, dtype=torch.float64) for a in (weight, bias, shift, scale)))
