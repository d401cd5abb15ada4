"""One-dimensional expectations by Gauss–Hermite quadrature, for densities with one latent per output.

With nodes z and weights w of the standard normal, f = μ + √v z:

    ELBO        Σ w log p(y|f)
    predictive  logsumexp(log w + log p(y|f))
    VFITC       Σ w_g logsumexp(log w + log p(y|f)),   g = μ + √e z_g,  f = g + √r z

Where p(y|f) is narrow in f (a large count), fixed nodes miss it in the log of a mean (MATH §11 B9). There the
nodes are moved to the mass of p(y|f) N(f), by its moments on the nodes so far (Naylor and Smith 1982). Their
places are not differentiated, since the integral does not depend on them.
Nodes run along a new leading axis, so parameters and targets [R, outputs, n] broadcast from the right.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from duogp.likelihoods.classes import normalised
from duogp.likelihoods.density import Density, Moments, standard_deviation

NODES = 32
#: How often the nodes of a log-mean are moved, and how much narrower they may get each time.
REFINEMENTS = 3
NARROWING = 0.2


class Rule(NamedTuple):
    """Nodes and log weights for the standard normal, [Q]."""

    nodes: Tensor
    log_weights: Tensor

    def along(self, like: Tensor) -> Rule:
        """On a new leading axis of a tensor [...], in its precision: nodes and log weights [Q, 1, ..., 1]."""
        shape = (-1,) + (1,) * like.dim()
        return Rule(*(t.to(like.dtype).view(shape) for t in self))

    def mean(self, h: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor) -> Tensor:
        """E h(f), f ~ N(mean, variance), elementwise [...]; h works along a new leading axis, [Q, ...]."""
        z, log_w = self.along(mean)
        return (log_w.exp() * h(mean + standard_deviation(variance) * z)).sum(0)

    def log_mean(
        self,
        log_h: Callable[[Tensor], Tensor],
        mean: Tensor,
        variance: Tensor,
        refinements: int = REFINEMENTS,
    ) -> Tensor:
        """log E exp log_h(f) [...], f ~ N(mean, variance), on nodes moved to the mass of h.

        Shapes and log_h as in `mean`.
        """
        root = standard_deviation(variance)
        x, log_w = self.along(mean)
        z, log_weights = x, log_w
        with torch.no_grad():
            scale = torch.ones_like(mean)
            for _ in range(refinements):
                share = torch.softmax(log_weights + log_h(mean + root * z), 0)
                centre = (share * z).sum(0)
                spread = (share * (z - centre).square()).sum(0).sqrt()
                scale = torch.maximum(spread, NARROWING * scale)  # no narrower than the step of nodes
                z = centre + scale * x
                # ∫ h(z) φ(z) dz = scale ∫ h(z) (φ(z)/φ(x)) φ(x) dx
                log_weights = log_w + scale.log() + 0.5 * (x.square() - z.square())
        return torch.logsumexp(log_weights + log_h(mean + root * z), 0)


class GaussHermite(nn.Module):
    """A `Rule` of the given size, in buffers: a captured step must not fetch constants from the host."""

    nodes: Tensor
    log_weights: Tensor

    def __init__(self, size: int = NODES) -> None:
        super().__init__()
        x, w = np.polynomial.hermite_e.hermegauss(size)
        self.register_buffer("nodes", torch.as_tensor(x), persistent=False)
        self.register_buffer("log_weights", torch.as_tensor(np.log(w / w.sum())), persistent=False)

    def forward(self) -> Rule:
        return Rule(self.nodes, self.log_weights)


@dataclass(frozen=True)
class QuadratureDensity(Density):
    """A density with independent outputs, one latent function each: `log_prob`, and closed forms if known."""

    rule: Rule

    @abstractmethod
    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y|f) of every output, elementwise: [..., outputs, n]."""

    def expected_log(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E log p(y|f) of every output, [..., outputs, n]."""
        return self.rule.mean(lambda f: self.log_prob(y, f), mean, variance)

    def log_marginal(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log E p(y|f) of every output, [..., outputs, n]."""
        return self.rule.log_mean(lambda f: self.log_prob(y, f), mean, variance)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return self.expected_log(y, mean, variance).sum(-2)

    def expected_log_smoothed(self, y: Tensor, mean: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
        return self.rule.mean(lambda g: self.log_marginal(y, g, inside), mean, outside).sum(-2)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return self.log_marginal(y, mean, variance).sum(-2)

    def probabilities_of(self, classes: int, mean: Tensor, variance: Tensor) -> Tensor:
        """P(y = c) = E p(c|f) for c < classes, normalised: [R, C, n]."""
        if mean.shape[-2] != 1:
            raise ValueError(f"class_probabilities are of one output, got {mean.shape[-2]}")
        each = [self.log_marginal(torch.full_like(mean, c), mean, variance) for c in range(classes)]
        return normalised(torch.cat(each, -2).exp())

    def predictive_moments(self, mean: Tensor, residual: Tensor, explained: Tensor) -> Moments:
        z, log_w = self.rule.along(mean)
        g = mean + standard_deviation(explained) * z
        inner, inner_log_w = self.rule.along(g)
        y_mean, y_noise = self.conditional_moments(g + standard_deviation(residual) * inner)
        given_g, within_g = _moments(inner_log_w.exp(), y_mean)
        noise_given_g = (inner_log_w.exp() * y_noise).sum(0)
        w = log_w.exp()
        mean_of_y, explained_of_y = _moments(w, given_g)
        return Moments(mean_of_y, (w * within_g).sum(0), explained_of_y, (w * noise_given_g).sum(0))


def _moments(weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and variance over the leading axis."""
    mean = (weights * values).sum(0)
    return mean, (weights * (values - mean).square()).sum(0)
