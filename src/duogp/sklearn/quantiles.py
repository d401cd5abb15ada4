"""Quantiles of a new observation for every likelihood: in closed form, by inversion, or from draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from duogp.baselines.heads import GaussianHead
from duogp.baselines.predictor import NeuralPredictor
from duogp.bases import Marginals
from duogp.likelihoods import GaussianDensity, GaussianLikelihood
from duogp.likelihoods.base import standard_deviation
from duogp.likelihoods.heteroscedastic import HeteroscedasticDensity
from duogp.models.sample_mixture import MixtureDensity
from duogp.posterior.gp import GP
from duogp.posterior.laws import MixturePrediction
from duogp.posterior.log_target import LogTargetGP
from duogp.posterior.stack import Stack
from duogp.sklearn.predictive import Beta, Draws, Gamma, Mixture, Poisson, Predictive

Array = NDArray[np.float64]

#: Numbers held at once during the inversion.
CHUNK = 4_000_000
#: Levels at which the members of a stack of other laws than Gaussian are asked.
GRID = np.concatenate([[1e-4, 1e-3, 0.005, 0.02], np.linspace(0.05, 0.95, 19), [0.98, 0.995, 0.999, 0.9999]])
#: Draws for likelihoods without a distribution function: a probability to about one per cent.
NUM_DRAWS = 4096


def as_levels(quantiles: Any, name: str = "quantiles") -> Array:
    """Probabilities strictly between 0 and 1, as a vector [Q]."""
    try:
        levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be probabilities, got {quantiles!r}") from error
    if levels.ndim != 1 or levels.size == 0 or not ((levels > 0) & (levels < 1)).all():
        hint = "; did you mean shares, not per cent?" if (levels >= 1).any() else ""
        raise ValueError(f"{name} must be numbers strictly between 0 and 1, got {quantiles!r}{hint}")
    return levels


@torch.no_grad()
def predictive_quantiles(gp: GP | Stack | NeuralPredictor, X: Any, levels: Array, noise: Any = None) -> Array:
    """[levels, n, outputs] in the user's units."""
    if isinstance(gp, Stack):
        return _stack_quantiles(gp, X, levels, noise)
    if isinstance(gp, LogTargetGP):
        logs = gp.predict_logs(X, noise=noise)
        mean, std = (np.reshape(v, (1, len(v), -1)) for v in (logs.mean, logs.std))
        return gp.units.scale.back(mean + std * ndtri(levels)[:, None, None])
    if isinstance(gp, NeuralPredictor):
        pieces: Iterator[Predictive] = _network_pieces(gp, X)
    elif type(gp) is GP and isinstance(gp.model.likelihood, GaussianLikelihood):
        gp._require_noise(noise, "a quantile")
        prediction = gp.predict(X, noise=noise)
        mean, std = (np.reshape(v, (1, len(v), -1)) for v in (prediction.mean, prediction.std))  # type: ignore[union-attr]
        return mean + std * ndtri(levels)[:, None, None]
    else:
        gp._require_noise(noise, "a quantile")
        pieces = _pieces(gp, X, noise, len(levels))
    found = np.concatenate([piece.quantiles(levels) for piece in pieces], -1)  # [levels, outputs, n]
    return found.transpose(0, 2, 1) * gp.y_scaler.scale + gp.y_scaler.shift


def _stack_quantiles(stack: Stack, X: Any, levels: Array, noise: Any) -> Array:
    """By inversion for mixtures of Gaussians, otherwise from a grid of quantiles of every member."""
    stack.require_noise(noise, "a quantile")
    if isinstance(stack.law, list):
        prediction = stack.predict(X, noise=noise, in_parts=False)
        assert isinstance(prediction, MixturePrediction)
        found = prediction.quantiles(levels)
        return found[..., None] if stack.single_output else found
    shares = np.array(list(stack.weights.values()))
    if shares.max() > 0.999 * shares.sum():
        return predictive_quantiles(stack.members[int(shares.argmax())], X, levels, noise)
    grid = np.union1d(GRID, levels)
    each = np.stack([predictive_quantiles(gp, X, grid, noise) for gp in stack.members])  # [K, grid, n, P]
    out = np.empty((len(levels), *each.shape[2:]))
    discrete = stack.model.likelihood.target == "count"
    for row in np.ndindex(*each.shape[2:]):
        own = each[(slice(None), slice(None), *row)]
        out[(slice(None), *row)] = _mixed_quantiles(own, grid, shares / shares.sum(), levels, discrete)
    return out


def _mixed_quantiles(each: Array, grid: Array, shares: Array, levels: Array, discrete: bool) -> Array:
    """Quantiles of a mixture from those of its parts [K, grid]: their distribution functions interpolated."""
    t = np.unique(each)
    if discrete:  # P(y ≤ t) is the largest level whose quantile is not above t
        steps = np.concatenate([[0.0], grid])
        parts = [steps[np.searchsorted(q, t, side="right")] for q in each]
        reached = shares @ np.stack(parts)
        return t[np.searchsorted(reached, levels - 1e-12).clip(0, len(t) - 1)]
    reached = shares @ np.stack([np.interp(t, q, grid, left=0.0, right=1.0) for q in each])
    return np.interp(levels, reached, t)


def _network_pieces(network: NeuralPredictor, X: Any) -> Iterator[Predictive]:
    head = network.network.head
    assert isinstance(head, GaussianHead)
    for raw in network._passes(network._inputs(X)):
        mean, variance = (_array(part) for part in head.moments(raw))  # [S, outputs, n]
        std = np.sqrt(np.broadcast_to(variance, mean.shape))
        yield Mixture(mean, std, np.full((len(mean), 1, 1), 1 / len(mean)))


def _pieces(gp: GP, X: Any, noise: Any, num_levels: int) -> Iterator[Predictive]:
    x = gp._arriving(X)
    row_noise = gp._row_noise(noise, len(x))
    generator = torch.Generator().manual_seed(0)  # the same draws every time
    for start, f in gp._marginals(x):
        size = max(1, CHUNK // (64 * num_levels * f.mean[..., 0].numel()))
        for offset in range(0, f.mean.shape[-1], size):
            part = Marginals(*(t[..., offset : offset + size] for t in f))
            density = gp._density(row_noise, start + offset, part.mean.shape[-1])
            yield predictive_of(density, part.mean, part.variance, gp.model.likelihood.target, generator)


def predictive_of(
    density: Any, mean: Tensor, variance: Tensor, target: str, generator: torch.Generator
) -> Predictive:
    """The distribution of y for f ~ N(mean, variance), [1, latents, n] or [samples, 1, latents, n]."""
    parts = gaussian_components(density, mean, variance)
    if parts is not None:
        return Mixture(*map(_array, parts))
    if isinstance(density, MixtureDensity):
        density = density.of
    latents, n = mean.shape[-2:]
    mean, variance = (t.reshape(-1, latents, n) for t in (mean, variance))
    own: Any = getattr(density, "likelihood", None)
    known = getattr(own, "distribution", "")
    latent = _array(mean), _array(standard_deviation(variance))
    if known == "poisson":
        return Poisson(*latent)
    if known == "gamma":
        return Gamma(*latent, _array(own.shape().unsqueeze(-1)[0]))
    if known == "beta":
        return Beta(*latent, _array(own.precision().unsqueeze(-1)[0]), own.link)
    which = torch.arange(NUM_DRAWS) % len(mean)
    z = torch.randn(NUM_DRAWS, latents, n, generator=generator, dtype=torch.float64).to(mean)
    f = mean[which] + standard_deviation(variance)[which] * z
    return Draws(_array(density.sample(f.unsqueeze(1), generator)[:, 0]), discrete=target == "count")


def gaussian_components(density: Any, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """The mixture that y is: means and standard deviations [k, outputs, n], weights [k, outputs or 1, 1].

    For f ~ N(mean, variance), [1, latents, n] or [samples, 1, latents, n]; None where y is no finite mixture
    of Gaussians.
    """
    if isinstance(density, MixtureDensity):
        density = density.of
    latents, n = mean.shape[-2:]
    mean, variance = (t.reshape(-1, latents, n) for t in (mean, variance))
    samples = len(mean)
    if isinstance(density, GaussianDensity):
        std = (variance + density.noise[-1]).sqrt()
        return mean, std, torch.full((samples, 1, 1), 1 / samples, dtype=mean.dtype)
    own: Any = getattr(density, "likelihood", None)
    if getattr(own, "distribution", "") == "student-t":
        noise, log_weight = (t[:, 0] for t in own.mixture(3))  # [w, outputs, 1]
        total = variance + noise.unsqueeze(1)  # [w, S, outputs, n]
        return _components(mean.expand_as(total), total, log_weight.exp().unsqueeze(1) / samples)
    if isinstance(density, HeteroscedasticDensity):
        mu, v = density._pairs(mean, variance)
        z, log_weights = density.rule.along(mu.g)
        noise = density._noise_at(mu.g + standard_deviation(v.g) * z)
        total = (v.f + noise).clamp_min(torch.finfo(noise.dtype).tiny)
        return _components(mu.f.expand_as(total), total, log_weights.exp() / samples)
    return None


def _components(mean: Tensor, variance: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes and samples [nodes, samples, outputs, n] as one axis of components."""
    nodes, samples, outputs, n = variance.shape
    weights = weight.expand(nodes, samples, weight.shape[-2], 1).reshape(nodes * samples, -1, 1)
    mean, std = (t.reshape(nodes * samples, outputs, n) for t in (mean, variance.sqrt()))
    return mean, std, weights


def _array(value: Tensor) -> Array:
    return value.detach().double().cpu().numpy()
