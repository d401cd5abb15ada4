"""A task with a known optimum, and settings of short runs on it."""

from __future__ import annotations

import numpy as np

QUICK = {"num_inducing": 20, "steps": 5, "first_steps": 10, "warm_start": 0}
RUN = {"evaluations": 28, "batch_size": 5, "initial": 8, "candidates": 100, "seed": 3, "plot": False} | QUICK


class Bowl:
    """−‖x − 0.3‖², with its optimum at zero."""

    name = "bowl"
    optimum = 0.0

    def __init__(self, dims: int = 2, stop_after: int | None = None) -> None:
        self.dims, self.stop_after, self.calls = dims, stop_after, 0
        self.bounds = np.array([[-1.0] * dims, [3.0] * dims])

    def __call__(self, X: np.ndarray) -> np.ndarray:
        self.calls += 1
        if self.stop_after is not None and self.calls > self.stop_after:
            raise KeyboardInterrupt
        return -((X - 0.3) ** 2).sum(1)
