"""Classes as a user of the library writes them, saved and loaded in `io/test_own_classes.py`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from duogp.kernels import Kernel, Scale
from duogp.kernels.stationary import Stationary
from duogp.likelihoods import GaussianLikelihood
from duogp.means import Mean
from duogp.numerics.parameters import Positive


class Cauchy(Kernel):
    """k = (1 + ‖x − x′‖² / width²)⁻ᵖ; its arguments are attributes of the same names."""

    def __init__(self, width: float = 1.0, power: int = 1) -> None:
        super().__init__()
        self.width, self.power = Positive(width), power

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        squares = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).square().sum(-1)
        return (1 + squares / self.width()[..., None, None].to(x1).square()) ** -self.power

    def diag(self, x: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(self.width().shape, x.shape[:-2])
        return x.new_ones(()).expand(*shape, x.shape[-2])


class Blend(Kernel):
    """A weighted sum of two kernels: arguments that are objects."""

    def __init__(self, first: Kernel, second: Kernel, weights: tuple[float, float] = (0.5, 0.5)) -> None:
        super().__init__()
        self.first, self.second, self.weights = first, second, weights

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return self.weights[0] * self.first(x1, x2) + self.weights[1] * self.second(x1, x2)

    def diag(self, x: Tensor) -> Tensor:
        return self.weights[0] * self.first.diag(x) + self.weights[1] * self.second.diag(x)


class Squared(Stationary):
    """exp(−r²): the constructor, `prior` included, is inherited."""

    def covariance(self, x1: Tensor, x2: Tensor, lengthscale: Tensor) -> Tensor:
        a, b = x1 / lengthscale.to(x1), x2 / lengthscale.to(x2)
        return torch.exp(-(a.unsqueeze(-2) - b.unsqueeze(-3)).square().sum(-1))

    def frequencies(self, num: int, generator: torch.Generator | None) -> Tensor:
        raise NotImplementedError


class Halved(Scale):
    """A subclass without a constructor of its own."""

    def diag(self, x: Tensor) -> Tensor:
        return 0.5 * super().diag(x)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return 0.5 * super().forward(x1, x2)


class Tempered(GaussianLikelihood):
    """A likelihood whose own argument is an attribute; `outputs` and `floor` are its base's."""

    def __init__(self, outputs: int = 1, floor: float = 1e-6, *, temperature: float = 1.0) -> None:
        super().__init__(outputs, noise=0.2 * temperature, floor=floor)
        self.temperature = temperature


class Ramp(Mean):
    """μ(x) = slope · x₁, a learned number of the same name as its argument."""

    def __init__(self, slope: float = 0.0) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(float(slope)))

    def forward(self, x: Tensor) -> Tensor:
        return self.slope[..., None].to(x) * x[..., 0]


class Configured(Mean):
    """A mean that says its arguments itself: they are kept under other names."""

    def __init__(self, **options: float) -> None:
        super().__init__()
        self._options = options

    def config(self) -> dict[str, object]:
        return dict(self._options)

    def forward(self, x: Tensor) -> Tensor:
        return self._options["slope"] * x[..., 0]


class Unknown(Mean):
    """A mean that keeps nothing of its argument."""

    def __init__(self, slope: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("a", torch.tensor(float(slope)))

    def forward(self, x: Tensor) -> Tensor:
        return self.a.to(x) * x[..., 0]
