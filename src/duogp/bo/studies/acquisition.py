"""Proposals by BoTorch's acquisition functions on a model of duogp, in any space.

One objective: qLogNoisyExpectedImprovement; several: qLogExpectedHypervolumeImprovement over the posterior
means of what was evaluated. Outcome constraints are handed to both. Pending points, and those already chosen
of a batch, are integrated over by the acquisition function (`X_pending`).

The maximum is sought among valid points alone: the best of many candidates start a gradient search in the
columns of numbers, which is snapped to the space; then single parameters are changed to other values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from duogp.bo.candidates import Floats
from duogp.bo.spaces import Categorical, Integer, Space
from duogp.bo.studies.trials import History

if TYPE_CHECKING:
    from botorch.acquisition import AcquisitionFunction
    from botorch.models.model import Model
    from botorch.posteriors import GPyTorchPosterior
    from botorch.utils.multi_objective.box_decompositions import NondominatedPartitioning

#: Candidates over the whole space and near the best points, of which the best start searches.
WIDE, NEAR, STARTS = 512, 512, 4
#: Steps of a gradient search, and sweeps over single parameters.
STEPS, SWEEPS = 40, 3
#: Most levels of an integer that are tried one by one; others are searched as if they were real.
FEW_LEVELS = 16
MC_SAMPLES = 128
#: Evaluations that the improvement is measured against, the best ones.
BASELINE = 100
#: Sides of the boxes around the best points, in units of the cube.
BOXES = (0.5, 0.1, 0.02)

Score = Callable[[Floats], Floats]


def acquisition(model: Model, history: History, pending: Floats, seed: int) -> AcquisitionFunction:
    """The acquisition function of a history: larger is better."""
    from botorch.acquisition.logei import qLogNoisyExpectedImprovement
    from botorch.acquisition.multi_objective.logei import qLogExpectedHypervolumeImprovement
    from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective
    from botorch.acquisition.objective import GenericMCObjective
    from botorch.sampling.normal import SobolQMCNormalSampler
    from botorch.utils.multi_objective.box_decompositions.non_dominated import FastNondominatedPartitioning

    objectives, limits = history.Y.shape[1], history.C.shape[1]
    sampler = SobolQMCNormalSampler(torch.Size([MC_SAMPLES]), seed=seed)
    constraints = [_column(objectives + i) for i in range(limits)] or None
    waiting = torch.as_tensor(pending) if len(pending) else None
    if objectives == 1:
        first = GenericMCObjective(_objective) if limits else None
        return qLogNoisyExpectedImprovement(
            model,
            torch.as_tensor(history.X[baseline(history)]),
            sampler=sampler,
            objective=first,
            constraints=constraints,
            X_pending=waiting,
            prune_baseline=True,
            cache_root=False,
        )
    with torch.no_grad():
        each = torch.as_tensor(history.X).unsqueeze(-2)  # one by one: no covariance between them
        means = cast("GPyTorchPosterior", model.posterior(each)).mean[:, 0, :objectives]
    good = torch.as_tensor(history.feasible)
    reference = reference_point(means[good] if good.any() else means)
    with _without_compiling():
        return qLogExpectedHypervolumeImprovement(
            model,
            reference,
            cast("NondominatedPartitioning", FastNondominatedPartitioning(reference, means[good])),
            sampler=sampler,
            objective=IdentityMCMultiOutputObjective(outcomes=list(range(objectives))),
            constraints=constraints,
            X_pending=waiting,
        )


@contextmanager
def _without_compiling() -> Iterator[None]:
    """Inside, BoTorch uses its compiled qLogEHVI only if that is there already.

    BoTorch 0.18 compiles it when it is first used, for half a minute. A process that is killed meanwhile
    leaves a lock behind on which later ones would wait forever.
    """
    from botorch.acquisition.multi_objective import logei

    before = getattr(logei, "_load_attempted", None)
    if before is not None:
        logei._load_attempted = True
    try:
        yield
    finally:
        if before is not None:
            logei._load_attempted = before


def baseline(history: History) -> np.ndarray:
    """Rows that may hold the best value: all, or the best `BASELINE` of many."""
    return np.sort(np.argsort(-history.merit(), kind="stable")[:BASELINE])


def _objective(Y: Tensor, X: Tensor | None = None) -> Tensor:
    return Y[..., 0]


def _column(i: int) -> Callable[[Tensor], Tensor]:
    return lambda Y: Y[..., i]


def reference_point(Y: Tensor) -> Tensor:
    """A point [m] a tenth of the range of the Pareto front of Y [n, m] below its worst; larger is better."""
    from botorch.utils.multi_objective.hypervolume import infer_reference_point
    from botorch.utils.multi_objective.pareto import is_non_dominated

    return infer_reference_point(Y[is_non_dominated(Y)], scale=0.1)


def propose(
    model: Model, space: Space, history: History, q: int, rng: np.random.Generator, best: Floats
) -> Floats:
    """q points [q, columns], chosen one after the other; ``best`` [k, columns]: points to search around."""
    chosen = np.empty((0, space.width))
    for _ in range(q):
        pending = np.concatenate([history.pending, chosen])
        function = acquisition(model, history, pending, int(rng.integers(2**31)))
        taken = np.concatenate([history.taken, chosen])
        chosen = np.concatenate([chosen, maximise(function, space, taken, rng, best)[None]])
    return chosen


def maximise(
    function: AcquisitionFunction, space: Space, taken: Floats, rng: np.random.Generator, best: Floats
) -> Floats:
    """The best point [columns] found that is not taken; a taken one where there are no others."""

    def score(X: Floats) -> Floats:
        with torch.no_grad():
            parts = [function(x.unsqueeze(-2)) for x in torch.as_tensor(X).split(256)]
        return torch.cat(parts).numpy()

    candidates = np.concatenate([space.sample(WIDE, rng), *_around(space, best, rng)])
    free = _free(candidates, taken)
    candidates = candidates[free] if free.any() else candidates
    values = score(candidates)
    top = np.argsort(-values)[:STARTS]
    points, values = candidates[top], values[top]

    def climb(points: Floats, values: Floats, columns: np.ndarray) -> tuple[Floats, Floats]:
        if not len(columns):
            return points, values
        return _better(points, values, _ascend(function, space, points, columns), taken, score)

    points, values = climb(points, values, smooth_columns(space, integers=True))
    best_of_all, value = points[[values.argmax()]], values[[values.argmax()]]
    if any(parameter.levels is not None for parameter in space.parameters.values()):
        best_of_all, value = _swept(space, best_of_all, value, taken, score)
        best_of_all, _ = climb(best_of_all, value, smooth_columns(space, integers=False))
    return best_of_all[0]


def _around(space: Space, best: Floats, rng: np.random.Generator) -> list[Floats]:
    """Candidates near each of the best points, in boxes of several sizes."""
    out = []
    for centre in best:
        for side in BOXES:
            low, high = np.clip(centre - side / 2, 0, 1), np.clip(centre + side / 2, 0, 1)
            number = max(8, NEAR // (len(BOXES) * len(best)))
            out.append(space.perturbed(centre, low, high, number, rng, moved=max(2, len(space.names) / 3)))
    return out


def rows_of(X: Floats) -> list[bytes]:
    """A key for each row of X [n, d], the same for rows that differ by rounding alone."""
    return [row.tobytes() for row in np.round(X, 9) + 0.0]


def _free(X: Floats, taken: Floats) -> np.ndarray:
    known = set(rows_of(taken))
    return np.array([row not in known for row in rows_of(X)], dtype=bool)


def smooth_columns(space: Space, integers: bool) -> np.ndarray:
    """Columns that a gradient search moves: of real parameters, and of integers with many levels."""
    out = []
    for parameter, place in zip(space.parameters.values(), space.slices, strict=True):
        if isinstance(parameter, Categorical):
            continue
        if isinstance(parameter, Integer) and not (integers and (parameter.levels or 0) > FEW_LEVELS):
            continue
        out.append(place.start)
    return np.array(out, dtype=int)


def _ascend(function: AcquisitionFunction, space: Space, points: Floats, columns: np.ndarray) -> Floats:
    """Points after a gradient search in some columns, snapped to the space."""
    raw = space.from_cube(points, repair=False)
    active = ~np.isnan(raw)
    owner = {place.start: i for i, place in enumerate(space.slices)}
    # columns of parameters that are not active have no effect and stay
    free = np.stack([active[:, owner[int(c)]] for c in columns], 1)
    start = torch.as_tensor(points)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        x = torch.as_tensor(flat.reshape(len(points), len(columns))).requires_grad_()
        full = start.clone()
        full[:, columns] = torch.where(torch.as_tensor(free), x, start[:, columns])
        value = -function(full.unsqueeze(-2)).sum()
        (slope,) = torch.autograd.grad(value, x)
        if not (torch.isfinite(value) and torch.isfinite(slope).all()):
            return 1e30, np.zeros_like(flat)
        return value.item(), slope.numpy().ravel()

    found = minimize(
        loss,
        points[:, columns].ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0)] * (len(points) * len(columns)),
        options={"maxiter": STEPS},
    )
    moved = points.copy()
    moved[:, columns] = np.where(free, found.x.reshape(len(points), -1), points[:, columns])
    return _inside(space, points, moved)


def _inside(space: Space, start: Floats, end: Floats) -> Floats:
    """Ends snapped to the space; where constraints forbid one, the last allowed point on the way to it."""
    out = space.from_cube(end, repair=False)
    for i in np.flatnonzero(~space.feasible(out)):
        way = np.linspace(1.0, 0.0, 33)[:, None]
        steps = space.from_cube(start[i] + way * (end[i] - start[i]), repair=False)
        out[i] = steps[int(space.feasible(steps).argmax())]  # the start itself is feasible
    return space.to_cube(out)


def _better(
    points: Floats, values: Floats, moved: Floats, taken: Floats, score: Score
) -> tuple[Floats, Floats]:
    """For each point the moved one, where that is better and free."""
    after = np.where(_free(moved, taken), score(moved), -np.inf)
    wins = after > values
    return np.where(wins[:, None], moved, points), np.where(wins, after, values)


def _swept(space: Space, point: Floats, values: Floats, taken: Floats, score: Score) -> tuple[Floats, Floats]:
    """A point [1, columns] and its value after changes of single discrete parameters that improve it."""
    best, value = point[0], float(values[0])
    for _ in range(SWEEPS):
        others = neighbours(space, best)
        others = others[_free(others, taken)] if len(others) else others
        if not len(others):
            break
        found = score(others)
        if found.max() <= value:
            break
        best, value = others[found.argmax()], float(found.max())
    return best[None], np.array([value])


def neighbours(space: Space, point: Floats) -> Floats:
    """Valid points [n, columns] that differ from one in the value of one category or integer."""
    raw = space.from_cube(point[None], repair=False)[0]
    out = []
    for i, parameter in enumerate(space.parameters.values()):
        if parameter.levels is None or np.isnan(raw[i]):
            continue
        if isinstance(parameter, Categorical):
            values: Any = range(parameter.levels)
        elif isinstance(parameter, Integer):
            few = parameter.levels <= FEW_LEVELS
            steps = range(-FEW_LEVELS, FEW_LEVELS + 1) if few else (-2, -1, 1, 2)
            values = [raw[i] + s for s in steps if parameter.low <= raw[i] + s <= parameter.high]
        for value in values:
            if value != raw[i]:
                out.append(raw.copy())
                out[-1][i] = value
    if not out:
        return np.empty((0, space.width))
    changed = space.completed(np.stack(out))
    return space.to_cube(changed[space.feasible(changed)])
