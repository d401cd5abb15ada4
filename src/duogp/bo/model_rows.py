"""Data of a BoTorch model: what is accepted, how tensors become arrays of a fit, inputs in its units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from botorch.models.transforms.input import InputTransform
from numpy.typing import NDArray
from torch import Tensor

from duogp.methods.settings import DTYPES
from duogp.posterior.deep import DeepGP
from duogp.posterior.gp import GP

#: The least known noise variance, relative to the variance of the outcomes.
LEAST_NOISE = 1e-6


class Observed(NamedTuple):
    """Observations that a model was conditioned on: X, outcomes and their noise, all transformed."""

    X: Tensor
    Y: Tensor
    noise: Tensor


class InputScaling:
    """Inputs in the scaled units of a fit, without the columns that it does not use."""

    def __init__(self, columns: NDArray[np.bool_], shift: Tensor, scale: Tensor) -> None:
        self.shift, self.scale = shift.double(), scale.double()
        self.columns = (
            None if columns.all() else torch.as_tensor(np.flatnonzero(columns), device=shift.device)
        )

    def __call__(self, x: Tensor) -> Tensor:
        x = x if self.columns is None else x.index_select(-1, self.columns)
        return (x - self.shift) / self.scale


def floored(variances: Tensor, outcomes: Tensor) -> Tensor:
    """Known noise variances, kept above rounding: who knows a value exactly says 0.

    Variances, outcomes and result [..., n, outputs].
    """
    return torch.maximum(variances, LEAST_NOISE * outcomes.var(-2, keepdim=True).clamp_min(LEAST_NOISE))


def check_data(X: Tensor, Y: Tensor, Yvar: Tensor | None) -> None:
    """An error unless X [*b, n, d], Y [*b, n, m] and Yvar, like Y, are tensors that belong together."""
    if not isinstance(X, Tensor) or not isinstance(Y, Tensor):
        raise TypeError(f"X and Y must be tensors, got {type(X).__name__} and {type(Y).__name__}")
    if X.dim() < 2 or X.shape[:-1] != Y.shape[:-1] or X.dim() != Y.dim():
        raise ValueError(f"X must be [n, d] and Y [n, m], got {tuple(X.shape)} and {tuple(Y.shape)}")
    if Yvar is not None and Yvar.shape != Y.shape:
        raise ValueError(f"Yvar must be {tuple(Y.shape)} like Y, got {tuple(Yvar.shape)}")


def refuse_learnable(transform: InputTransform | None) -> None:
    """An error for input transforms with parameters to learn, which no training of ours would move."""
    if transform is None:
        return
    names = [name for name, p in transform.named_parameters() if p.requires_grad]
    if names:
        raise ValueError(
            f"input_transform {type(transform).__name__} has parameters to learn ({', '.join(names)}), which "
            "are not trained here: fix them by transform.requires_grad_(False), or use another transform"
        )


def require_normal(gp: GP) -> None:
    """An error for GPs whose posterior is no Gaussian with gradients."""
    if isinstance(gp, DeepGP):
        raise ValueError("the posterior of a deep GP is no Gaussian: use it inside duogp.bo.optimise")
    if gp.model.likelihood.target != "real":
        raise ValueError("a BoTorch model is of real outcomes: choose a likelihood of real numbers")
    if gp.learned is not None:
        raise ValueError("a cross-fitted mean has no gradient for acquisition functions: use mean='linear'")


def unseen_rows(X: Tensor, known: Tensor) -> NDArray[np.bool_]:
    """Mask [n] of the rows of X [n, d] that are none of the known ones [m, d]."""
    seen = {row.tobytes() for row in known.detach().to(X).cpu().numpy()}
    return np.array([row.tobytes() not in seen for row in X.detach().cpu().numpy()], dtype=bool)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype among the settings; "float64" for those that a fit does not work in."""
    return next((name for name, kind in DTYPES.items() if kind == dtype), "float64")


def flat(values: Tensor, dims: int) -> Tensor:
    """[*b, ...] as [B, ...], with so many dimensions behind the batch."""
    return values.reshape(-1, *values.shape[values.dim() - dims :])


def as_array(values: Tensor) -> NDArray[np.float64]:
    """A tensor [...] as a float64 array of its shape."""
    return values.detach().double().cpu().numpy()


def as_targets(values: Tensor) -> NDArray[np.float64]:
    """Y, or its noise variances, as `duogp.fit` takes them: [n, outputs], or [n] of one output."""
    return as_array(values[..., 0] if values.shape[-1] == 1 else values)


def appended(old: Tensor, new: Tensor, batch: Sequence[int]) -> Tensor:
    """Rows ``new`` after rows ``old``, both repeated over the batch: [*batch, n + m, d]."""
    parts = (t.detach().to(old).expand(*batch, *t.shape[-2:]) for t in (old, new))
    return torch.cat(list(parts), -2)
