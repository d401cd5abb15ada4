"""A B of float32 matrices on the tensor cores of a GPU, to about the digits of a float32 product.

Blocks of both factors are scaled by powers of two and split into two float16 numbers, A = A₁ + A₂ and
B = B₁ + B₂, and

    A B ≈ A₁B₁ + A₁B₂ + A₂B₁        (A₂B₂ is 2⁻²² of the whole)

as in `duogp.numerics.split_products`, which is for a fixed A and for entries of B of at most one. Here one
kernel (Triton) makes the three products of a tile and adds them to its sum in float32: tensor cores truncate
when they add, so that sums made there are short. Inner indices at which a triangular factor is zero are left
out, and so are tiles above the diagonal where only the lower triangle is wanted.

The sums are more accurate than those of float32 products, but a factor loses a bit: of a training step on
ill-conditioned points, means and variances have a quarter of the error that float32 products have, gradients
of Z twice that error. Triangles of 2,000 points times 1,000 rows take 54 µs on an H200, where a product in
float32 takes 186; with 300 points, 12 and 12.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

logger = logging.getLogger("duogp")

#: What is known of a factor: where it is not zero.
Shape = Literal["full", "lower", "upper"]
#: Rows of the result, its columns and inner indices from which these products are the quicker ones: with 300
#: they take as long as others, with 500 a step of SVGP takes 0.95 of its time.
SMALLEST = 448


def suits(A: Tensor, B: Tensor) -> bool:
    """Whether A [..., m, k] and B [..., k, n] are multiplied here: large, float32, on a GPU that can.

    Not where autograd would have to see it: `product` has no gradient. Nor in code that is traced, where the
    memory that the kernels write would be all that is seen of them.
    """
    return (
        A.is_cuda
        and A.dtype == B.dtype == torch.float32
        and A.shape[:-2] == B.shape[:-2]
        and not is_traced()
        and not (torch.is_grad_enabled() and (A.requires_grad or B.requires_grad))
        and min(*A.shape[-2:], B.shape[-1]) >= SMALLEST
        and available(A.device)
    )


def is_traced() -> bool:
    """Whether operations are recorded, by `torch.compile` or by `make_fx`."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


def product(
    A: Tensor,
    B: Tensor,
    *,
    left: Shape = "full",
    right: Shape = "full",
    lower: bool = False,
    add: Tensor | None = None,
    sign: float = 1.0,
) -> Tensor:
    """add ± A B [..., m, n], new memory; ``lower``: its lower triangle, zero above the diagonal.

    A [..., m, k] and B [..., k, n] are float32 of the same batch. Where one of them is said to be a triangle,
    its other half holds zeros. A row with a number that is not finite gives NaN, rows of its block may get
    zeros; products below 1e-35 are zero.
    """
    from duogp.numerics import tensor_core_products_triton as kernels

    batch, (m, k), n = A.shape[:-2], A.shape[-2:], B.shape[-1]
    (a, a_transposed), (b, b_transposed) = (_stored(X.reshape(-1, *X.shape[-2:])) for X in (A, B))
    triangles = left == "lower", left == "upper", right == "lower", right == "upper", lower
    given = None if add is None else add.reshape(-1, m, n)
    transposed = a_transposed, b_transposed
    found = kernels.product(_parts(a), _parts(b), (m, n, k), transposed, triangles, given, sign)
    return found.reshape(*batch, m, n)


#: Matrices and their parts, by where and how the matrix is stored, its version and the stream of the GPU.
Known = dict[Any, tuple[Tensor, Any]]


class _Current(threading.local):
    known: Known | None = None


_current = _Current()


class _Sharing:
    def __init__(self, known: Known) -> None:
        self.known = known

    def __enter__(self) -> Known:
        self._before, _current.known = _current.known, self.known
        return self.known

    def __exit__(self, *error: object) -> None:
        _current.known = self._before


def sharing(like: Tensor, known: Known | None = None) -> AbstractContextManager[Known | None]:
    """A block of code whose products of matrices on the device of ``like`` split every matrix once.

    It gives what it came to know, for a later block to begin with (`among` leaves out what that does not
    read: parts take as much memory as their matrix). A matrix that was written to since is
    split again, and so is one that another stream of the GPU needs, which would have to wait.
    """
    return _Sharing({} if known is None else known) if _shares(like) else nullcontext()


def among(known: Known | None, matrices: Iterable[Tensor]) -> Known | None:
    """What is known of these matrices and of views of them."""
    if known is None:
        return None
    begins = {A.untyped_storage().data_ptr() for A in matrices}
    return {key: entry for key, entry in known.items() if entry[0].untyped_storage().data_ptr() in begins}


def _shares(like: Tensor) -> bool:
    return like.is_cuda and not is_traced()


def _parts(A: Tensor) -> Any:
    from duogp.numerics import tensor_core_products_triton as kernels

    known = _current.known
    if known is None or A.is_inference():
        return kernels.split(A)
    stream = torch.cuda.current_stream(A.device).cuda_stream if A.is_cuda else 0
    steps = A.stride() if A.shape[0] > 1 else A.stride()[1:]
    key = stream, A.data_ptr(), A.shape, steps, A._version
    if key not in known:  # held with its matrix, whose memory nobody else gets
        known[key] = A, kernels.split(A)
    return known[key][1]


def _stored(A: Tensor) -> tuple[Tensor, bool]:
    """The matrices whose rows are contiguous, and whether they are the transposes of A [b, r, c]."""
    if A.stride(-1) == 1:
        return A, False
    if A.stride(-2) == 1:
        return A.mT, True
    return A.contiguous(), False


_available: dict[torch.device, bool] = {}


def available(device: torch.device) -> bool:
    """Whether a device has these products and they are right; they are compiled here, once for a machine.

    False for now, but not for ever, where that cannot be found out: for want of memory, inside the capture of
    a graph or where code is traced. On the GPUs of workstations three products of float16 take about as long
    as one of float32: they have none of these.
    """
    if device not in _available:
        if is_traced() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            return False
        try:
            _available[device] = _is_for_products(device) and _are_right(device)
        except torch.OutOfMemoryError:
            return False
        except Exception as error:  # no Triton, or one that cannot compile for this device
            if "out of memory" in str(error):
                return False
            logger.info("products are not made on the tensor cores of %s: %s", device, error)
            _available[device] = False
    return _available[device]


def _is_for_products(device: torch.device) -> bool:
    """Compute capability 8.0, 9.0 or 10.0; measured on 9.0 (H200)."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) in ((8, 0), (9, 0), (10, 0))


def _are_right(device: torch.device) -> bool:
    g = torch.Generator().manual_seed(0)
    A, B = torch.randn(2, 2, 150, 150, generator=g, dtype=torch.float64, device="cpu")
    B = 1e-6 * B
    orders = [(left, right) for left in (False, True) for right in (False, True)]
    return all(_is_right(A, B, device, *transposed) for transposed in orders)


def _is_right(
    A: Tensor, B: Tensor, device: torch.device, left_transposed: bool, right_transposed: bool
) -> bool:
    A, B = A.tril(), B.triu()
    mine = [X.to(device, torch.float32) for X in (A, B)]
    left, right = (
        X.mT.contiguous().mT if transposed else X
        for X, transposed in zip(mine, (left_transposed, right_transposed), strict=True)
    )
    found = product(left, right, left="lower", right="upper", lower=True, add=right, sign=-1.0)
    expected, size = (B - A @ B).tril(), B.abs() + A.abs() @ B.abs()
    return bool(((found.double().cpu() - expected).abs() <= 1e-6 * size).all())
