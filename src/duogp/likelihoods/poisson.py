"""Counts: y ~ Poisson(e^f).

ELBO    yμ − e^{μ+v/2} − log y!           predictive and VFITC by quadrature
moments of e^f are those of a log-normal variable, `lognormal_moments`
"""

from __future__ import annotations

import torch
from torch import Tensor

from duogp.likelihoods.base import Likelihood, numpy_generator
from duogp.likelihoods.density import Moments
from duogp.likelihoods.links import exponential


def lognormal_moments(mean: Tensor, residual: Tensor, explained: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E e^f, E_g Var_{f|g} e^f and Var_g E_{f|g} e^f for f ~ N(g, residual), g ~ N(mean, explained).

    Elementwise: three of [...] that the arguments broadcast to.
    """
    middle = exponential(mean + 0.5 * (residual + explained))
    squared = middle.square()
    return middle, squared * explained.exp() * residual.expm1(), squared * explained.expm1()


class PoissonLikelihood(Likelihood):
    """Counts; one latent function, the log rate, per output; no parameters."""

    target = "count"
    distribution = "poisson"
    is_log_concave = True

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y|f), [..., n], for counts y."""
        return y * f - exponential(f) - torch.lgamma(y + 1)

    def expected_log(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E log p(y|f) for f ~ N(mean, variance), [..., n], in closed form."""
        return y * mean - exponential(mean + 0.5 * variance) - torch.lgamma(y + 1)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of y given f [..., n], both e^f, of its shape."""
        rate = exponential(f)
        return rate, rate

    def predictive_moments(self, mean: Tensor, residual: Tensor, explained: Tensor) -> Moments:
        """Moments of y, each [..., n] as the arguments, by those of the lognormal distribution."""
        rate, within, between = lognormal_moments(*torch.broadcast_tensors(mean, residual, explained))
        return Moments(rate, within, between, noise=rate)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Counts drawn given f [..., n], of its shape."""
        counts = numpy_generator(generator).poisson(exponential(f).detach().cpu().numpy())
        return torch.as_tensor(counts).to(f)

    def initial_latent(self, y: Tensor) -> Tensor:
        return y.mean(-1).clamp_min(1e-3).log()
