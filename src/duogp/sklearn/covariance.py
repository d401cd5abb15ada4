"""The covariance of observations at several rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from duogp.posterior.prediction import Prediction


@torch.no_grad()
def observation_covariance(gp: Any, X: NDArray, prediction: Prediction) -> NDArray[np.float64]:
    """[n, n] of one output, [n, n, outputs] of several; its diagonal is the variance of the prediction."""
    if not hasattr(gp, "model") or len(getattr(gp.model, "hidden", ())):
        raise ValueError(f"{gp.method.name!r} has no joint Gaussian over rows: use the draws of sample_y")
    if gp.model.likelihood.target != "real":
        raise ValueError(
            "return_cov is for likelihoods whose mean is the latent function: use draws of sample_y"
        )
    x = gp._inputs(X)[None, None]
    _, residual, explained = gp.posterior.joint(x)
    covariance = (residual + explained)[0]  # [latents, n, n]
    if gp.model.mixing is not None:
        weight = gp.model.mixing.weight[0].to(covariance)
        covariance = torch.einsum("pq,qij->pij", weight.square(), covariance)
    outputs = len(gp.y_scaler.scale)
    values = covariance[:outputs].cpu().numpy()  # a log noise behind them is not asked for
    values = np.broadcast_to(values, (outputs, *values.shape[1:])) * gp.y_scaler.scale[:, None, None] ** 2
    values = 0.5 * (values + values.transpose(0, 2, 1))
    diagonal = np.arange(len(X))
    values[:, diagonal, diagonal] = prediction.variance.reshape(len(X), -1).T
    return values[0] if gp.single_output else values.transpose(1, 2, 0)
