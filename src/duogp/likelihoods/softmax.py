"""Several classes by the softmax of as many latent functions, p(y = c | f) = e^{f_c} / Σ_j e^{f_j}.

No expectation has a closed form; reparametrised Monte Carlo, f = μ + √v ε:

    ELBO        μ_y − E logsumexp f
    predictive  log E softmax_y(f)
    VFITC       E_g log E_{f|g} softmax_y(f),  nested
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from duogp.likelihoods.classes import normalised, of_class, sample_class
from duogp.likelihoods.density import Density
from duogp.likelihoods.monte_carlo import MultiClassLikelihood, by_rows, samples


@dataclass(frozen=True)
class SoftmaxDensity(Density):
    """Softmax probabilities, with independent sets of draws outside the log and inside it.

    Outside: the ELBO's f and VFITC's g; inside: the predictive's f and VFITC's f given g. So at residual 0
    VFITC is the ELBO and at explained 0 it is the predictive, draw by draw.
    """

    classes: int
    outer: Tensor
    inner: Tensor

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        def rows(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
            f = samples(self.outer, mean, variance)
            return of_class(mean.expand(f.shape[1:]), y) - torch.logsumexp(f, -2).mean(0)

        return by_rows(rows, self.outer.shape[1] * self.classes, y, mean, variance)

    def expected_log_smoothed(self, y: Tensor, mean: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
        def rows(y: Tensor, mean: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
            g = samples(self.outer, mean, outside)
            return self._log_mean(y, samples(self.inner, g, inside)).mean(0)

        per_row = self.outer.shape[1] * self.inner.shape[1] * self.classes
        return by_rows(rows, per_row, y, mean, inside, outside)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        per_row = self.inner.shape[1] * self.classes
        return by_rows(
            lambda y, m, v: self._log_mean(y, samples(self.inner, m, v)), per_row, y, mean, variance
        )

    def class_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        per_row = self.inner.shape[1] * self.classes
        shares = by_rows(lambda m, v: samples(self.inner, m, v).softmax(-2).mean(0), per_row, mean, variance)
        return normalised(shares)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        return sample_class(f.softmax(-2), generator)

    @staticmethod
    def _log_mean(y: Tensor, f: Tensor) -> Tensor:
        """log of the mean of p(y|f) over the leading axis."""
        log_p = of_class(f, y) - torch.logsumexp(f, -2)
        return torch.logsumexp(log_p, 0) - math.log(len(f))


class SoftmaxLikelihood(MultiClassLikelihood):
    """Several classes, one latent function each; the draws are described in `monte_carlo`."""

    is_log_concave = True

    def __init__(
        self,
        classes: int,
        *,
        samples: int = 8,
        inner_samples: int = 32,
        eval_samples: int = 256,
        eval_inner_samples: int = 1024,
    ) -> None:
        super().__init__(classes)
        self.outer = self.draws(samples, eval_samples)
        self.inner = self.draws(inner_samples, eval_inner_samples, seed=1)
        self.samples, self.inner_samples = samples, inner_samples
        self.eval_samples, self.eval_inner_samples = eval_samples, eval_inner_samples

    def density(self) -> Density:
        return SoftmaxDensity(self.classes, self.outer(), self.inner())
