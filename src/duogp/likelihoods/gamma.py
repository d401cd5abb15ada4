"""Positive targets: y ~ Gamma with mean e^f and shape k, so a standard deviation in proportion to the mean.

log p = k log k − log Γ(k) + (k−1) log y − k (f + y e^{−f})
ELBO  the same with E e^{−f} = e^{−μ+v/2};    predictive and VFITC by quadrature
"""

from __future__ import annotations

import torch
from torch import Tensor

from duogp.likelihoods.base import Likelihood, numpy_generator
from duogp.likelihoods.density import Moments
from duogp.likelihoods.links import exponential
from duogp.likelihoods.poisson import lognormal_moments
from duogp.numerics.parameters import Positive


class GammaLikelihood(Likelihood):
    """Positive targets; one latent function, the log mean, per output. ``shape`` [outputs] is learned."""

    target = "positive"
    distribution = "gamma"
    is_log_concave = True

    def __init__(self, outputs: int = 1, shape: float = 1.0, *, nodes: int | None = None) -> None:
        super().__init__(nodes)
        self.outputs = outputs
        self.shape = Positive(shape, (outputs,), floor=1e-3)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y|f), [..., n], for y > 0."""
        return self._log_prob(y, f, -f)

    def expected_log(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E log p(y|f) for f ~ N(mean, variance), [..., n], in closed form."""
        return self._log_prob(y, mean, -mean + 0.5 * variance)

    def _log_prob(self, y: Tensor, log_mean: Tensor, log_inverse: Tensor) -> Tensor:
        """log p with f = ``log_mean`` and e^{−f} = exp(``log_inverse``)."""
        k = self.shape().unsqueeze(-1)
        of_y = k * k.log() - torch.lgamma(k) + (k - 1) * y.log()
        return of_y - k * (log_mean + y * exponential(log_inverse))

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean e^f and variance e^{2f}/k of y given f [..., outputs, n], each of its shape."""
        mean = exponential(f)
        return mean, mean.square() / self.shape().unsqueeze(-1)

    def predictive_moments(self, mean: Tensor, residual: Tensor, explained: Tensor) -> Moments:
        """Moments of y, each [..., outputs, n] as the arguments, by those of the lognormal distribution."""
        mean, residual, explained = torch.broadcast_tensors(mean, residual, explained)
        middle, within, between = lognormal_moments(mean, residual, explained)
        noise = middle.square() * (residual + explained).exp() / self.shape().unsqueeze(-1)  # E e^{2f}/k
        return Moments(middle, within, between, noise)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Positive numbers drawn given f [..., outputs, n], of its shape."""
        k = self.shape().unsqueeze(-1)
        concentration = k.expand_as(f).detach().cpu().numpy()
        unit_scale = torch.as_tensor(numpy_generator(generator).standard_gamma(concentration)).to(f)
        return exponential(f) * unit_scale / k

    def initial_latent(self, y: Tensor) -> Tensor:
        return y.mean(-1).clamp_min(1e-3).log()
