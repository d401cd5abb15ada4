"""A B with a fixed A by float16 products that are accumulated in float32, on the tensor cores of a GPU.

Both factors are split, A = A₁ + A₂ and B = B₁ + B₂, each part rounded to the eleven bits of a float16, and

    A B ≈ A₁B₁ + A₁B₂ + A₂B₁        (A₂B₂ is 2⁻²² of the whole)

is one product of three times the inner size: every row of B becomes [B₁; B₂; B₁], every column of A becomes
[A₁, A₁, A₂]. Products of float16 numbers are exact in float32. No setting of the process (TF32) matters here.

Tensor cores add with truncation, an error that grows with the number of terms (Ootomo and Yokota 2022): sums
of `PANEL` columns of A are made there, and added to each other in float32 with rounding.

Entries of B must be at most one in size. A is scaled by a power of two, so that its largest entry stands at
the upper end of float16 and small parts keep their bits: those of A are rounded at 2⁻³⁹ of its largest entry,
those of B at 2⁻²⁵. Rows of both begin at multiples of 16 bytes, without which tensor cores are not used.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

#: Exponent of two of the largest entry of A: float16 ends at 2¹⁶.
TOP = 14
#: Columns of A whose products are added up on the tensor cores.
PANEL = 256
#: Entries of a row that its length is a multiple of.
ALIGNED = 8


def split(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A₁ and A₂ in float16, [..., r, m], of A times a power of two, and the inverse of that power, [...]."""
    A = A.double()
    size = A.abs().amax((-2, -1))
    _, exponent = torch.frexp(torch.where(size > 0, size, 1.0))
    shift = (TOP - exponent).double()
    scaled = A * torch.exp2(shift)[..., None, None]  # the largest entry lies in [2¹³, 2¹⁴)
    first = scaled.half()
    return first, (scaled - first.double()).half(), torch.exp2(-shift)


def split_left(A: Tensor) -> tuple[Tensor, Tensor]:
    """[A₁, A₁, A₂] column by column, [..., r, 3m] in float16, and the scale of every matrix, [...].

    A product with it is to be multiplied by the scale.
    """
    first, second, scale = split(A)
    return torch.stack([first, first, second], -1).flatten(-2), scale


def aligned(A: Tensor) -> Tensor:
    """A copy of a matrix [..., m, n] whose rows begin at multiples of `ALIGNED` entries."""
    missing = -A.shape[-1] % ALIGNED
    return pad(A, (0, missing))[..., : A.shape[-1]] if missing else A.contiguous()


def empty_right(b: int, m: int, n: int, device: torch.device) -> Tensor:
    """Room for [B₁; B₂; B₁] of B [b, m, n]: [b, m, 3, n] with aligned rows, what is behind them zero."""
    room = torch.empty(b, m, 3, n + -n % ALIGNED, dtype=torch.float16, device=device)
    room[..., n:].zero_()
    return room


def split_right(B: Tensor) -> Tensor:
    """[B₁; B₂; B₁] row by row, [b, 3m, n + up to 7] in float16, of B [b, m, n] in float32, overwritten."""
    b, m, n = B.shape
    room = empty_right(b, m, n, B.device)
    first, second, again = room[..., :n].unbind(-2)
    first.copy_(B)
    second.copy_(B.sub_(first))
    again.copy_(first)
    return room.flatten(-3, -2)


def product(left: Tensor, right: Tensor, to: Tensor | None = None) -> Tensor:
    """left right of float16 matrices [b, r, 3m], [b, 3m, n] in float32, added in place to what is given."""
    kind = torch.float32
    if not left.is_cuda:  # the same numbers, where the device has no such product
        made = torch.bmm(left.float(), right.float())
        return made if to is None else to.add_(made)
    if left.shape[0] > 1:
        if to is None:
            return torch.bmm(left, right, out_dtype=kind)
        return torch.baddbmm(to, left, right, out_dtype=kind, out=to)
    if to is None:
        return torch.mm(left[0], right[0], out_dtype=kind)[None]
    own = to[0]  # one tensor, given twice: another view of it would be copied first
    torch.addmm(own, left[0], right[0], out_dtype=kind, out=own)
    return to


@cache
def available(device: torch.device) -> bool:
    """Whether a device has these products and they are right."""
    g = torch.Generator().manual_seed(0)
    A = torch.randn(2, 24, 40, generator=g, dtype=torch.float64, device="cpu")
    B = torch.rand(2, 40, 48, generator=g, dtype=torch.float64, device="cpu")
    try:
        return all(_is_right(A[:batch], B[:batch], device) for batch in (1, 2))
    except (RuntimeError, TypeError, NotImplementedError):
        return False


def _is_right(A: Tensor, B: Tensor, device: torch.device) -> bool:
    """A B twice, the second time added to some of the rows."""
    left, scale = split_left(A.to(device))
    left, right = aligned(left), split_right(B.to(device, torch.float32))
    found = product(left, right)
    product(left[:, 8:], right, found[:, 8:])
    expected = A @ B
    expected[:, 8:] *= 2.0
    return bool(((found.double() * scale[..., None, None]).cpu() - expected).abs().max() < 1e-4)
