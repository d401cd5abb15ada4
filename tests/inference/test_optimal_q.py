"""q at its closed-form optimum: its moments are those of its root, and a point has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from duogp.inference.optimal_q import OptimalQ

torch_generator = torch.Generator().manual_seed(0)
MEAN = torch.randn(2, 1, 4, generator=torch_generator, dtype=torch.float64)
ROOT = torch.randn(2, 1, 4, 4, generator=torch_generator, dtype=torch.float64).tril()
PHI = torch.randn(2, 1, 4, 7, generator=torch_generator, dtype=torch.float64)
W = torch.randn(2, 1, 3, 4, generator=torch_generator, dtype=torch.float64)
LIKE: Any = SimpleNamespace(is_gaussian=True, unwhitened=False)


def optimal(root: torch.Tensor | None) -> OptimalQ:
    return OptimalQ(MEAN, root, torch.zeros(2, 1, dtype=torch.float64), LIKE)


@pytest.mark.parametrize("root", [ROOT, None], ids=["gaussian", "point"])
def test_moments_are_those_of_the_root(root: torch.Tensor | None) -> None:
    q = optimal(root)
    own = torch.zeros(2, 1, 4, 4, dtype=torch.float64) if root is None else root
    S = own @ own.mT
    torch.testing.assert_close(q.root(), own)
    torch.testing.assert_close(q.variance_of(PHI), ((own.mT @ PHI) ** 2).sum(-2))
    torch.testing.assert_close(q.mean_of(PHI), torch.einsum("rlm,rlmn->rln", MEAN, PHI))
    second = S + MEAN.unsqueeze(-1) * MEAN.unsqueeze(-2)
    expected = (W @ second @ W.mT).diagonal(dim1=-2, dim2=-1).sum(-1)
    torch.testing.assert_close(q.second_moment(W), expected)


def test_gradients_flow_through_the_features() -> None:
    phi = PHI.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(optimal(ROOT).variance_of(phi).sum(), phi)
    torch.testing.assert_close(gradient, 2 * ROOT @ ROOT.mT @ PHI)
