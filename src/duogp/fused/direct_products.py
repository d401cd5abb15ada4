"""Plans of matrix products for steps on a CPU: blocks of triangles, on memory that stays where it is.

A triangular solve runs at half the rate of a matrix product there. With the inverses of the diagonal blocks
it is products alone, and a product with a triangle skips what is zero. Cutting blocks out of matrices took
longer than many of the products themselves, so it is done once: a function here returns a `Plan`, and a step
calls it. A plan reads and writes the memory that it was made for.

Matrices are [rows, columns], or [slices, rows, columns] where every thread shall have columns of its own.
Threads that share one product of a hundred rows wait for each other: on two cores it takes up to twice as
long as two products of half the columns side by side (67 × 67 by 67 × 1,024: 158 µs and 85). A batched
product writes contiguous memory alone; blocks of rows are copied from there. Where oneDNN multiplies
(`numerics.onednn`) its threads share a product well, and one slice has all columns.

``cuts``: where blocks begin and end, from `cuts_of`. Matrices of which only blocks on and below the diagonal
are written should be made with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from duogp.numerics import onednn
from duogp.numerics.factorisation import Numerics
from duogp.numerics.products import even_cuts

#: Blocks of a triangle, unless they have fewer or more rows than these: more blocks save more work, and are
#: slower each, above all with several threads.
BLOCKS, ROWS = 3, (50, 80)

#: Points from which several threads solve for a square matrix by LAPACK.
SQUARE_SOLVES = 256
#: Threads up to which columns are shared out among them, and columns that each has at least.
MOST_SLICES, FEWEST_COLUMNS = 4, 128

Cuts = list[tuple[int, int]]


def cuts_of(M: int, rows: int | None = None) -> Cuts:
    """Blocks of about so many rows, at least one."""
    rows = min(max(M // BLOCKS, ROWS[0]), ROWS[1]) if rows is None else rows
    return even_cuts(M, max(1, round(M / rows)))


class Plan(list[Callable[[], Any]]):
    """Operations on fixed memory, in order."""

    def __call__(self) -> None:
        for operation in self:
            operation()

    def __add__(self, other: list[Any]) -> Plan:  # type: ignore[override]
        return Plan([*self, *other])


def slices_of(n: int, dtype: torch.dtype) -> int:
    """Slices of n columns, one for each thread that torch has now; one for all where n cannot be shared out.

    So it is with more threads than a few, where oneDNN multiplies, and without MKL, whose batched products
    have a thread for each.
    """
    threads = torch.get_num_threads()
    few = threads <= MOST_SLICES and torch.backends.mkl.is_available()
    if dtype == torch.float32 and onednn.is_quicker():
        return 1
    return threads if few and n % threads == 0 and n // threads >= FEWEST_COLUMNS else 1


def product(A: Tensor, B: Tensor, out: Tensor, memory: Rows | None = None) -> Plan:
    """A B; of slices of A, of B or of both. ``memory``: for slices that are not contiguous in ``out``."""
    if out.dim() == 2:
        return Plan([_multiplied(A, B, out)])
    to = out
    if not out.is_contiguous():
        assert memory is not None
        to = memory(out.shape[-2])
    plan = Plan([partial(torch.bmm, _batch(A, out), _batch(B, out), out=to)])
    return plan if to is out else Plan([*plan, partial(out.copy_, to)])


def sum_of(to: Tensor, A: Tensor, B: Tensor, out: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Plan:
    """beta · to + alpha · A B; slices are written to contiguous memory."""
    if out.dim() == 2:
        return Plan([_added(to, A, B, out, beta, alpha)])
    A, B = _batch(A, out), _batch(B, out)
    return Plan([partial(torch.baddbmm, to, A, B, beta=beta, alpha=alpha, out=out)])


def _multiplied(A: Tensor, B: Tensor, out: Tensor) -> Callable[[], Any]:
    """A B of two matrices."""
    if onednn.suits(A, B):
        return lambda: out.copy_(onednn.product(A, B))
    return partial(torch.mm, A, B, out=out)


def _added(to: Tensor, A: Tensor, B: Tensor, out: Tensor, beta: float, alpha: float) -> Callable[[], Any]:
    """beta · to + alpha · A B of matrices, one of the factors being 1."""
    if not onednn.suits(A, B):
        return partial(torch.addmm, to, A, B, beta=beta, alpha=alpha, out=out)
    if beta == 1.0:
        return lambda: torch.add(to, onednn.product(A, B), alpha=alpha, out=out)
    return lambda: torch.add(onednn.product(A, B), to, alpha=beta, out=out)


def _batch(A: Tensor, like: Tensor) -> Tensor:
    return A if A.dim() == 3 else A.expand(like.shape[0], *A.shape)


def lower_product(L: Tensor, H: Tensor, out: Tensor, cuts: Cuts) -> Plan:
    """L H for a lower triangular L."""
    memory = rows_for(out, cuts)
    return _joined(product(L[i:j, :j], H[..., :j, :], out[..., i:j, :], memory) for i, j in cuts)


def upper_product(L: Tensor, H: Tensor, out: Tensor, cuts: Cuts) -> Plan:
    """LᵀH for a lower triangular L."""
    memory = rows_for(out, cuts)
    return _joined(product(L[i:, i:j].mT, H[..., i:, :], out[..., i:j, :], memory) for i, j in cuts)


def lower_outer(A: Tensor, B: Tensor, out: Tensor, cuts: Cuts) -> Plan:
    """A Bᵀ on and below the blocks of the diagonal, summed over slices; what is above in ``out`` stays."""
    if A.dim() == 2:
        return Plan([_multiplied(A[i:j], B[:j].mT, out[i:j, :j]) for i, j in cuts])
    plan, memory = Plan(), A.new_empty(len(A) * max((j - i) * j for i, j in cuts))
    for i, j in cuts:
        parts = memory[: len(A) * (j - i) * j].view(len(A), j - i, j)
        plan += product(A[:, i:j], B[:, :j].mT, parts)
        plan.append(partial(torch.sum, parts, 0, out=out[i:j, :j]))
    return plan


#: Memory for so many rows.
Rows = Callable[[int], Tensor]


def rows_for(like: Tensor, cuts: Cuts) -> Rows:
    """Contiguous memory for the rows of any block of ``like``, which blocks share."""
    *slices, _, columns = like.shape
    one = like[..., 0, :].numel()
    memory = like.new_zeros(max(j - i for i, j in cuts) * one)
    return lambda rows: memory[: rows * one].view(*slices, rows, columns)


def _joined(plans: Iterable[Plan]) -> Plan:
    return Plan(chain.from_iterable(plans))


def product_with_lower(A: Tensor, L: Tensor, out: Tensor, cuts: Cuts) -> Plan:
    """A L for a lower triangular L."""
    return Plan([_multiplied(A[:, i:], L[i:, i:j], out[:, i:j]) for i, j in cuts])


def less_lower_product(to: Tensor, L: Tensor, H: Tensor, cuts: Cuts) -> Plan:
    """L H − to on and below the blocks of the diagonal, in place, for a lower triangular L."""
    blocks = [(to[i:j, :j], L[i:j, :j], H[:j, :j]) for i, j in cuts]
    return Plan([_added(t, a, b, t, -1.0, 1.0) for t, a, b in blocks])


def gram(A: Tensor, out: Tensor, cuts: Cuts) -> Plan:
    """A Aᵀ: one triangle by products, its mirror image copied."""
    return lower_outer(A, A, out, cuts) + mirror(out, cuts)


def gram_of_lower(L: Tensor, out: Tensor, cuts: Cuts) -> Plan:
    """L Lᵀ for a lower triangular L."""
    lower = [_multiplied(L[i:, :j], L[i:j, :j].mT, out[i:, i:j]) for i, j in cuts]
    return Plan(lower) + mirror(out, cuts)


def mirror(A: Tensor, cuts: Cuts) -> Plan:
    """A with the blocks below the diagonal copied above it, in place."""
    return Plan([partial(A[:i, i:j].copy_, A[i:j, :i].mT) for i, j in cuts if i])


class Triangle:
    """A lower triangular L [M, M] with L Lᵀ = K in the working precision, factorised in float64.

    The inverses of its diagonal blocks are kept with it.
    """

    def __init__(self, size: int, dtype: torch.dtype, cuts: Cuts) -> None:
        self.cuts = cuts
        double, largest = torch.float64, max(j - i for i, j in cuts)
        self.factor = torch.zeros(size, size, dtype=double).mT  # by columns, as LAPACK has it
        self.L = self.factor if dtype == double else torch.zeros(size, size, dtype=dtype).mT
        self.info = torch.zeros((), dtype=torch.int32)
        self._flag, self._diagonal = self.info.view(1), self.factor.diagonal()
        exact = torch.zeros(len(cuts), largest, largest, dtype=double)
        rounded = exact if dtype == double else exact.to(dtype)
        eye = torch.eye(largest, dtype=double)
        self._after, self.inverses = Plan(), []
        for (i, j), inverse, other in zip(cuts, exact, rounded, strict=True):
            block, m = self.factor[i:j, i:j], j - i
            solve = torch.linalg.solve_triangular
            self._after.append(partial(solve, block, eye[:m, :m], upper=False, out=inverse[:m, :m].mT))
            self.inverses.append(other[:m, :m].mT)
        if dtype != double:
            self._after += [partial(self.L.copy_, self.factor), partial(rounded.copy_, exact)]

    def factorise(self, K: Tensor, numerics: Numerics) -> None:
        """L of K [M, M] in float64; a failure is noted."""
        torch.linalg.cholesky_ex(K, out=(self.factor, self.info))
        if self.info.item():
            numerics.note(self._flag)
        self._after()

    def half_log_det(self) -> float:
        """½ log|K|."""
        return float(self._diagonal.log().sum())

    def solve(self, B: Tensor, out: Tensor, count: int | None = None) -> Plan:
        """L⁻¹B, or that of the first ``count`` blocks; ``out`` is other memory."""
        plan, parts, memory = Plan(), rows_for(B, self.cuts), rows_for(B, self.cuts)
        for (i, j), inverse in zip(self.cuts[:count], self.inverses[:count], strict=True):
            part = B[..., i:j, :]
            if i:
                part = parts(j - i)
                plan += sum_of(B[..., i:j, :], self.L[i:j, :i], out[..., :i, :], part, alpha=-1.0)
            plan += product(inverse, part, out[..., i:j, :], memory)
        return plan

    def solve_transposed(self, G: Tensor, out: Tensor, count: int | None = None) -> Plan:
        """L⁻ᵀG, or that of the first ``count`` blocks; ``out`` is other memory."""
        plan, parts, memory = Plan(), rows_for(G, self.cuts), rows_for(G, self.cuts)
        cuts = self.cuts[:count]
        M = cuts[-1][1]
        for (i, j), inverse in zip(cuts[::-1], self.inverses[:count][::-1], strict=True):
            part = G[..., i:j, :]
            if j < M:
                part = parts(j - i)
                plan += sum_of(G[..., i:j, :], self.L[j:M, i:j].mT, out[..., j:M, :], part, alpha=-1.0)
            plan += product(inverse.mT, part, out[..., i:j, :], memory)
        return plan

    def from_both_sides(self, P: Tensor, out: Tensor) -> Plan:
        """L⁻ᵀ P L⁻¹ for a lower triangular P [M, M], which is overwritten; ``out`` is other memory."""
        between = torch.zeros_like(out)
        return self.divide(P, between) + self._solve_square_transposed(between, out)

    def _solve_square_transposed(self, G: Tensor, out: Tensor) -> Plan:
        """L⁻ᵀG for a G [M, M] in one memory.

        Threads wait for each other after every product with a block: with several of them and some hundred
        points LAPACK's solve is the quicker one.
        """
        if torch.get_num_threads() == 1 or len(self.L) < SQUARE_SOLVES:
            return self.solve_transposed(G, out)
        return Plan([partial(torch.linalg.solve_triangular, self.L.mT, G, upper=True, out=out)])

    def divide(self, P: Tensor, out: Tensor) -> Plan:
        """P L⁻¹ for a lower triangular P, which is overwritten; ``out`` keeps what is above its blocks."""
        plan, done = Plan(), Cuts()
        for (i, j), inverse in zip(self.cuts[::-1], self.inverses[::-1], strict=True):
            for k, end in done:  # rows below this block of columns
                part = P[k:end, i:j]
                plan += sum_of(part, out[k:end, j:end], self.L[j:end, i:j], part, alpha=-1.0)
            plan += product(P[i:, i:j], inverse, out[i:, i:j])
            done.append((i, j))
        return plan
