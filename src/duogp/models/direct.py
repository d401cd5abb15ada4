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
from duogp.fused.direct import DirectStep, Numbers, add_gradient, add_to_positive, squared_norm
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
    noise, mean, n = Numbers(model.likelihood.noise), model.mean, f.mean.shape[-1]  # type: ignore[arg-type]
    s2, num_data = noise.value(), float(model.num_data)
    error = batch.y - f.mean
    if isinstance(mean, ConstantMean):
        error.sub_(float(mean.constant))
    spread = (squared_norm(error) + float(f.total)) / (n * s2)  # E/(n s²)
    weight = float(model.beta1) / num_data
    loss = weight * float(penalties.kl) + 0.5 * (LOG_2PI + math.log(s2) + spread)
    g_mean = error.mul_(-1.0 / (n * s2))
    g_total = torch.full_like(f.total, 0.5 / (n * s2))
    step.backward(VarianceSum(g_mean, g_total), Penalties(torch.full_like(penalties.kl, weight)))
    for parameter in model.with_priors:
        value = parameter()
        loss -= float(parameter.prior(value).sum()) / num_data  # type: ignore[misc]
        add_to_positive(parameter, -parameter.prior.slope(value) / num_data)  # type: ignore[union-attr]
    noise.add([0.5 * (1.0 - spread) / s2])
    if isinstance(mean, ConstantMean):
        add_gradient(mean.constant, g_mean.sum())
    return torch.full_like(model.num_data, loss)
