"""A stream of rows of a known function."""

from __future__ import annotations

import numpy as np

SMALL = {"num_inducing": 12, "growth": 4, "batch_size": 64}


def function(X: np.ndarray) -> np.ndarray:
    return np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]


class Stream:
    """Rows of a smooth function with noise 0.1, as many as one asks for."""

    def __init__(self, seed: int = 0, dims: int = 2) -> None:
        self.rng, self.dims = np.random.default_rng(seed), dims

    def __call__(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        X = self.rng.normal(size=(n, self.dims))
        return X, function(X) + 0.1 * self.rng.normal(size=n)
