"""Random problems of the subspace basis, and its dense process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from duogp.bases import Basis, Subspace, SubspaceState
from duogp.models.model import Batch, Model
from helpers.random_models import Parts, Problem, random_problem, separated_points

PRECONDITIONERS = ["none", "jacobi", "nystrom"]


every_preconditioner = pytest.mark.parametrize("preconditioner", PRECONDITIONERS)
either_mean = pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
every_jitter = pytest.mark.parametrize("jitter", [0.0, 0.03], ids=["exact", "jitter"])

close = partial(assert_close, rtol=1e-9, atol=1e-9)


def normal(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def subspace(**settings: Any) -> Callable[[Parts], Basis]:
    def build(p: Parts) -> Basis:
        alpha = p.extra[..., :3, :] if settings.get("shared") else p.extra
        return Subspace(p.kernel(), alpha.clone(), p.z, p.batch_shape, **settings)

    return build


def problem(
    preconditioner: str = "none",
    shared: bool = False,
    *,
    columns: int | None = None,
    prior: SubspaceState | None = None,
    seed: int = 0,
    **options: Any,
) -> Problem:
    """A random model, L₀ a full square matrix."""
    build = subspace(preconditioner=preconditioner, shared=shared, columns=columns, prior=prior)
    found = random_problem(build, seed=seed, **options)
    root = found.model.basis.q.raw_root
    root.data = normal(*root.shape, seed=50 + seed, scale=0.6)
    return found


def kl(model: Model) -> Tensor:
    factors = model.factors()
    return model.basis.kl(factors, model.basis.q_of(factors))


def assert_gradient_is_that_of_differences(model: Model, batch: Batch) -> None:
    model.zero_grad()
    model.loss(batch).sum().backward()
    generator = torch.Generator().manual_seed(0)
    for name, p in model.named_parameters():
        direction = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            value, ends = p.clone(), []
            for step in (1e-5, -1e-5):
                p.copy_(value + step * direction)
                ends.append(model.loss(batch).sum())
            p.copy_(value)
        found, expected = (p.grad * direction).sum(), (ends[0] - ends[1]) / 2e-5
        assert_close(found, expected, rtol=1e-6, atol=1e-8, msg=f"{name}: {found}, {expected}")


def random_state(
    seed: int, batch_shape: tuple[int, int], sizes: tuple[int, int] = (4, 3), jitter: float = 0.0
) -> SubspaceState:
    generator = torch.Generator().manual_seed(300 + seed)
    points = separated_points(sum(sizes) + 9, batch_shape[0], generator).unsqueeze(1)
    alpha, beta = points[..., : sizes[0], :], points[..., sizes[0] : sum(sizes), :]
    a = normal(*batch_shape, sizes[0], seed=seed)
    L = normal(*batch_shape, sizes[1], sizes[1], seed=seed + 1, scale=0.7)
    return SubspaceState(alpha, a, beta, L, torch.full(batch_shape, jitter, dtype=torch.float64))
