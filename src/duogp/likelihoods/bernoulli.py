"""Two classes, y in {0, 1}: p(y|f) = Φ(±f) or 1/(1 + e^∓f), with + for y = 1.

The probit link needs no nesting (MATH §11 B9), s = 2y − 1:

    predictive log Φ(s μ/√(1+v))        VFITC E_{g~N(μ,e)} log Φ(s g/√(1+r))
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from duogp.likelihoods.base import Likelihood
from duogp.likelihoods.links import Link, check_link


class BernoulliLikelihood(Likelihood):
    """Two classes by the probit or the logit link; one latent function per output.

    Several outputs are independent binary targets of one row.
    """

    target = "classes"
    distribution = "bernoulli"
    is_log_concave = True
    classes = 2

    def __init__(self, link: Link = "probit", *, nodes: int | None = None) -> None:
        super().__init__(nodes)
        check_link(link)
        self.link = link

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y|f), [..., n], for y in {0, 1}."""
        signed = (2 * y - 1) * f
        return torch.special.log_ndtr(signed) if self.link == "probit" else logsigmoid(signed)

    def log_marginal(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log ∫ p(y|f) N(f | mean, variance) df, [..., n]: closed form for probit, quadrature for logit."""
        if self.link == "probit":
            return self.log_prob(y, mean * (1 + variance).rsqrt())
        return self.rule().log_mean(lambda f: self.log_prob(y, f), mean, variance)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Labels 0 and 1 drawn given f [..., n], of its shape."""
        u = torch.rand(f.shape, generator=generator, device=generator.device, dtype=f.dtype).to(f.device)
        return (u < self.log_prob(torch.ones_like(f), f).exp()).to(f.dtype)
