"""Initial designs and candidates in the cube [0, 1]^d, and the choice among candidates."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Coordinates in which a candidate differs from the centre on average, where there are more.
PERTURBED = 20


def num_candidates(dims: int) -> int:
    """Candidates of a trust region in d dimensions: 100 d as in TuRBO, at least 2000 and at most 5000."""
    return min(max(100 * dims, 2000), 5000)


def latin_hypercube(n: int, dims: int, rng: np.random.Generator) -> Floats:
    """n points of [0, 1]^d, one in each of n slices of every coordinate, anywhere in its slice."""
    slices = np.stack([rng.permutation(n) for _ in range(dims)], 1)
    return (slices + rng.random((n, dims))) / n


def trust_box(centre: Floats, length: float, weights: Floats) -> tuple[Floats, Floats]:
    """Lower and upper corner, each [d], of the box with sides L·w around a point [d], cut to the cube."""
    half = 0.5 * length * weights
    return np.clip(centre - half, 0.0, 1.0), np.clip(centre + half, 0.0, 1.0)


def normalised_weights(lengthscales: Floats | None, dims: int) -> Floats:
    """Lengthscales [d] over their geometric mean, so that boxes of one L have one volume; else all 1."""
    if lengthscales is None:
        return np.ones(dims)
    logs = np.log(lengthscales)
    return np.exp(logs - logs.mean())


def perturbations(
    centre: Floats, low: Floats, high: Floats, n: int, rng: np.random.Generator, perturbed: int = PERTURBED
) -> Floats:
    """n points of a box [low, high]: the centre, with a random few of its coordinates moved.

    Each coordinate moves with probability min(perturbed/d, 1), and at least one does, to its value in a
    scrambled Sobol sequence. In many dimensions, points that differ in few coordinates from a good one are
    the better candidates, unless coordinates matter only together.
    """
    dims = len(centre)
    sobol = torch.quasirandom.SobolEngine(dims, scramble=True, seed=int(rng.integers(2**31)))
    points = low + (high - low) * sobol.draw(n, dtype=torch.float64).numpy()
    moved = rng.random((n, dims)) <= min(perturbed / dims, 1.0)
    idle = np.flatnonzero(~moved.any(1))
    moved[idle, rng.integers(dims, size=len(idle))] = True
    return np.where(moved, points, centre)


def distinct_maximisers(values: Floats) -> list[int]:
    """The column of the largest value in every row of values [q, n], each column at most once."""
    values = values.copy()
    if len(values) > values.shape[1]:
        raise ValueError(f"there are {values.shape[1]} candidates for {len(values)} places")
    chosen: list[int] = []
    for row in values:
        row[chosen] = -math.inf
        chosen.append(int(row.argmax()))
    return chosen
