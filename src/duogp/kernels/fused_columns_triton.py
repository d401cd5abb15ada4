"""The GPU's kernel behind `duogp.kernels.fused_columns`; imported where Triton is."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

#: Points and rows of a tile.
POINTS, ROWS, WARPS = 16, 256, 8


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _columns(  # type: ignore[no-untyped-def]
    x, z, a, out, mean, n, M, padded, row, dims, latents, tiles,
    TWICE_NU: tl.constexpr, POINTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A tile of k(Z, x): x [dims, n], z [dims, M], a [latents, M], out [padded, 2, row], mean [.., .., n]."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tile = tl.program_id(1).to(tl.int64)
    points = tile * POINTS + tl.arange(0, POINTS)
    here, there = rows < n, points < M
    r2 = tl.zeros([POINTS, ROWS], dtype=tl.float64)
    for d in range(dims):
        own = tl.load(x + d * n + rows, mask=here, other=0.0)
        other = tl.load(z + d * M + points, mask=there, other=0.0)
        difference = other[:, None] - own[None, :]
        r2 += difference * difference
    if TWICE_NU == 0:
        k = tl.exp(-0.5 * r2)
    else:
        s = tl.sqrt(tl.minimum(TWICE_NU * r2, 1e30))
        k = tl.exp(-s)
        if TWICE_NU == 3:
            k = k * (1.0 + s)
        if TWICE_NU == 5:
            k = k * (1.0 + s + s * s / 3.0)
    for i in range(latents):
        weight = tl.load(a + i * M + points, mask=there, other=0.0)
        total = tl.sum(k * weight[:, None], axis=0)
        tl.store(mean + (i * tiles + tile) * n + rows, total, mask=here)
    rounded = tl.where(there[:, None], k, 0.0).to(tl.float32)
    first = rounded.to(tl.float16)
    second = (rounded - first.to(tl.float32)).to(tl.float16)
    place = out + (2 * points[:, None]).to(tl.int64) * row + rows[None, :]
    inside = (points < padded)[:, None] & here[None, :]
    tl.store(place, first, mask=inside)
    tl.store(place + row, second, mask=inside)


def columns(x: Tensor, z: Tensor, a: Tensor | None, out: Tensor, twice_nu: int) -> Tensor | None:
    """The mean [latents, n] where there are weights a [latents, M]; pairs go to ``out`` [≥ M, 2, ≥ n].

    x [dims, n] and z [dims, M] are scaled, contiguous and float64.
    """
    (dims, n), M, padded = x.shape, z.shape[1], out.shape[0]
    tiles = triton.cdiv(padded, POINTS)
    latents = 0 if a is None else a.shape[0]
    mean = torch.empty(max(latents, 1), tiles, n, dtype=torch.float64, device=x.device)
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        _columns[(triton.cdiv(n, ROWS), tiles)](
            x, z, z if a is None else a, out, mean, n, M, padded, out.stride(1), dims, latents, tiles,
            TWICE_NU=twice_nu, POINTS=POINTS, ROWS=ROWS, num_warps=WARPS,
        )  # fmt: skip
    return None if a is None else mean.sum(1)
