"""Positive targets: y ~ Gamma with mean e^f and shape k, so a standard deviation in proportion to the mean.

log p = k log k − log Γ(k) + (k−1) log y − k (f + y e^{−f})
ELBO  the same with E e^{−f} = e^{−μ+v/2};    predictive and VFITC by quadrature
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duogp.likelihoods.base import QuadratureLikelihood, numpy_generator
from duogp.likelihoods.density import Density, Moments
from duogp.likelihoods.links import exponential
from duogp.likelihoods.poisson import lognormal_moments
from duogp.likelihoods.quadrature import NODES, QuadratureDensity
from duogp.numerics.parameters import Positive


@dataclass(frozen=True)
class GammaDensity(QuadratureDensity):
    shape: Tensor  # k [R, outputs, 1]

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return self._of_y(y) - self.shape * (f + y * exponential(-f))

    def expected_log(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return self._of_y(y) - self.shape * (mean + y * exponential(-mean + 0.5 * variance))

    def _of_y(self, y: Tensor) -> Tensor:
        k = self.shape
        return k * k.log() - torch.lgamma(k) + (k - 1) * y.log()

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        mean = exponential(f)
        return mean, mean.square() / self.shape

    def predictive_moments(self, mean: Tensor, residual: Tensor, explained: Tensor) -> Moments:
        mean, residual, explained = torch.broadcast_tensors(mean, residual, explained)
        middle, within, between = lognormal_moments(mean, residual, explained)
        # E e^{2f}/k
        return Moments(middle, within, between, middle.square() * (residual + explained).exp() / self.shape)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        k = self.shape.expand_as(f).detach().cpu().numpy()
        unit_scale = torch.as_tensor(numpy_generator(generator).standard_gamma(k)).to(f)
        return exponential(f) * unit_scale / self.shape


class GammaLikelihood(QuadratureLikelihood):
    """Positive targets; one latent function, the log mean, per output. ``shape`` [outputs] is learned."""

    target = "positive"
    is_log_concave = True

    def __init__(self, outputs: int = 1, shape: float = 1.0, *, nodes: int = NODES) -> None:
        super().__init__(nodes)
        self.outputs = outputs
        self.shape = Positive(shape, (outputs,), floor=1e-3)

    def initial_latent(self, y: Tensor) -> Tensor:
        return y.mean(-1).clamp_min(1e-3).log()

    def density(self) -> Density:
        return GammaDensity(self.rule(), self.shape().unsqueeze(-1))
