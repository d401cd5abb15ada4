"""The training data of one fit, checked once and shared by all candidates of a race."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.data.rows import Rows
from duogp.data.targets import Target, raw_target, read_target, with_validation
from duogp.data.validation import as_matrix, as_row_noise, as_row_vector, column_names
from duogp.fitting.factories import is_gaussian, target_kind
from duogp.means import CrossFit
from duogp.methods.settings import Settings
from duogp.training.checkpoint import CheckpointOptions, remembered_seed


def with_seed(settings: dict[str, Any], checkpoint: CheckpointOptions | None = None) -> dict[str, Any]:
    """``random_state=None`` is a new seed each time, as in scikit-learn; a fit that goes on keeps its own."""
    if settings.get("random_state", 0) is None:
        fresh = secrets.randbits(31)
        return settings | {
            "random_state": fresh if checkpoint is None else remembered_seed(checkpoint, fresh)
        }
    return settings


@dataclass(frozen=True, eq=False)
class Dataset:
    """X [N, d], targets, noise and weights of all rows, and which rows are for what."""

    X: NDArray
    target: Target
    noise: NDArray[np.float64] | None  # known variances of every row, [N, 1 or outputs]
    weights: NDArray[np.float64] | None
    rows: list[Rows]  # of every replicate, all of one size
    validation_rows: list[Rows] | None  # as given; None: a plan may split some off
    seeds: list[int]
    names: list[str] | None  # of the columns
    offsets: NDArray[np.float64] | None = None  # a prior mean of all rows in scaled units, [N, C], as given
    cross_fits: dict[Any, CrossFit] = field(default_factory=dict)  # learned means that were fitted before

    @classmethod
    def of_table(
        cls,
        X: Any,
        y: Any,
        settings: Settings,
        *,
        validation: tuple[Any, Any] | None = None,
        noise: Any = None,
        sample_weight: Any = None,
    ) -> Dataset:
        """One table; the rows of a pair ``validation`` = (X, y) are appended to it."""
        kind = target_kind(settings.likelihood)
        matrix = as_matrix(X, "X")
        n = len(matrix)
        target = raw_target(y, n, kind)
        if validation is not None:
            matrix, target = with_validation(matrix, target, validation, kind)
        held_out = None if validation is None else [np.arange(n, len(matrix))]
        pad, rows = len(matrix) - n, np.arange(n)
        if noise is not None:  # the noise of validation rows is not known apart: the median stands in
            noise = as_row_noise(noise, n)
            middle = np.median(noise, 0, keepdims=True)
            noise = np.concatenate([noise, np.repeat(middle, pad, 0)])
        if sample_weight is not None:
            weights = as_row_vector(sample_weight, n, "sample_weight", allow_zero=True)
            if not weights.any():
                raise ValueError("sample_weight must not be zero for every row")
            sample_weight = np.concatenate([weights, np.ones(pad)])
            rows = np.flatnonzero(weights)  # rows of no weight count nowhere: not for scales, not for points
        return cls._checked(
            matrix, target, [rows], settings, held_out, noise, sample_weight, None, column_names(X)
        )

    @classmethod
    def of_rows(
        cls,
        X: Any,
        y: Any,
        rows: Sequence[Any],
        settings: Settings,
        *,
        validation_rows: Sequence[Any] | None = None,
        noise: Any = None,
        sample_weight: Any = None,
        random_states: Sequence[int] | None = None,
    ) -> Dataset:
        """Several sets of rows of one table, one for each replicate."""
        matrix = as_matrix(X, "X")
        n = len(matrix)
        noise = None if noise is None else as_row_noise(noise, n)
        if sample_weight is not None:
            sample_weight = as_row_vector(sample_weight, n, "sample_weight", allow_zero=True)
        return cls._checked(
            matrix, y, rows, settings, validation_rows, noise, sample_weight, random_states, column_names(X)
        )

    @classmethod
    def _checked(
        cls,
        X: NDArray,
        y: Any,
        rows: Sequence[Any],
        settings: Settings,
        validation_rows: Sequence[Any] | None,
        noise: NDArray | None,
        weights: NDArray | None,
        random_states: Sequence[int] | None,
        names: list[str] | None,
    ) -> Dataset:
        n = len(X)
        target = read_target(y, n, target_kind(settings.likelihood))
        if noise is not None and not is_gaussian(settings):
            raise ValueError(f"noise= is for Gaussian likelihoods, got likelihood={settings.likelihood!r}")
        if noise is not None and noise.shape[1] not in (1, target.outputs):
            raise ValueError(
                f"noise: expected one number per row, or per row and output, shape ({n}, {target.outputs}), "
                f"got shape {noise.shape}"
            )
        seeds = [settings.random_state + r for r in range(len(rows))]
        if random_states is not None:
            seeds = list(random_states)
            for seed in seeds:
                settings.but(random_state=seed)  # checks it
        if len(seeds) != len(rows):
            raise ValueError(
                f"random_states must hold one seed for each of {len(rows)} sets of rows, got {len(seeds)}"
            )
        sets = [row_indices(part, n, "rows") for part in rows]
        if not sets:
            raise ValueError("rows must hold at least one set of row indices")
        if len({len(part) for part in sets}) > 1:
            raise ValueError(
                f"rows must be sets of one size, got sizes {sorted({len(part) for part in sets})}"
            )
        if len(sets[0]) < 2:
            raise ValueError(f"rows must be sets of at least 2 rows, got {len(sets[0])}")
        held_out = None
        if validation_rows is not None:
            held_out = [row_indices(part, n, "validation_rows") for part in validation_rows]
            if len(held_out) != len(sets) or len({len(part) for part in held_out}) > 1:
                raise ValueError(f"validation_rows must be {len(sets)} sets of one size")
        return cls(X, target, noise, weights, sets, held_out, seeds, names)

    @property
    def num_classes(self) -> int | None:
        return None if self.target.classes is None else len(self.target.classes)


def row_indices(part: Any, n: int, name: str) -> Rows:
    """A set of rows, given as a mask or as numbers from 0 to n − 1."""
    indices = np.asarray(part)
    if indices.dtype == bool and indices.shape == (n,):
        indices = np.flatnonzero(indices)
    if indices.ndim != 1 or indices.dtype.kind not in "iu" or len(indices) < 1:
        raise ValueError(
            f"{name} must hold vectors of row numbers, got shape {indices.shape} of {indices.dtype}"
        )
    if indices.min() < 0 or indices.max() >= n:
        raise ValueError(
            f"{name} must hold row numbers from 0 to {n - 1}, got {indices.min()} to {indices.max()}"
        )
    return indices.astype(np.intp)
