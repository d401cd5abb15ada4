"""Real targets with outliers: (y − f)/s ~ Student-t with ν degrees of freedom.

A Student-t is a Gaussian of random precision, w ~ Gamma(ν/2, ν/2), so f integrates in closed form:

    E p(y|f) = E_w N(y | μ, v + s²/w)

which leaves one smooth integral over log w, however narrow p(y|f) is in f. With a = ν/2 its density is
∝ exp(a (log w − w)): a width of a^−½ around 0 and a tail to the left. The trapezium rule with
log w = sinh(x)/√a reaches far into that tail, where outliers are explained. E log p is one integral too: with
Z = (y − f)²/(νs²), whose moment generating function is that of a non-central χ²,

    E log(1 + Z) = ∫₀^∞ (1 − E e^{−xZ}) e^{−x} dx/x,     E e^{−xZ} = (1+2xκ)^−½ e^{−xδ/(1+2xκ)}

for κ = v/(νs²), δ = (y−μ)²/(νs²): the trapezium rule in log x. Neither takes the root of a variance.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from duogp.likelihoods.base import Likelihood, numpy_generator
from duogp.likelihoods.density import Moments
from duogp.likelihoods.gaussian import log_normal
from duogp.numerics.parameters import Positive

#: Below two degrees of freedom there is no variance.
DOF_FLOOR = 2.01
#: Nodes x of the integral over the precision, and their range.
PRECISION_NODES = 64
PRECISION_RANGE = (-4.6, 2.6)
#: Nodes log x of the integral for E log(1 + Z), and their range (the lower end moves with Z).
LOG_NODES = 64
LOG_RANGE = (-20.0, 3.7)


class StudentTLikelihood(Likelihood):
    """Real targets with outliers; one latent function per output. ``scale`` and ``dof`` are learned."""

    distribution = "student-t"

    def __init__(
        self,
        outputs: int = 1,
        scale: float = 0.5,
        *,
        dof: float = 5.0,
        scale_floor: float = 1e-3,
        learn_scale: bool = True,
        nodes: int | None = None,
    ) -> None:
        super().__init__(nodes)
        self.outputs = outputs
        self.scale = Positive(scale, (outputs,), floor=scale_floor, trainable=learn_scale)
        self.dof = Positive(dof, (outputs,), floor=DOF_FLOOR)

    def config(self) -> dict[str, Any]:
        """Arguments of the constructor, for saving."""
        learned = {"scale_floor": self.scale.floor, "learn_scale": self.scale.raw.requires_grad}
        own = {"outputs": self.outputs, "scale": self.scale, "dof": self.dof, "nodes": self.nodes}
        return own | learned

    def _now(self) -> tuple[Tensor, Tensor]:
        """s and ν, [R, outputs, 1]."""
        return self.scale().unsqueeze(-1), self.dof().unsqueeze(-1)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y|f), [..., n]."""
        s, nu = self._now()
        return _log_norm(s, nu) - 0.5 * (nu + 1) * torch.log1p(((y - f) / s).square() / nu)

    def expected_log(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E log p(y|f) for f ~ N(mean, variance), [..., n], by one-dimensional quadrature."""
        s, nu = self._now()
        kappa, delta = (t / (nu * s.square()) for t in (variance, (y - mean).square()))
        kappa, delta = torch.broadcast_tensors(kappa, delta)
        start, high = LOG_RANGE
        low = start - torch.log1p((kappa + delta).detach().clamp_min(0))
        steps = torch.linspace(0, 1, LOG_NODES, dtype=delta.dtype, device=delta.device)
        x = (low + (high - low) * steps.view(-1, *(1,) * delta.dim())).exp()
        widening = 2 * x * kappa
        integrand = -x.neg().exp() * torch.expm1(-0.5 * widening.log1p() - x * delta / (1 + widening))
        log1p_z = integrand.sum(0) * (high - low) / (LOG_NODES - 1)
        return _log_norm(s, nu) - 0.5 * (nu + 1) * log1p_z

    def log_marginal(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log ∫ p(y|f) N(f | mean, variance) df, [..., n]: a mixture of Gaussians over the precision."""
        noise, log_weight = self.mixture(max(t.dim() for t in (y, mean, variance)))
        return torch.logsumexp(log_weight + log_normal(y, mean, variance + noise), 0)

    def mixture(self, dims: int) -> tuple[Tensor, Tensor]:
        """s²/w at the nodes of w and their log weights, which sum to one, in front of ``dims`` axes.

        Each [nodes, ..., outputs, 1].
        """
        s, nu = self._now()
        a = 0.5 * nu
        x = torch.linspace(*PRECISION_RANGE, PRECISION_NODES, dtype=a.dtype, device=a.device)
        x = x.view(-1, *(1,) * dims)
        log_w = torch.sinh(x) * a.rsqrt()
        log_weight = a * (log_w - log_w.exp()) + torch.cosh(x).log()
        return s.square() * torch.exp(-log_w), log_weight - torch.logsumexp(log_weight, 0)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean f and the variance of the noise, each of the shape of f [..., outputs, n]."""
        mean, noise = torch.broadcast_tensors(f, self._noise())
        return mean, noise

    def predictive_moments(self, mean: Tensor, residual: Tensor, explained: Tensor) -> Moments:
        """Moments of y, each [..., outputs, n] as the arguments: those of f, and the noise variance."""
        return Moments(*torch.broadcast_tensors(mean, residual, explained, self._noise()))

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Observations drawn given f [..., outputs, n], of its shape."""
        s, nu = self._now()
        dof = nu.expand_as(f).detach().cpu().numpy()
        return f + s * torch.as_tensor(numpy_generator(generator).standard_t(dof)).to(f)

    def _noise(self) -> Tensor:
        """s² ν/(ν−2)."""
        s, nu = self._now()
        return s.square() * nu / (nu - 2)


def _log_norm(s: Tensor, nu: Tensor) -> Tensor:
    log_beta = torch.lgamma(0.5 * nu) + math.lgamma(0.5) - torch.lgamma(0.5 * (nu + 1))
    return -log_beta - 0.5 * nu.log() - s.log()
