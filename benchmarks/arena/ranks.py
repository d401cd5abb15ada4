"""Ranks over sets and their tests: Friedman, Nemenyi's critical difference, Wilcoxon with Holm's correction.

Scores are matrices [sets, families], lower is better, NaN where a family has not finished: it ranks last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, rankdata, studentized_range, wilcoxon

Matrix = NDArray[np.float64]


def ranks(scores: Matrix) -> Matrix:
    """Ranks of each row from 1 (best), ties shared; NaN values share the last places."""
    filled = np.where(np.isnan(scores), np.inf, scores)
    return np.asarray(rankdata(filled, axis=1), np.float64)


def friedman(scores: Matrix) -> float:
    """p of the hypothesis that all families rank alike (chi-squared, corrected for ties)."""
    n, k = scores.shape
    if n < 2 or k < 3:
        return float("nan")
    r = ranks(scores)
    between = n * np.sum((r.mean(0) - (k + 1) / 2) ** 2)
    within = np.sum((r - (k + 1) / 2) ** 2) / (n * (k - 1))
    return float(chi2.sf(between / within, k - 1)) if within > 0 else 1.0


def critical_difference(sets: int, families: int, level: float = 0.05) -> float:
    """Nemenyi: mean ranks that differ by less are not told apart; q √(k(k + 1)/6n)."""
    q = studentized_range.ppf(1 - level, families, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(families * (families + 1) / (6 * sets)))


@dataclass(frozen=True)
class Paired:
    """Ours against one peer over the sets that both finished."""

    wins: int
    losses: int
    median: float  # of ours − peer: negative is better
    p: float  # Wilcoxon signed-rank, two-sided


def paired(ours: NDArray, peer: NDArray) -> Paired:
    """Wilcoxon's signed-rank test of two columns of scores."""
    there = np.isfinite(ours) & np.isfinite(peer)
    d = ours[there] - peer[there]
    p = float(wilcoxon(d).pvalue) if np.any(d != 0) else 1.0
    return Paired(int(np.sum(d < 0)), int(np.sum(d > 0)), float(np.median(d)) if d.size else np.nan, p)


def holm(p: NDArray) -> NDArray[np.float64]:
    """Holm's step-down correction of several p-values."""
    p = np.asarray(p, np.float64)
    order = np.argsort(p)
    steps = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted


def cliques(means: NDArray, difference: float) -> list[tuple[int, int]]:
    """Maximal runs (first, last) of sorted mean ranks that lie within the critical difference."""
    found: list[tuple[int, int]] = []
    for i in range(len(means)):
        j = int(np.searchsorted(means, means[i] + difference, side="right")) - 1
        if j > i and not (found and found[-1][1] >= j):
            found.append((i, j))
    return found


def bootstrap(values: Matrix, draws: int = 2000, seed: int = 0) -> Matrix:
    """95 % intervals [2, families] of the mean over sets, by resampling sets."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(len(values), size=(draws, len(values)))
    return np.asarray(np.quantile(values[rows].mean(1), [0.025, 0.975], axis=0))
