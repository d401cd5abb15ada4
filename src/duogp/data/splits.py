"""The papers' protocols: how data are scaled and split, so that numbers can be compared with theirs.

All three scale on the FULL data before splitting, as published. That leaks the range of the test set mildly;
``scale_on="train"`` avoids it. With ``scale_target=False`` targets stay as they are: class labels of any
type. Permutations come from ``numpy.random.default_rng(seed)``, so the rows of a seed differ from those of
the papers' code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duogp.data.columns import informative_columns
from duogp.data.scaling import Scaler
from duogp.data.validation import as_matrix, as_target

ScaleOn = Literal["all", "train"]
Fit = Callable[[NDArray], Scaler]


@dataclass(frozen=True, eq=False)
class SplitRows:
    """Row numbers of the original data; `val` is empty where a protocol has no validation set."""

    train: NDArray[np.intp]
    val: NDArray[np.intp]
    test: NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Split:
    """Scaled arrays, their rows in the original data, and the scalers back to the original units."""

    X_train: NDArray
    y_train: NDArray
    X_val: NDArray
    y_val: NDArray
    X_test: NDArray
    y_test: NDArray
    rows: SplitRows
    columns: NDArray[np.bool_]  # the input columns kept
    x_scaler: Scaler  # of the kept columns
    y_scaler: Scaler


def split_rows(n: int, seed: int, train_percent: int, val_percent: int = 0) -> SplitRows:
    """A random permutation cut at floor(train) and floor(val); the rest is the test set."""
    order = np.random.default_rng(seed).permutation(n)
    train = n * train_percent // 100
    val = train + n * val_percent // 100
    return SplitRows(order[:train], order[train:val], order[val:])


@dataclass(frozen=True)
class SplitProtocol:
    """A published way to scale and split data: (X, y, seed) → `Split`."""

    train_percent: int
    val_percent: int
    fit_x: Fit
    fit_y: Fit
    minimum_variance: float | None = None  # columns of less variance are dropped

    def __call__(
        self, X: ArrayLike, y: ArrayLike, seed: int, *, scale_on: ScaleOn = "all", scale_target: bool = True
    ) -> Split:
        if scale_on not in ("all", "train"):
            raise ValueError(f"scale_on must be 'all' or 'train', got {scale_on!r}")
        A = as_matrix(X)
        n = A.shape[0]
        b = as_target(y, n) if scale_target else np.asarray(y)
        if b.shape[:1] != (n,):
            raise ValueError(f"y has shape {b.shape} but X has {n} rows")
        rows = split_rows(n, seed, self.train_percent, self.val_percent)
        seen = np.arange(n) if scale_on == "all" else rows.train
        columns = np.ones(A.shape[1], dtype=bool)
        if self.minimum_variance is not None:
            columns = informative_columns(A[seen], self.minimum_variance, absolute=True)
            if not columns.any():
                raise ValueError(f"X has no column of variance {self.minimum_variance:g} or more")
        A = A[:, columns]
        x_scaler = self.fit_x(A[seen])
        outputs = b.shape[1] if b.ndim == 2 else 1
        y_scaler = self.fit_y(b[seen]) if scale_target else Scaler.identity(outputs)
        A = x_scaler.transform(A)
        b = y_scaler.transform(b) if scale_target else b
        train, val, test = ((A[part], b[part]) for part in (rows.train, rows.val, rows.test))
        return Split(*train, *val, *test, rows, columns, x_scaler, y_scaler)


def _standard_plus(A: NDArray) -> Scaler:
    return Scaler.standard(A, ddof=0, epsilon=1e-6)


#: Decoupled conditionals (MATH §2.4): columns of variance < 1e-10 dropped, X to [−1, 1], y standardised.
dc_protocol = SplitProtocol(75, 10, Scaler.minmax, Scaler.standard, minimum_variance=1e-10)
#: Orthogonally decoupled (MATH §3.4): X and y by mean and (n-) std + 1e-6.
orth_protocol = SplitProtocol(90, 0, _standard_plus, _standard_plus)
#: Decoupled components, DSGPC (MATH §5.5): the paper names no scaling; X and y are standardised.
components_protocol = SplitProtocol(80, 0, Scaler.standard, Scaler.standard)

PROTOCOLS = {"dc": dc_protocol, "orth": orth_protocol, "components": components_protocol}
