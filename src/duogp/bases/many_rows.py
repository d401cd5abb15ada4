"""A frozen posterior at many rows, without gradients: triangular products, in float64 or float32.

    residual  k − ‖W k(Z, x)‖²        explained  ‖T k(Z, x)‖²        mean  k(x, Z) a

W and T are brought to lower triangular shape once (any rotation of them is as good) and multiplied in blocks of rows,
up to the diagonal: half of the products of dense matrices and a little more. Roots on the same points are one
matrix, so that k(Z, x) is read once for both.

In float32 the variance alone is: k(Z, x) and the mean are float64 (k rounds to float32 relative to itself, a mean
would lose what its weights cancel), products are float32, on a GPU by `duogp.numerics.split_products`. Where the
variance is not asked for in parts and q(u) is nowhere wider than the prior, it is one product instead of two:

    k − ‖A k(Z, x)‖²        AᵀA = WᵀW − TᵀT
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from duogp.bases.frozen_products import Columns
from duogp.bases.marginals import Marginals, TotalMarginals, clamp_variance
from duogp.kernels.base import Kernel
from duogp.kernels.stationary import profile_of, split_variance
from duogp.numerics import split_products
from duogp.numerics.factorisation import project
from duogp.numerics.products import even_cuts
from duogp.numerics.triangular_roots import lower_root, root_of_difference

if TYPE_CHECKING:
    from duogp.bases.frozen import FrozenPosterior, Probe

Precision = Literal["float64", "float32"]
#: Rows of a block of a root: fewer save more products, and each of them is slower.
BLOCK_ROWS = 128
CUDA_BLOCK_ROWS = 256
#: Whether float32 products on a GPU are split into those of float16.
SPLIT = True


@dataclass(frozen=True, eq=False)
class Norms:
    """k ↦ ‖R_g k‖² of G roots [b, G, r, M] at kernel columns k [b, M, n]: [b, G, n] in float64."""

    blocks: tuple[Tensor, ...]  # [b, G · rows, columns]
    groups: int
    scale: Tensor | None  # of float16 roots, [b, G]
    precision: Precision

    @classmethod
    def of(cls, roots: Tensor, precision: Precision) -> Norms:
        b, groups, r, M = roots.shape
        scale = None
        size = CUDA_BLOCK_ROWS if roots.is_cuda else BLOCK_ROWS
        cuts = even_cuts(r, max(1, round(r / size)))
        if precision == "float32" and splits(roots):
            left, scale = split_products.split_left(roots)
        else:
            left = roots.to(getattr(torch, precision))
        wide = left.shape[-1] // M
        blocks = tuple(
            left[..., begin:end, : wide * (M - r + end)].flatten(1, 2).contiguous() for begin, end in cuts
        )
        return cls(blocks, groups, scale, precision)

    def __call__(self, k: Tensor) -> Tensor:
        if self.precision == "float32":
            k = k.float()
        split = self.scale is not None
        right = split_products.split_right(k) if split else k
        total: Tensor | None = None
        for left in self.blocks:
            own = right[..., : left.shape[-1], :]
            phi = split_products.product(left, own) if split else torch.bmm(left, own)
            norm = square_sums(phi.unflatten(1, (self.groups, -1))).double()
            total = norm if total is None else total.add_(norm)
        assert total is not None
        return total if self.scale is None else total.mul_(self.scale.square().unsqueeze(-1))


def square_sums(phi: Tensor) -> Tensor:
    """Σᵢ φᵢ² of columns, [..., M, n] → [..., n]; φ is overwritten."""
    if phi.is_cuda:  # one pass, where squares first would be three
        return torch.linalg.vector_norm(phi, dim=-2).square_()
    return phi.square_().sum(-2)


def splits(a: Tensor) -> bool:
    """Whether float32 products are split into those of float16."""
    return SPLIT and a.is_cuda


@dataclass(frozen=True, eq=False)
class Site:
    """What is needed of the kernel columns of one set of points: a mean, norms, or both."""

    columns: Columns
    bounded: Tensor | None  # √k(z, z), [..., M, 1], where columns are not bounded by one and must be
    weights: Tensor | None  # of the mean, [1, latents, M]
    norms: Norms | None

    @classmethod
    def of(cls, probe: Probe, weights: Tensor | None, roots: Sequence[Tensor], precision: Precision) -> Site:
        kernel, variance = split_variance(probe.kernel)
        columns = Columns.of(kernel, probe.points)
        bounded: Tensor | None = None
        if variance is not None:
            factor = variance.double()[..., None]
            weights = None if weights is None else weights * factor
            roots = [root * factor.unsqueeze(-1) for root in roots]
        if precision == "float32" and roots and splits(roots[0]) and not has_unit_bound(kernel):
            size = kernel.diag(probe.points.double()).sqrt()
            bounded = size.unsqueeze(-1)
            roots = [root * size.unsqueeze(-2) for root in roots]
        norms = None
        if roots:
            sets = columns(probe.points[..., :1, :].double()).shape[-3]
            norms = Norms.of(together(roots, sets), precision)
        return cls(columns, bounded, weights, norms)

    def __call__(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Mean [1, latents, n] and norms [b, G, n] at rows x [1, 1, n, d]."""
        k = self.columns(x)
        mean = None if self.weights is None else project(k, self.weights)
        if self.norms is None:
            return mean, None
        k = k.flatten(0, -3)
        if self.bounded is None:
            return mean, self.norms(k)
        size = self.columns.kernel.diag(x).sqrt().unsqueeze(-2)
        tiny = torch.finfo(size.dtype).tiny
        norms = self.norms((k / (self.bounded * size).clamp_min(tiny)).flatten(0, -3))
        return mean, norms * size.square().flatten(0, -3)


def has_unit_bound(kernel: Kernel) -> bool:
    """Whether |k(x, x′)| ≤ 1 by its formula."""
    return profile_of(kernel) is not None


def together(roots: Sequence[Tensor], sets: int) -> Tensor:
    """Roots [1, latents or 1, r, M] as one tensor [b, G, r, M] for b sets of kernel columns.

    One set has all roots (those of the first kind, then those of the next), or each latent function has its own and
    a root of each kind. Shorter roots get rows of zeros on top.
    """
    most = max(root.shape[-2] for root in roots)
    padded = [
        root if root.shape[-2] == most else torch.nn.functional.pad(root, (0, 0, most - root.shape[-2], 0))
        for root in roots
    ]
    if sets == 1:
        return torch.cat([root.reshape(-1, most, root.shape[-1]) for root in padded]).unsqueeze(0)
    return torch.stack([root.expand(1, sets, -1, -1)[0] for root in padded], 1)


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
        if not bool(form.explained_root.any()):
            del roots["explained"]
        elif not in_parts and form.residual_probe is form.explained_probe:
            total = root_of_difference(roots["residual"], form.explained_root)
            if total is not None:
                roots, probes = {"total": total}, {"total": form.residual_probe}
        if "explained" in roots:
            roots["explained"] = lower_root(form.explained_root)
        every = dict.fromkeys([form.mean_probe, *(probes[name] for name in roots)])
        sites = []
        for probe in every:
            names = tuple(name for name in roots if probes[name] is probe)
            weights = form.mean_weights if probe is form.mean_probe else None
            sites.append((Site.of(probe, weights, [roots[name] for name in names], precision), names))
        counts = {name: root.shape[-3] for name, root in roots.items()}
        return cls(form, precision, tuple(sites), counts)

    def marginals(self, x: Tensor) -> Marginals:
        mean, norms, prior = self._evaluate(x)
        explained = norms.get("explained")
        if explained is None:
            explained = prior.new_zeros(()).expand_as(norms["residual"])
        return Marginals(mean, self._clamped(prior - norms["residual"], prior), explained)

    def total_marginals(self, x: Tensor) -> TotalMarginals:
        mean, norms, prior = self._evaluate(x)
        variance = prior - norms["total" if "total" in norms else "residual"]
        if "explained" in norms:
            variance = variance + norms["explained"]
        return TotalMarginals(mean, self._clamped(variance, prior))

    def _evaluate(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        mean, norms = None, {}
        for site, names in self.sites:
            own, found = site(x)
            mean = own if own is not None else mean
            if found is None:
                continue
            if found.shape[0] > 1:  # a set of points for every latent function
                norms |= {name: found[None, :, i] for i, name in enumerate(names)}
            else:
                pieces = found.split([self.counts[name] for name in names], 1)
                norms |= dict(zip(names, pieces, strict=True))
        assert mean is not None
        return mean, norms, self.form.prior.diag(x)

    def _clamped(self, variance: Tensor, prior: Tensor) -> Tensor:
        """Floored at the rounding of the products (MATH §11 C5)."""
        return clamp_variance(variance, prior, precision=getattr(torch, self.precision))
