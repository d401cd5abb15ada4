"""Roots of many increasing functions at once, by Chandrupatla's method (1997)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MAX_STEPS = 100


def find_roots(
    function: Callable[[Array], Array], low: Array, high: Array, tolerance: float = 1e-10
) -> Array:
    """x in [low, high] with function(x) = 0, elementwise and to a relative tolerance.

    The function is increasing. Where it has one sign on the bracket, the result is the end nearest to it.
    """
    a, b = high.astype(np.float64), low.astype(np.float64)
    fa, fb = function(a), function(b)
    inside = (fb < 0) & (fa > 0)
    outside = np.where(fb >= 0, low, high)
    c, fc = a, fa
    share = np.full(a.shape, 0.5)
    for _ in range(MAX_STEPS):
        # the root is between a and b; c is the point before them
        x = a + share * (b - a)
        fx = function(x)
        same = np.sign(fx) == np.sign(fa)
        c, fc = np.where(same, a, b), np.where(same, fa, fb)
        b, fb = np.where(same, b, a), np.where(same, fb, fa)
        a, fa = x, fx
        best = np.where(np.abs(fa) < np.abs(fb), a, b)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            limit = tolerance * (np.abs(best) + tolerance) / np.abs(b - a)
            if bool(np.all((limit > 0.5) | (fa == 0) | ~inside | (a == b))):
                break
            xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
            quadratic = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
            step = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
        limit = np.minimum(np.nan_to_num(limit, nan=0.5, posinf=0.5), 0.5)
        share = np.clip(np.where(quadratic & np.isfinite(step), step, 0.5), limit, 1 - limit)
    return np.where(inside, np.where(fa == 0, a, best), outside)
