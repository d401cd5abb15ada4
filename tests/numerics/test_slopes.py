"""Slopes of priors and of positive parameters against autograd."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from duogp.numerics.parameters import GammaPrior, LogNormalPrior, Positive, Prior


class Laplace(Prior):
    """One without a slope of its own."""

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return -value.abs()


@pytest.mark.parametrize("prior", [LogNormalPrior(0.3, 0.7), GammaPrior(2.0, 1.5), Laplace()])
@pytest.mark.parametrize("transform", ["softplus", "exp"])
def test_slopes(prior: Prior, transform: str) -> None:
    parameter = Positive([0.3, 2.0], transform=transform, floor=0.1).double()  # type: ignore[arg-type]
    value = parameter()
    (expected,) = torch.autograd.grad(prior(value).sum(), parameter.raw)
    assert_close(prior.slope(value.detach()) * parameter.slope(), expected, rtol=1e-10, atol=1e-12)
