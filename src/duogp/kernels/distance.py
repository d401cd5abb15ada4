"""Distances by one matrix product, accurate for float32 inputs and far from the origin.

‖a − b‖² = ‖a‖² + ‖b‖² − 2aᵀb loses all its digits when ‖a‖ is much larger than ‖a − b‖. So both sides are
moved to a common centre first, which leaves distances unchanged, and the expansion is always done in float64:
in float32 its error is many times a usual jitter.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPS = torch.finfo(torch.float64).eps
#: Lengthscales from the centre beyond which a coordinate is taken for this: its square must be finite.
#: Kernels are zero long before, but points that are all taken for it would be one: it is no smaller.
FARTHEST = 1e140


def centred(x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    """Both inputs in float64, relative to the mean of x1, which is a constant to autograd.

    [*b, n, d] and [*b, m, d], as they were.
    x1 are the inducing points wherever duogp calls a kernel, so one far row of x2 leaves the others exact.
    """
    points = max(x1.shape[-2], 1)  # the mean of no points would be NaN, and so would gradients
    centre = x1.detach().double().sum(-2, keepdim=True) / points
    return x1.double() - centre, x2.double() - centre


def scaled(x1: Tensor, x2: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """`centred` inputs [*b, n, d] and [*b, m, d] over a scale [*b, 1, d], float64."""
    a, b = centred(x1, x2)
    inverse = scale.double().reciprocal()
    return within_reach(a * inverse), within_reach(b * inverse)


def within_reach(x: Tensor) -> Tensor:
    """Scaled coordinates [...] no farther out than `FARTHEST`, so that no difference of squares is ∞ − ∞."""
    return x.clamp(-FARTHEST, FARTHEST)


def squared_distance(x1: Tensor, x2: Tensor, scale: Tensor | None = None) -> Tensor:
    """‖(x1 − x2) / scale‖² ≥ 0 for every pair: [*b, n, d], [*b, m, d] → [*b, n, m], in the dtype of x1.

    The clamp at zero changes the value only: gradients of every order are those of the unclamped polynomial.
    """
    _, r2 = _expansion(x1, x2, scale)
    return (r2 - r2.detach().clamp_max(0.0)).to(x1.dtype)


def distance(x1: Tensor, x2: Tensor, scale: Tensor | None = None) -> Tensor:
    """‖(x1 − x2) / scale‖ [*b, n, m], exactly zero with zero gradient where the points coincide.

    The root turns a rounding error of 1e-16 into 1e-8, so r² within its rounding error of zero is zero.
    x1 [*b, n, d], x2 [*b, m, d].
    """
    size, r2 = _expansion(x1, x2, scale)
    same = r2.detach() <= (x1.shape[-1] + 4) * EPS * size.detach()
    r = r2.masked_fill(same, 1.0).sqrt()  # filled before the root too: no ∞·0 in the backward pass
    return r.masked_fill(same, 0.0).to(x1.dtype)


def _expansion(x1: Tensor, x2: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """‖a‖² + ‖b‖², the size of the terms, and ‖a‖² + ‖b‖² − 2aᵀb in float64."""
    a, b = centred(x1, x2) if scale is None else scaled(x1, x2, scale)
    size = a.square().sum(-1).unsqueeze(-1) + b.square().sum(-1).unsqueeze(-2)
    return size, size - (2.0 * a) @ b.mT
