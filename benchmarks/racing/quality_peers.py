"""gpytorch's contestants of the part quality: what they know of the validation rows after every few epochs.

    "svgp"          minibatches, Adam, the protocol of Zhu et al. 2023 (batch 1024, 5e-3, × 0.2 at two thirds)
    "svgp natural"  the same with natural gradients on q(u) (rate 0.1) beside Adam on the rest
    "sgpr"          the collapsed bound of all rows (`InducingPointKernel`), Adam at 0.05

Each runs to its end, in the precision in which an epoch of it is faster here. Looking at the validation rows
is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gpytorch
import numpy as np
import torch
from torch import Tensor

from duogp.data.splits import Split
from duogp.metrics import nll
from racing.clock import now

BATCH = 1024
PEERS = ("svgp", "svgp natural", "sgpr")


@dataclass(frozen=True)
class Look:
    """The state of a training after some seconds."""

    seconds: float
    epoch: int
    validation_nll: float
    test_nll: float


class Sparse(gpytorch.models.ApproximateGP):
    def __init__(self, inducing: Tensor, natural: bool) -> None:
        kinds = gpytorch.variational
        q: Any = (kinds.NaturalVariationalDistribution if natural else kinds.CholeskyVariationalDistribution)(
            len(inducing)
        )
        super().__init__(kinds.VariationalStrategy(self, inducing, q, learn_inducing_locations=True))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.RBFKernel()

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Collapsed(gpytorch.models.ExactGP):
    def __init__(self, x: Tensor, y: Tensor, inducing: Tensor, likelihood: Any) -> None:
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        base = gpytorch.kernels.RBFKernel()
        self.covar_module = gpytorch.kernels.InducingPointKernel(base, inducing.clone(), likelihood)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Training:
    """One of `PEERS`, ready to run; ``epoch`` is one of its own."""

    def __init__(self, kind: str, split: Split, inducing: int, epochs: int, device: str, dtype: str) -> None:
        torch.manual_seed(0)
        self.device, self.split, self.epochs = device, split, epochs
        make = {"dtype": getattr(torch, dtype), "device": device}
        self.x, self.y = (torch.as_tensor(a, **make) for a in (split.X_train, split.y_train))
        self.held, self.asked = (torch.as_tensor(a, **make) for a in (split.X_val, split.X_test))
        Z = self.x[torch.randperm(len(self.x), device=device)[:inducing]].clone()
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood().to(**make)
        self.naturals: list[Any] = []
        if kind == "sgpr":
            self.model: Any = Collapsed(self.x, self.y, Z, self.likelihood).to(**make)
            self.objective: Any = gpytorch.mlls.ExactMarginalLogLikelihood(self.likelihood, self.model)
            rate, self.epoch = 0.05, self._all_rows
            parameters = list(self.model.parameters())  # the likelihood's are among them
        else:
            natural = kind == "svgp natural"
            self.model = Sparse(Z, natural).to(**make)
            self.objective = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, len(self.y))
            rate, self.epoch = 5e-3, self._minibatches
            parameters = [*self.model.hyperparameters(), *self.likelihood.parameters()]
            of_q = list(self.model.variational_parameters())
            if natural:
                self.naturals = [gpytorch.optim.NGD(of_q, num_data=len(self.y), lr=0.1)]
            else:
                parameters += of_q
        self.adam = torch.optim.Adam(parameters, lr=rate)
        steps = 1 if kind == "sgpr" else -(-len(self.y) // BATCH)
        at = [epochs * steps // 3, 2 * epochs * steps // 3]
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.adam, at, 1.0 if kind == "sgpr" else 0.2)

    def _step(self, x: Tensor, y: Tensor) -> None:
        optimizers = [self.adam, *self.naturals]
        for optimizer in optimizers:
            optimizer.zero_grad()
        (-self.objective(self.model(x), y)).backward()
        for optimizer in optimizers:
            optimizer.step()
        self.schedule.step()

    def _minibatches(self) -> None:
        for rows in torch.randperm(len(self.y), device=self.device).split(BATCH):
            self._step(self.x[rows], self.y[rows])

    def _all_rows(self) -> None:
        self._step(self.x, self.y)

    def run(self, look_every: int) -> Iterator[Look]:
        seconds = 0.0
        for epoch in range(1, self.epochs + 1):
            self.model.train()
            self.likelihood.train()
            begun = now(self.device)
            self.epoch()
            seconds += now(self.device) - begun
            if epoch % look_every == 0 or epoch == self.epochs:
                held = self._nll(self.held, self.split.y_val)
                yield Look(seconds, epoch, held, self._nll(self.asked, self.split.y_test))

    @torch.no_grad()
    def _nll(self, x: Tensor, y: np.ndarray) -> float:
        self.model.eval()
        self.likelihood.eval()
        parts = [self.likelihood(self.model(part)) for part in x.split(BATCH)]
        mean, variance = (torch.cat(values).double().cpu() for values in zip(*_moments(parts), strict=True))
        return float(nll(y, mean.numpy(), variance.sqrt().numpy()))


def _moments(parts: list[Any]) -> list[tuple[Tensor, Tensor]]:
    return [(p.mean, p.variance) for p in parts]


def faster_precision(make: Callable[[str], Training], device: str) -> str:
    """The precision in which a second epoch takes less time; float64 where float32 fails."""
    seconds = {}
    for dtype in ("float64", "float32"):
        try:
            training = make(dtype)
            training.epoch()
            begun = now(device)
            training.epoch()
            seconds[dtype] = now(device) - begun
        except Exception:
            if dtype == "float64":
                raise
    return min(seconds, key=lambda name: seconds[name])
