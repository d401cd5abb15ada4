"""Proposers: rules that choose the next points of a study from its history.

    model      a GP and a BoTorch acquisition function; Thompson sampling where BoTorch is not installed
    thompson   the best candidates under functions drawn from a GP
    turbo      Thompson sampling inside a trust region (Eriksson et al. 2019), in mixed spaces too
    random     valid points at random

They keep no state: random numbers come from the seed and the number of points asked for, trust regions from
the order of the evaluations. A study that is opened again proposes what it would have proposed.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from duogp.bo.candidates import Floats, normalised_weights, num_candidates, trust_box
from duogp.bo.regions import PAPER_SUCCESSES, TrustRegion
from duogp.bo.spaces import Space
from duogp.bo.studies.acquisition import propose, rows_of
from duogp.bo.studies.models import GrowingModel, surrogate
from duogp.bo.studies.trials import History
from duogp.bo.surrogates import GPSurrogate
from duogp.errors import DataWarning

#: Purposes of random numbers.
DESIGN, PROPOSAL, FIT, DRAW = range(4)
#: Parameters in which a candidate of a trust region differs from its centre, on average.
MOVED = 20
#: Best points that candidates are sought around.
CENTRES = 3


class Proposer(ABC):
    """A rule that proposes points of a space."""

    def __init__(self, space: Space, seed: int, initial: int) -> None:
        self.space, self.seed, self.initial = space, seed, initial

    def propose(self, history: History, q: int) -> Floats:
        """q valid points [q, columns] of the cube."""
        out = self._design(history)[:q]
        if len(out) < q:
            rng = self.rng(PROPOSAL, history.asked)
            pending = np.concatenate([history.pending, out])
            later = replace(history, pending=pending, asked=history.asked + len(out))
            ready = len(np.unique(history.Y[history.known], axis=0)) > 1
            rest = q - len(out)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # columns of categories may well be constant
                chosen = self.choose(later, rest, rng) if ready else self.space.sample(rest, rng)
            out = np.concatenate([out, chosen])
        return self._distinct(out, history)

    @abstractmethod
    def choose(self, history: History, q: int, rng: np.random.Generator) -> Floats:
        """q points, from at least two different evaluations."""

    def rng(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *purpose])

    def _design(self, history: History) -> Floats:
        """What is left of the initial design, unless enough is known without it."""
        left = max(0, self.initial - int(history.known.sum()) - len(history.pending))
        return self.space.design(self.initial, self.rng(DESIGN))[history.asked : history.asked + left]

    def _distinct(self, points: Floats, history: History) -> Floats:
        """The points, those pending or twice in the batch replaced by random ones while there are others."""
        rng = self.rng(PROPOSAL, history.asked, 1)
        seen = set(rows_of(history.pending))
        out = points.copy()
        for i, key in enumerate(rows_of(points)):
            if key in seen:
                others = self.space.sample(64, rng)
                free = [j for j, row in enumerate(rows_of(others)) if row not in seen]
                if free:
                    out[i] = others[free[0]]
                    key = rows_of(out[i : i + 1])[0]
            seen.add(key)
        return out


class Random(Proposer):
    """Valid points at random, after the initial design."""

    def choose(self, history: History, q: int, rng: np.random.Generator) -> Floats:
        return self.space.sample(q, rng)


class ByModel(Proposer):
    """Points that maximise an acquisition function of a GP, by BoTorch."""

    def __init__(self, space: Space, seed: int, initial: int, method: str | None, **settings: Any) -> None:
        super().__init__(space, seed, initial)
        self.models = GrowingModel(method, **settings)

    def choose(self, history: History, q: int, rng: np.random.Generator) -> Floats:
        import torch
        from botorch.exceptions.warnings import BotorchWarning
        from linear_operator.utils.warnings import NumericalWarning

        # the user's random numbers are left alone
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)  # jitter in draws of near-by points
            warnings.simplefilter("ignore", BotorchWarning)  # all points are infeasible so far
            torch.manual_seed(int(rng.integers(2**31)))
            model = self.models.of(history.X, history.targets())
            return propose(model, self.space, history, q, rng, best_points(history))


class Thompson(Proposer):
    """The best of many candidates under functions drawn from GPs, one for each place of the batch.

    Several objectives are weighed at random for each place (the least of the weighed, standardised values).
    Where constraints are violated under a draw, the least violation counts.
    """

    def __init__(self, space: Space, seed: int, initial: int, method: str | None, **settings: Any) -> None:
        super().__init__(space, seed, initial)
        self.method, self.settings = method, settings
        self.candidates: int = self.settings.pop("candidates", None) or num_candidates(len(space.names))

    def choose(self, history: History, q: int, rng: np.random.Generator) -> Floats:
        models = self._models(history, rng)
        candidates = self._candidates(history, models[0], rng)
        taken = set(rows_of(history.taken))
        free = np.array([row not in taken for row in rows_of(candidates)])
        candidates = candidates[free] if free.sum() >= q else candidates
        draws = np.stack([m.draw(candidates, q, int(rng.integers(2**31))) for m in models])  # [m, q, n]
        values = self._scalar(draws, history, rng)
        chosen: list[int] = []
        for row in values:
            row[chosen] = -np.inf
            chosen.append(int(row.argmax()))
        return candidates[chosen]

    def _models(self, history: History, rng: np.random.Generator) -> list[GPSurrogate]:
        seed = int(rng.integers(2**31))
        return [
            surrogate(history.X, column, seed, self.method, **self.settings) for column in history.targets().T
        ]

    def _candidates(self, history: History, model: GPSurrogate, rng: np.random.Generator) -> Floats:
        wide = self.space.sample(self.candidates // 2, rng)
        near = []
        best = best_points(history)
        for centre in best:
            for side in (0.3, 0.05):
                low, high = np.clip(centre - side / 2, 0, 1), np.clip(centre + side / 2, 0, 1)
                number = max(16, self.candidates // (4 * len(best)))
                near.append(self.space.perturbed(centre, low, high, number, rng, MOVED))
        return _unique(np.concatenate([wide, *near]))

    def _scalar(self, draws: Floats, history: History, rng: np.random.Generator) -> Floats:
        """One value of each candidate under each draw [q, n], larger being better."""
        number = history.Y.shape[1]
        objectives, excess = draws[:number], np.maximum(draws[number:], 0.0).sum(0)
        if number == 1:
            out = objectives[0]
        else:
            known = history.Y[history.known]
            low, high = known.min(0)[:, None, None], known.max(0)[:, None, None]
            weights = rng.dirichlet(np.ones(number), size=draws.shape[1]).T[:, :, None]
            scaled = (objectives - low) / np.where(high > low, high - low, 1.0)
            out = np.min(scaled / np.maximum(weights, 1e-3), 0)
        out = out.copy()
        for row, wrong in zip(out, excess, strict=True):
            if (wrong == 0).any():
                row[wrong > 0] = -np.inf
            else:
                row[:] = -wrong
        return out


class Turbo(Thompson):
    """Thompson sampling inside one trust region around the best point, for one objective.

    The region is that of `duogp.bo.regions`; successes (three, as in the paper) and failures (max(4,
    parameters)) in a row are counted in evaluations, since these come back one by one. After a restart only
    later evaluations count.
    """

    def propose(self, history: History, q: int) -> Floats:
        self._region, current = self._current(history)
        return super().propose(current, q)

    def _design(self, history: History) -> Floats:
        if not self._region.generation:
            return super()._design(history)
        place = len(history.X) + len(history.pending)
        return self.space.design(self.initial, self.rng(DESIGN, self._region.generation))[place:]

    def _candidates(self, history: History, model: GPSurrogate, rng: np.random.Generator) -> Floats:
        centre = history.X[history.merit().argmax()]
        weights = normalised_weights(model.lengthscales(), self.space.width)
        low, high = trust_box(centre, self._region.length, weights)
        return _unique(self.space.perturbed(centre, low, high, self.candidates, rng, MOVED))

    def _current(self, history: History) -> tuple[TrustRegion, History]:
        """The trust region after all evaluations, and the history since its last start."""
        tolerance = max(4, len(self.space.names))
        region = TrustRegion(tolerance, counts_evaluations=True, success_tolerance=PAPER_SUCCESSES)
        start, best, merit = 0, -np.inf, history.merit()
        for i, value in enumerate(merit):
            if i - start >= self.initial:
                generation = region.generation
                region.observe(best, np.array([value]))
                if region.generation != generation:
                    start, best = i + 1, -np.inf
                    continue
            best = max(best, float(value))
        rest = slice(start, None)
        return region, replace(history, X=history.X[rest], Y=history.Y[rest], C=history.C[rest])


def best_points(history: History) -> Floats:
    """Points that are worth looking around: the best, or of several objectives some that none dominates."""
    Y, known = history.Y, np.flatnonzero(history.feasible)
    if not len(known):
        return history.X[np.argsort(-history.merit())[:CENTRES]]
    if Y.shape[1] == 1:
        return history.X[known[np.argsort(-Y[known, 0])[:CENTRES]]]
    front = known[non_dominated(Y[known])]
    return history.X[front[np.linspace(0, len(front) - 1, min(2 * CENTRES, len(front))).astype(int)]]


def non_dominated(Y: Floats) -> np.ndarray:
    """Which rows of Y [n, m] no other one is better than in every column, larger being better."""
    at_least = np.all(Y[None] >= Y[:, None], axis=2)
    better = np.any(Y[None] > Y[:, None], axis=2)
    return ~np.any(at_least & better, axis=1)


def _unique(X: Floats) -> Floats:
    """Rows without repetitions, in their order."""
    _, first = np.unique(np.round(X, 9), axis=0, return_index=True)
    return X[np.sort(first)]


MODEL, THOMPSON, TURBO, RANDOM = "model", "thompson", "turbo", "random"
STRATEGIES = (MODEL, THOMPSON, TURBO, RANDOM)


def make_proposer(
    strategy: str,
    space: Space,
    *,
    seed: int,
    initial: int,
    objectives: int,
    method: str | None = None,
    **settings: Any,
) -> Proposer:
    """The proposer of a name of `STRATEGIES`; ``method`` and ``settings`` are those of its GP."""
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
    if strategy == RANDOM:
        if method is not None or settings:
            raise ValueError("random proposals have no model: leave method and its settings out")
        return Random(space, seed, initial)
    if strategy == TURBO and objectives > 1:
        raise ValueError("turbo is for one objective: use the strategy 'model' for several")
    if strategy == MODEL and find_spec("botorch") is None:
        strategy = THOMPSON
    if strategy == MODEL:
        settings.pop("candidates", None)
        return ByModel(space, seed, initial, method, **settings)
    return (Turbo if strategy == TURBO else Thompson)(space, seed, initial, method, **settings)
