"""Gaussian noise: learned, fixed per row, or both added. Everything in closed form (MATH §4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from duogp.likelihoods.base import Likelihood
from duogp.likelihoods.density import Density, Moments, sample_normal
from duogp.numerics.parameters import Positive, Prior

LOG_2PI = math.log(2 * math.pi)


def log_normal(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """log N(y | mean, variance), elementwise: [...] of the shape that the three broadcast to."""
    return -0.5 * (LOG_2PI + variance.log() + (y - mean).square() / variance)


class _ExpectedLogNormal(torch.autograd.Function):
    """log N(y | μ, s²) − v/(2s²) elementwise; y is not differentiated.

    Every step of training evaluates it on so few numbers that launching an operation costs more than running
    it. Written by hand there are a third as many operations.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        error, precision = y - mean, noise.reciprocal()
        square = torch.addcmul(variance, error, error)
        ctx.save_for_backward(error, square, precision)
        ctx.shapes = mean.shape, variance.shape, noise.shape
        return torch.addcmul(LOG_2PI + noise.log(), square, precision).mul_(-0.5)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        error, square, precision = ctx.saved_tensors
        of_mean, of_variance, of_noise = ctx.shapes
        weighed = g * precision
        half = -0.5 * weighed
        g_noise = torch.addcmul(half, weighed, square * precision, value=0.5).sum_to_size(of_noise)
        return None, (weighed * error).sum_to_size(of_mean), half.sum_to_size(of_variance), g_noise


class _SumOfExpectedLogNormal(torch.autograd.Function):
    """Σᵢ log N(yᵢ | μᵢ, s²) − t/(2s²) with t = Σᵢ vᵢ, summed over latents; y is not differentiated.

    y, μ [..., latent, n], t [..., latent], s² [..., latent, 1] → [...]. Two passes over rows forward (the
    error and its norm), one backward.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, mean: Tensor, total: Tensor, noise: Tensor) -> Tensor:
        error, precision = y - mean, noise.reciprocal()
        rows, norm = error.shape[-1], torch.linalg.vector_norm(error, dim=-1, keepdim=True)
        square = torch.addcmul(total.unsqueeze(-1), norm, norm)  # Σᵢ (yᵢ − μᵢ)² + vᵢ
        ctx.save_for_backward(error, square, precision)
        ctx.shapes = mean.shape, total.shape, noise.shape
        of_latents = torch.addcmul(noise.log(), square, precision, value=1 / max(rows, 1))
        return of_latents.sum((-2, -1)).add_(LOG_2PI * error.shape[-2]).mul_(-0.5 * rows)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        error, square, precision = ctx.saved_tensors
        of_mean, of_total, of_noise = ctx.shapes
        weighed = g[..., None, None] * precision
        half = -0.5 * weighed
        g_noise = half * (error.shape[-1] - square * precision)
        g_total = half.squeeze(-1).sum_to_size(of_total)
        return None, (weighed * error).sum_to_size(of_mean), g_total, g_noise.sum_to_size(of_noise)


@dataclass(frozen=True)
class GaussianDensity(Density):
    """N(y | f, noise), noise [..., latent, n] or broadcastable to it."""

    noise: Tensor

    def expected_log_prob_of_sum(self, y: Tensor, mean: Tensor, total: Tensor) -> Tensor:
        """Σᵢ E log p(yᵢ|fᵢ) over rows and latents, from ``total`` = Σᵢ variance of fᵢ [..., latent]: [...].

        For noise that all rows share, [..., latent, 1]: Σᵢ log N(yᵢ|μᵢ,s²) − total/(2s²).
        """
        if self.noise.shape[-1] != 1:
            raise ValueError(f"the noise must be the same for all rows, got shape {tuple(self.noise.shape)}")
        if y.requires_grad:
            per_latent = log_normal(y, mean, self.noise).sum(-1) - 0.5 * total / self.noise.squeeze(-1)
            return per_latent.sum(-1)
        return _SumOfExpectedLogNormal.apply(y, mean, total, self.noise)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        # log N(y|μ,s²) − v/(2s²)
        if y.requires_grad:
            return (log_normal(y, mean, self.noise) - 0.5 * variance / self.noise).sum(-2)
        return _ExpectedLogNormal.apply(y, mean, variance, self.noise).sum(-2)

    def expected_log_smoothed(self, y: Tensor, mean: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
        # log N(y|μ,s²+r) − e/(2(s²+r))
        smoothed = self.noise + inside
        return (log_normal(y, mean, smoothed) - 0.5 * outside / smoothed).sum(-2)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return log_normal(y, mean, self.noise + variance).sum(-2)

    def expected_power(self, y: Tensor, mean: Tensor, variance: Tensor, power: float) -> Tensor:
        # E p^h = (2πs²)^(−h/2) (1 + h v/s²)^(−½) exp(−h (y−μ)²/(2(s² + h v)))
        s2, h = self.noise, power
        log_value = (
            -0.5 * h * (LOG_2PI + s2.log())
            - 0.5 * torch.log1p(h * variance / s2)
            - 0.5 * h * (y - mean).square() / (s2 + h * variance)
        )
        return log_value.sum(-2)

    def log_power_mass(self, y: Tensor, power: float) -> Tensor:
        # ∫ p^γ dy = (2πs²)^(−(γ−1)/2) γ^(−½)
        log_value = -0.5 * (power - 1) * (LOG_2PI + self.noise.log()) - 0.5 * math.log(power)
        return log_value.expand_as(y).sum(-2)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        mean, noise = torch.broadcast_tensors(f, self.noise)
        return mean, noise

    def predictive_moments(self, mean: Tensor, residual: Tensor, explained: Tensor) -> Moments:
        return Moments(*torch.broadcast_tensors(mean, residual, explained, self.noise))

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        return sample_normal(f, self.noise, generator)


class GaussianLikelihood(Likelihood):
    """y = f + ε. ``noise`` is the learned variance, one per output (event shape [outputs])."""

    is_log_concave = True
    is_gaussian = True
    linear_in_variance = True
    has_powers = True

    def __init__(
        self,
        outputs: int = 1,
        noise: float = math.log(2.0),
        *,
        floor: float = 1e-6,
        learn: bool = True,
        prior: Prior | None = None,
    ) -> None:
        super().__init__()
        self.outputs = outputs
        self.learns_noise = learn
        self.noise = Positive(noise, (outputs,), floor=floor, prior=prior, trainable=learn)

    def config(self) -> dict[str, Any]:
        """Arguments of the constructor, for saved models."""
        noise = self.noise
        known = {"outputs": self.outputs, "noise": noise, "floor": noise.floor, "prior": noise.prior}
        return known | {"learn": noise.raw.requires_grad}

    def variance(self, row_noise: Tensor | None = None) -> Tensor:
        """Noise variance [R, outputs, n or 1]."""
        learned = self.noise().unsqueeze(-1)
        return learned if row_noise is None else learned + row_noise

    def bind(self, row_noise: Tensor | None = None) -> GaussianDensity:
        return GaussianDensity(self.variance(row_noise))
