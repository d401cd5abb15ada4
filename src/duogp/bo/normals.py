"""Normals and noise as BoTorch has them: gpytorch's distributions and likelihoods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.likelihoods import GaussianLikelihood as GPyTorchNoise
from gpytorch.settings import min_fixed_noise
from linear_operator import to_linear_operator
from linear_operator.operators import BlockDiagLinearOperator
from torch import Tensor, nn

from duogp.likelihoods import GaussianLikelihood

if TYPE_CHECKING:
    from duogp.bo.fitted_model import FittedModel

#: The least noise that gpytorch's likelihood may report: ours has a floor of its own.
LEAST = 1e-300


def joint_normal(
    mean: Tensor,
    covariance: Tensor,
    scale: Tensor,
    weights: Tensor | None,
    noise: Tensor | None,
    like: Tensor,
) -> MultivariateNormal:
    """The normal of m outputs at q points, on the device and in the precision of ``like``.

    ``mean`` [*b, q, m] in the units of the outputs; ``covariance`` [*b, latents, q, q] of the latent
    functions in scaled units, ``scale`` [*b, 1, m]; ``weights`` W [*b, m, latents] of mixed ones; ``noise``
    [..., q, m].
    """
    batch = torch.broadcast_shapes(mean.shape[:-2], covariance.shape[:-3])
    q, m = mean.shape[-2:]
    mean = mean.expand(*batch, q, m)
    if weights is not None:  # Σ_l W_pl W_rl C_l, points first, then outputs
        mixed = torch.einsum("...pl,...rl,...lij->...ipjr", weights, weights, covariance)
        row, column = (
            scale[..., None, None],
            scale.unsqueeze(-2),
        )  # of p: [*b, 1, m, 1, 1], of r: [*b, 1, 1, m]
        full = (mixed * row * column).reshape(*mixed.shape[:-4], q * m, q * m)
        if noise is not None:
            full = full + torch.diag_embed(noise.expand(*batch, q, m).flatten(-2))
        if m == 1:
            return _lazy(mean[..., 0], full, like)
        return MultitaskMultivariateNormal(mean.to(like), to_linear_operator(full.to(like)))
    covariance = covariance.expand(*batch, m, q, q) * scale.square().mT.unsqueeze(-1)
    if noise is not None:
        covariance = covariance + torch.diag_embed(noise.mT.expand(*batch, m, q))
    if m == 1:
        return _lazy(mean[..., 0], covariance[..., 0, :, :], like)
    blocks = BlockDiagLinearOperator(to_linear_operator(covariance.to(like)), block_dim=-3)
    return MultitaskMultivariateNormal(mean.to(like), blocks, interleaved=False)


def _lazy(mean: Tensor, covariance: Tensor, like: Tensor) -> MultivariateNormal:
    """A normal whose covariance is factorised, with jitter, only when it is sampled from."""
    return MultivariateNormal(mean.to(like), to_linear_operator(covariance.to(like)))


def botorch_likelihood(model: FittedModel, known: Tensor | None) -> nn.Module:
    """The noise of a model as gpytorch's likelihood, in the units of the transformed outcomes.

    ``known`` [*b, n, m]: the given variances of the rows. A likelihood that gpytorch has not is our own.
    """
    if known is not None:
        known = known.clamp_min(min_fixed_noise.value(known.dtype))
        return FixedNoiseGaussianLikelihood(noise=known.squeeze(-1) if model.num_outputs == 1 else known.mT)
    own = model.gps[0].model.likelihood
    if not isinstance(own, GaussianLikelihood):
        return own
    noise = model.learned_noise().detach().to(model.train_Y)  # [*b, 1, m]
    noise = noise.squeeze(-1) if model.num_outputs == 1 else noise.mT  # [*b, 1] or [*b, m, 1]
    constraint = GreaterThan(LEAST, transform=None, initial_value=None)
    out = GPyTorchNoise(noise_constraint=constraint, batch_shape=noise.shape[:-1]).to(noise)
    out.noise_covar.raw_noise.data.copy_(noise)
    return out.requires_grad_(False).eval()
