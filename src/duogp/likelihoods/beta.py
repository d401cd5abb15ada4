"""Targets in (0, 1): y ~ Beta(m s, (1−m) s) with mean m = Φ(f) or 1/(1 + e^−f) and precision s.

Var[y|f] = m(1−m)/(1+s). All expectations by quadrature.
"""

from __future__ import annotations

import torch
from torch import Tensor

from duogp.likelihoods.base import Likelihood, numpy_generator
from duogp.likelihoods.links import Link, check_link, unit_interval
from duogp.numerics.parameters import Positive


class BetaLikelihood(Likelihood):
    """Targets in (0, 1); one latent function per output. ``precision`` (event shape [outputs]) is learned."""

    target = "unit"
    distribution = "beta"

    def __init__(
        self, outputs: int = 1, link: Link = "logit", *, precision: float = 5.0, nodes: int | None = None
    ) -> None:
        super().__init__(nodes)
        check_link(link)
        self.outputs = outputs
        self.link: Link = link
        self.precision = Positive(precision, (outputs,), floor=1e-3)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y|f), [..., n], for y in (0, 1)."""
        s = self.precision().unsqueeze(-1)
        a, b = (m * s for m in unit_interval(f, self.link))
        log_beta = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(s)
        return (a - 1) * y.log() + (b - 1) * torch.log1p(-y) - log_beta

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of y given f [..., outputs, n], each of its shape."""
        m, rest = unit_interval(f, self.link)
        return m, m * rest / (1 + self.precision().unsqueeze(-1))

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Shares drawn given f [..., outputs, n], of its shape."""
        s = self.precision().unsqueeze(-1)
        a, b = ((m * s).detach().cpu().numpy() for m in unit_interval(f, self.link))
        return torch.as_tensor(numpy_generator(generator).beta(a, b)).to(f)

    def initial_latent(self, y: Tensor) -> Tensor:
        share = y.mean(-1).clamp(1e-6, 1 - 1e-6)
        return torch.special.ndtri(share) if self.link == "probit" else share.logit()
