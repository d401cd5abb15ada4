"""Affine maps as arrays: what is left of a logistic regression when it is fitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Log odds of a class that the rows do not have.
ABSENT = -20.0
#: Standardised columns farther out are taken for this: log odds of far rows stay moderate.
REACH = 10.0


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
        return z @ self.weight + self.bias

    def arrays(self) -> dict[str, Tensor]:
        return {"weight": self.weight, "bias": self.bias, "shift": self.shift, "scale": self.scale}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Tensor], inputs: int) -> Affine:
        """A map of saved arrays; a ValueError where they are none."""
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
        """Fitted to labels y from 0 to classes − 1: log odds of the second class, or logits of each."""
        from sklearn.linear_model import LogisticRegression

        shift, scale = X.mean(0), X.std(0)
        scale = np.where(scale > 0, scale, 1.0)
        rows = np.clip((X - shift) / scale, -REACH, REACH)
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
        return Affine(*(torch.as_tensor(a, dtype=torch.float64) for a in (W.T.copy(), b, shift, scale)))
