"""A training step by its fused form and by the general path, in one signature."""

from __future__ import annotations

from typing import Any

import torch

from duogp.bases.base import Basis
from duogp.bases.marginals import Marginals, TotalMarginals, VarianceSum
from duogp.fused.table import find
from duogp.numerics.factorisation import Numerics


def by_fused_step(
    basis: Basis, x: torch.Tensor, numerics: Numerics, *, reads: str = "parts", with_omega=False
):
    step = find(basis, x, reads=reads, with_omega=with_omega)
    assert step is not None, "the lookup has no step for this case"
    return step(x, numerics)


def by_definition(
    basis: Basis, x: torch.Tensor, numerics: Numerics, *, reads: str = "parts", with_omega=False
):
    return basis.evaluate(x, basis.factors(numerics), numerics, with_omega=with_omega)


def weighed(f: Any, weights: torch.Tensor, reads: str) -> torch.Tensor:
    """A random combination of what an objective reads of f; weights [3, ..., n]."""
    loss = (f.mean * weights[0]).sum()
    if reads == "parts":
        assert isinstance(f, Marginals)
        return loss + (f.residual * weights[1]).sum() + (f.explained * weights[2]).sum()
    if reads == "variance":
        assert isinstance(f, Marginals | TotalMarginals)
        return loss + (f.variance * weights[1]).sum()
    total = f.total if isinstance(f, VarianceSum) else f.variance.sum(-1)
    return loss + (total * weights[1, ..., 0]).sum()
