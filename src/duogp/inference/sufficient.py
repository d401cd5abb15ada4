"""What the closed form needs to know of the rows, as sums that can be merged in any order.

With t = y − μ₀, features ψ of the mean and φ of the covariance, residuals r and precisions
Λ = w/s² (ELBO) or w/(s² + r) (VFITC), rows enter the optimal q(u) and its bound only through

    n    Σw    G_μ = ΨΛΨᵀ    G = ΦΛΦᵀ    h = ΨΛt    tᵀΛt    Σ λr    Σ w log 2π(w/λ)

    −2 data = Σ w log 2π(w/λ) + tᵀΛt − 2mᵀh + mᵀG_μm + tr SG + Σ λr        (the last for the ELBO)

`statistics` maps a batch to these sums, `merge` adds two of them: both are pure, so any system that maps and
reduces can run them. `solve` and `bound` see the sums alone. The sums are those of fixed hyperparameters:
statistics of models that differ in anything but q(u) must not be merged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from duogp.inference import closed_form
from duogp.inference.optimal_q import Optimum
from duogp.likelihoods.gaussian import LOG_2PI
from duogp.models.model import Batch, Model


class SufficientStatistics(NamedTuple):
    """Sums over rows in the model's (scaled) units, float64; R replicates, P latent functions."""

    rows: Tensor  # n [R]
    weight: Tensor  # Σw [R]
    gram: Tensor  # ΦΛΦᵀ [R, P, M, M]
    moment: Tensor  # ΨΛt [R, P, M_μ]
    square: Tensor  # tᵀΛt [R, P]
    residual: Tensor  # Σ λr [R, P]
    log_noise: Tensor  # Σ w log 2π(w/λ) [R, P]
    mean_gram: Tensor | None  # ΨΛΨᵀ [R, P, M_μ, M_μ]; None where mean and covariance share features


def obstacle(model: Model) -> str | None:
    """Why a model's rows are not summed up by these statistics; None where they are."""
    if not (model.likelihood.is_gaussian and model.likelihood.linear_in_variance):
        return "the likelihood is not Gaussian"
    if not model.objective.has_closed_form:
        return f"the objective {model.objective} is not quadratic in q(u)"
    blocks = [block for block, _ in model.basis.q.parts()]
    if not (model.basis.has_closed_form and all(block.has_closed_form for block in blocks)):
        return "the basis or its q(u) declares no closed form"
    if model.basis.points_are_rows:
        return "its inducing points are the rows themselves"
    if model.uses_omega:
        return "Ω (beta2) couples the rows of a chunk with each other: use beta2=0"
    if model.mixing is not None:
        return "mixed outputs (num_latents) tie the latent functions to each other"
    return None


def require_sums(model: Model) -> None:
    """An error for models whose rows are not summed up by `statistics`."""
    if why := obstacle(model):
        raise ValueError(f"there are no statistics of this model that could be merged: {why}")


@torch.no_grad()
def statistics(model: Model, batch: Batch, factors: Any | None = None) -> SufficientStatistics:
    """The sums of a batch at the model's hyperparameters; q(u) has no part in them."""
    require_sums(model)
    factors = model.factors() if factors is None else factors
    x = batch.x.unsqueeze(-3)
    features = model.basis.features(x, factors)
    noise = model.likelihood.bind(batch.noise).noise.double()  # type: ignore[attr-defined]
    if model.objective.smooths_residual:
        noise = noise + features.residual.double()
    t = (batch.y - model.mean(x)).double()
    if features.offset is not None:
        t = t - features.offset.double()
    ones = torch.ones_like(t)
    noise = noise * ones
    w = ones if batch.weight is None else ones * batch.weight.double().unsqueeze(-2)
    precision = w / noise
    sums = closed_form.statistics(model, batch, features, None)
    residual = features.residual.double() * ones
    each = torch.ones_like(t[:, 0])
    return SufficientStatistics(
        rows=each.sum(-1),
        weight=w[:, 0].sum(-1),
        gram=sums.gram,
        moment=sums.moment,
        square=(precision * t.square()).sum(-1),
        residual=(precision * residual).sum(-1),
        log_noise=(w * (LOG_2PI + noise.log())).sum(-1),
        mean_gram=None if sums.mean_gram is sums.gram else sums.mean_gram,
    )


def merge(a: SufficientStatistics, b: SufficientStatistics) -> SufficientStatistics:
    """The statistics of the rows of both; commutative, and associative up to rounding."""
    shapes = [[None if s is None else s.shape for s in each] for each in (a, b)]
    if shapes[0] != shapes[1]:
        raise ValueError("statistics of different models cannot be merged: their sizes differ")
    added = (None if s is None or t is None else s + t for s, t in zip(a, b, strict=True))
    return SufficientStatistics(*added)  # type: ignore[arg-type]


@torch.no_grad()
def solve(model: Model, sums: SufficientStatistics, factors: Any | None = None) -> Optimum:
    """The optimal q(u) of all rows that were summed."""
    factors = model.factors() if factors is None else factors
    mean_gram = sums.gram if sums.mean_gram is None else sums.mean_gram
    return closed_form.optimum(
        model, factors, closed_form.Statistics(mean_gram, sums.gram, sums.moment, None)
    )


@torch.no_grad()
def bound(model: Model, sums: SufficientStatistics) -> Tensor:
    """The collapsed bound of all rows that were summed, in nats, [R]: data − β₁KL + log prior."""
    factors = model.factors()
    q = solve(model, sums, factors).as_q(model.basis.q)
    m, mean_gram = q.mean, sums.gram if sums.mean_gram is None else sums.mean_gram
    total = sums.log_noise + sums.square - 2 * (m * sums.moment).sum(-1)
    total = total + (m * (mean_gram @ m.unsqueeze(-1)).squeeze(-1)).sum(-1)
    if q.S is not None:
        total = total + (q.S * sums.gram).sum((-2, -1))
    if model.objective.charges_residual:
        total = total + sums.residual
    return -0.5 * total.sum(-1) - model.beta1 * model.basis.kl(factors, q).sum(-1) + model.prior()
