"""gpytorch's contestants: its whitened strategies as its documentation trains them, rows on the device.

Eager (its kernels ask the host, so neither a CUDA graph nor `torch.compile` is documented for them), with
torch's fused Adam. `linalg="float32"` is its documented setting `linalg_dtypes`, which gives up the float64
factorisation that is its default in either precision.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    DeltaVariationalDistribution,
    IndependentMultitaskVariationalStrategy,
    LargeBatchVariationalStrategy,
    OrthogonallyDecoupledVariationalStrategy,
    VariationalStrategy,
)
from torch import Tensor

from racing.clock import Contestant, now
from racing.problem import LEARNING_RATE, Problem

STRATEGIES = {"standard": VariationalStrategy, "large-batch": LargeBatchVariationalStrategy}
#: Rows at once in prediction; the quickest on a sample is taken.
CHUNKS = (1024, 8192, 65536)


class SVGP(gpytorch.models.ApproximateGP):
    """Sparse variational GP; with a second set of points orthogonally decoupled; one for each class."""

    def __init__(
        self, inducing: Tensor, strategy: str, extra: Tensor | None = None, classes: int = 0
    ) -> None:
        batch = torch.Size([classes]) if classes else torch.Size([])
        q = CholeskyVariationalDistribution(inducing.shape[0], batch_shape=batch)
        found: Any = STRATEGIES[strategy](self, inducing, q, learn_inducing_locations=True)
        if classes:  # kernel and points are shared, as in our default: the cheapest of its forms
            found = IndependentMultitaskVariationalStrategy(found, num_tasks=classes)
        if extra is not None:
            found = OrthogonallyDecoupledVariationalStrategy(
                found, extra, DeltaVariationalDistribution(extra.shape[0])
            )
        super().__init__(found)
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=batch)
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.RBFKernel(ard_num_dims=inducing.shape[1])
        )

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def likelihood_of(problem: Problem) -> Any:
    if problem.classes:
        return gpytorch.likelihoods.SoftmaxLikelihood(
            num_features=problem.classes, num_classes=problem.classes, mixing_weights=False
        )
    return gpytorch.likelihoods.GaussianLikelihood()


class Training(Contestant):
    version = gpytorch.__version__

    def __init__(
        self,
        problem: Problem,
        strategy: str = "standard",
        *,
        objective: str = "elbo",
        linalg: str = "float64",
    ) -> None:
        self.problem = problem
        self.linalg = linalg
        dtype, device = getattr(torch, problem.dtype), problem.device
        torch.manual_seed(problem.seed)
        X, y = problem.arrays()
        Z, O = problem.points()
        self.x = torch.as_tensor(X, dtype=dtype, device=device)
        self.y = torch.as_tensor(y, dtype=None if problem.classes else dtype, device=device)
        extra = torch.as_tensor(O, dtype=dtype) if problem.extra else None
        self.model = SVGP(torch.as_tensor(Z, dtype=dtype), strategy, extra, problem.classes).to(device, dtype)
        self.likelihood = likelihood_of(problem).to(device, dtype)
        self.model.covar_module.base_kernel.lengthscale = problem.lengthscale
        make = {
            "elbo": gpytorch.mlls.VariationalELBO,
            "predictive": gpytorch.mlls.PredictiveLogLikelihood,
        }[objective]
        self.objective = make(self.likelihood, self.model, num_data=len(X))
        parameters = [*self.model.parameters(), *self.likelihood.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)
        self.model.train()
        self.likelihood.train()

    def precision(self) -> AbstractContextManager[Any]:
        if self.linalg == "float64":
            return nullcontext()
        lower = getattr(torch, self.linalg)
        return gpytorch.settings.linalg_dtypes(default=lower, symeig=lower, cholesky=lower)

    def step(self, rows: Tensor) -> None:
        self.optimizer.zero_grad()
        loss = -self.objective(self.model(self.x[rows]), self.y[rows])
        loss.backward()
        self.optimizer.step()

    def block(self) -> float:
        with self.precision():
            begun = now(self.problem.device)
            for rows in torch.randperm(len(self.x), device=self.x.device).split(self.problem.batch):
                self.step(rows)
            return (now(self.problem.device) - begun) / self.problem.steps


class Predicting(Contestant):
    """Eval mode, caches warm: arrays in, arrays out, in the rows at once that are quickest for it."""

    version = gpytorch.__version__

    def __init__(
        self,
        problem: Problem,
        strategy: str,
        X: np.ndarray,
        *,
        variance: bool = True,
        linalg: str = "float64",
    ) -> None:
        training = Training(problem, strategy, linalg=linalg)
        self.precision = training.precision
        training.block()
        self.model, self.likelihood = training.model.eval(), training.likelihood.eval()
        self.device, self.dtype = problem.device, getattr(torch, problem.dtype)
        self.X, self.variance = X, variance
        sample = X[: max(CHUNKS)]
        sizes = [size for size in CHUNKS if size <= len(sample)] or [len(sample)]
        self.chunk = min(sizes, key=self._seconds_of(sample))

    def _seconds_of(self, sample: np.ndarray) -> Callable[[int], float]:
        def seconds(size: int) -> float:
            self.predict(sample[:size], size)  # warm
            begun = now(self.device)
            self.predict(sample, size)
            return now(self.device) - begun

        return seconds

    @torch.no_grad()
    def predict(self, X: np.ndarray, chunk: int) -> list[np.ndarray]:
        x = torch.as_tensor(X, dtype=self.dtype, device=self.device)
        parts: list[list[Tensor]] = []
        with (
            self.precision(),
            gpytorch.settings.fast_pred_var(),
            gpytorch.settings.skip_posterior_variances(not self.variance),
        ):
            for part in x.split(chunk):
                f = self.model(part)
                parts.append([f.mean] if not self.variance else [f.mean, self.likelihood(f).variance])
        return [torch.cat(values).cpu().numpy() for values in zip(*parts, strict=True)]

    def block(self) -> float:
        begun = now(self.device)
        self.predict(self.X, self.chunk)
        return now(self.device) - begun
