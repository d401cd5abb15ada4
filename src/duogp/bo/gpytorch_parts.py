"""Prior mean and kernel of an exact GP as gpytorch's modules, for users of BoTorch that build on them.

`NoisyExpectedImprovement`, for one, conditions a `SingleTaskGP` of the same prior on fantasies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from torch import Tensor, nn

Scaling = Callable[[Tensor], Tensor]


class CovarianceModule(Kernel):
    """k(x, x′) of one output, in the units of the transformed inputs and outcomes."""

    def __init__(self, kernel: nn.Module, scaled: Scaling, variance: Tensor) -> None:
        super().__init__()
        self.kernel, self.scaled = kernel, scaled
        self.register_buffer("variance", variance)  # of the outcomes, in whose units k is one of scaled ones

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        # A leading dimension of one, so that the parameters' [1, latent] meets a batch dimension.
        a, b = (self.scaled(x.double())[None].unsqueeze(-3) for x in (x1, x2))
        values: Tensor = self.kernel.diag(a) if diag else self.kernel(a, b)  # type: ignore[operator]
        return (values.squeeze(0).squeeze(-2 if diag else -3) * self.variance).to(x1)


class MeanModule(Mean):
    """The prior mean of one output, in the units of the transformed outcomes."""

    def __init__(self, mean: nn.Module, scaled: Scaling, shift: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.mean, self.scaled = mean, scaled
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        values = self.mean(self.scaled(x.double())[None].unsqueeze(-3)).squeeze(0).squeeze(-2)
        return (values * self.scale + self.shift).expand(x.shape[:-1]).to(x)
