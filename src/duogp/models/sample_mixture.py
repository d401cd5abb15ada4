"""What S samples of the inputs of the last layer make of its marginals: a mixture of S Gaussians per row.

Marginals lead with [sample, replicate] here. The log stands inside or outside of the average over samples as
it does for u:

    ELBO, VFITC, DTC, γ-robust   mean over samples of the objective's data term
    predictive                   log-mean-exp over samples

so that predictive ≥ ELBO, sample by sample. Moments follow the law of total variance: what the means differ
by between samples is uncertainty about the inner layers, and counts as explained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from duogp.bases.marginals import Marginals, TotalMarginals
from duogp.likelihoods.base import Density, Moments
from duogp.objectives import Objective


def log_mean_exp(values: Tensor) -> Tensor:
    """log of the mean of exp over the leading axis: [samples, ...] → [...]."""
    return torch.logsumexp(values, 0) - math.log(len(values))


def over_samples(objective: Objective, p: Density, f: Marginals | TotalMarginals, y: Tensor) -> Tensor:
    """The data term of every row, [R, n]."""
    values = objective(p, f, y)  # [S, R, n]
    return log_mean_exp(values) if objective.averages_inside_log else values.mean(0)


def mixture_moments(f: Marginals) -> Marginals:
    """Mean and variances of the mixture; the spread of the means is explained variance."""
    explained = f.explained.mean(0) + f.mean.var(0, correction=0)
    return Marginals(f.mean.mean(0), f.residual.mean(0), explained)


@dataclass(frozen=True)
class MixtureDensity:
    """p(y | f) as seen through a mixture: tensors lead with [sample], results do not."""

    of: Density

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return log_mean_exp(self.of.log_predictive(y, mean, variance))

    def predictive_moments(self, mean: Tensor, residual: Tensor, explained: Tensor) -> Moments:
        if torch.compiler.is_exporting():  # all at once: a graph would repeat the operations for every sample
            y = self.of.predictive_moments(mean, residual, explained)
        else:
            # One sample after the other: nested quadrature may hold a thousand numbers for every row.
            each = [
                self.of.predictive_moments(*parts) for parts in zip(mean, residual, explained, strict=True)
            ]
            y = Moments(*(torch.stack(parts) for parts in zip(*each, strict=True)))
        total = mixture_moments(Marginals(y.mean, y.residual, y.explained))
        return Moments(*total, y.noise.mean(0))

    def class_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        return self.of.class_probabilities(mean, variance).mean(0)
