"""A kernel taken apart into its variance and a kernel without it, for fused steps and prediction."""

from __future__ import annotations

from torch import Tensor

from duogp.kernels.base import Kernel
from duogp.kernels.compose import Scale
from duogp.kernels.stationary import Stationary, profile_of


def split_variance(kernel: Kernel) -> tuple[Kernel, Tensor | None]:
    """(k, s) of a kernel s·k, s [*b]; (k, None) of a kernel without a variance."""
    return (kernel.kernel, kernel.variance()) if isinstance(kernel, Scale) else (kernel, None)


def stationary_part(kernel: Kernel, points: Tensor, x: Tensor) -> Stationary | None:
    """The kernel, without its variance, if it is a function of r² with a profile, of rows like the points."""
    base, _ = split_variance(kernel)
    if profile_of(base) is None or not isinstance(base, Stationary):
        return None
    return base if points.shape[-1] == x.shape[-1] == base.dims else None
