"""The GPU's kernels behind `duogp.numerics.tensor_core_products`; imported where Triton is."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

#: Rows and columns of a block: of the parts of a factor that have one scale, and of a tile of the product; as
#: many terms has a sum that is made on the tensor cores.
BLOCK = 64
#: Stages of the software pipeline and warps of a tile.
STAGES, WARPS = 3, 4

_SIZES = ["rows", "columns", "step", "stride", "across"]
_FLAGS = ["m", "n", "k", "lower_a", "upper_a", "lower_b", "upper_b", "lower", "sign", "with_add", "a_across",
          "b_across", "a_blocks", "b_blocks"]  # fmt: skip


@triton.jit(do_not_specialize=_SIZES)  # type: ignore[untyped-decorator, unused-ignore]
def _split(  # type: ignore[no-untyped-def]
    a, parts, scales, rows, columns, step, stride, across, padded_rows, padded, BLOCK: tl.constexpr,
):  # fmt: skip
    """Blocks of a matrix times powers of two in two parts, [batch, 2, rows, columns], padded with zeros.

    A power puts the largest entry of its block into [2¹³, 2¹⁴), if that is finite and at least 2⁻¹¹³; its
    inverse is written to scales [batch, blocks down, across].
    """
    place, batch = tl.program_id(0), tl.program_id(1)
    i = (place // across) * BLOCK + tl.arange(0, BLOCK)
    j = (place % across) * BLOCK + tl.arange(0, BLOCK)
    inside = (i < rows)[:, None] & (j < columns)[None, :]
    at = batch.to(tl.int64) * stride + i.to(tl.int64)[:, None] * step + j[None, :]
    x = tl.load(a + at, mask=inside, other=0.0)
    size = tl.max(tl.max(tl.abs(x), axis=1), axis=0)
    exponent = ((size.to(tl.int32, bitcast=True) >> 23) & 255) - 127
    shift = tl.minimum(tl.maximum(13 - exponent, -126), 126)
    tl.store(scales + batch * tl.num_programs(0) + place, ((127 - shift) << 23).to(tl.float32, bitcast=True))
    x = x * ((shift + 127) << 23).to(tl.float32, bitcast=True)
    first = x.to(tl.float16)
    second = (x - first.to(tl.float32)).to(tl.float16)
    wide = padded.to(tl.int64)
    to = parts + (2 * batch * padded_rows + i).to(tl.int64)[:, None] * wide + j[None, :]
    tl.store(to, first)
    tl.store(to + padded_rows * wide, second)


@triton.jit(do_not_specialize=_FLAGS)  # type: ignore[untyped-decorator, unused-ignore]
def _multiply(  # type: ignore[no-untyped-def]
    a, b, a_scales, b_scales, add, out, m, n, k, a_padded, b_padded, a_part, b_part,
    a_across, b_across, a_blocks, b_blocks,
    lower_a, upper_a, lower_b, upper_b, lower, sign, with_add,
    A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = add ± A B [batch, m, n] of the parts of A and B, or of their transposes; 1 marks triangles."""
    batch = tl.program_id(2)
    i, j = tl.program_id(1), tl.program_id(0)
    if lower_a == 1:  # rows with the longest sums first
        i = tl.num_programs(1) - 1 - i
    i0, j0 = i * BLOCK, j * BLOCK
    begin = tl.maximum(upper_a * i0, lower_b * j0)
    end = tl.minimum(k, tl.minimum(k * (1 - lower_a) + i0 + BLOCK, k * (1 - upper_b) + j0 + BLOCK))
    if lower * j0 > i0:
        end = begin
    rows, columns, inner = i0 + tl.arange(0, BLOCK), j0 + tl.arange(0, BLOCK), begin + tl.arange(0, BLOCK)
    left, right = a + 2 * batch.to(tl.int64) * a_part, b + 2 * batch.to(tl.int64) * b_part
    a_scales += batch * a_blocks
    b_scales += batch * b_blocks
    if A_TRANSPOSED:
        a_scales += i
        a_next = a_across
        left += inner.to(tl.int64)[None, :] * a_padded + rows[:, None]
        left_step = BLOCK * a_padded
    else:
        a_scales += i * a_across
        a_next = 1
        left += rows.to(tl.int64)[:, None] * a_padded + inner[None, :]
        left_step = BLOCK
    if B_TRANSPOSED:
        b_scales += j * b_across
        b_next = 1
        right += columns.to(tl.int64)[None, :] * b_padded + inner[:, None]
        right_step = BLOCK
    else:
        b_scales += j
        b_next = b_across
        right += inner.to(tl.int64)[:, None] * b_padded + columns[None, :]
        right_step = BLOCK * b_padded
    total = tl.zeros([BLOCK, BLOCK], dtype=tl.float32)
    a_scales += begin // BLOCK * a_next
    b_scales += begin // BLOCK * b_next
    for _ in range(begin, end, BLOCK):
        scale = tl.load(a_scales) * tl.load(b_scales)
        a1, a2 = tl.load(left), tl.load(left + a_part)
        b1, b2 = tl.load(right), tl.load(right + b_part)
        # Few terms, the small ones first, on the tensor cores, which truncate; then an addition that rounds.
        part = tl.dot(a2, b1)
        part = tl.dot(a1, b2, part)
        part = tl.dot(a1, b1, part)
        total += part * scale
        left += left_step
        right += right_step
        a_scales += a_next
        b_scales += b_next
    total = total * sign
    at = batch.to(tl.int64) * m * n + rows.to(tl.int64)[:, None] * n + columns[None, :]
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    total += tl.load(add + at, mask=(rows < m * with_add)[:, None] & (columns < n)[None, :], other=0.0)
    total = tl.where(lower * columns[None, :] > rows[:, None], 0.0, total)
    tl.store(out + at, total, mask=inside)


class Parts(NamedTuple):
    """A matrix of float32 in two parts of float16, padded to whole blocks, and what to multiply them by."""

    parts: Tensor  # [b, 2, r padded, c padded]
    scales: Tensor  # [b, blocks down, blocks across]


def split(A: Tensor) -> Parts:
    """The parts of A [b, r, c], whose rows are contiguous."""
    b, rows, columns = A.shape
    down, across = (triton.cdiv(size, BLOCK) for size in (rows, columns))
    padded = down * BLOCK, across * BLOCK
    parts = torch.empty(b, 2, *padded, dtype=torch.float16, device=A.device)
    out = Parts(parts, torch.empty(b, down, across, dtype=torch.float32, device=A.device))
    with _on(A):
        _split[(down * across, b)](
            A, *out, rows, columns, A.stride(-2), A.stride(0), across, *padded, BLOCK=BLOCK, num_warps=WARPS
        )
    return out


def product(
    A: Parts,
    B: Parts,
    size: tuple[int, int, int],
    transposed: tuple[bool, bool],
    triangles: tuple[bool, bool, bool, bool, bool],
    add: Tensor | None,
    sign: float,
) -> Tensor:
    """add ± A B [b, m, n] of the parts of A and B, or of their transposes where ``transposed`` says so.

    ``size``: m, n and the inner size k. ``triangles``: A lower, A upper, B lower, B upper, the result lower.
    """
    m, n, k = size
    a, b = A.parts, B.parts
    out = torch.empty(a.shape[0], m, n, dtype=torch.float32, device=a.device)
    with _on(out):
        _multiply[(triton.cdiv(n, BLOCK), triton.cdiv(m, BLOCK), a.shape[0])](
            a, b, A.scales, B.scales, out if add is None else add.contiguous(), out, m, n, k,
            a.stride(2), b.stride(2), a.stride(1), b.stride(1),
            A.scales.stride(1), B.scales.stride(1), A.scales.stride(0), B.scales.stride(0),
            *map(int, triangles), float(sign), int(add is not None),
            A_TRANSPOSED=transposed[0], B_TRANSPOSED=transposed[1], BLOCK=BLOCK,
            num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
    return out


def _on(A: Tensor) -> AbstractContextManager[Any]:
    return torch.cuda.device(A.device) if A.is_cuda else nullcontext()
