"""The door: `fit` hands a table to what its method is trained by, a GP, a stream, or networks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, overload

from duogp.baselines import NeuralPredictor, fit_neural
from duogp.data.arrow_source import ArrowSource, is_dataset
from duogp.data.sources import Source, is_source
from duogp.fitting.factories import target_kind
from duogp.fitting.streamed import fit_source
from duogp.fitting.table import fit_replicates, fit_table, is_auto, plan
from duogp.methods.registry import METHODS, Method
from duogp.online.table import fit_chunks, fit_stream
from duogp.posterior.gp import GP
from duogp.posterior.stack import Stack
from duogp.training import Callback, CheckpointOptions
from duogp.training.checkpoint import EVERY

__all__ = ["fit", "fit_replicates", "plan"]


@overload
def fit(
    X: Any,
    y: Any,
    method: Literal["mc-dropout", "deep-ensemble"],
    *,
    validation: tuple[Any, Any] | None = None,
    sample_weight: Any = None,
    **settings: Any,
) -> NeuralPredictor: ...


@overload
def fit(
    X: Any,
    y: Any = None,
    method: str | Method = "dcsvgp",
    *,
    target: str | Sequence[str] | None = None,
    validation: tuple[Any, Any] | None = None,
    noise: Any = None,
    sample_weight: Any = None,
    callbacks: Sequence[Callback] = (),
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every: float = EVERY,
    checkpoint_steps: int | None = None,
    **settings: Any,
) -> GP | Stack: ...


def fit(
    X: Any,
    y: Any = None,
    method: str | Method = "dcsvgp",
    *,
    target: str | Sequence[str] | None = None,
    validation: tuple[Any, Any] | None = None,
    noise: Any = None,
    sample_weight: Any = None,
    callbacks: Sequence[Callback] = (),
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every: float = EVERY,
    checkpoint_steps: int | None = None,
    **settings: Any,
) -> GP | Stack | NeuralPredictor:
    """Fit a method of the registry to a table, or ``"auto"``: a stack of the best ones.

    ``X`` [n, d], ``y`` [n] (or [n, outputs]): arrays, frames, lists; with a ``likelihood`` of classes
    ("classes", "bernoulli", "robust-max", "softmax") labels of any type. ``method``: a name, or a `Method` of
    one's own. ``validation``: rows to stop early and to choose β on (otherwise a ``validation_fraction`` of
    the training rows, where they are needed). ``noise``: known noise variance of each row. All other keywords
    are `duogp.Settings`; `duogp.plan` shows what they lead to.

    Rows that do not fit into memory: ``X`` is a source of chunks (`duogp.data.sources.Source`, which has its
    own targets), or a `pyarrow.dataset` with the name of its ``target`` column; y is left out:
    ``duogp.fit(dataset, target="y", method="svgp")``. What is possible there: docs/large-data.md.

    ``checkpoint_dir``: a folder of this fit's own, where the state of training is written every
    ``checkpoint_every`` seconds, and every ``checkpoint_steps`` steps if given. After the process was ended,
    the same call goes on from there; on a CPU it ends with the same bits. What it promises and what not:
    docs/reliability.md.

    Deep methods return a `DeepGP`; the baselines "mc-dropout" and "deep-ensemble" are no GPs: theirs is a
    `duogp.baselines.NeuralPredictor`, and their settings `duogp.baselines.NeuralSettings`.

        gp = duogp.fit(X, y, "svgp", num_inducing=100, epochs=20)
        prediction = gp.predict(X_new)  # mean, residual, explained, noise: [n] each
        low, high = prediction.interval(0.9)
    """
    if is_source(X) or is_dataset(X):
        given = {"y": y, "validation": validation, "noise": noise, "sample_weight": sample_weight}
        checkpoint = CheckpointOptions.of(checkpoint_dir, checkpoint_every, checkpoint_steps)
        source = _source(X, target, given, settings)
        if not is_auto(method) and METHODS[method].learns_online:
            own = {"callbacks": callbacks or None, "checkpoint_dir": checkpoint}
            _refuse(METHODS[method], "learns from a stream", **own)
            return fit_chunks(source, method, settings)
        return fit_source(source, method, callbacks=callbacks, checkpoint=checkpoint, settings=settings)
    if target is not None:
        raise ValueError("target= names a column of a pyarrow.dataset: for a table in memory give y")
    checkpoint = CheckpointOptions.of(checkpoint_dir, checkpoint_every, checkpoint_steps)
    rows: dict[str, Any] = {"validation": validation, "sample_weight": sample_weight}
    if is_auto(method):
        rows |= {"callbacks": callbacks, "checkpoint": checkpoint}
        return fit_table(X, y, method, noise=noise, settings=settings, **rows)
    recipe = METHODS[method]
    if recipe.is_baseline:
        _refuse(
            recipe, "trains networks", noise=noise, callbacks=callbacks or None, checkpoint_dir=checkpoint
        )
        if (solver := settings.pop("solver", "auto")) not in ("auto", "stochastic"):
            raise ValueError(
                f"solver={solver!r} is not possible: {recipe.name!r} trains networks; use solver='stochastic'"
            )
        found = fit_neural(X, y, recipe.name, settings=settings, **rows)
        found.method = recipe
        return found
    if recipe.learns_online:
        given = {"validation": validation, "noise": noise, "callbacks": callbacks or None}
        given["checkpoint_dir"] = checkpoint
        _refuse(recipe, "learns from a stream", **given)
        return fit_stream(X, y, recipe, sample_weight, settings)
    rows |= {"callbacks": callbacks, "checkpoint": checkpoint}
    return fit_table(X, y, recipe, noise=noise, settings=settings, **rows)


def _source(
    X: Any, target: str | Sequence[str] | None, given: dict[str, Any], settings: dict[str, Any]
) -> Source:
    """A source of chunks; a dataset with its target becomes one."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"a source of chunks has all that belongs to its rows: it takes no {name}")
    if is_source(X):
        if target is not None:
            raise ValueError("a source of chunks has its own targets: it takes no target")
        return X
    if target is None:
        raise ValueError("a dataset needs target=, the name of the column to predict")
    return ArrowSource(X, target, labels=target_kind(settings.get("likelihood", "gaussian")) == "classes")


def _refuse(method: Method, why: str, **given: Any) -> None:
    """An error for arguments of `fit` that a method has no use for."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{method.name!r} {why}: it takes no {name}")
