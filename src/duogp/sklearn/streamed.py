"""Estimators on a `pyarrow.dataset`: fitted to rows that are read in chunks, predicting in chunks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from duogp.api import fit
from duogp.data.arrow_source import record_batches
from duogp.data.sources import CHUNK_ROWS
from duogp.errors import DataWarning
from duogp.sklearn.fit_keywords import seed_of
from duogp.sklearn.frames import READING
from duogp.sklearn.importances import sample_of
from duogp.tables.arrow import arrow
from duogp.tables.frames import some
from duogp.tables.streamed import TableSource
from duogp.training.checkpoint import remembered_seed, remove

if TYPE_CHECKING:
    from duogp.sklearn.base import BaseGP

#: The method of ``"auto"``, which needs all rows in memory.
METHOD = "svgp"


def fit_dataset(estimator: BaseGP, dataset: Any, target: str | None, given: dict[str, Any]) -> None:
    """Fit an estimator to the rows of a dataset; ``given``: arguments of `fit` that a dataset has no use for.

    A column of weights is named by ``sample_weight``.
    """
    weights = given.pop("sample_weight")
    if target is None:
        raise ValueError("a dataset needs target=, the name of the column to predict")
    if weights is not None and not isinstance(weights, str):
        raise ValueError("the weights of a dataset are one of its columns: sample_weight= is its name")
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"a dataset has all that belongs to its rows: fit takes no {name} beside it")
    if estimator.calibration_fraction:
        raise ValueError(
            "calibration_fraction is not possible on a dataset: call calibrate with fresh rows after the fit"
        )
    checkpoint = estimator._checkpoint()
    seed = seed_of(estimator.random_state)
    if checkpoint is not None and estimator.random_state is None:
        seed = remembered_seed(checkpoint, seed)
    settings = estimator._fit_settings(seed)
    source = TableSource(
        dataset,
        target,
        weights=weights,
        seed=seed,
        category=estimator.categorical_features or (),
        missing=estimator.missing,
        classify=estimator._target_kind() == "classes",
        **_reading(estimator.reading),
    )
    _warn_of_losses(source)
    if (source.classes is not None) != (estimator._target_kind() == "classes"):
        raise ValueError(f"the target {target!r} holds class labels: use GPClassifier")
    method = METHOD if estimator._is_auto() else estimator.method
    if checkpoint is not None:
        settings |= {"checkpoint_dir": checkpoint.folder, "checkpoint_every": checkpoint.every}
    gp: Any = fit(source, method=method, **settings)
    names = [name for name in source.dataset.schema.names if name not in (target, weights)]
    estimator.schema_, estimator._table_names = source.schema, names
    estimator.feature_names_in_, estimator.n_features_in_ = np.array(names, dtype=object), len(names)
    reason = "a dataset is read in chunks, and 'auto' needs all rows in memory"
    estimator._gp, estimator._learner = gp, None
    estimator._sample = sample_of(source.schema.encode(source.sample).matrix, seed)
    estimator.method_ = gp.method.name
    estimator.reasons_ = [reason if estimator._is_auto() else "chosen by the argument method="]
    estimator.n_iter_ = gp.history[-1].epoch if len(gp.history) else 1
    estimator.calibration_ = None
    if estimator.checkpoint_dir is not None:
        estimator.save(estimator.checkpoint_dir)
        if checkpoint is not None:
            remove(checkpoint)


def refuse_target(target: Any) -> None:
    """An error for the name of a target that a table in memory has no column for."""
    if target is not None:
        raise ValueError("target= names a column of a pyarrow.dataset: for a table in memory give y")


def by_chunks(function: Callable[[Any], Any], dataset: Any, names: list[str]) -> Any:
    """What a function of a table returns, an array or a tuple of them, for all rows of a dataset.

    Rows are in the order of their files' names. Columns that a fit left out may be missing.
    """
    there = [name for name in names if name in dataset.schema.names]
    parts = [
        function(arrow().Table.from_batches([batch]))
        for _, batch in record_batches(dataset, there, CHUNK_ROWS)
    ]
    if not parts:
        raise ValueError("the dataset has no rows")
    if isinstance(parts[0], tuple):
        return tuple(np.concatenate(each) for each in zip(*parts, strict=True))
    return np.concatenate(parts)


def _reading(reading: dict[str, Any] | None) -> dict[str, Any]:
    given = dict(reading or {})
    if unknown := given.keys() - READING:
        raise ValueError(f"reading must hold some of {', '.join(READING)}, got {sorted(unknown)}")
    return given


def _warn_of_losses(source: TableSource) -> None:
    lost = [f"{name!r} is left out: {reason}" for name, reason in source.schema.dropped.items()]
    if lost:
        warnings.warn(f"X: {some(lost, 6)}", DataWarning, stacklevel=4)
