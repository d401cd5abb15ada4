"""Two textbook functions, turned upside down because larger is better here."""

from __future__ import annotations

import numpy as np

from duogp.bo.tasks.base import Floats, Task, at_least, box

_WEIGHTS = np.array([1.0, 1.2, 3.0, 3.2])
_SHARPNESS = np.array(
    [
        [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
        [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
        [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
        [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
    ]
)
_CENTRES = 1e-4 * np.array(
    [
        [1312.0, 1696.0, 5569.0, 124.0, 8283.0, 5886.0],
        [2329.0, 4135.0, 8307.0, 3736.0, 1004.0, 9991.0],
        [2348.0, 1451.0, 3522.0, 2883.0, 3047.0, 6650.0],
        [4047.0, 8828.0, 8732.0, 5743.0, 1091.0, 381.0],
    ]
)


class Hartmann6(Task):
    """Σᵢ αᵢ exp(−Σⱼ Aᵢⱼ (xⱼ − Pᵢⱼ)²) on [0, 1]⁶; six local maxima."""

    name = "hartmann6"
    dims = 6
    optimum = 3.3223680114155147

    def __init__(self, noise: float = 0.0, seed: int = 0) -> None:
        super().__init__(seed)
        at_least("noise", noise, 0)
        self.bounds = box(6, 0.0, 1.0)
        self.noise, self.noisy = noise, noise > 0

    def _evaluate(self, points: Floats) -> Floats:
        squared = (_SHARPNESS * (points[:, None, :] - _CENTRES) ** 2).sum(-1)
        values: Floats = np.exp(-squared) @ _WEIGHTS
        return values + self.noise * self._gaussian(len(points)) if self.noisy else values


class Ackley(Task):
    """20 exp(−0.2 rms(x)) + exp(mean cos 2πx) − 20 − e on [−5, 10]^d: the maximum, 0, is off the middle."""

    optimum = 0.0

    def __init__(self, dims: int = 10, noise: float = 0.0, seed: int = 0) -> None:
        super().__init__(seed)
        at_least("dims", dims, 1)
        at_least("noise", noise, 0)
        self.name, self.dims = "ackley", dims
        self.bounds = box(dims, -5.0, 10.0)
        self.noise, self.noisy = noise, noise > 0

    def _evaluate(self, points: Floats) -> Floats:
        distance = np.sqrt((points**2).mean(-1))
        ripples = np.cos(2 * np.pi * points).mean(-1)
        values: Floats = 20 * np.exp(-0.2 * distance) + np.exp(ripples) - 20 - np.e
        return values + self.noise * self._gaussian(len(points)) if self.noisy else values
