"""A table that is to be fitted, checked once: what every method that tries itself on it shares."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.data.columns import informative_columns
from duogp.data.targets import Target, read_target
from duogp.data.validation import as_matrix, as_row_vector, column_names
from duogp.errors import DataWarning
from duogp.fitting.assembly import Prepared, Workshop, prepare
from duogp.fitting.build import make_likelihood, target_kind
from duogp.fitting.planning import Decisions, Splits, is_gaussian, make_decisions, make_splits
from duogp.methods import Method
from duogp.methods.settings import Settings
from duogp.models.deep import DeepModel
from duogp.models.model import Model, take_replicate
from duogp.posterior.deep import DeepGP
from duogp.posterior.gp import GP
from duogp.training import History


def with_seed(settings: dict[str, Any]) -> dict[str, Any]:
    """``random_state=None`` is a new seed each time, as in scikit-learn."""
    if settings.get("random_state", 0) is None:
        return settings | {"random_state": secrets.randbits(31)}
    return settings


@dataclass(frozen=True, eq=False)
class Case:
    """Arrays of numbers, and which rows are for what. ``settings`` are those that no method changes."""

    X: NDArray
    target: Target
    noise: NDArray[np.float64] | None
    weights: NDArray[np.float64] | None
    rows: Sequence[Any]  # of every replicate
    validation_rows: Sequence[Any] | None
    seeds: list[int]
    names: list[str] | None

    @classmethod
    def of(
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
    ) -> Case:
        matrix = as_matrix(X, "X")
        n = len(matrix)
        target = read_target(y, n, target_kind(settings))
        if noise is not None and not is_gaussian(settings):
            raise ValueError(f"noise= is for Gaussian likelihoods, got likelihood={settings.likelihood!r}")
        weights = None
        if sample_weight is not None:
            weights = as_row_vector(sample_weight, n, "sample_weight", allow_zero=True)
        seeds = [settings.random_state + r for r in range(len(rows))]
        if random_states is not None:
            seeds = list(random_states)
        for seed in seeds:
            settings.but(random_state=seed)  # checks it
        if len(seeds) != len(rows):
            raise ValueError(
                f"random_states must hold one seed for each of {len(rows)} sets of rows, got {len(seeds)}"
            )
        row_noise = None if noise is None else as_row_vector(noise, n, "noise")
        return cls(matrix, target, row_noise, weights, rows, validation_rows, seeds, column_names(X))

    def splits(self, method: Method, settings: Settings) -> Splits:
        return make_splits(method, settings, self.rows, self.validation_rows, len(self.X), self.seeds)

    def decide(self, method: Method, settings: Settings, splits: Splits) -> Decisions:
        likelihood = make_likelihood(settings, self.target.outputs, self.noise is not None, self.num_classes)
        return make_decisions(
            method,
            settings,
            splits,
            own_validation=self.validation_rows is None,
            log_concave=likelihood.is_log_concave,
        )

    def prepare(self, splits: Splits, settings: Settings) -> Prepared:
        """On the device, scaled, without the columns that say nothing."""
        columns = np.ones(self.X.shape[1], dtype=bool)
        if isinstance(settings.kernel, str):  # a kernel object counts on the columns it was made for
            columns = informative_columns(self.X[splits.train.reshape(-1)])
        if not columns.all():
            idle = int((~columns).sum())
            warnings.warn(f"{idle} constant columns of X are ignored", DataWarning, stacklevel=4)
            columns[0] |= not columns.any()  # nothing varies: the prior mean can still be learned
        return prepare(self.X, columns, self.target, self.noise, self.weights, splits, settings)

    def workshop(
        self, method: Method, settings: Settings, plan: Decisions, splits: Splits, data: Prepared
    ) -> Workshop:
        weights = self.weights
        if method.basis == "exact" and weights is not None and not weights[splits.train].all():
            raise ValueError(f"{method.name!r} needs weights above 0: leave rows without weight out of rows")
        return Workshop(method, settings, plan, splits, data, self.seeds)

    def fitted(
        self,
        model: Model,
        history: History,
        *,
        method: Method,
        settings: Settings,
        data: Prepared,
        replicate: int = 0,
        candidate: int = 0,
    ) -> GP:
        """A trained replicate in the user's units; ``candidate`` is its place in the model."""
        kind = DeepGP if isinstance(model, DeepModel) else GP
        return kind(
            take_replicate(model, candidate),
            method=method,
            settings=settings,
            columns=data.columns,
            x_scaler=data.x_scalers[replicate],
            y_scaler=data.y_scalers[replicate],
            single_output=self.target.single_output,
            history=history,
            known_noise=self.noise is not None and not getattr(model.likelihood, "learns_noise", True),
            column_names=self.names,
            classes=self.target.classes,
        )

    @property
    def num_classes(self) -> int | None:
        return None if self.target.classes is None else len(self.target.classes)
