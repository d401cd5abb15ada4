"""A frozen posterior at many rows, without gradients: triangular products, in float64 or float32.

    residual  k − ‖W k(Z, x)‖²        explained  ‖T k(Z, x)‖²        mean  k(x, Z) a

W and T are brought to lower triangular shape once (any rotation of them is as good) and multiplied in blocks
of rows, up to the diagonal: half of the products of dense matrices and a little more. Roots on the same
points are one matrix, so that k(Z, x) is read once for both.

In float32 only the products W k and T k are, on a GPU by `duogp.numerics.split_products`, of many rows by
`duogp.numerics.split_norms`. k(Z, x) is computed in float64 and rounded once; the mean is float64, because
its weights cancel. Where the variance is not asked for in parts,

    k − ‖A k(Z, x)‖² + ‖B k(Z, x)‖²        AᵀA − BᵀB = WᵀW − TᵀT

takes about one product instead of two: B has a row for every direction in which q(u) is wider than the prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from duogp.bases.frozen_products import Columns
from duogp.bases.marginals import Marginals, TotalMarginals, clamp_variance
from duogp.kernels.base import Kernel
from duogp.kernels.fused_columns import FusedColumns
from duogp.kernels.stationary import profile_of
from duogp.numerics import split_products
from duogp.numerics.factorisation import project
from duogp.numerics.products import even_cuts
from duogp.numerics.split_norms import PairNorms
from duogp.numerics.triangular_roots import lower_root, roots_of_difference

if TYPE_CHECKING:
    from duogp.bases.frozen import FrozenPosterior, Probe

Precision = Literal["float64", "float32"]
#: Rows of a block of a root: fewer save more products, and each of them is slower.
BLOCK_ROWS = 128
CUDA_BLOCK_ROWS = 256
#: Rows of a piece from which a GPU evaluates columns and norms by one kernel each, compiled once.
FUSED_ROWS = 4096
#: Float64 numbers that a row takes for every inducing point while its marginals are made.
MATRICES = 4
#: Whether float32 products on a GPU are split into those of float16.
SPLIT = True


@dataclass(frozen=True, eq=False)
class Norms:
    """k ↦ ‖R_g k‖² of G roots [b, G, r, M] at kernel columns k [b, M, n]: [b, G, n] in float64."""

    blocks: tuple[Tensor, ...]  # of rows, [b, G · rows, columns]
    groups: int

    @classmethod
    def of(cls, roots: Tensor) -> Norms:
        _, groups, r, M = roots.shape
        cuts = cuts_of(r, CUDA_BLOCK_ROWS if roots.is_cuda else BLOCK_ROWS)
        blocks = (roots[..., begin:end, : M - r + end].flatten(1, 2) for begin, end in cuts)
        return cls(tuple(block.contiguous() for block in blocks), groups)

    def __call__(self, k: Tensor) -> Tensor:
        """Of k in the precision of the roots."""
        total: Tensor | None = None
        for left in self.blocks:
            phi = torch.bmm(left, k[..., : left.shape[-1], :])
            norm = square_sums(phi.unflatten(1, (self.groups, -1)), -2).double()
            total = norm if total is None else total.add_(norm)
        assert total is not None
        return total


@dataclass(frozen=True, eq=False)
class SplitNorms:
    """The same by `split_products`: panels of columns, each with the rows that it reaches."""

    panels: tuple[tuple[int, Tensor], ...]  # the first row of R_g k, and [b, rows · G, 3 · columns]
    groups: int
    scale: Tensor  # [b]

    @classmethod
    def of(cls, roots: Tensor) -> SplitNorms:
        groups, r, M = roots.shape[1:]
        left, scale = split_products.split_left(roots.transpose(1, 2).flatten(1, 2))  # [b, r · G, 3M]
        panels = []
        for begin in range(0, M, split_products.PANEL):
            first, end = max(0, begin - (M - r)), min(M, begin + split_products.PANEL)
            own = left[:, groups * first :, 3 * begin : 3 * end]
            panels.append((first, split_products.aligned(own)))
        return cls(tuple(panels), groups, scale)

    def __call__(self, k: Tensor) -> Tensor:
        """Of k as `split_products.split_right` gives it."""
        phi: Tensor | None = None
        begin = 0
        for first, left in self.panels:
            right = k[:, begin : begin + left.shape[-1]]
            to = None if phi is None else phi[:, self.groups * first :]
            found = split_products.product(left, right, to)
            phi = found if phi is None else phi
            begin += left.shape[-1]
        assert phi is not None
        norm = square_sums(phi.unflatten(1, (-1, self.groups)), 1).double()
        return norm * self.scale.square()[:, None, None]


def cuts_of(rows: int, size: int) -> list[tuple[int, int]]:
    """Where blocks of about so many rows begin and end; beginnings are multiples of 16."""
    count = max(1, round(rows / size))
    edges = [16 * round(end / 16) for _, end in even_cuts(rows, count)[:-1]]
    return [(begin, end) for begin, end in pairwise([0, *edges, rows]) if begin < end]


def square_sums(phi: Tensor, dim: int) -> Tensor:
    """Σ φ² over a dimension of φ [...], which the result is without; φ is overwritten."""
    if phi.is_cuda:  # one pass, where squares first would be three
        return torch.linalg.vector_norm(phi, dim=dim).square_()
    return phi.square_().sum(dim)


def splits(a: Tensor) -> bool:
    """Whether, on the device of a [...], float32 products are split into those of float16."""
    return SPLIT and a.is_cuda and split_products.available(a.device)


@dataclass(frozen=True, eq=False)
class FusedSite:
    """Columns of one set of points and their norms by two kernels of a GPU."""

    columns: FusedColumns
    norms: tuple[PairNorms, ...]

    @classmethod
    def of(cls, columns: Columns, stacks: Sequence[Tensor]) -> FusedSite | None:
        """Of roots [1, G, r, M]; None where a kernel does not run here."""
        fused = FusedColumns.of(columns.kernel, columns.points)
        norms = [] if fused is None else [PairNorms.of(stack[0]) for stack in stacks]
        if fused is None or None in norms:
            return None
        return cls(fused, tuple(each for each in norms if each is not None))

    def __call__(self, x: Tensor, weights: Tensor | None) -> tuple[Tensor | None, list[Tensor]]:
        """Mean [1, latents, n] and norms [1, G, n] at rows x [1, 1, n, d], as the kernel sees them."""
        mean, pairs = self.columns(x, weights)
        return mean, [norms(pairs, x.shape[-2])[None] for norms in self.norms]


@dataclass(frozen=True, eq=False)
class Site:
    """What is needed of the kernel columns of one set of points: a mean, norms, or both."""

    columns: Columns
    weights: Tensor | None  # of the mean, [1, latents, M]
    norms: tuple[Norms | SplitNorms, ...]  # of roots of different sizes
    dtype: torch.dtype  # of their products
    split: bool = False
    size: Tensor | None = None  # √k(z, z), [..., M, 1], where columns are to be split and not bounded by one
    fused: FusedSite | None = None  # the same by two kernels of the GPU, for many rows

    @classmethod
    def of(cls, probe: Probe, weights: Tensor | None, roots: Sequence[Tensor], dtype: torch.dtype) -> Site:
        columns, variance = Columns.of(probe.kernel, probe.points)
        if variance is not None:
            factor = variance.double()[..., None]
            weights = None if weights is None else weights * factor
            roots = [root * factor.unsqueeze(-1) for root in roots]
        if not roots:
            return cls(columns, weights, (), dtype)
        split, size, fused = dtype == torch.float32 and splits(roots[0]), None, None
        sets = columns(probe.points[..., :1, :].double()).shape[-3]
        if split and not has_unit_bound(columns.kernel):
            size = columns.kernel.diag(columns.points.double()).sqrt().unsqueeze(-1)
            roots = [root * size.mT for root in roots]
        stacks = together(roots, sets)
        if split and size is None and sets == 1:
            fused = FusedSite.of(columns, stacks)
        norms = tuple(SplitNorms.of(stack) if split else Norms.of(stack.to(dtype)) for stack in stacks)
        return cls(columns, weights, norms, dtype, split, size, fused)

    def __call__(self, x: Tensor) -> tuple[Tensor | None, list[Tensor]]:
        """Mean [1, latents, n] and norms [b, G, n] at rows x [1, 1, n, d]."""
        n = x.shape[-2]
        if self.fused is not None and n >= FUSED_ROWS:
            return self.fused(self.columns.map(x), self.weights)
        k = self.columns(x)
        mean = None if self.weights is None else project(k, self.weights)
        if not self.norms:
            return mean, []
        of_x: Tensor | float = 1.0
        if self.size is not None:
            root = self.columns.kernel.diag(self.columns.map(x)).sqrt().unsqueeze(-2)
            k = k / (self.size * root).clamp_min(torch.finfo(k.dtype).tiny)
            of_x = root.square().flatten(0, -3)
        k = k.flatten(0, -3).to(self.dtype)
        right = split_products.split_right(k) if self.split else k
        return mean, [norms(right)[..., :n] * of_x for norms in self.norms]


def has_unit_bound(kernel: Kernel) -> bool:
    """Whether |k(x, x′)| ≤ 1 by its formula."""
    return profile_of(kernel) is not None


def together(roots: Sequence[Tensor], sets: int) -> list[Tensor]:
    """Roots [1, latents or 1, r, M] as tensors [b, G, r, M] for b sets of kernel columns.

    One set has all roots (those of the first kind, then those of the next), or each latent function has its
    own set and a root of each kind. Roots of different sizes are tensors of their own.
    """
    if sets == 1:
        flat = [root.reshape(1, -1, *root.shape[-2:]) for root in roots]
    else:
        flat = [root.expand(1, sets, -1, -1)[0].unsqueeze(1) for root in roots]
    if len({root.shape[-2] for root in flat}) == 1:
        return [torch.cat(flat, 1)]
    return flat


@dataclass(frozen=True, eq=False)
class ManyRows:
    """Mean and variances of a frozen posterior at rows x [1, 1, n, d], in float64 arrays."""

    form: FrozenPosterior
    precision: Precision
    sites: tuple[tuple[Site, tuple[str, ...]], ...]  # with what the norms of each are, in turn
    counts: dict[str, int]  # functions that a root of each kind has

    @classmethod
    def of(cls, form: FrozenPosterior, precision: Precision, *, in_parts: bool = True) -> ManyRows:
        roots = {"residual": lower_root(form.residual_root), "explained": form.explained_root}
        probes = {"residual": form.residual_probe, "explained": form.explained_probe}
        shared = form.residual_probe is form.explained_probe
        if not bool(form.explained_root.any()):
            del roots["explained"]
        elif not in_parts and shared and roots["residual"].shape[-1] == roots["residual"].shape[-2]:
            roots["residual"], more = roots_of_difference(roots["residual"], form.explained_root)
            roots = {"residual": roots["residual"]} | ({} if more is None else {"explained": more})
        else:
            roots["explained"] = lower_root(form.explained_root)
        every = dict.fromkeys([form.mean_probe, *(probes[name] for name in roots)])
        sites = []
        for probe in every:
            names = tuple(name for name in roots if probes[name] is probe)
            weights = form.mean_weights if probe is form.mean_probe else None
            own = [roots[name] for name in names]
            sites.append((Site.of(probe, weights, own, getattr(torch, precision)), names))
        counts = {name: root.shape[-3] for name, root in roots.items()}
        return cls(form, precision, tuple(sites), counts)

    @property
    def matrices(self) -> int:
        """Float64 numbers that a row takes for every inducing point; pairs of float16 are half of one."""
        return 1 if all(site.fused is not None for site, _ in self.sites) else MATRICES

    def marginals(self, x: Tensor) -> Marginals:
        mean, norms, prior = self._evaluate(x)
        explained = norms.get("explained")
        if explained is None:
            explained = prior.new_zeros(()).expand_as(norms["residual"])
        return Marginals(mean, self._clamped(prior - norms["residual"], prior), explained)

    def total_marginals(self, x: Tensor) -> TotalMarginals:
        mean, norms, prior = self._evaluate(x)
        variance = prior - norms["residual"]
        if "explained" in norms:
            variance = variance + norms["explained"]
        return TotalMarginals(mean, self._clamped(variance, prior))

    def _evaluate(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        mean: Tensor | None = None
        norms: dict[str, Tensor] = {}
        for site, names in self.sites:
            own, found = site(x)
            mean = own if own is not None else mean
            if not found:
                continue
            if found[0].shape[0] > 1:  # a set of columns for every latent function
                pieces = [part.squeeze(1)[None] for stack in found for part in stack.split(1, 1)]
            elif len(found) == 1:
                pieces = list(found[0].split([self.counts[name] for name in names], 1))
            else:
                pieces = found
            norms |= dict(zip(names, pieces, strict=True))
        assert mean is not None
        return mean, norms, self.form.prior.diag(x)

    def _clamped(self, variance: Tensor, prior: Tensor) -> Tensor:
        """Floored at the rounding of the products (MATH §11 C5)."""
        return clamp_variance(variance, prior, precision=getattr(torch, self.precision))
