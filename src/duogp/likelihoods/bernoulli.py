"""Two classes, y in {0, 1}: p(y|f) = Φ(±f) or 1/(1 + e^∓f), with + for y = 1.

The probit link needs no nesting (MATH §11 B9), s = 2y − 1:

    predictive log Φ(s μ/√(1+v))        VFITC E_{g~N(μ,e)} log Φ(s g/√(1+r))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from duogp.likelihoods.base import QuadratureLikelihood
from duogp.likelihoods.density import Density
from duogp.likelihoods.links import Link, check_link
from duogp.likelihoods.quadrature import NODES, QuadratureDensity


@dataclass(frozen=True)
class BernoulliDensity(QuadratureDensity):
    """Classes 0 and 1; several outputs are independent binary targets of one row."""

    def class_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        return self.probabilities_of(2, mean, variance)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        u = torch.rand(f.shape, generator=generator, device=generator.device, dtype=f.dtype).to(f.device)
        return (u < self.log_prob(torch.ones_like(f), f).exp()).to(f.dtype)


@dataclass(frozen=True)
class ProbitDensity(BernoulliDensity):
    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return torch.special.log_ndtr((2 * y - 1) * f)

    def log_marginal(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return self.log_prob(y, mean * (1 + variance).rsqrt())


@dataclass(frozen=True)
class LogitDensity(BernoulliDensity):
    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return logsigmoid((2 * y - 1) * f)


class BernoulliLikelihood(QuadratureLikelihood):
    """Two classes by the probit or the logit link; one latent function per output."""

    target = "classes"
    is_log_concave = True
    classes = 2

    def __init__(self, link: Link = "probit", *, nodes: int = NODES) -> None:
        super().__init__(nodes)
        check_link(link)
        self.link = link

    def density(self) -> Density:
        return (ProbitDensity if self.link == "probit" else LogitDensity)(self.rule())
