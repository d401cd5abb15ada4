"""Ranolazine MPO: a molecule like ranolazine, but greasier, more polar and with one fluorine (MATH §7.4).

The search space is the latent space of the molecule autoencoder: the cube [0, 1]^256 is [−√3, √3]^256. Points
drawn uniformly from it have the mean and the variance of the prior N(0, I), and every decoder channel is a
sum over 256 coordinates, so a space-filling start decodes like prior samples; in [−3, 3]^256, with three
times the variance, it decodes to less sensible molecules. Encoded molecules lie inside but for rare
coordinates, because posterior means spread less than the prior does. A point that decodes to no molecule
scores 0.
"""

from __future__ import annotations

import gzip
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from duogp.bo.tasks import Floats, Task, at_least, box
from duogp.data.benchmark import data_root
from duogp_tasks.molecules import load
from duogp_tasks.molecules.alphabet import import_rdkit, import_selfies
from duogp_tasks.molecules.scoring import ranolazine_mpo

#: Half the side of the box.
RADIUS = math.sqrt(3)


class RanolazineMPO(Task):
    """Score in [0, 1] of the molecule that a latent point decodes to. ``radius``: half the box's side."""

    name = "ranolazine"
    optimum = 1.0  # an upper bound

    def __init__(self, radius: float = RADIUS, weights: str | Path | None = None, seed: int = 0) -> None:
        super().__init__(seed)
        at_least("radius", radius, 1e-6)
        import_rdkit()  # fails here rather than at the first evaluation
        import_selfies()
        self.autoencoder = load(None if weights is None else Path(weights))
        self.dims = self.autoencoder.latent
        # A decoder forgives what happens to twenty coordinates: 95 of 100 such points are the same molecule.
        self.perturbed = self.dims
        self.bounds = box(self.dims, -radius, radius)
        self._known: dict[str, float] = {}  # many points mean the same molecule
        self._decoded: dict[bytes, str] = {}  # by the point: decoding costs more than all else

    def molecules(self, X: ArrayLike) -> list[str]:
        """SMILES of the molecules that points of the cube decode to."""
        return self._decode(self._in_units(X))

    def points(self, smiles: Sequence[str]) -> Floats:
        """Points of the cube for known molecules, to start from; what lies outside is moved to its face."""
        z = self.autoencoder.encode(smiles)
        return np.clip((z - self.bounds[0]) / (self.bounds[1] - self.bounds[0]), 0.0, 1.0)

    def zinc(self, count: int, seed: int = 0) -> Floats:
        """Points of `count` random molecules of ZINC-250k, which the data folder must hold."""
        return self.points(zinc_molecules(count, seed))

    def _evaluate(self, points: Floats) -> Floats:
        smiles = self._decode(points)
        for new in set(smiles) - self._known.keys():
            self._known[new] = ranolazine_mpo(new)
        return np.array([self._known[molecule] for molecule in smiles], dtype=np.float64)

    def _decode(self, points: Floats) -> list[str]:
        keys = [hashlib.sha1(row.tobytes(), usedforsecurity=False).digest() for row in points]
        new = [i for i, key in enumerate(keys) if key not in self._decoded]
        for i, smiles in zip(new, self.autoencoder.decode(points[new]), strict=True):
            self._decoded[keys[i]] = smiles
        return [self._decoded[key] for key in keys]


def zinc_molecules(count: int, seed: int = 0) -> list[str]:
    """SMILES of `count` random molecules of ZINC-250k, which the data folder must hold."""
    root = data_root()
    path = None if root is None else root / "molecules" / "zinc250k.smi.gz"
    if path is None or not path.is_file():
        raise FileNotFoundError("ZINC-250k is missing: set DUOGP_DATA to the folder that holds molecules/")
    smiles = gzip.decompress(path.read_bytes()).decode().split()
    chosen = np.random.default_rng(seed).choice(len(smiles), count, replace=False)
    return [smiles[i] for i in chosen]
