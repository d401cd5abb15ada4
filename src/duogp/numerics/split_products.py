"""A B with a fixed A by float16 products that are accumulated in float32, on the tensor cores of a GPU.

Both factors are split, A = A₁ + A₂ and B = B₁ + B₂, each part rounded to the eleven bits of a float16, and

    A B ≈ A₁B₁ + A₁B₂ + A₂B₁        (A₂B₂ is 2⁻²² of the whole)

is one product of three times the inner size: a row of B is followed by its parts, [B₁; B₂; B₁], a column of A by
[A₁, A₁, A₂]. Products of float16 numbers are exact in float32. On an H200 this is several times as fast as one
float32 product, and no setting of the process (TF32) has a part in it.

B must have entries of at most one in size. A is scaled by a power of two, so that its largest entry stands at the
upper end of float16 and small parts keep their bits: those of A are rounded at 2⁻³⁹ of its largest entry, those of
B at 2⁻²⁵.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Exponent of two of the largest entry of A: float16 ends at 2¹⁶.
TOP = 14


def split_left(A: Tensor) -> tuple[Tensor, Tensor]:
    """[A₁, A₁, A₂] column by column, [..., r, 3m] in float16, and the scale of every matrix, [...] in float64.

    A product with it is to be multiplied by the scale.
    """
    A = A.double()
    size = A.abs().amax((-2, -1))
    _, exponent = torch.frexp(torch.where(size > 0, size, 1.0))
    shift = (TOP - exponent).double()
    scaled = A * torch.exp2(shift)[..., None, None]  # the largest entry lies in [2¹³, 2¹⁴)
    first = scaled.half()
    second = (scaled - first.double()).half()
    return torch.stack([first, first, second], -1).flatten(-2), torch.exp2(-shift)


def split_right(B: Tensor) -> Tensor:
    """[B₁; B₂; B₁] row by row, [..., 3m, n] in float16, of B [..., m, n] in float32, which is overwritten."""
    parts = torch.empty(*B.shape[:-1], 3, B.shape[-1], dtype=torch.float16, device=B.device)
    first, second, again = parts.unbind(-2)
    first.copy_(B)
    second.copy_(B.sub_(first))
    again.copy_(first)
    return parts.flatten(-3, -2)


def product(left: Tensor, right: Tensor) -> Tensor:
    """left right of float16 matrices [b, r, m], [b, m, n], accumulated in float32."""
    if not left.is_cuda:  # the same numbers, where the device has no such product
        return torch.bmm(left.float(), right.float())
    if left.shape[0] == 1:
        return torch.mm(left[0], right[0], out_dtype=torch.float32)[None]
    return torch.bmm(left, right, out_dtype=torch.float32)
