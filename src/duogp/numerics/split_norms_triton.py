"""The GPU's kernel behind `duogp.numerics.split_norms`; imported where Triton is."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

#: Stages of the software pipeline and warps of a tile.
STAGES, WARPS = 3, 8


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _norms(  # type: ignore[no-untyped-def]
    left, right, out, width, row, padded, before, points, tiles, groups,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Σ over a tile of rows of (R k)²: left [2, groups · padded, width], right [width, 2, row].

    A tile of rows begins with those that reach most columns, so that the longest sums start first.
    """
    place = tl.program_id(0)
    group, tile = place % groups, tiles - 1 - place // groups
    rows = group * padded + tile * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, STEP)
    end = tl.minimum(points, before + (tile + 1) * ROWS)  # the columns of R to the right of it are zero
    first_left = left + rows.to(tl.int64)[:, None] * width + inner[None, :]
    second_left = first_left + (groups * padded).to(tl.int64) * width
    first_right = right + (2 * inner).to(tl.int64)[:, None] * row + columns[None, :]
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for _ in range(0, end, STEP):
        a1, a2 = tl.load(first_left), tl.load(second_left)
        b1, b2 = tl.load(first_right), tl.load(first_right + row)
        # A sum of few terms on the tensor cores, which truncate, then one addition that rounds.
        part = tl.dot(a1, b1)
        part = tl.dot(a1, b2, part)
        part = tl.dot(a2, b1, part)
        total += part
        first_left += STEP
        second_left += STEP
        first_right += 2 * STEP * row
    norm = tl.sum(total * total, axis=0)
    tl.store(out + (tile * groups + group).to(tl.int64) * row + columns, norm)


def norms(left: Tensor, right: Tensor, rows: int, points: int, tile: tuple[int, int, int]) -> Tensor:
    """Σᵢ (R k)ᵢ² in pieces, [tiles, groups, row] in float32, by tiles of (rows, columns, inner size).

    left [2, groups, rows padded, width], right [width, 2, row]: float16 and contiguous; R [rows, points].
    """
    _, groups, padded, width = left.shape
    row = right.shape[-1]
    ROWS, COLUMNS, STEP = tile
    tiles = padded // ROWS
    out = torch.empty(tiles, groups, row, dtype=torch.float32, device=right.device)
    with torch.cuda.device(right.device) if right.is_cuda else nullcontext():
        _norms[(tiles * groups, row // COLUMNS)](
            left, right, out, width, row, padded, points - rows, points, tiles, groups,
            ROWS=ROWS, COLUMNS=COLUMNS, STEP=STEP, num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
    return out
