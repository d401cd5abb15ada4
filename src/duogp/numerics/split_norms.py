"""‖R k‖² of lower trapezoidal roots R by float16 products, squared and summed in the kernel that makes them.

The products are those of `duogp.numerics.split_products`, R k ≈ R₁k₁ + R₁k₂ + R₂k₁. By separate operations
R k is written, read to add the next panel, and read again to be squared: more bytes than the tensor cores
need time for. One kernel of a GPU (Triton) keeps a tile of R k in registers and writes its sums of squares
alone. The columns k come as pairs (k₁, k₂), which is two numbers for each instead of three.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from duogp.numerics.split_products import split

#: Rows of R, columns of k and inner size of a tile.
TILE = 128, 128, 64


def empty_pairs(points: int, n: int, device: torch.device) -> Tensor:
    """Room for the pairs of k [points, n]: [points padded, 2, n padded] in float16.

    What belongs to padded points must be zero; what belongs to padded columns is never read.
    """
    return torch.empty(_padded(points, TILE[2]), 2, _padded(n, TILE[1]), dtype=torch.float16, device=device)


def pairs_of(k: Tensor) -> Tensor:
    """The pairs of k [points, n] in float32 or float64, entries at most one in size."""
    points, n = k.shape
    out = empty_pairs(points, n, k.device).zero_()
    first = k.half()
    out[:points, 0, :n] = first
    out[:points, 1, :n] = (k - first.to(k)).half()
    return out


@dataclass(frozen=True, eq=False)
class PairNorms:
    """k ↦ ‖R_g k‖² of G roots [G, r, M], r ≤ M, zero to the right of the diagonal that ends in the corner."""

    left: Tensor  # [2, G, r padded, M padded] in float16
    scale: Tensor  # of the squares, []
    rows: int
    points: int

    @classmethod
    @torch.no_grad()
    def of(cls, roots: Tensor) -> PairNorms | None:
        """Of roots [G, r, M]; None where there is no Triton or its first results are wrong."""
        _, r, M = roots.shape
        first, second, scale = split(roots.flatten(0, 1))
        grown = [
            pad(part.unflatten(0, roots.shape[:2]), (0, -M % TILE[2], 0, -r % TILE[0]))
            for part in (first, second)
        ]
        out = cls(torch.stack(grown).contiguous(), scale.square(), r, M)
        return out if out._is_right(roots) else None

    def __call__(self, pairs: Tensor, n: int) -> Tensor:
        """[G, n] in float64 at pairs of columns, see `pairs_of`."""
        from duogp.numerics import split_norms_triton as triton_kernel

        parts = triton_kernel.norms(self.left, pairs, self.rows, self.points, TILE)
        return parts.sum(0, dtype=torch.float64)[:, :n] * self.scale

    def _is_right(self, roots: Tensor) -> bool:
        """Whether the kernel runs here and agrees with the formula at some columns."""
        g = torch.Generator().manual_seed(0)
        k = torch.rand(self.points, 200, generator=g, dtype=torch.float64).to(roots.device)
        try:
            found = self(pairs_of(k), 200)
        except Exception:  # no Triton, or one that cannot compile for this device
            return False
        expected = (roots.double() @ k).square().sum(-2)
        size = (roots.double().abs() @ k).square().sum(-2)
        return bool(((found - expected).abs() <= 1e-5 * size).all())


def _padded(size: int, multiple: int) -> int:
    return size + -size % multiple
