"""Toy problems for figures and tests."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class ToyProblem(NamedTuple):
    """Noisy training points and the noise-free function to be recovered."""

    x: NDArray[np.float64]  # [n, 1]
    y: NDArray[np.float64]  # [n]
    x_test: NDArray[np.float64]  # [t, 1]
    f_test: NDArray[np.float64]  # [t]


def dc_one_dimensional(n: int = 100, noise: float = 0.1, seed: int = 0) -> ToyProblem:
    """f(x) = exp(−(x + 1)) sin 2πx on [−2, 4], Gaussian noise, 1000 noise-free test points (MATH §2.4).

    One frequency under a decaying amplitude: a few inducing points cannot fit mean and variance equally well,
    so that a figure shows the effect of decoupling.
    """
    x = np.linspace(-2.0, 4.0, n)
    x_test = np.linspace(-2.0, 4.0, 1000)
    y = _damped_sine(x) + noise * np.random.default_rng(seed).standard_normal(n)
    return ToyProblem(x[:, None], y, x_test[:, None], _damped_sine(x_test))


def _damped_sine(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(-(x + 1.0)) * np.sin(2.0 * np.pi * x)
