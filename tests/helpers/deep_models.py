"""Random deep models, rows for them, and a fitted GP around a model."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from duogp.data.scaling import Scaler
from duogp.fitting.deep import Architecture, build_deep_model
from duogp.kernels import RBF, Kernel, Scale
from duogp.likelihoods import GaussianLikelihood, Likelihood
from duogp.methods import METHODS
from duogp.methods.settings import Settings
from duogp.models.deep import DeepModel
from duogp.models.mixing import LinearMixing
from duogp.models.model import Batch, Model
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import batched
from duogp.objectives import Objective, elbo
from duogp.posterior.deep import DeepGP
from duogp.posterior.gp import GP
from duogp.training import History
from duogp.variational import CholeskyQ, Q
from helpers.devices import placed
from helpers.random_models import learned

close = partial(assert_close, rtol=1e-8, atol=1e-8)
#: deep methods of the registry and the basis of their layers
RECIPES = {"dgp": "coupled", "dgp-solve": "solve", "dgp-dc": "conditional", "ddgpc": "layer-components"}

every_kind = pytest.mark.parametrize("kind", RECIPES)


def kernel(spread: Tensor, shape: tuple[int, ...]) -> Kernel:
    out = batched(Scale(RBF(spread.shape[-1])), shape)
    out.kernel.lengthscale.set_(1.5 * spread)
    return out


def deep(
    kind: str = "dgp",
    *,
    dims: int = 2,
    replicates: int = 1,
    inducing: int = 6,
    likelihood: Likelihood | None = None,
    outputs: int = 1,
    objective: Objective = elbo,
    dtype: torch.dtype = torch.float64,
    num_data: int = 40,
    beta2: float = 0.2,
    jitter: float | None = None,
    mixing: bool = False,
    mean: str = "linear",
    seeds: list[int] | None = None,
    rough: bool = True,
    q: type[Q] = CholeskyQ,
    options: dict[str, Any] | None = None,
    **architecture: Any,
) -> DeepModel:
    """A small deep model; `rough`: every parameter moved off its start, hidden variances included."""
    seeds = list(range(replicates)) if seeds is None else seeds
    generators = [torch.Generator().manual_seed(100 + s) for s in seeds]
    points = torch.stack(
        [3 * torch.rand(2 * inducing, dims, generator=g, dtype=dtype) - 1.5 for g in generators]
    )
    points = points.unsqueeze(1)
    likelihood = GaussianLikelihood(outputs, noise=0.2) if likelihood is None else likelihood
    seen = likelihood.num_latents(outputs)
    settings = {"samples": 3, "eval_samples": 32, "columns": 8, **architecture}
    model = build_deep_model(
        RECIPES[kind],
        inducing=points[..., :inducing, :],
        extra=points[..., inducing:, :] if kind in ("dgp-solve", "ddgpc") else None,
        kernel=kernel,
        likelihood=batched(likelihood, (len(seeds),)),
        latents=2 if mixing else seen,
        objective=objective,
        numerics=Numerics(len(seeds), jitter, dtype),
        num_data=num_data,
        generators=generators,
        architecture=Architecture(**settings),
        q=q,
        options={"num_residual": 3} | (options or {}),
        beta2=beta2 if kind == "dgp-dc" else 0.0,
        mean=mean,
        mixing=LinearMixing(seen, 2, generators) if mixing else None,
    )
    if rough:
        roughen(model, seeds)
    return placed(model)


@torch.no_grad()
def roughen(model: DeepModel, seeds: list[int]) -> None:
    """Each replicate by its own seed, so that one of many equals one alone."""
    generators = [torch.Generator().manual_seed(500 + s) for s in seeds]

    def normal(like: Tensor) -> Tensor:
        draws = [torch.randn(like.shape[1:], generator=g, dtype=torch.float64) for g in generators]
        return torch.stack(draws).to(like.dtype)

    for name, p in learned(model):
        if name.endswith("raw_root"):
            p.copy_(0.4 * torch.eye(p.shape[-1]) + 0.1 * normal(p))
        elif name.endswith("mean") and ".q" in f".{name}":
            p.copy_(0.5 * normal(p))
        else:
            p.add_(0.1 * normal(p))


def rows(model: DeepModel, n: int = 10, outputs: int = 1, seeds: list[int] | None = None) -> Batch:
    dims = model.layers[0].basis.inducing.shape[-1]
    dtype = model.numerics.dtype
    xs, ys = [], []
    for s in range(model.replicates) if seeds is None else seeds:
        g = torch.Generator().manual_seed(900 + s)
        x = 3 * torch.rand(n, dims, generator=g, dtype=torch.float64) - 1.5
        noise = 0.3 * torch.randn(outputs, n, generator=g, dtype=torch.float64)
        target = model.likelihood.target
        y = torch.sin(2 * x[:, 0]).expand(outputs, n) + noise
        if target == "classes":
            y = (y > 0).double() * (getattr(model.likelihood, "classes", 2) - 1)
        elif target == "count":
            y = y.abs().round()
        elif target == "positive":
            y = y.abs() + 0.1
        elif target == "unit":
            y = y.sigmoid()
        xs.append(x)
        ys.append(y)
    return Batch(placed(torch.stack(xs).to(dtype)), placed(torch.stack(ys).to(dtype)))


def gp_of(model: Model, cls: type[GP] = DeepGP, classes: np.ndarray | None = None) -> GP:
    basis = model.layers[0].basis if isinstance(model, DeepModel) else model.basis
    dims = basis.inducing.shape[-1]
    outputs = 1 if classes is not None else model.likelihood_outputs
    return cls(
        model,
        method=METHODS["svgp"],
        settings=Settings(),
        columns=np.ones(dims, dtype=bool),
        x_scaler=Scaler(np.full(dims, 0.1), np.full(dims, 2.0)),
        y_scaler=Scaler.identity(1)
        if classes is not None
        else Scaler(np.full(outputs, 3.0), np.full(outputs, 2.0)),
        single_output=outputs == 1,
        history=History(solver="stochastic"),
        classes=classes,
    )


def gradients(model: Model, batch: Batch) -> dict[str, Tensor]:
    model.zero_grad()
    model.loss(batch).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
