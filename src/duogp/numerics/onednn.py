"""Products of float32 matrices on a CPU by oneDNN, where that is quicker than torch's own matrix product.

torch multiplies by MKL, which uses vectors of 512 bits on Intel's processors only. oneDNN, which torch brings
along for networks, goes by what the processor has. On an AMD Zen 5 with one and two threads its products take
0.4 to 0.7 of MKL's time from some 2.5 million multiplications on (67 × 67 by 67 × 1,024: 39 µs and 55, 200 ×
201 by 201 × 1,024: 0.21 ms and 0.42, 800 × 800 by 800 × 1,024: 2.9 and 6.2 ms); smaller ones take longer. On
an Intel Xeon of the same width all of these take longer, 1.1 to 2 times. The sums are float32 in both. Which
of the two multiplies depends on the processor and on shapes, never on a timing, so that a fit has the same
digits every time.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

#: Multiplications from which a product is quicker by oneDNN.
LEAST_WORK = 2_500_000
#: Families of AMD's processors from Zen 5 on, whose units are as wide as their vectors of 512 bits.
FULL_WIDTH_FAMILY = 26
CPU_INFO = Path("/proc/cpuinfo")


def suits(A: Tensor, B: Tensor) -> bool:
    """Whether A B of [m, k] and [k, n] is quicker by oneDNN."""
    work = A.shape[-2] * A.shape[-1] * B.shape[-1]
    return A.dtype == torch.float32 and not A.is_cuda and work >= LEAST_WORK and is_quicker()


def product(A: Tensor, B: Tensor) -> Tensor:
    """A B [m, n] of [m, k] and [k, n], none of which is empty; no gradient passes through it.

    Parts of larger matrices are copied first: what lies apart in memory takes a slow road there.
    """
    A, B = _dense(A), _dense(B)
    return torch.ops.mkldnn._linear_pointwise(A, B.mT, None, "none", [], "")


def _dense(A: Tensor) -> Tensor:
    """A matrix whose numbers lie side by side, by rows or by columns."""
    return A if A.is_contiguous() or A.mT.is_contiguous() else A.contiguous()


@cache
def is_quicker() -> bool:
    """Whether this is a machine on which large products are quicker by oneDNN."""
    return is_there() and torch.backends.mkl.is_available() and _has_full_width()


def is_there() -> bool:
    """Whether torch can multiply by oneDNN."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _has_full_width() -> bool:
    """Whether this is a processor of AMD with units of 512 bits; no, where no file says so."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return False
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    family = facts.get("cpu family", "")
    return facts.get("vendor_id") == "AuthenticAMD" and family.isdigit() and int(family) >= FULL_WIDTH_FAMILY
