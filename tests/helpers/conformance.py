"""Every basis beside its brute-force counterpart, and the parametrisations of the conformance tests.

A new basis is one line of BASES: how to build it and how to compute it by brute force.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from duogp.bases import Basis, Conditional, Coupled, Separate, TwoBlock
from duogp.models.model import Batch, Model
from duogp.variational import BlockQ, ShrunkQ
from helpers import dense
from helpers.devices import placed
from helpers.random_models import OBJECTIVES, QS, Parts, learned


class Row(NamedTuple):
    name: str
    build: Callable[[Parts], Basis]
    dense: Callable[[Model, Tensor], dense.Dense]
    qs: tuple[str, ...] = tuple(QS)
    is_bound: bool = True  # of its ELBO, at β₁ = 1 and for the prior of its kernel


def conditional(whitening: str, omega: str = "full", **settings: Any) -> Callable[[Parts], Basis]:
    return lambda p: Conditional(
        p.kernel(), p.kernel(), p.z, p.q(), whitening=whitening, omega=omega, **settings
    )


def separate(extra: int) -> Callable[[Parts], Basis]:
    """Z_μ larger than Z_σ by `extra`."""

    def build(p: Parts) -> Basis:
        z_mean = p.extra[..., : p.z.shape[-2] + extra, :].clone()
        return Separate(p.kernel(), z_mean, p.z, p.q(mean_size=z_mean.shape[-2]))

    return build


def solve(extra: int) -> Callable[[Parts], Basis]:
    """q(u) q(v), O larger than Z by `extra`."""

    def build(p: Parts) -> Basis:
        o = p.extra[..., : p.z.shape[-2] + extra, :].clone()
        return TwoBlock(p.kernel(), p.z, o, BlockQ(p.q(), p.q(o.shape[-2])))

    return build


def orthogonal(extra: int) -> Callable[[Parts], Basis]:
    """v learns a mean only."""

    def build(p: Parts) -> Basis:
        o = p.extra[..., : p.z.shape[-2] + extra, :].clone()
        q = p.q(mean_size=p.z.shape[-2] + o.shape[-2])
        return TwoBlock(p.kernel(), p.z, o, q, mean_only=True)

    return build


def components(extra: int, epsilon: float) -> Callable[[Parts], Basis]:
    """v ~ N(0, εI), nothing of it learned; ε = 0 is the surrogate."""

    def build(p: Parts) -> Basis:
        o = p.extra[..., : p.z.shape[-2] + extra, :].clone()
        q_v = ShrunkQ(o.shape[-2], p.batch_shape, epsilon=epsilon)
        return TwoBlock(p.kernel(), p.z, o, BlockQ(p.q(), q_v))

    return build


WHITENED = ("full", "diagonal", "point")  # −log p(u) of a point, unwhitened, is for one block only

BASES = [
    Row("coupled", lambda p: Coupled(p.kernel(), p.z, p.q()), dense.coupled),
    Row("conditional-Q", conditional("Q"), dense.conditional),
    Row("conditional-K", conditional("K"), dense.conditional),
    Row("separate-equal", separate(0), dense.separate),
    Row("separate-larger-mean", separate(+1), dense.separate),
    Row("separate-smaller-mean", separate(-2), dense.separate),
    Row("solve", solve(+1), dense.two_block, WHITENED),
    Row("orthogonal", orthogonal(-1), dense.two_block, WHITENED),
    Row("components-eps", components(+1, 0.2), dense.two_block, WHITENED),
    Row("components", components(-1, 0.0), dense.two_block, WHITENED, is_bound=False),
]

SHAPES = [{"replicates": 1, "latents": 1}, {"replicates": 2, "latents": 2}]

every_basis = pytest.mark.parametrize("row", BASES, ids=lambda row: row.name)
every_q = pytest.mark.parametrize("q", QS)
every_basis_and_q = pytest.mark.parametrize(
    ("row", "q"), [pytest.param(row, q, id=f"{row.name}-{q}") for row in BASES for q in row.qs]
)
every_basis_and_gaussian_q = pytest.mark.parametrize(
    ("row", "q"), [pytest.param(row, q, id=f"{row.name}-{q}") for row in BASES for q in ("full", "diagonal")]
)
every_objective = pytest.mark.parametrize("objective", OBJECTIVES)
four_objectives = pytest.mark.parametrize("objective", list(OBJECTIVES)[:4])  # without the sign switch
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=["single", "replicates-latents"])
every_jitter = pytest.mark.parametrize("jitter", [0.0, 0.03], ids=["exact", "jitter"])

close = partial(assert_close, rtol=1e-9, atol=1e-9)


def separate_kernels(p: Parts) -> Basis:
    return Separate(p.kernel(), p.extra, p.z, p.q(mean_size=5), mean_kernel=p.kernel())


def assert_gradient_is_that_of_differences(model: Model, batch: Batch) -> None:
    """Central differences of the loss along a random direction of every parameter there is."""
    g = torch.Generator().manual_seed(0)
    model.loss(batch).sum().backward()
    for name, p in learned(model):
        direction = placed(torch.randn(p.shape, generator=g, dtype=torch.float64))
        with torch.no_grad():
            value, ends = p.clone(), []
            for step in (1e-5, -1e-5):
                p.copy_(value + step * direction)
                ends.append(model.loss(batch).sum())
            p.copy_(value)
        assert_close((p.grad * direction).sum(), (ends[0] - ends[1]) / 2e-5, rtol=1e-7, atol=1e-8, msg=name)
