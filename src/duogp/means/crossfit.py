"""A prior mean learned by any regressor or classifier, cross-fitted: K models, each without one fold.

A mean that has seen the targets of the training rows leaves residuals that are too small, and a GP trained on
them is too sure of itself. So row i of fold k is given the prediction t₋ₖ(xᵢ) of the model that has not seen
it, and a new row the average of all K:

    training    μ(xᵢ) = t₋ₖ₍ᵢ₎(xᵢ)             new rows    μ(x) = t̄(x) = (1/K) Σₖ tₖ(x)

in the space of the latent function: log odds for classes, log rates for counts, logs of positive numbers. The
spread of the K models at x, s²(x) = Σₖ (tₖ(x) − t̄(x))²/(K − 1), is a variance that the GP does not include.
Of the error of one model averaging removes s²(x)(1 − 1/K) and leaves s²(x)/K of what the models differ in.

Boosted trees of real targets are blended with bagged ones (`means.bagging`), whose unseen rows are those out
of bag: t is then (1 − a) boosted + a bagged.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logit

from duogp.data.rows import groups_of_inputs
from duogp.means.affine import Affine, Logistic, Ridge
from duogp.means.bagging import Bagged, blend_share
from duogp.means.columns import OnColumns, is_wide, telling_columns
from duogp.means.forest import Forest
from duogp.means.rounds import Growing, Rows

Array = NDArray[np.float64]

#: Probabilities and rates of a model stay this far from zero before their logarithm is taken.
TINY = 1e-6
FOLDS = 5
#: Kinds of targets whose latent values are averages of targets.
BLENDED = ("real", "unit")
#: Of values in scaled units.
LARGEST = 1e6
#: Rows from which trees are grown on all cores: threads that wait for a busy core cost more than they give.
THREADED_ROWS = 50_000
#: Rows below which trees learn faster, at this rate, and are looked at more often.
FEW_ROWS = 2000
FEW_ROWS_RATE = 0.1
#: Rows up to which boosted trees are blended with bagged ones.
BAGGED_ROWS = 50_000
#: Share of the time, where it is short, that they may take.
BAGGED_SHARE = 0.25
#: Cells of a table that a tree goes through in a second, about, and the share of the time that the first
#: trees may take: where there is less time, they grow on a sample of the rows, but not on fewer than these.
CELLS_A_SECOND, FIRST_SHARE, FEWEST_ROWS = 3e7, 0.5, 20_000
#: Share of the loss that a round must gain, and nats a row of labels, whose loss may fall for ever.
LEAST_GAIN, LEAST_NATS = 1e-3, 5e-4
#: Trees of the first round, after which the clock is looked at, and fewest of another where time is short.
FIRST_TREES, FEWEST_MORE = 10, 5


class Goal(NamedTuple):
    """What is to be predicted: the kind of a target (`data.targets`) and the number of its classes."""

    kind: str  # "real", "count", "positive", "unit" or "classes"
    classes: int | None = None
    outputs: int = 1

    @property
    def columns(self) -> int:
        """Latent functions that a mean is predicted for."""
        if self.classes is None:
            return self.outputs
        return 1 if self.classes == 2 else self.classes


@dataclass(frozen=True)
class Trees:
    """Boosted trees (scikit-learn's HistGradientBoosting), all folds grown together.

    They grow in rounds of ``trees_per_round`` until the loss on the rows that each has not seen stops
    improving, at most ``max_trees``. Smaller tables have smaller leaves.
    """

    learning_rate: float | None = None  # None: 0.08; 0.1 below 2,000 rows, 0.2 for more than five classes
    max_leaves: int | None = None  # None: 31, fewer below 1,000 rows
    min_leaf: int | None = None  # rows; None: 20, fewer below 2,000 rows
    l2: float = 1.0
    max_trees: int = 600
    trees_per_round: int = 50
    max_features: float | None = None  # share of the columns of a split; None: 0.7, classes 0.5
    bagged: int = 100  # bagged trees that real targets are blended with

    def model(self, goal: Goal, n: int, inputs: int, seed: int) -> Any:
        """An unfitted model of a first round, for n rows of so many columns."""
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        own = {
            "learning_rate": self.learning_rate or self._rate(goal, n),
            "max_leaf_nodes": self.max_leaves or max(4, min(31, n // 32)),
            "min_samples_leaf": self.min_leaf or max(5, min(20, n // 100)),
            "l2_regularization": self.l2,
            "max_features": self.max_features or (1.0 if inputs < 5 else 0.5 if goal.classes else 0.7),
            "max_iter": self.trees_per_round,
            "early_stopping": False,
            "warm_start": True,
            "random_state": seed,
        }
        if goal.kind == "classes":
            return HistGradientBoostingClassifier(**own)
        losses = {"count": "poisson", "positive": "gamma"}
        return HistGradientBoostingRegressor(loss=losses.get(goal.kind, "squared_error"), **own)

    def _rate(self, goal: Goal, n: int) -> float:
        if (goal.classes or 0) > 5:  # a tree for each class and round: rounds are few
            return 0.2
        return FEW_ROWS_RATE if n < FEW_ROWS else 0.08


@dataclass(frozen=True, eq=False)
class CrossFit:
    """K fitted models of one goal, each a regressor or classifier for every output; see the module."""

    models: list[list[Any]]  # [folds][outputs]: scikit-learn's, or a `Forest`
    goal: Goal
    inputs: int  # columns of X
    held_out: Array | None = None  # predictions for the rows they were trained on, [n, columns], unseen
    bagged: list[Forest] | None = None  # of every output, beside the folds
    share: Array | None = None  # a of every output, their share in the blend
    hurried: bool = False  # whether the clock ended trees that still improved
    memo: dict[str, tuple[bytes, Array, Array]] = field(default_factory=dict, repr=False)

    @property
    def folds(self) -> int:
        """The number of folds, each with a model of its own."""
        return len(self.models)

    def at(self, X: NDArray, device: torch.device | None = None) -> tuple[Array, Array]:
        """t̄ and s² at new rows, each [n, columns]; trees are evaluated on a GPU where one is given.

        The last answer is kept: the members of a stack ask about the same rows.
        """
        key = hashlib.blake2b(np.ascontiguousarray(X).data).digest()
        last = self.memo.get("last")
        if last is None or last[0] != key:
            last = self.memo["last"] = (key, *self._at(X, device))
        return last[1].copy(), last[2].copy()

    def _at(self, X: NDArray, device: torch.device | None) -> tuple[Array, Array]:
        values = np.stack([self._fold(fold, X, device) for fold in self.models])
        spread = values.var(0, ddof=1) if len(values) > 1 else np.zeros_like(values[0])
        mean = values.mean(0)
        if self.bagged is None or self.share is None:
            return mean, spread
        bagged = self._fold(self.bagged, X, device)
        return (1 - self.share) * mean + self.share * bagged, (1 - self.share) ** 2 * spread

    def _fold(self, models: Sequence[Any], X: NDArray, device: torch.device | None) -> Array:
        if device is not None and device.type == "cuda":
            forms = [as_arrays(model) for model in models]
            if all(form is not None for form in forms):
                x = torch.as_tensor(np.ascontiguousarray(X), dtype=torch.float64, device=device)
                parts = [form.to(device)(x).cpu().numpy() for form in forms if form is not None]
                return _from_sums(np.concatenate(parts, 1), self.goal)
        with few_threads(len(X)):
            return np.concatenate([latent_values(model, X, self.goal) for model in models], 1)

    def arrays(self) -> list[list[Forest | Affine]] | None:
        """All models as arrays; None where one has no such form."""
        found = [[as_arrays(model) for model in fold] for fold in self.models]
        if any(form is None for fold in found for form in fold):
            return None
        return [[form for form in fold if form is not None] for fold in found]


def as_arrays(model: Any) -> Forest | Affine | None:
    """A fitted model as arrays; None where it has no such form."""
    if isinstance(model, OnColumns):
        return model.forest()
    return model if isinstance(model, Forest | Affine) else Forest.of(model)


def moderate(values: Array) -> Array:
    """Values [...] in scaled units, finite and at most a million: targets may be too small to be scaled."""
    return np.nan_to_num(values, nan=0.0).clip(-LARGEST, LARGEST)


def latent_values(model: Any, X: NDArray, goal: Goal) -> Array:
    """A fitted model's predictions in the space of the latent function: [n, columns], or [n, 1] of many."""
    if isinstance(model, Forest | Affine):
        with torch.no_grad():
            rows = torch.as_tensor(np.ascontiguousarray(X), dtype=torch.float64)
            return _from_sums(model(rows).numpy(), goal)
    if goal.kind == "classes":
        assert goal.classes is not None
        if hasattr(model, "predict_proba"):
            logs = np.log(class_probabilities(model, X, goal.classes).clip(TINY, 1.0))
        else:
            raise TypeError(
                f"{type(model).__name__} as the mean of classes has no predict_proba: use a classifier"
            )
        return logs[:, 1:] - logs[:, :1] if goal.classes == 2 else logs - logs.mean(1, keepdims=True)
    values = np.asarray(model.predict(X), dtype=np.float64).reshape(len(X), -1)
    if goal.kind in ("count", "positive"):
        return np.log(values.clip(TINY, 1 / TINY))
    return values


def class_probabilities(model: Any, X: NDArray, classes: int) -> Array:
    """p [n, classes] of a fitted classifier, which may have seen fewer classes."""
    seen = np.asarray(model.classes_, dtype=int)
    p = np.full((len(X), classes), TINY)
    p[:, seen] = model.predict_proba(X)[:, : len(seen)]  # boosted trees of one class give two columns
    return p


def _from_sums(raw: Array, goal: Goal) -> Array:
    """Sums of trees as latent values: of several classes less their mean, logs within the same bounds.

    Boosted logs can fall far below any target; the values here must be those of `predict`.
    """
    if goal.kind in ("count", "positive"):
        return raw.clip(np.log(TINY), -np.log(TINY))
    return raw - raw.mean(1, keepdims=True) if (goal.classes or 0) > 2 else raw


def cross_fit(
    spec: Trees | Any,
    X: NDArray,
    y: NDArray,
    goal: Goal,
    *,
    weights: NDArray | None = None,
    folds: int = FOLDS,
    seed: int = 0,
    deadline: float | None = None,
) -> CrossFit:
    """Fit ``spec`` to y [n, outputs] at the rows X, by folds.

    ``spec``: `Trees`, `Ridge`, `Logistic`, `Bagged`, or an unfitted scikit-learn model. `Bagged` labels
    have no folds: every row is out of the bag of some trees.

    ``deadline``: the value of `time.perf_counter` after which no more rounds of trees are grown.
    """
    from sklearn.base import clone  # here, because it takes a second to import

    n = len(X)
    if isinstance(spec, Bagged):
        if goal.kind != "classes":
            raise TypeError("bagged trees alone are a mean of classes")
        form, unseen = spec.fit(X, y[:, 0].astype(np.int64), goal.classes, weights, seed, deadline)
        return CrossFit([[form]], goal, X.shape[1], unseen)
    if isinstance(spec, Ridge) and goal.kind not in BLENDED:
        raise TypeError(
            "a ridge regression is a mean of real numbers and of shares: mean='trees' takes others"
        )
    labels = y[:, 0] if goal.kind == "classes" else None
    fold = assign_folds(labels, n, folds, seed, groups_of_inputs(X, weights))
    count = int(fold.max()) + 1
    alone = np.zeros(n, dtype=bool) if labels is None else _of_one_fold(labels, fold)
    targets = [_model_target(y[:, p], goal) for p in range(y.shape[1])]
    held_out = np.zeros((n, goal.columns))
    blended = isinstance(spec, Trees) and bool(spec.bagged) and goal.kind in BLENDED and n <= BAGGED_ROWS
    hurried, now, boosted_until = False, time.perf_counter(), deadline
    if blended and deadline is not None:
        boosted_until = now + (1 - BAGGED_SHARE) * (deadline - now)
    most = n
    if isinstance(spec, Trees) and boosted_until is not None:
        cells = CELLS_A_SECOND * max(boosted_until - now, 0.0) * FIRST_SHARE
        most = max(FEWEST_ROWS, int(cells / (FIRST_TREES * count * X.shape[1] * goal.columns)))
    models: list[list[Any]] = [[] for _ in range(count)]
    for p, target in enumerate(targets):
        columns = slice(None) if goal.kind == "classes" else slice(p, p + 1)
        jobs = [
            _Job(_some(np.flatnonzero((fold != k) | alone), most, seed, labels), np.flatnonzero(fold == k))
            for k in range(count)
        ]
        if isinstance(spec, Logistic):
            assert goal.classes is not None
            fitted = [_logistic(spec, X, target, goal.classes, job, weights) for job in jobs]
        elif isinstance(spec, Ridge):
            fitted = spec.fit(X, target, fold, weights)
        elif isinstance(spec, Trees):
            fitted, late = _grow(spec, X, target, goal, jobs, weights, seed, boosted_until)
            hurried |= late
        else:
            fitted = [_fit(clone(spec), X, target, goal, job, weights) for job in jobs]
        for k, (model, job) in enumerate(zip(fitted, jobs, strict=True)):
            models[k].append(model)
            with few_threads(n):
                held_out[job.held_out, columns] = latent_values(model, X[job.held_out], goal)
    made = CrossFit(models, goal, X.shape[1], held_out, hurried=hurried)
    if blended and (deadline is None or time.perf_counter() < deadline):
        return _blended(made, Bagged(spec.bagged), X, targets, weights, seed, deadline)
    return made


def _blended(
    boosted: CrossFit,
    spec: Bagged,
    X: NDArray,
    targets: list[NDArray],
    weights: NDArray | None,
    seed: int,
    deadline: float | None,
) -> CrossFit:
    """The same with bagged trees beside its folds, where they have a share."""
    assert boosted.held_out is not None
    fitted = [spec.fit(X, y, None, weights, seed, deadline) for y in targets]
    unseen = np.concatenate([out for _, out in fitted], 1)
    share = np.array(
        [
            blend_share(y, first, second, weights)
            for y, first, second in zip(targets, boosted.held_out.T, unseen.T, strict=True)
        ]
    )
    if not share.any():
        return boosted
    held_out = (1 - share) * boosted.held_out + share * unseen
    return replace(boosted, held_out=held_out, bagged=[form for form, _ in fitted], share=share, memo={})


def _some(rows: NDArray[np.intp], most: int, seed: int, labels: NDArray | None) -> NDArray[np.intp]:
    """All of the rows, or a random sample of so many and a row of each class that it lacks."""
    if len(rows) <= most:
        return rows
    chosen = np.random.default_rng(seed).choice(rows, most, replace=False)
    if labels is not None:
        classes, first = np.unique(labels[rows], return_index=True)
        chosen = np.concatenate([chosen, rows[first[~np.isin(classes, labels[chosen])]]])
    return np.sort(chosen)


def _of_one_fold(labels: NDArray, fold: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Rows [n] of classes that are in one fold alone: no model could be trained without them."""
    code = np.unique(labels, return_inverse=True)[1]
    folds = np.zeros((code.max() + 1, fold.max() + 1), dtype=bool)
    folds[code, fold] = True
    return (folds.sum(1) == 1)[code]


class _Job(NamedTuple):
    train: NDArray[np.intp]
    held_out: NDArray[np.intp]


def assign_folds(
    labels: NDArray | None, n: int, folds: int, seed: int, groups: NDArray[np.intp] | None = None
) -> NDArray[np.intp]:
    """The fold of every row, [n]: at random, the classes of ``labels`` spread evenly.

    Rows of one of the ``groups`` [n] share a fold, unless the rows outside of a fold were then of one class.
    """
    if groups is not None and (count := int(groups.max()) + 1) > 1:
        _, first = np.unique(groups, return_index=True)
        fold = assign_folds(None if labels is None else labels[first], count, folds, seed)[groups]
        parts = [fold != k for k in range(int(fold.max()) + 1)]
        if labels is None or all(len(np.unique(labels[part])) > 1 for part in parts):
            return fold
    folds = max(2, min(folds, n))
    order = np.random.default_rng(seed).permutation(n)
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(n, dtype=np.intp)
    fold[order] = np.arange(n) % folds
    return fold


def _model_target(y: NDArray, goal: Goal) -> NDArray:
    """Targets as the models are trained on them."""
    if goal.kind == "unit":
        return np.asarray(logit(y))
    return y.astype(np.int64) if goal.kind == "classes" else y.astype(np.float64)


def _logistic(
    spec: Logistic, X: NDArray, y: NDArray, classes: int, job: _Job, weights: NDArray | None
) -> Affine:
    own = None if weights is None else weights[job.train]
    return spec.fit(X[job.train], y[job.train], classes, own)


def _fit(model: Any, X: NDArray, y: NDArray, goal: Goal, job: _Job, weights: NDArray | None) -> Any:
    from sklearn.base import is_classifier
    from sklearn.utils.validation import has_fit_parameter

    if (goal.kind == "classes") != is_classifier(model):
        wanted = "a classifier" if goal.kind == "classes" else "a regressor"
        raise TypeError(f"the mean of this target must be {wanted}, got {type(model).__name__}")
    if weights is None:
        return model.fit(X[job.train], y[job.train])
    if not has_fit_parameter(model, "sample_weight"):
        raise ValueError(f"{type(model).__name__} takes no sample_weight: fit without, or with mean='trees'")
    return model.fit(X[job.train], y[job.train], sample_weight=weights[job.train])


def _grow(
    spec: Trees,
    X: NDArray,
    y: NDArray,
    goal: Goal,
    jobs: Sequence[_Job],
    weights: NDArray | None,
    seed: int,
    deadline: float | None,
) -> tuple[list[Any], bool]:
    """One model for each job, grown in rounds until the loss on unseen rows rises; whether time ended it."""
    models = [_unfitted(spec, X, y, goal, job, seed + k) for k, job in enumerate(jobs)]
    growing = [
        Growing(m, _rows(X, y, weights, job.train), _rows(X, y, weights, job.held_out))
        for m, job in zip(models, jobs, strict=True)
    ]
    loss, best, rising = _loss(goal), np.inf, 0
    total = np.ones(len(y)) if weights is None else weights
    step = spec.trees_per_round if len(y) >= FEW_ROWS else max(1, spec.trees_per_round // 2)
    grown, trees = 0, min(FIRST_TREES, spec.max_trees)
    while grown < trees:
        score, begun = 0.0, time.perf_counter()
        with few_threads(len(y)):
            for own, job in zip(growing, jobs, strict=True):
                own.grow(trees)
                score += float((total[job.held_out] * own.loss(loss)).sum())
        nats = LEAST_NATS * float(total.sum()) if goal.kind == "classes" else 0.0
        enough = max(LEAST_GAIN * min(best, 1e300), nats)
        rising = 0 if score < best - enough or best == np.inf else rising + 1
        best = min(best, score)
        if rising == 2:
            break
        now = time.perf_counter()
        pace, grown = (now - begun) / (trees - grown), trees
        # To the next multiple of a round, or as far as there is time for.
        more = min(step - grown % step, spec.max_trees - grown)
        if deadline is not None and more * pace > deadline - now:
            more = int((deadline - now) / pace)
            if more < FEWEST_MORE:
                return models, True
        trees = grown + more
    return models, False


def _rows(X: NDArray, y: NDArray, weights: NDArray | None, which: NDArray[np.intp]) -> Rows:
    return Rows(X[which], y[which], None if weights is None else weights[which])


def few_threads(rows: int) -> AbstractContextManager[Any]:
    """One thread for small tables: threads wait for each other in every node, longer than the work takes."""
    return nullcontext() if rows >= THREADED_ROWS else _thread_pools().limit(limits=1, user_api="openmp")


@cache
def _thread_pools() -> Any:
    """The libraries with threads, looked up once, after scikit-learn's are there: it takes milliseconds."""
    import sklearn.ensemble  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _unfitted(spec: Trees, X: NDArray, y: NDArray, goal: Goal, job: _Job, seed: int) -> Any:
    """The model of a job, on some columns of a wide table."""
    n, inputs = len(job.train), X.shape[1]
    if not is_wide(n, inputs):
        return spec.model(goal, n, inputs, seed)
    columns = telling_columns(X[job.train], y[job.train], goal.kind == "classes")
    return OnColumns(spec.model(goal, n, len(columns), seed), columns, inputs)


def _loss(goal: Goal) -> Callable[[Any, NDArray, NDArray], NDArray]:
    """The loss of every row under a fitted model, not negative."""
    if goal.kind == "classes":

        def log_loss(model: Any, X: NDArray, y: NDArray) -> NDArray:
            p = class_probabilities(model, X, goal.classes or 2)
            return -np.log(p[np.arange(len(y)), y].clip(TINY, 1.0))

        return log_loss
    if goal.kind == "count":
        return lambda model, X, y: _poisson_deviance(y, model.predict(X))
    if goal.kind == "positive":
        return lambda model, X, y: y / (m := model.predict(X).clip(TINY)) - np.log(y / m) - 1
    return lambda model, X, y: (y - model.predict(X)) ** 2


def _poisson_deviance(y: NDArray, rate: NDArray) -> NDArray:
    rate = rate.clip(TINY)
    return np.where(y > 0, y * np.log(np.maximum(y, 1) / rate), 0.0) - y + rate
