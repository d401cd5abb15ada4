"""k(Z, x) of a stationary kernel on a GPU, already split for float16 products, in one pass over the result.

Separate operations (distances, exponentials, rounding, the rest) read and write the M × n numbers of k some
ten times, which takes longer than the products on the tensor cores. One kernel writes two float16 numbers
for each and nothing else; everything before the rounding is float64, and the mean k(x, Z) a is summed on the
way. It is written in Triton, which torch brings along where it knows CUDA. Without Triton, and where first
results differ from those of the formula, it is not used.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duogp.kernels.base import Kernel
from duogp.kernels.distance import within_reach
from duogp.kernels.profiles import Exponential2, HalfInteger
from duogp.kernels.stationary import Stationary, profile_of
from duogp.numerics.split_norms import empty_pairs

#: Columns of x up to which differences are summed one by one.
MOST_DIMS = 64


@dataclass(frozen=True, eq=False)
class FusedColumns:
    """x ↦ k(x, Z) a and the pairs (k₁, k₂) of one set of points, see `duogp.numerics.split_norms`."""

    twice_nu: int  # of a Matérn kernel; 0: RBF
    centre: Tensor  # [d]
    inverse: Tensor  # of the lengthscale, [d]
    points: Tensor  # scaled, [d, M]

    @classmethod
    @torch.no_grad()
    def of(cls, kernel: Kernel, points: Tensor) -> FusedColumns | None:
        """Of one set of points [..., M, d]; None without such a kernel or Triton, or at wrong results."""
        profile = profile_of(kernel)
        d = points.shape[-1]
        if not isinstance(profile, Exponential2 | HalfInteger) or not 0 < d <= MOST_DIMS:
            return None
        assert isinstance(kernel, Stationary)
        lengthscale = kernel.lengthscale().detach().double()
        if kernel.dims != d or lengthscale.numel() not in (1, d) or points.numel() != d * points.shape[-2]:
            return None
        z = points.detach().double().reshape(-1, d)
        centre, inverse = z.mean(0), lengthscale.reshape(-1).reciprocal().expand(d).contiguous()
        scaled = within_reach((z - centre) * inverse).mT.contiguous()
        twice_nu = profile.twice_nu if isinstance(profile, HalfInteger) else 0
        out = cls(twice_nu, centre, inverse, scaled)
        return out if out._is_right(kernel, z) else None

    def __call__(self, x: Tensor, weights: Tensor | None = None) -> tuple[Tensor | None, Tensor]:
        """At rows x [1, 1, n, d]: the mean [1, latents, n] of weights [1, latents, M], pairs of k(Z, x)."""
        from duogp.kernels import fused_columns_triton as triton_kernel

        n, M = x.shape[-2], self.points.shape[1]
        rows = within_reach((x.reshape(n, -1) - self.centre) * self.inverse).mT.contiguous()
        out = empty_pairs(M, n, x.device)
        a = None if weights is None else weights.reshape(-1, M).contiguous()
        mean = triton_kernel.columns(rows, self.points, a, out, self.twice_nu)
        return None if mean is None else mean[None], out

    def _is_right(self, kernel: Kernel, z: Tensor) -> bool:
        """Whether the kernel runs here and agrees with the formula at some of the points."""
        x = torch.cat([z[:33], z[:33] + 0.3 / self.inverse])
        a = torch.linspace(-1.0, 1.0, 2 * len(z), dtype=torch.float64, device=z.device).reshape(1, 2, -1)
        try:
            mean, pairs = self(x[None, None], a)
        except Exception:  # no Triton, or one that cannot compile for this device
            return False
        expected = kernel(z, x)
        found = pairs[: len(z), :, : len(x)].double()
        assert mean is not None
        close = _close(found[:, 0] + found[:, 1], expected, 1e-6) and not bool(
            pairs[len(z) :, :, : len(x)].any()
        )
        return close and _close(mean[0], a[0] @ expected, 1e-9)


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return bool(((a - b).abs() <= tolerance * (1.0 + b.abs())).all())
