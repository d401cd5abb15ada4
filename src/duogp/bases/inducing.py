"""Where the inducing points start: rows of the data, cluster centres, or greedy conditional variance.

`select_inducing` looks a name up in `INITIALISERS` and guarantees what every caller relies on: the result has
exactly `num` rows, all different (equal rows would make k(Z, Z) singular), and depends on nothing but its
arguments and the generator. Adding an initialiser is one function ``(x, num, kernel, generator) -> [num, d]``
and one line in the table.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from duogp.errors import DataWarning

# k-means reads at most this many rows: centres are only a start, and 50 000 rows place them well enough.
KMEANS_ROWS = 50_000
# Above this many distances per sweep (rows × centres), mini-batches replace full sweeps.
KMEANS_FULL_BUDGET = 2_000_000
# Entries N·M of the partial Cholesky factor, kept in float64: 16 M entries are 128 MB. Past it the greedy
# choice is made among a random subset of rows.
GREEDY_BUDGET = 16_000_000
# Repeated rows are moved by this share of each column's standard deviation.
PERTURBATION = 1e-3


class KernelLike(Protocol):
    """All that the greedy choice asks of a kernel."""

    def __call__(self, x1: Tensor, x2: Tensor, /) -> Tensor: ...

    def diag(self, x: Tensor, /) -> Tensor: ...


class UnitRBF:
    """exp(−‖x − x′‖²/2): what greedy selection uses when no kernel is at hand."""

    def __call__(self, x1: Tensor, x2: Tensor) -> Tensor:
        return torch.exp(-0.5 * (x1[..., :, None, :] - x2[..., None, :, :]).square().sum(-1))

    def diag(self, x: Tensor) -> Tensor:
        return x.new_ones(x.shape[:-1])


@torch.no_grad()
def select_inducing(
    name: str,
    x: Tensor,
    num: int,
    *,
    kernel: KernelLike | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """`num` distinct starting points ``[num, d]`` for the inputs ``x [n, d]``.

    When x has fewer than `num` distinct rows, repeats are filled in and moved by a tiny amount relative to
    each column's spread, with a `DataWarning`. Constant columns stay constant unless all of them are.
    """
    if name not in INITIALISERS:
        names = ", ".join(repr(known) for known in sorted(INITIALISERS))
        raise ValueError(f"name must be one of {names}, got {name!r}")
    if x.ndim != 2 or not x.is_floating_point():
        raise ValueError(f"x must be a floating-point matrix [n, d], got {x.dtype} of shape {tuple(x.shape)}")
    if num < 1:
        raise ValueError(f"num must be at least 1, got {num}")
    if num > x.shape[0]:
        raise ValueError(f"num is {num} but x has only {x.shape[0]} rows: ask for at most that many")
    z = INITIALISERS[name](x, num, UnitRBF() if kernel is None else kernel, generator)
    return _separate(z, x, generator)


def random_rows(x: Tensor, num: int, kernel: KernelLike, generator: torch.Generator | None) -> Tensor:
    """A random subset [num, d] of x [n, d], of distinct rows as long as there are enough.

    Distinctness is checked on a growing prefix of one permutation: sorting all of a large x for a few hundred
    points would cost more than the first epoch.
    """
    order = _permutation(x.shape[0], x.device, generator)
    size = min(4 * num, x.shape[0])
    while True:
        prefix = x[order[:size]]
        distinct = _first_occurrences(prefix)
        if distinct.numel() >= num or size == x.shape[0]:
            break
        size = min(4 * size, x.shape[0])
    return torch.cat([prefix[distinct], _without(prefix, distinct)])[:num]


def kmeans_centres(x: Tensor, num: int, kernel: KernelLike, generator: torch.Generator | None) -> Tensor:
    """Cluster centres [num, d] of x [n, d], from at most `KMEANS_ROWS` random rows.

    One thread, because parallel sums come in any order and the start should be the same on every run.
    """
    rows = x[_permutation(x.shape[0], x.device, generator)[: max(KMEANS_ROWS, 2 * num)]]
    if _first_occurrences(rows).numel() <= num:  # a centre per distinct row is the rows themselves
        return random_rows(x, num, kernel, generator)
    from sklearn.cluster import KMeans, MiniBatchKMeans  # here, because it takes a second to import
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    mean = rows.double().mean(0)
    points = (rows.double() - mean).cpu().numpy()  # centred: squared distances then keep their digits
    seed = int(torch.randint(2**31 - 1, (), generator=generator, device=_device(generator)))
    if points.shape[0] * num <= KMEANS_FULL_BUDGET:
        model = KMeans(num, n_init=1, max_iter=100, random_state=seed)
    else:
        model = MiniBatchKMeans(num, n_init=1, max_iter=20, batch_size=max(1024, 2 * num), random_state=seed)
    with threadpool_limits(limits=1):
        centres = model.fit(points).cluster_centers_
    return (torch.as_tensor(centres, device=x.device, dtype=torch.float64) + mean).to(x.dtype)


def greedy_variance(x: Tensor, num: int, kernel: KernelLike, generator: torch.Generator | None) -> Tensor:
    """Points [num, d] of x [n, d], each of largest prior variance given those before (Burt et al. 2020).

    This is the partial pivoted Cholesky factorisation of k(X, X): O(N M²) time, O(N M) memory, at most
    `GREEDY_BUDGET` entries. When nothing is left to explain, random distinct rows fill up the rest. It
    covers the worst served input, not the average one: with few points for the kernel's lengthscale it spends
    them on outliers and leaves more variance in total than "kmeans" or even "random" does. A kernel
    with leading dimensions is averaged over them (the mean of kernels is a kernel).
    """
    n = x.shape[0]
    order = _permutation(n, x.device, generator)  # ties are broken at random, not by the order of the file
    candidates = x[order[: max(num, min(n, GREEDY_BUDGET // num))]]
    variance = _single(kernel.diag(candidates), 1).clone()
    if not torch.isfinite(variance).all():
        raise ValueError(
            "kernel.diag(x) holds NaN or infinite values: greedy selection needs a finite kernel"
        )
    floor = 100 * torch.finfo(x.dtype).eps * float(variance.max())  # rounding of k itself, at x's precision
    factor = variance.new_empty(num, candidates.shape[0])  # rows of Lᵀ
    chosen: list[int] = []
    for m in range(num):
        pivot = int(variance.argmax())
        remaining = float(variance[pivot])
        if not remaining > floor:
            break
        column = _single(kernel(candidates, candidates[pivot : pivot + 1]), 2)[:, 0]
        column = column - factor[:m, pivot] @ factor[:m]  # k(·, p | chosen)
        factor[m] = column / math.sqrt(remaining)
        variance = (variance - factor[m].square()).clamp_min_(0.0)
        variance[pivot] = 0.0
        chosen.append(pivot)
    picked = torch.tensor(chosen, dtype=torch.long, device=x.device)
    if len(chosen) == num:
        return candidates[picked]
    spare = torch.cat([candidates[picked], random_rows(x, num, kernel, generator)])
    distinct = _first_occurrences(spare)
    return torch.cat([spare[distinct], _without(spare, distinct)])[:num]


Initialiser = Callable[[Tensor, int, KernelLike, torch.Generator | None], Tensor]
INITIALISERS: dict[str, Initialiser] = {
    "random": random_rows,
    "kmeans": kmeans_centres,
    "greedy": greedy_variance,
}


def column_spread(rows: Tensor) -> Tensor:
    """Standard deviation of every column of [..., n, d]: [..., 1, d]; 1 for constant columns."""
    std = rows.std(-2, correction=1 if rows.shape[-2] > 1 else 0, keepdim=True)
    rounding = 1e-12 * rows.abs().amax((-2, -1), keepdim=True)
    return torch.where(std > rounding, std, torch.ones_like(std))


def _separate(z: Tensor, x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Move the repeated rows of z, and only those, until all rows differ."""
    distinct = _first_occurrences(z)
    if distinct.numel() == z.shape[0]:
        return z.clone()
    warnings.warn(
        f"x has too few distinct rows for {z.shape[0]} inducing points: {z.shape[0] - distinct.numel()} of "
        "them repeat others and were moved slightly; fewer inducing points would do",
        DataWarning,
        stacklevel=4,
    )
    eps = torch.finfo(x.dtype).eps
    low, high = x.amin(0), x.amax(0)
    largest = torch.maximum(low.abs(), high.abs())
    # The standard deviation of values brought to [−1, 1]: squares of huge or tiny ones would not survive.
    spread = (x / largest.clamp_min(torch.finfo(x.dtype).tiny)).std(0, correction=0) * largest
    step = torch.where(high > low, torch.maximum(PERTURBATION * spread, 4 * eps * largest), 0.0)
    if not bool((step > 0).any()):  # one distinct row: nothing tells the scale but the values themselves
        step = torch.where(largest > 0, PERTURBATION * largest, PERTURBATION)
        step = step.clamp_min(torch.finfo(x.dtype).tiny)
    out = z.clone()
    repeated = torch.ones(z.shape[0], dtype=torch.bool, device=z.device)
    repeated[distinct] = False
    while bool(repeated.any()):
        shape = (int(repeated.sum()), z.shape[1])
        noise = torch.randn(shape, generator=generator, device=_device(generator), dtype=z.dtype)
        out[repeated] = z[repeated] + noise.to(z.device) * step
        repeated = torch.ones_like(repeated)
        repeated[_first_occurrences(out)] = False
        step = 2 * step  # coarse floating-point grids may need more room
    return out


def _first_occurrences(rows: Tensor) -> Tensor:
    """Indices of the first appearance of each distinct row, in order of appearance."""
    n = rows.shape[0]
    if rows.shape[1] == 0:
        raise ValueError("x has no columns")
    _, group = torch.unique(rows, dim=0, return_inverse=True)
    first = torch.full((int(group.max()) + 1,), n, device=rows.device)
    first.scatter_reduce_(0, group, torch.arange(n, device=rows.device), reduce="amin")
    return first.sort().values


def _without(rows: Tensor, indices: Tensor) -> Tensor:
    keep = torch.ones(rows.shape[0], dtype=torch.bool, device=rows.device)
    keep[indices] = False
    return rows[keep]


def _single(k: Tensor, dims: int) -> Tensor:
    """One kernel in float64: leading dimensions (latents, replicates) averaged away."""
    return k.double().flatten(0, -dims - 1).mean(0) if k.ndim > dims else k.double()


def _permutation(n: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    return torch.randperm(n, generator=generator, device=_device(generator)).to(device)


def _device(generator: torch.Generator | None) -> torch.device:
    return generator.device if generator is not None else torch.device("cpu")
