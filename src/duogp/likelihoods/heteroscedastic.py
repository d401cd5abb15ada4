"""Real targets whose noise depends on x: y ~ N(f, s² e^g), two latent functions per output.

The latent axis holds every f first, then every g; s² (``noise``) is where the noise starts, at g = 0.
With f ~ N(μ, v), g ~ N(γ, w) and λ = log s²:

    ELBO        −½ [log 2π + λ + γ + ((y−μ)² + v) e^{−λ−γ+w/2}]
    predictive  log E_g N(y | μ, v + s² e^g),  f in closed form
    VFITC       the predictive of the residuals, at f and g on a grid of the explained parts
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from duogp.likelihoods.base import Likelihood
from duogp.likelihoods.density import Density, Moments, floored, sample_normal
from duogp.likelihoods.gaussian import LOG_2PI, log_normal
from duogp.likelihoods.links import exponential
from duogp.likelihoods.quadrature import GaussHermite, Rule
from duogp.numerics.parameters import Positive

#: Nodes of g inside the log, and of f and g each outside it: VFITC has a grid of three dimensions.
NODES = 24
OUTER_NODES = 12
#: The log noise variance stays within ±this where it is exponentiated without an expectation.
LOG_NOISE_LIMIT = 40.0


class Pair(NamedTuple):
    """The parts of [..., 2·outputs, n] that belong to f and to g."""

    f: Tensor
    g: Tensor


@dataclass(frozen=True)
class HeteroscedasticDensity(Density):
    """N(y | f, s² e^g)."""

    noise: Tensor  # s² [R, outputs, 1]
    rule: Rule
    outer: Rule

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        mu, v = self._pairs(mean, variance)
        log_noise = self.noise.log() + mu.g
        square = (y - mu.f).square() + v.f
        return -0.5 * (LOG_2PI + log_noise + square * exponential(-log_noise + 0.5 * v.g)).sum(-2)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        mu, v = self._pairs(mean, variance)
        return self._log_marginal(y, mu, v).sum(-2)

    def expected_log_smoothed(self, y: Tensor, mean: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
        mu, r, e = self._pairs(mean, inside, outside)

        def given_f(f: Tensor) -> Tensor:
            # g gets an axis of its own, in front of that of f
            return self.outer.mean(lambda g: self._log_marginal(y, Pair(f, g), r), mu.g.expand_as(f), e.g)

        return self.outer.mean(given_f, mu.f, e.f).sum(-2)

    def _log_marginal(self, y: Tensor, mean: Pair, variance: Pair) -> Tensor:
        """log E p(y | f, g) of every output, on fixed nodes: p(y | g) is never narrow in g."""

        def log_p(g: Tensor) -> Tensor:
            return log_normal(y, mean.f, floored(variance.f + self._noise_at(g)))

        return self.rule.log_mean(log_p, mean.g, variance.g, refinements=0)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        (pair,) = self._pairs(f)
        mean, noise = torch.broadcast_tensors(pair.f, self._noise_at(pair.g))
        return mean, noise

    def predictive_moments(self, mean: Tensor, residual: Tensor, explained: Tensor) -> Moments:
        mu, r, e = self._pairs(mean, residual, explained)
        noise = exponential(self.noise.log() + mu.g + 0.5 * (r.g + e.g))
        return Moments(*torch.broadcast_tensors(mu.f, r.f, e.f, noise))

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        return sample_normal(*self.conditional_moments(f), generator)

    def _noise_at(self, g: Tensor) -> Tensor:
        """s² e^g."""
        return (self.noise.log() + g).clamp(-LOG_NOISE_LIMIT, LOG_NOISE_LIMIT).exp()

    def _pairs(self, *values: Tensor) -> tuple[Pair, ...]:
        outputs = self.noise.shape[-2]
        shape = torch.broadcast_shapes(*(v.shape for v in values))
        return tuple(Pair(*v.expand(shape).split(outputs, -2)) for v in values)


class HeteroscedasticGaussianLikelihood(Likelihood):
    """Noise that depends on x. ``noise`` (event shape [outputs]): the variance s² at g = 0, learned."""

    latents_per_output = 2

    def __init__(
        self,
        outputs: int = 1,
        noise: float = 0.1,
        *,
        floor: float = 1e-6,
        learn: bool = True,
        nodes: int = NODES,
        outer_nodes: int = OUTER_NODES,
    ) -> None:
        super().__init__(nodes)
        self.outputs = outputs
        self.noise = Positive(noise, (outputs,), floor=floor, trainable=learn)
        self.outer_nodes, self.outer = outer_nodes, GaussHermite(outer_nodes)

    def config(self) -> dict[str, Any]:
        """Arguments of the constructor, for saving."""
        noise = {"noise": self.noise, "floor": self.noise.floor, "learn": self.noise.raw.requires_grad}
        return {"outputs": self.outputs, **noise, "nodes": self.nodes, "outer_nodes": self.outer_nodes}

    def density(self) -> Density:
        return HeteroscedasticDensity(self.noise().unsqueeze(-1), self.rule(), self.outer())
