"""Affine scaling of columns, without overflow for any finite floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
# Columns with parameters past this are transformed in quarters, so that a − shift cannot overflow.
_HUGE = 1e300
#: Share of the unit interval that a column fills where it counts as one of the cube.
FILLED = 0.25
# Numbers of which moments are computed at once.
AT_ONCE = 1_000_000


def freedom(total: float, squares: float) -> float:
    """What a weighted sum of squared deviations is divided by, from Σw and Σw².

    Repeated rows: Σw − 1. Weights below one, which may sum to one: Σw − Σw²/Σw, in any unit.
    """
    return max(total - 1, total - squares / total, 1e-12 * total)


@dataclass(frozen=True, eq=False)
class Scaler:
    """``transform(A) = (A − shift) / scale`` column by column; `shift` and `scale` are float64 ``[d]``.

    A vector ``[n]`` (a target) is one column and stays a vector. A constant column gets scale 1: it becomes
    zeros.
    """

    shift: Floats
    scale: Floats

    def __post_init__(self) -> None:
        for name in ("shift", "scale"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        if self.shift.ndim != 1 or self.shift.shape != self.scale.shape:
            raise ValueError(
                f"shift and scale must be vectors of one length, got shapes {self.shift.shape} "
                f"and {self.scale.shape}"
            )
        if not (np.isfinite(self.shift).all() and np.isfinite(self.scale).all() and (self.scale > 0).all()):
            raise ValueError("shift must be finite, scale finite and positive")

    @classmethod
    def identity(cls, d: int) -> Scaler:
        """shift 0, scale 1."""
        return cls(np.zeros(d), np.ones(d))

    @classmethod
    def standard(cls, A: NDArray, *, ddof: int = 1, epsilon: float = 0.0) -> Scaler:
        """A [n, d] to mean 0 and standard deviation 1; `epsilon` is added to the standard deviation."""
        columns = _columns(A)
        step = max(1, AT_ONCE // len(columns[0]))
        parts = [_moments(np.array(columns[j : j + step]), ddof) for j in range(0, len(columns), step)]
        shift, scale = np.concatenate(parts, 1)
        return cls(shift, scale + epsilon)

    @classmethod
    def weighted(cls, A: NDArray, weights: NDArray) -> Scaler:
        """As `standard` of A [n, d] with weights [n] for the rows; whole numbers weigh like repeated rows.

        Computed on values scaled by `standard`, so that squares neither overflow nor vanish.
        """
        plain = cls.standard(A)
        z, total = plain.transform(A.astype(np.float64)), weights.sum()
        centre = np.average(z, axis=0, weights=weights)
        variance = (weights[:, None] * (z - centre) ** 2).sum(0) / freedom(total, (weights**2).sum())
        with np.errstate(over="ignore"):
            scale = np.minimum(plain.scale * np.sqrt(variance), np.finfo(np.float64).max)
        return cls(plain.shift + plain.scale * centre, np.where(scale > 0, scale, 1.0))

    @classmethod
    def minmax(cls, A: NDArray) -> Scaler:
        """To [−1, 1]."""
        return cls.of_ranges(*_ranges(A))

    @classmethod
    def cube(cls, A: NDArray) -> Scaler:
        """To [−1, 1], from [0, 1] where a column is inside and fills a quarter of it, else from its range.

        Points of a search are scaled by the space they are searched in, which does not change with them.
        """
        return cls.of_ranges(*whole_cube(*_ranges(A)))

    @classmethod
    def of_ranges(cls, low: Floats, high: Floats) -> Scaler:
        """To [−1, 1] from [low, high]."""
        half = high / 2 - low / 2  # halves first: high − low may overflow
        half = np.where((half == 0) & (high > low), np.finfo(np.float64).smallest_subnormal, half)
        return cls(np.where(high > low, high / 2 + low / 2, low), np.where(high > low, half, 1.0))

    def transform(self, A: NDArray) -> NDArray:
        """(A − shift) / scale of A [n, d]. float32 stays float32, anything else becomes float64."""
        self._check(A)
        quarter = np.where(np.maximum(np.abs(self.shift), self.scale) > _HUGE, 0.25, 1.0)
        out = (A * quarter - self.shift * quarter) / (self.scale * quarter)
        return out.astype(_result_dtype(A), copy=False)

    def on(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        """`transform` of float64 tensors [n, d] on a device; shift and scale are sent once, here."""
        shift, scale = (torch.as_tensor(v, device=device) for v in (self.shift, self.scale))
        if max(np.abs(self.shift).max(), self.scale.max()) <= _HUGE:
            return lambda x: (x - shift).div_(scale)
        quarter = torch.where(torch.maximum(shift.abs(), scale) > _HUGE, 0.25, 1.0)
        return lambda x: (x * quarter - shift * quarter).div_(scale * quarter)

    def inverse(self, A: NDArray) -> NDArray:
        """A · scale + shift of A [n, d]."""
        self._check(A)
        return (A * self.scale + self.shift).astype(_result_dtype(A), copy=False)

    def to_dict(self) -> dict[str, list[float]]:
        """Plain numbers for JSON; they round-trip exactly."""
        return {"shift": self.shift.tolist(), "scale": self.scale.tolist()}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Scaler:
        """The inverse of `to_dict`."""
        return cls(np.asarray(state["shift"], np.float64), np.asarray(state["scale"], np.float64))

    def _check(self, A: NDArray) -> None:
        d = A.shape[1] if A.ndim == 2 else 1
        if A.ndim not in (1, 2) or d != self.shift.size:
            raise ValueError(f"expected {self.shift.size} column(s), got an array of shape {A.shape}")


def whole_cube(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Ranges of columns, widened to [0, 1] for those of the unit cube (`Scaler.cube`)."""
    inside = (low >= 0) & (high <= 1) & (high / 2 - low / 2 >= FILLED / 2)
    return np.where(inside, 0.0, low), np.where(inside, 1.0, high)


def _ranges(A: NDArray) -> tuple[Floats, Floats]:
    columns = _columns(A)
    low, high = (np.array([f(c) for c in columns], dtype=np.float64) for f in (np.min, np.max))
    return low, high


def _columns(A: NDArray) -> list[NDArray]:
    if A.ndim not in (1, 2) or A.shape[0] == 0:
        raise ValueError(f"A must be a non-empty [n] or [n, d] array, got shape {A.shape}")
    return list(A[:, None].T if A.ndim == 1 else A.T)


def _moments(columns: NDArray, ddof: int) -> Floats:
    """Means and standard deviations of columns [k, n], [2, k].

    They are those of values that an exact power of two brings to [−1, 1].
    """
    values = columns.astype(np.float64)
    first, largest = values[:, 0].copy(), np.abs(values).max(1)
    constant = (largest == 0) | (values.min(1) == values.max(1)) | (values.shape[1] <= ddof)
    exponent = np.frexp(largest)[1]
    values = np.ldexp(values, -exponent[:, None])
    mean = values.mean(1)
    values -= mean[:, None]
    std = np.sqrt(np.sum(values**2, 1) / max(values.shape[1] - ddof, 1))
    eps = np.finfo(columns.dtype).eps if columns.dtype.kind == "f" else np.finfo(np.float64).eps
    rounding = std <= 4 * eps  # constant but for rounding
    corrected = mean + values.mean(1)  # of the rounding of the first mean, as in 1e12 ± 1
    # The deviation of ±1.7e308 exceeds the largest float; that of a few subnormals is below the smallest.
    with np.errstate(over="ignore", under="ignore"):
        scale = np.minimum(np.ldexp(std, exponent), np.finfo(np.float64).max)
        shift = np.ldexp(np.where(rounding, mean, corrected), exponent)
    scale = np.where(rounding, 1.0, np.where(scale > 0, scale, largest))
    return np.stack([np.where(constant, first, shift), np.where(constant, 1.0, scale)])


def _result_dtype(A: NDArray) -> type[np.floating]:
    return np.float32 if A.dtype == np.float32 else np.float64
