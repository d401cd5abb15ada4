"""A small table, and what a method predicts on it: shared by the tests of `duogp.fit`."""

from __future__ import annotations

import numpy as np

import duogp


def table(n: int = 40, d: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)


def predictions(X, y, method="svgp", at=None, **settings) -> np.ndarray:
    """Mean and standard deviation, [2, n]."""
    settings = {"num_inducing": 8, "epochs": 4, **settings}
    p = duogp.fit(X, y, method, **settings).predict(np.asarray(X) if at is None else at)
    return np.stack([p.mean, p.std])
