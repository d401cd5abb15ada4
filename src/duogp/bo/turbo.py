"""TuRBO (Eriksson et al. 2019): Thompson sampling inside trust regions, with any model of the registry.

Every region has its own model of its own evaluations. For a batch of q points, q functions are drawn from
each model's posterior; point i is the best of all regions' candidates under draw i, each taken at most once.
A region is centred at its best point; its sides follow the lengthscales of the covariance kernel. It starts
with a Latin hypercube or with given points, and starts again with a new hypercube when it has converged.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from duogp.bo.candidates import (
    PERTURBED,
    distinct_maximisers,
    latin_hypercube,
    normalised_weights,
    num_candidates,
    perturbations,
    trust_box,
)
from duogp.bo.regions import SUCCESS_TOLERANCE, TrustRegion, failure_tolerance
from duogp.bo.strategies import CANDIDATES, DESIGN, DRAW, FIT, Floats, Proposal, Strategy
from duogp.bo.surrogates import Surrogate

#: Quartile of the values, from below, that a failed evaluation is given in the model.
UNPROMISING = 0.25


class Turbo(Strategy):
    """TuRBO-1, or TuRBO-m with several ``regions``; ``initial`` points start a region, 2d by default.

    ``initial`` as points [n, d]: the first points, dealt out to the regions in turn.
    ``perturbed``: coordinates in which a candidate differs from the centre, on average.
    ``successes``: batches in a row that must improve on the best before a region is doubled.
    """

    def __init__(
        self,
        dims: int,
        surrogate: Surrogate,
        *,
        batch_size: int,
        seed: int,
        regions: int = 1,
        initial: int | Floats | None = None,
        candidates: int | None = None,
        perturbed: int | None = None,
        successes: int | None = None,
    ) -> None:
        super().__init__(dims, batch_size, seed)
        self.start = initial if isinstance(initial, np.ndarray) else None
        number = None if isinstance(initial, np.ndarray) else initial
        counts = {"regions": regions, "initial": number, "candidates": candidates, "perturbed": perturbed}
        counts |= {"successes": successes}
        for name, value in counts.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value}")
        self.initial = max(2, 2 * dims) if number is None else max(2, number)  # one row is no data set
        self.candidates = max(candidates or num_candidates(dims), batch_size)
        self.perturbed = PERTURBED if perturbed is None else perturbed
        tolerance = failure_tolerance(dims, batch_size, regions)
        needed = SUCCESS_TOLERANCE if successes is None else successes
        self.regions = [TrustRegion(tolerance, regions > 1, needed) for _ in range(regions)]
        if self.start is not None and len(self.start) < 2 * regions:  # one row is no data set
            total = len(self.start)
            raise ValueError(f"initial must be at least two points for each region, got {total} in all")
        self.template = surrogate
        self.surrogates = [surrogate for _ in range(regions)]
        self.X: list[Floats] = [np.empty((0, dims)) for _ in range(regions)]  # of the present generation
        self.y: list[Floats] = [np.empty(0) for _ in range(regions)]

    # -- proposing -------------------------------------------------------------------------------------------

    def ask(self, most: int) -> Proposal:
        designs = [self._missing(i) for i in range(len(self.regions))]
        if any(map(len, designs)):
            owners = np.repeat(np.arange(len(designs)), [len(design) for design in designs])
            return Proposal(np.concatenate(designs)[:most], owners[:most])
        for i in range(len(self.regions)):
            self._learn(i)
        n = min(self.batch_size, most)
        points = [self._candidates(i) for i in range(len(self.regions))]
        values = [
            self.surrogates[i].draw(X, n, self.number(DRAW, self.batches, i)) for i, X in enumerate(points)
        ]
        owners = np.repeat(np.arange(len(points)), [len(X) for X in points])
        chosen = distinct_maximisers(np.concatenate(values, 1))
        return Proposal(np.concatenate(points)[chosen], owners[chosen])

    def _missing(self, i: int) -> Floats:
        """What is left of the initial points; more where so many failed that there is nothing to fit."""
        left = self._design(i)[len(self.y[i]) :]
        if len(left) or not len(self.y[i]) or np.isfinite(self.y[i]).any():
            return left
        return latin_hypercube(2, self.dims, self.rng(DESIGN, i, self.regions[i].generation, self.batches))

    def _design(self, i: int) -> Floats:
        """The initial points of the present generation of a region."""
        generation = self.regions[i].generation
        if self.start is not None and generation == 0:
            return self.start[i :: len(self.regions)]
        return latin_hypercube(self.initial, self.dims, self.rng(DESIGN, i, generation))

    def _learn(self, i: int) -> None:
        if self.surrogates[i].rows != len(self.y[i]):
            seed = self.number(FIT, self.batches, i)
            self.surrogates[i] = self.surrogates[i].fit(self.X[i], without_failures(self.y[i]), seed)

    def _candidates(self, i: int) -> Floats:
        centre = self.X[i][np.nanargmax(self.y[i])]
        weights = normalised_weights(self.surrogates[i].lengthscales(), self.dims)
        low, high = trust_box(centre, self.regions[i].length, weights)
        rng = self.rng(CANDIDATES, self.batches, i)
        return perturbations(centre, low, high, self.candidates, rng, self.perturbed)

    # -- learning --------------------------------------------------------------------------------------------

    def tell(self, proposal: Proposal, y: Floats) -> None:
        for i, region in enumerate(self.regions):
            mine = proposal.regions == i
            if not mine.any():
                continue
            before, designed = self.y[i], len(self._design(i))
            self.X[i] = np.concatenate([self.X[i], proposal.X[mine]])
            self.y[i] = np.concatenate([before, y[mine]])
            if len(before) < designed:  # a design is neither success nor failure
                continue
            generation = region.generation
            region.observe(_largest(before), y[mine])
            if region.generation != generation:
                self.X[i], self.y[i] = self.X[i][:0], self.y[i][:0]
                self.surrogates[i] = self.template
        super().tell(proposal, y)

    @property
    def status(self) -> str:
        lengths = ", ".join(f"{region.length:.3g}" for region in self.regions)
        restarts = sum(region.generation for region in self.regions)
        return f"length {lengths}" + (f", {restarts} restarts" if restarts else "")

    # -- state -----------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        for i, surrogate in enumerate(self.surrogates):
            if surrogate.rows:
                surrogate.save(folder / str(i))

    def load(self, folder: Path) -> None:
        for i, y in enumerate(self.y):
            if len(y) and (folder / str(i)).is_dir():
                self.surrogates[i] = self.template.load(folder / str(i))


def without_failures(y: Floats) -> Floats:
    """Values [n] with the lower quartile of the others in place of NaN: enough to lead away from there."""
    known = np.isfinite(y)
    return y if known.all() else np.where(known, y, np.quantile(y[known], UNPROMISING))


def _largest(y: Floats) -> float:
    return float(np.nanmax(y)) if np.isfinite(y).any() else -np.inf
