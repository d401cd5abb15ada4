"""Roots of quadratic forms in triangular shape, so that half of a product with them is with zeros.

kᵀRᵀR k depends on R up to a rotation: any root [r, m] may be replaced by a lower trapezoid of at most m rows,
which is zero to the right of the diagonal that ends in its lower right corner.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Added to I − GᵀG before it is factorised, for directions of which the data say nothing and where it is
#: zero up to rounding. A variance changes by this share of the prior's.
NUDGE = 1e-10


#: Rows of a matrix that are looked at together.
CHECKED_ROWS = 256


def lower_root(root: Tensor) -> Tensor:
    """R lower trapezoidal, [..., min(r, m), m], with the RᵀR of a root [..., r, m], or the root itself."""
    if is_lower(root):
        return root
    # QR of the columns in reverse order: root = Q U with U upper; U with rows and columns reversed is lower.
    return torch.linalg.qr(root.flip(-1), mode="r").R.flip(-1, -2)


def roots_of_difference(W: Tensor, T: Tensor) -> tuple[Tensor, Tensor | None]:
    """A and B, lower trapezoidal, with AᵀA − BᵀB = WᵀW − TᵀT; B is None where that is positive.

    W [..., m, m] is lower triangular and invertible, T [..., s, m]. With G = TW⁻¹ and D = I − GᵀG: A = UW
    with U lower triangular and UᵀU = D where there is one, else A and B come from the eigenvectors of D with
    positive and with negative eigenvalues. One matrix has m rows, or two have m rows together.
    """
    m = W.shape[-1]
    G = torch.linalg.solve_triangular(W, T, upper=False, left=False)
    D = (1.0 + NUDGE) * torch.eye(m, dtype=W.dtype, device=W.device) - G.mT @ G
    L, info = torch.linalg.cholesky_ex(D.flip(-1, -2))
    if not bool(info.any()):
        return L.mT.flip(-1, -2) @ W, None
    values, vectors = torch.linalg.eigh(D)  # in ascending order
    roots = values.abs().sqrt().unsqueeze(-1) * (vectors.mT @ W)
    positive = values > 0
    above, below = int(positive.sum(-1).max()), int((~positive).sum(-1).max())
    A = roots[..., m - above :, :] * positive[..., m - above :, None]
    B = roots[..., :below, :] * ~positive[..., :below, None]
    return lower_root(A), lower_root(B)


def is_lower(root: Tensor) -> bool:
    """Whether a root [..., r, m] is a lower trapezoid; by blocks of rows, without a copy of all of it."""
    r, m = root.shape[-2:]
    rows = (slice(i, i + CHECKED_ROWS) for i in range(0, r, CHECKED_ROWS))
    return r <= m and not any(bool(root[..., s, :].triu(m - r + 1 + s.start).any()) for s in rows)
