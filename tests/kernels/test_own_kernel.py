"""A kernel of one's own: `forward` and `diag` are enough to fit, compose and replicate."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import duogp
from duogp.kernels import RBF, ActiveDims, Deep, DeepKernel, Kernel, Scale, Sum, squared_distance
from duogp.numerics.networks import MLP
from duogp.numerics.parameters import Positive, batched


class Warm(Kernel):
    """v exp(−‖(x − x′)/l‖²/2), written by an outsider."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.lengthscale = Positive(1.5, (dims,))
        self.variance = Positive(0.7)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        r2 = squared_distance(x1, x2, self.lengthscale()[..., None, :])
        return self.variance().to(x1.dtype)[..., None, None] * torch.exp(-0.5 * r2)

    def diag(self, x: Tensor) -> Tensor:
        return self.variance().to(x.dtype)[..., None] * torch.ones_like(x[..., 0])


def test_it_is_the_kernel_of_its_formula() -> None:
    x = torch.randn(3, 1, 6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own, ours = (batched(k, (3, 2)).double() for k in (Warm(2), Scale(RBF(2, lengthscale=1.5), 0.7)))
    assert_close(own(x, x), ours(x, x))
    assert_close(own.diag(x).expand(3, 2, 6), ours.diag(x))
    assert own.describe()["variance"] == ours.describe()["variance"]


def test_the_batch_shape_is_that_of_the_parts() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    kernels = [Warm(2), Scale(Warm(2)), Warm(2) + 1.0, Warm(2) * RBF(2), ActiveDims(Warm(1), [1])]
    kernels += [DeepKernel(MLP(2, [4, 3]), Warm(3), 2, 3), DeepKernel(net, Warm(2), 2, 2)]
    for kernel in kernels:
        assert kernel.batch_shape == ()
        assert batched(kernel, (3, 2)).batch_shape == (3, 2)
    assert Sum(batched(RBF(2), (3, 1)), batched(RBF(2), (2,))).batch_shape == (3, 2)


def test_what_is_missing_is_named() -> None:
    class Half(Warm):
        diag = Kernel.diag

    with pytest.raises(TypeError, match="diag"):
        Half(2)
    with pytest.raises(TypeError, match=r"Warm has no random features.*define unbiased_features"):
        Warm(2).prior_features(8)


def test_it_fits() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (80, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(80)
    for method, steps in (("svgp", 20), ("ppgpr", 20)):
        gp = duogp.fit(X, y, method, kernel=Warm(2), num_inducing=15, steps=steps, random_state=0)
        assert math.isfinite(float(gp.predict(X).metrics(y)["nll"]))


def test_the_former_name_of_the_deep_kernel() -> None:
    assert Deep is DeepKernel and DeepKernel.saved_name == "Deep"


class Periodic(Kernel):
    """A kernel with a plain parameter and a `Positive` inside a module that is no kernel."""

    def __init__(self):
        super().__init__()
        self.phase = nn.Parameter(torch.tensor([0.25]))
        self.warp = nn.ModuleDict({"speed": Positive(2.0)})
        self.large = nn.Parameter(torch.zeros(2000))

    def forward(self, x1, x2):
        apart = x1.unsqueeze(-2) - x2.unsqueeze(-3)
        return torch.exp(-(apart * self.warp["speed"]() + 0 * self.phase).sin().square().sum(-1))

    def diag(self, x):
        return x.new_ones(x.shape[:-1])


def test_parameters_of_ones_own_kernel_are_described():
    described = Periodic().describe()
    assert described["phase"] == [0.25]
    assert described["warp"] == {"speed": pytest.approx(2.0)}
    assert "large" not in described  # thousands of numbers are no hyperparameters to read
