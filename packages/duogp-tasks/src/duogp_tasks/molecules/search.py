"""`MoleculeSearch`: Bayesian optimisation of molecules whose model sees the molecule, not its latent point.

Candidates are made in the latent space, near the points of the best molecules so far and between them, and
decoded before the model is asked. The model is an exact GP with a Tanimoto kernel of substructure counts;
each place of a batch goes to the best candidate under a draw of its own from the posterior. What the search
needs to know follows from the evaluations: nothing has to be saved to continue a run.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

import duogp
from duogp.bo.candidates import distinct_maximisers
from duogp.bo.strategies import CANDIDATES, DRAW, FIT, Floats, Proposal, Strategy
from duogp.errors import DataWarning
from duogp_tasks.molecules.fingerprints import morgan_counts

Features = Literal["fingerprint", "latent", "none"]

#: Standard deviations of a move in the latent space, where that of the prior is 1: smaller ones mostly decode
#: to the same molecule, larger ones to any.
MOVES = (0.5, 0.9)
#: Share of candidates that start between two good molecules.
CROSSED = 0.3
#: Rounds of candidates, until there are enough new molecules.
ROUNDS = 4
#: A few steps are enough: variance, noise and mean are all there is to learn.
FITTING: dict[str, Any] = {
    "standardize": False,
    "validation_fraction": 0.0,
    "initial_noise": 0.1,
    "steps": 15,
}
MODELS: dict[str, dict[str, Any]] = {
    "fingerprint": {"kernel": "tanimoto"},
    "latent": {"kernel": "matern52", "ard": False, "initial_lengthscale": 10.0},
}


class Molecules(Protocol):
    """A task whose points mean molecules."""

    dims: int
    bounds: Floats

    def molecules(self, X: Floats) -> list[str]:
        """SMILES of points of the cube."""

    def points(self, smiles: list[str]) -> Floats:
        """Points of the cube for molecules."""


class MoleculeSearch(Strategy):
    """Thompson sampling among molecules near the best ``parents`` so far.

    ``start``: the points [n, d] to begin with. ``features`` of the model: "fingerprint" (substructure counts
    of the decoded molecule), "latent" (the point, with a Matérn kernel) or "none", which has no model and
    takes any of the candidates. ``candidates``: points decoded for a batch.
    """

    def __init__(
        self,
        task: Molecules,
        start: Floats,
        *,
        batch_size: int,
        seed: int,
        features: Features = "fingerprint",
        parents: int = 20,
        candidates: int = 500,
    ) -> None:
        super().__init__(task.dims, batch_size, seed)
        if features not in get_args(Features):
            raise ValueError(f"features must be one of {', '.join(get_args(Features))}, got {features!r}")
        for name, value in {"start": len(start), "parents": parents, "candidates": candidates}.items():
            if value < 2:
                raise ValueError(f"{name} must be at least 2, got {value}")
        self.task, self.start, self.features = task, start, features
        self.parents, self.candidates = parents, max(candidates, batch_size)
        self.X, self.y = np.empty((0, task.dims)), np.empty(0)
        self.smiles: list[str] = []  # of X
        self._points: dict[int, Floats] = {}  # of rows of X, as encoded
        self.ahead: list[Floats] = []  # what the model said of each batch, before it was evaluated

    # -- proposing -------------------------------------------------------------------------------------------

    def ask(self, most: int) -> Proposal:
        if len(self.y) < len(self.start):
            return _proposal(self.start[len(self.y) :][:most])
        n = min(self.batch_size, most)
        X, smiles = self._new_molecules(n)
        if self.features == "none":
            return _proposal(X[self.rng(DRAW, self.batches).permutation(len(X))[:n]])
        centre, scale = self.y.mean(), self.y.std() or 1.0
        settings = FITTING | MODELS[self.features] | {"random_state": self.number(FIT, self.batches)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # of substructures that no molecule has
            rows = self._inputs(self.X, self.smiles)
            gp: Any = duogp.fit(rows, (self.y - centre) / scale, "exact", **settings)
        inputs = self._inputs(X, smiles)
        draws = gp.sample(inputs, n, seed=self.number(DRAW, self.batches), kind="joint")
        chosen = distinct_maximisers(draws)
        self.ahead.append(gp.predict_mean(inputs[chosen]) * scale + centre)
        return _proposal(X[chosen])

    def _inputs(self, X: Floats, smiles: list[str]) -> Floats:
        """What the model sees of points and their molecules."""
        if self.features == "fingerprint":
            return morgan_counts(smiles)
        low, high = self.task.bounds
        return low + (high - low) * X

    def _new_molecules(self, n: int) -> tuple[Floats, list[str]]:
        """At least n points that decode to molecules not evaluated yet, each to another one."""
        best = self._best()
        rng = self.rng(CANDIDATES, self.batches)
        known = {"", *self.smiles}
        points: list[Floats] = []
        found: list[str] = []
        for growth in range(ROUNDS):
            X = near_and_between(best, self.candidates, rng, self._unit * (1.0 + 0.3 * growth))
            for x, smiles in zip(X, self.task.molecules(X), strict=True):
                if smiles not in known:
                    known.add(smiles)
                    points.append(x)
                    found.append(smiles)
            if len(found) >= n:
                return np.stack(points), found
        raise RuntimeError(f"of {ROUNDS * self.candidates} candidates only {len(found)} are new molecules")

    def _best(self) -> Floats:
        """Where the encoder puts the best molecules so far, best first."""
        first = {self.smiles[i]: i for i in np.argsort(self.y, kind="stable") if self.smiles[i]}
        return np.stack([self._encoded(i) for i in list(first.values())[: -self.parents - 1 : -1]])

    def _encoded(self, i: int) -> Floats:
        """The encoder's point of an evaluated molecule; where the encoder cannot write it, its own."""
        if i not in self._points:
            try:
                self._points[i] = self.task.points([self.smiles[i]])[0]
            except ValueError:
                self._points[i] = self.X[i]
        return self._points[i]

    @property
    def _unit(self) -> Floats:
        """A standard deviation of the prior, in the cube."""
        return 1.0 / (self.task.bounds[1] - self.task.bounds[0])

    # -- learning --------------------------------------------------------------------------------------------

    def tell(self, proposal: Proposal, y: Floats) -> None:
        self.smiles += self.task.molecules(proposal.X)
        self.X, self.y = np.concatenate([self.X, proposal.X]), np.concatenate([self.y, y])
        super().tell(proposal, y)


def near_and_between(best: Floats, n: int, rng: np.random.Generator, unit: Floats) -> Floats:
    """n points around those of ``best`` [k, d], the first ones most often, or between two of them."""
    ranks = np.arange(len(best))
    weights = 1.0 / (1.0 + ranks)
    first, second = rng.choice(ranks, (2, n), p=weights / weights.sum())
    share = np.where(rng.random(n) < CROSSED, rng.random(n), 0.0)[:, None]
    centre = (1.0 - share) * best[first] + share * best[second]
    moves = rng.uniform(*MOVES, (n, 1)) * rng.standard_normal((n, best.shape[1]))
    return np.clip(centre + unit * moves, 0.0, 1.0)


def _proposal(X: NDArray[np.float64]) -> Proposal:
    return Proposal(X, np.zeros(len(X), dtype=np.int64))
