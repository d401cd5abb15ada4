"""What a contestant is asked to train on, from a seed: every library builds the same arrays (numpy only)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Problem:
    """Rows of standard normal inputs, a smooth target with noise; `steps` batches make a block."""

    inducing: int
    dtype: str = "float32"
    device: str = "cpu"
    batch: int = 1024
    dims: int = 8
    steps: int = 10
    extra: int = 0  # points of a second block
    classes: int = 0  # 0: regression
    threads: int = 1
    seed: int = 0

    @property
    def rows(self) -> int:
        return self.batch * self.steps

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """X [rows, dims] and y [rows]: numbers, or class numbers from 0."""
        rng = np.random.default_rng(self.seed)
        X = rng.standard_normal((self.rows, self.dims))
        if self.classes:
            scores = X @ rng.standard_normal((self.dims, self.classes))
            return X, scores.argmax(1)
        y = np.sin(X @ rng.standard_normal(self.dims) / np.sqrt(self.dims))
        return X, y + 0.1 * rng.standard_normal(self.rows)

    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """Inducing points of the first and of the second block: different rows of X."""
        X, _ = self.arrays()
        order = np.random.default_rng(self.seed + 1).permutation(self.rows)
        return X[order[: self.inducing]], X[order[self.inducing : self.inducing + self.extra]]

    @property
    def lengthscale(self) -> float:
        """Where every library starts: two rows are then neither alike nor strangers."""
        return float(np.sqrt(self.dims))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
