"""Several classes, decided by the largest latent function, with a share ε of errors (MATH §3.5).

    p(y = c | f) = 1 − ε where c = argmax f, else ε/(C−1)
    E log p      = π_y log(1−ε) + (1−π_y) log(ε/(C−1)),       π_c = P(f_c is the largest)
    E p          = π_y (1−ε) + (1−π_y) ε/(C−1)
    VFITC        E_g log [E p given g], the outer g by reparametrised Monte Carlo

All π_c come from one integral over t, the value of the largest function:

    π_c = ∫ h_c(t) Π_j Φ_j(t) dt,     Φ_j(t) = Φ((t − μ_j)/s_j),  h_c = φ_c/(s_c Φ_c)

so nodes × classes numbers per row give the probabilities of every class. Let a = max_j (μ_j − W s_j): the
integrand vanishes below a, and Φ_j varies only within 2W s_j above it. So nodes that grow apart exponentially
from a resolve every width, and the trapezium rule on them errs by 10⁻⁹ where the s_j differ tenfold and by
10⁻⁴ where they differ a hundredfold; Gauss–Hermite around each μ_c costs C times as much and errs by 10⁻².
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from duogp.likelihoods.classes import normalised, of_class, sample_class
from duogp.likelihoods.density import Density, standard_deviation
from duogp.likelihoods.monte_carlo import MultiClassLikelihood, by_rows, samples

#: Nodes of the integral over the largest function, and where it is cut off in standard deviations (W).
NODES = 40
WIDTH = 6.0


def log_argmax_probabilities(mean: Tensor, variance: Tensor) -> Tensor:
    """log π_c for independent f_c ~ N(mean, variance): [..., C, n]; they sum to one exactly."""
    mean, s = torch.broadcast_tensors(mean, standard_deviation(variance))
    mean = mean - mean.detach().amax(-2, keepdim=True)  # π is invariant to a common shift, rounding is not
    with torch.no_grad():
        low, high = ((mean + side * s).amax(-2, keepdim=True) for side in (-WIDTH, WIDTH))
        unit = 0.5 * WIDTH * s.amin(-2, keepdim=True)
        steps = torch.linspace(0, 1, NODES, dtype=mean.dtype, device=mean.device)
        # t = a + unit (e^τ − 1) up to `high`; dt ∝ e^τ, and constants go with the normalisation.
        tau = steps.view(-1, *(1,) * mean.dim()) * torch.log1p((high - low) / unit)
        t = low + unit * torch.expm1(tau)
    z = (t - mean) / s
    log_cdf = (0.5 * torch.erfc(-math.sqrt(0.5) * z)).log()  # z ≥ −W needs no log_ndtr: 4 times as fast
    log_hazard = -0.5 * z.square() - s.log() - log_cdf
    mass = torch.logsumexp(tau + log_cdf.sum(-2, keepdim=True) + log_hazard, 0)
    return mass - torch.logsumexp(mass, -2, keepdim=True)


@dataclass(frozen=True)
class RobustMaxDensity(Density):
    """1 − ε for the class of the largest function, ε/(C−1) for every other."""

    classes: int
    epsilon: Tensor  # [R, 1]
    outer: Tensor  # draws of g

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        pi = of_class(log_argmax_probabilities(mean, variance), y).exp()
        return pi * torch.log1p(-self.epsilon) + (1 - pi) * (self.epsilon / (self.classes - 1)).log()

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        pi = of_class(log_argmax_probabilities(mean, variance), y).exp()
        return self._with_errors(pi, self.epsilon).log()

    def expected_log_smoothed(self, y: Tensor, mean: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
        def rows(y: Tensor, mean: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
            return self.log_predictive(y, samples(self.outer, mean, outside), inside).mean(0)

        return by_rows(rows, self.outer.shape[1] * NODES * self.classes, y, mean, inside, outside)

    def class_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        log_pi = by_rows(log_argmax_probabilities, NODES * self.classes, mean, variance)
        return normalised(self._with_errors(log_pi.exp(), self.epsilon.unsqueeze(-1)))

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        largest = torch.zeros_like(f).scatter(-2, f.argmax(-2, keepdim=True), 1.0)
        return sample_class(self._with_errors(largest, self.epsilon.unsqueeze(-1)), generator)

    def _with_errors(self, pi: Tensor, epsilon: Tensor) -> Tensor:
        """π(1−ε) + (1−π) ε/(C−1)."""
        return pi * (1 - epsilon) + (1 - pi) * epsilon / (self.classes - 1)


class RobustMaxLikelihood(MultiClassLikelihood):
    """Several classes, one latent function each; ``epsilon``, the share of errors, may be learned."""

    def __init__(
        self,
        classes: int,
        epsilon: float = 1e-3,
        *,
        learn_epsilon: bool = False,
        samples: int = 8,
        eval_samples: int = 256,
    ) -> None:
        super().__init__(classes)
        if not 0 < epsilon < 1:
            raise ValueError(f"epsilon must be in (0, 1), got {epsilon}")
        logit = torch.tensor(math.log(epsilon / (1 - epsilon)), dtype=torch.float64)
        self.epsilon_logit = nn.Parameter(logit, requires_grad=learn_epsilon)
        self.outer = self.draws(samples, eval_samples)
        self.samples, self.eval_samples = samples, eval_samples

    def config(self) -> dict[str, Any]:
        """Arguments of the constructor, for saving."""
        learned = {"epsilon": self.epsilon, "learn_epsilon": self.epsilon_logit.requires_grad}
        return {
            "classes": self.classes,
            **learned,
            "samples": self.samples,
            "eval_samples": self.eval_samples,
        }

    @property
    def epsilon(self) -> Tensor:
        """The probability that a label is not the class of the largest function: [R], [] outside a model."""
        return self.epsilon_logit.sigmoid()

    def density(self) -> Density:
        return RobustMaxDensity(self.classes, self.epsilon.unsqueeze(-1), self.outer())
