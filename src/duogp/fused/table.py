"""THE LOOKUP of hand-written steps: (basis, its q and kernel, what the objective reads) → a step or None.

A fused step is a faster way to the numbers of the general path, `Basis.evaluate`; a test holds the values and
gradients of every entry to it. An entry is for one class exactly: a subclass may have other formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from duogp.bases import Basis, Conditional, Coupled, Hybrid, TwoBlock
from duogp.bases.marginals import Moments, Penalties, Reads
from duogp.fused import conditional, coupled, direct_conditional, direct_coupled, hybrid, two_block
from duogp.fused.direct import DirectStep
from duogp.fused.step import Step
from duogp.numerics.factorisation import Numerics
from duogp.variational import CholeskyQ, DiagonalQ, PointQ

if TYPE_CHECKING:
    from duogp.models.model import Model

#: (basis, x, reads, with_omega) → its step, or None for a q, kernel or shape that it is not written for.
Finder = Callable[[Any, Tensor, Reads, bool], Step | None]

FUSED: dict[type[Basis], Finder] = {
    Coupled: coupled.find,
    Conditional: conditional.find,
    TwoBlock: two_block.find,
    Hybrid: hybrid.find,
}


#: (basis, x, reads, with_omega) → its direct step, or None.
DirectFinder = Callable[[Any, Tensor, Reads, bool], DirectStep | None]

#: Steps of one model on a CPU that need no tape.
DIRECT: dict[type[Basis], DirectFinder] = {
    Coupled: direct_coupled.find,
    Conditional: direct_conditional.find,
    TwoBlock: direct_coupled.find_orthogonal,
}


def find_direct(basis: Basis, x: Tensor, *, reads: Reads, with_omega: bool = False) -> DirectStep | None:
    """The direct step of a basis for batches like x [1, 1, n, d] on a CPU; None: differentiate `evaluate`.

    It keeps memory for this one shape, and is made once for a training.
    """
    finder = DIRECT.get(type(basis))
    if finder is None or basis.keep_record or x.device.type != "cpu" or x.requires_grad or x.shape[0] != 1:
        return None
    return finder(basis, x, reads, with_omega)


def find(basis: Basis, x: Tensor, *, reads: Reads, with_omega: bool = False) -> Step | None:
    """The fused step of a basis for rows like x [R, 1, n, d]; None: take `Basis.evaluate`."""
    finder = FUSED.get(type(basis))
    return None if finder is None or basis.keep_record else finder(basis, x, reads, with_omega)


def sums_are_enough(model: Model) -> bool:
    """Whether the collapsed bound depends on the rows only through the sums of `fused.collapsed`."""
    return (
        type(model.basis) in (Coupled, Conditional)
        and type(model.basis.q) in (CholeskyQ, DiagonalQ, PointQ)
        and model.likelihood.is_gaussian
        and model.likelihood.linear_in_variance
        and model.objective.has_closed_form
        and not model.objective.smooths_residual
        and model.mixing is None
        and not model.uses_omega
    )


def evaluate(
    basis: Basis,
    x: Tensor,
    factors: Any | None,
    numerics: Numerics,
    *,
    reads: Reads = "parts",
    with_omega: bool = False,
) -> tuple[Moments, Penalties]:
    """Moments and penalties of a batch: by a fused step where there is one, else by the general path.

    ``factors``: those at hand, which the general path uses; a fused step makes its own.
    """
    step = find(basis, x, reads=reads, with_omega=with_omega) if factors is None else None
    if step is not None:
        return step(x, numerics)
    factors = basis.factors(numerics) if factors is None else factors
    return basis.evaluate(x, factors, numerics, with_omega=with_omega)
