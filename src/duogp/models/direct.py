"""The loss of a model from a direct step: what follows the moments of f, and their gradients.

By hand for what most regressions are (Gaussian noise, the ELBO from the sum of the variances, a constant
prior mean): some twenty operations. Everything else by autograd, from the moments on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from duogp.bases.marginals import Penalties, VarianceSum
from duogp.fused.direct import DirectStep, add_gradient, add_to_positive
from duogp.likelihoods.gaussian import GaussianLikelihood
from duogp.means.parametric import ConstantMean, Zero
from duogp.objectives import elbo

if TYPE_CHECKING:
    from duogp.models.model import Batch, Model

LOG_2PI = math.log(2 * math.pi)


def backward(model: Model, batch: Batch, step: DirectStep) -> Tensor:
    """The loss [1]; gradients are added to ``.grad``."""
    x = batch.x.unsqueeze(-3)
    f, penalties = step.forward(x, model.numerics)
    if isinstance(f, VarianceSum) and _is_plain(model):
        return _plain(model, batch, step, f, penalties)
    leaves = [value.requires_grad_() for value in (*f, *(p for p in penalties if p is not None))]
    loss = model.loss_of(batch, model.complete(f, x), penalties)
    loss.backward()
    gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    count = len(f)
    kind: Any = type(f)
    step.backward(kind(*gradients[:count]), Penalties(*gradients[count:]))
    return loss.detach()


def _is_plain(model: Model) -> bool:
    return (
        type(model.likelihood) is GaussianLikelihood
        and type(model.mean) in (ConstantMean, Zero)
        and model.objective is elbo
    )


@torch.no_grad()
def _plain(model: Model, batch: Batch, step: DirectStep, f: VarianceSum, penalties: Penalties) -> Tensor:
    """The loss of Gaussian noise, its gradients left in the parameters.

    With e = y − μ − c and E = Σe² + Σv:  data = −½ (n log 2πs² + E/s²), and

    gμ = −e/(n s²)    gΣv = 1/(2n s²)    gs² = (1 − E/(n s²)) / 2s²    gc = Σ gμ
    """
    noise, mean, n = model.likelihood.noise, model.mean, f.mean.shape[-1]
    s2 = noise()[0, 0]  # type: ignore[operator]
    shift = mean.constant.detach().to(f.mean.dtype) if isinstance(mean, ConstantMean) else None
    error = batch.y - f.mean
    if shift is not None:
        error -= shift.view(1, 1, 1)
    flat = error.view(-1)
    spread = (torch.dot(flat, flat) + f.total[0, 0]) / (n * s2)  # E/(n s²)
    weight = model.beta1 / model.num_data
    # Σ over rows first in the working precision, then the weights of the model's.
    loss = weight * penalties.kl + 0.5 * (LOG_2PI + s2.log() + spread)
    g_mean = error.mul_(-1.0 / (n * s2))
    g_total = (0.5 / (n * s2)).view(1, 1).to(f.total.dtype)
    step.backward(VarianceSum(g_mean, g_total), Penalties(weight.to(penalties.kl.dtype)))
    for parameter in model.with_priors:
        value = parameter()
        loss = loss - parameter.prior(value).sum() / model.num_data  # type: ignore[misc]
        add_to_positive(parameter, -parameter.prior.slope(value) / model.num_data)  # type: ignore[union-attr]
    add_to_positive(noise, 0.5 * (1.0 - spread) / s2)  # type: ignore[arg-type]
    if isinstance(mean, ConstantMean):
        add_gradient(mean.constant, g_mean.sum())
    return loss
