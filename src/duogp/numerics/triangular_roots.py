"""Roots of quadratic forms in triangular shape, so that half of a product with them is with zeros.

kᵀRᵀR k depends on R up to a rotation: any root [r, m] may be replaced by a lower trapezoid of at most m rows, which
is zero to the right of the diagonal that ends in its lower right corner.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Added to I − GᵀG before it is factorised, for directions of which the data say nothing and where it is zero up
#: to rounding. A variance changes by this share of the prior's.
NUDGE = 1e-10


def lower_root(root: Tensor) -> Tensor:
    """R lower trapezoidal, [..., min(r, m), m], with RᵀR that of the root [..., r, m]; itself where it is one."""
    r, m = root.shape[-2:]
    if r <= m and not bool(root.triu(m - r + 1).any()):
        return root
    # QR of the columns in reverse order: root = Q U with U upper; U with rows and columns reversed is lower.
    return torch.linalg.qr(root.flip(-1), mode="r").R.flip(-1, -2)


def root_of_difference(W: Tensor, T: Tensor) -> Tensor | None:
    """A lower triangular with AᵀA = WᵀW − TᵀT, up to `NUDGE`; None where the difference is not positive.

    W [..., m, m] is lower triangular and invertible, T [..., s, m]. With G = TW⁻¹ and U lower, UᵀU = I − GᵀG: A = UW.
    """
    m = W.shape[-1]
    if W.shape[-2] != m or bool(W.triu(1).any()):
        return None
    G = torch.linalg.solve_triangular(W, T, upper=False, left=False)
    D = (1.0 + NUDGE) * torch.eye(m, dtype=W.dtype, device=W.device) - G.mT @ G
    L, info = torch.linalg.cholesky_ex(D.flip(-1, -2))
    return None if bool(info.any()) else L.mT.flip(-1, -2) @ W
