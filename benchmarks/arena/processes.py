"""Gaussian processes: gpytorch's SVGP and scikit-learn's exact ones."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from arena.base import Contestant, Vector
from arena.encoding import OneHot
from arena.laws import Gaussian, Law


class GPyTorchSVGP(Contestant):
    """gpytorch's stochastic variational GP as in its tutorials, with ARD and early stopping.

    500 inducing points (200 of several classes), Matérn 5/2, batches of 256, Adam at 0.01. The validation
    likelihood is looked at every 100 steps; training ends when it has not improved ten times, after 3,000
    steps or with the minute. Classes: Bernoulli or softmax.
    """

    needs = ("gpytorch",)
    points, batch, every, patience, most = 500, 256, 100, 10, 3000

    def fit(self, X: pd.DataFrame, y: NDArray) -> None:
        import gpytorch

        torch.set_num_threads(self.threads)
        torch.manual_seed(self.seed)
        fit, val = self.held_out(y)
        self.encode = OneHot(X.iloc[fit])
        Z = torch.as_tensor(self.encode(X), dtype=torch.float32)
        if self.kind == "regression":
            self.shift, self.scale = float(y[fit].mean()), float(y[fit].std()) or 1.0
            t = torch.as_tensor((y - self.shift) / self.scale, dtype=torch.float32)
            self.likelihood: Any = gpytorch.likelihoods.GaussianLikelihood()
        elif self.classes == 2:
            t = torch.as_tensor(y, dtype=torch.float32)
            self.likelihood = gpytorch.likelihoods.BernoulliLikelihood()
        else:
            t = torch.as_tensor(y)
            self.likelihood = gpytorch.likelihoods.SoftmaxLikelihood(
                num_classes=self.classes, mixing_weights=False
            )
        latents = self.classes if self.kind == "classification" and self.classes > 2 else 1
        chosen = torch.randperm(len(fit))[: min(self.points if latents == 1 else 200, len(fit))]
        self.model = _svgp(Z[fit][chosen].clone(), latents)
        self._descend(Z, t, torch.as_tensor(fit), torch.as_tensor(val))

    def _descend(self, Z: torch.Tensor, t: torch.Tensor, fit: torch.Tensor, val: torch.Tensor) -> None:
        import gpytorch

        bound = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, num_data=len(fit))
        parameters = [*self.model.parameters(), *self.likelihood.parameters()]
        optimiser = torch.optim.Adam(parameters, lr=0.01)
        best, waited, step, kept = -np.inf, 0, 0, None
        while waited < self.patience and step < self.most and not self.late:
            rows = fit[torch.randint(len(fit), (min(self.batch, len(fit)),))]
            optimiser.zero_grad()
            loss = -bound(self.model(Z[rows]), t[rows])
            loss.backward()
            optimiser.step()
            step += 1
            if step % self.every == 0:
                self._evaluating(True)
                with torch.no_grad():
                    found = float(self.likelihood.log_marginal(t[val], self.model(Z[val])).mean())
                self._evaluating(False)
                better = found > best + 1e-4
                best, waited = (found, 0) if better else (best, waited + 1)
                if better:
                    kept = [p.detach().clone() for p in parameters]
        if kept is not None:
            with torch.no_grad():
                for p, value in zip(parameters, kept, strict=True):
                    p.copy_(value)
        self._evaluating(True)
        self.notes["steps"] = step

    def _evaluating(self, now: bool) -> None:
        self.model.train(not now)
        self.likelihood.train(not now)

    @torch.no_grad()
    def law(self, X: pd.DataFrame) -> Law:
        found = self.likelihood(self.model(torch.as_tensor(self.encode(X), dtype=torch.float32)))
        std = np.sqrt(found.variance.double().numpy())
        return Gaussian(self.shift + self.scale * found.mean.double().numpy(), self.scale * std)

    @torch.no_grad()
    def probabilities(self, X: pd.DataFrame) -> Vector:
        import gpytorch

        with gpytorch.settings.num_likelihood_samples(256):
            found = self.likelihood(self.model(torch.as_tensor(self.encode(X), dtype=torch.float32)))
        p = found.probs.double().numpy()
        if self.classes == 2:
            return np.column_stack([1 - p, p])
        return np.asarray(p.mean(0))


def _svgp(Z: torch.Tensor, latents: int) -> Any:
    import gpytorch
    from gpytorch.variational import (
        CholeskyVariationalDistribution,
        IndependentMultitaskVariationalStrategy,
        VariationalStrategy,
    )

    shape = torch.Size([latents]) if latents > 1 else torch.Size([])

    class SVGP(gpytorch.models.ApproximateGP):  # type: ignore[misc]
        def __init__(self) -> None:
            points = Z.expand(*shape, *Z.shape).clone() if latents > 1 else Z
            q = CholeskyVariationalDistribution(points.shape[-2], batch_shape=shape)
            strategy = VariationalStrategy(self, points, q, learn_inducing_locations=True)
            if latents > 1:
                strategy = IndependentMultitaskVariationalStrategy(strategy, num_tasks=latents)
            super().__init__(strategy)
            self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
            kernel = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=Z.shape[-1], batch_shape=shape)
            kernel.lengthscale = float(Z.shape[-1]) ** 0.5
            self.covar_module = gpytorch.kernels.ScaleKernel(kernel, batch_shape=shape)

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    return SVGP()


class SklearnGP(Contestant):
    """scikit-learn's exact GP: constant × Matérn 5/2 (ARD) + white noise, on at most 2,000 rows.

    L-BFGS on the evidence from one start; it stops where the minute ends and keeps the best it has seen.
    """

    needs = ("sklearn.gaussian_process",)
    rows = 2000
    many_columns, fewer_rows = 30, 1000  # gradients need rows² × columns numbers

    def fit(self, X: pd.DataFrame, y: NDArray) -> None:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        self.encode = OneHot(X)
        Z = self.encode(X)
        most = self.rows if Z.shape[1] <= self.many_columns else self.fewer_rows
        chosen = np.random.default_rng(self.seed).permutation(len(y))[:most]
        start = np.full(Z.shape[1], Z.shape[1] ** 0.5)
        kernel = ConstantKernel(1.0, (1e-3, 1e3)) * Matern(start, (1e-2, 1e3), nu=2.5)
        self.model = GaussianProcessRegressor(
            kernel + WhiteKernel(0.1, (1e-6, 10.0)), normalize_y=True, optimizer=self._optimise
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model.fit(Z[chosen], y[chosen])

    def _optimise(self, objective: Any, start: NDArray, bounds: NDArray) -> tuple[NDArray, float]:
        from scipy.optimize import minimize

        best: tuple[NDArray, float] = (start, np.inf)

        class Late(Exception):
            pass

        def watched(theta: NDArray) -> Any:
            nonlocal best
            value, gradient = objective(theta)
            if value < best[1]:
                best = (theta.copy(), float(value))
            if self.late:
                raise Late
            return value, gradient

        try:
            minimize(watched, start, method="L-BFGS-B", jac=True, bounds=bounds)
        except Late:
            self.notes["stopped"] = "by the clock"
        return best

    def law(self, X: pd.DataFrame) -> Law:
        mean, std = self.model.predict(self.encode(X), return_std=True)
        return Gaussian(mean, np.maximum(std, 1e-9))
