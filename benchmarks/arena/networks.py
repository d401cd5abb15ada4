"""Networks: a deep ensemble of our own, RealMLP and TabM of pytabkit."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from arena.base import Contestant, Vector, aligned, constant_law
from arena.encoding import OneHot, categories
from arena.laws import Law, Mixture, choose_factor, midlevels, sample_law

QUANTILES = 20


class Ensemble(nn.Module):
    """K perceptrons of two hidden layers, evaluated as one batch: [K, n, inputs] → [K, n, outputs]."""

    def __init__(self, members: int, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        sizes = [inputs, width, width, outputs]
        pairs = list(pairwise(sizes))
        self.weights = nn.ParameterList(torch.randn(members, a, b) * (2 / a) ** 0.5 for a, b in pairs)
        self.biases = nn.ParameterList(torch.zeros(members, 1, b) for _, b in pairs)
        with torch.no_grad():
            self.weights[-1] *= 0.1

    def forward(self, x: Tensor) -> Tensor:
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if i < len(self.weights) - 1:
                x = torch.relu(x)
        return x


class DeepEnsemble(Contestant):
    """Five networks with a Gaussian likelihood (Lakshminarayanan et al. 2017), stopped by validation rows.

    Two hidden layers of 128, Adam at 1e-3, weight decay 1e-5, batches of 128; the prediction is the mixture.
    """

    members, width, patience, epochs = 5, 128, 30, 1000

    def fit(self, X: pd.DataFrame, y: NDArray) -> None:
        torch.set_num_threads(self.threads)
        torch.manual_seed(self.seed)
        fit, val = self.held_out(y)
        self.encode = OneHot(X.iloc[fit])
        Z = torch.as_tensor(self.encode(X), dtype=torch.float32)
        if self.kind == "regression":
            self.shift, self.scale = float(y[fit].mean()), float(y[fit].std()) or 1.0
            t = torch.as_tensor((y - self.shift) / self.scale, dtype=torch.float32)
        else:
            t = torch.as_tensor(y)
        outputs = 2 if self.kind == "regression" else self.classes
        self.net = Ensemble(self.members, Z.shape[1], self.width, outputs)
        self._descend(Z, t, torch.as_tensor(fit), torch.as_tensor(val))

    def _descend(self, Z: Tensor, t: Tensor, fit: Tensor, val: Tensor) -> None:
        optimiser = torch.optim.AdamW(self.net.parameters(), lr=1e-3, weight_decay=1e-5)
        best = torch.full((self.members,), torch.inf)
        kept = copy.deepcopy(self.net.state_dict())
        waited, batch, epochs = 0, min(128, len(fit)), 0
        while epochs < self.epochs:
            orders = torch.stack([fit[torch.randperm(len(fit))] for _ in range(self.members)])
            for start in range(0, orders.shape[1] - batch + 1, batch):
                rows = orders[:, start : start + batch]
                loss = self._losses(self.net(Z[rows]), t[rows]).sum()
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.net.parameters(), 10.0)
                optimiser.step()
            with torch.no_grad():
                out = self.net(Z[val].expand(self.members, -1, -1))
                found = self._losses(out, t[val].expand(self.members, -1))
                better = found < best
                best = torch.where(better, found, best)
                for name, value in self.net.state_dict().items():
                    kept[name][better] = value[better]
            epochs += 1
            waited = 0 if bool(better.any()) else waited + 1
            if waited >= self.patience or self.late:
                break
        self.net.load_state_dict(kept)
        self.notes["epochs"] = epochs

    def _losses(self, out: Tensor, t: Tensor) -> Tensor:
        """Mean negative log likelihood of each member."""
        if self.kind == "regression":
            variance = nn.functional.softplus(out[..., 1]) + 1e-6
            return (0.5 * torch.log(variance) + 0.5 * (t - out[..., 0]) ** 2 / variance).mean(1)
        logs = torch.log_softmax(out, -1)
        return -logs.gather(-1, t[..., None])[..., 0].mean(1)

    @torch.no_grad()
    def _outputs(self, X: pd.DataFrame) -> Tensor:
        Z = torch.as_tensor(self.encode(X), dtype=torch.float32)
        return self.net(Z.expand(self.members, -1, -1)).double()

    def law(self, X: pd.DataFrame) -> Law:
        out = self._outputs(X)
        std = torch.sqrt(nn.functional.softplus(out[..., 1]) + 1e-6)
        return Mixture(
            self.shift + self.scale * out[..., 0].T.numpy(), self.scale * np.asarray(std.T.numpy())
        )

    def probabilities(self, X: pd.DataFrame) -> Vector:
        return np.asarray(torch.softmax(self._outputs(X), -1).mean(0).numpy())


class RealMLP(Contestant):
    """RealMLP at its tuned defaults (RealMLP-TD, pytabkit); a constant variance from validation residuals."""

    needs = ("pytabkit",)
    model_name = "RealMLP_TD"
    settings: ClassVar[dict[str, Any]] = {}

    def _frame(self, X: pd.DataFrame) -> pd.DataFrame:
        X = X.copy()
        for name in X.columns:
            if name in self.names:
                X[name] = X[name].astype(object).where(X[name].notna(), "(missing)").astype("category")
            else:
                X[name] = X[name].fillna(self.medians[name]).astype(np.float32)
        return X

    def fit(self, X: pd.DataFrame, y: NDArray) -> None:
        import pytabkit

        torch.set_num_threads(self.threads)
        kind = "Regressor" if self.kind == "regression" else "Classifier"
        fit, val = self.held_out(y)
        self.names = categories(X)
        numbers = [name for name in X.columns if name not in self.names]
        self.medians = {name: float(np.nan_to_num(X[name].median())) for name in numbers}
        X = self._frame(X)
        self.scale = float(y.std()) if self.kind == "regression" else 1.0
        self.shift = float(y.mean()) if self.kind == "regression" else 0.0
        t = (y - self.shift) / self.scale if self.kind == "regression" else y
        self.model = getattr(pytabkit, f"{self.model_name}_{kind}")(
            device="cpu",
            random_state=self.seed,
            n_threads=self.threads,
            verbosity=0,
            **(self.settings if self.kind == "regression" else {}),
        )
        self.model.fit(X.iloc[fit], t[fit], X_val=X.iloc[val], y_val=t[val], cat_col_names=self.names or None)
        if self.kind == "regression":
            self._keep(np.asarray(self.model.predict(X.iloc[val])), t[val])

    def _keep(self, found: Vector, t: Vector) -> None:
        self.residuals = self.scale * (t - found.reshape(-1))

    def law(self, X: pd.DataFrame) -> Law:
        mean = np.asarray(self.model.predict(self._frame(X)), np.float64).reshape(-1)
        return constant_law(self.shift + self.scale * mean, self.residuals)

    def probabilities(self, X: pd.DataFrame) -> Vector:
        return aligned(self.model.predict_proba(self._frame(X)), self.model.classes_, self.classes)


class RealMLPQuantiles(RealMLP):
    """RealMLP with the pinball loss of 20 levels; a law from its quantiles (see `laws`)."""

    levels = ",".join(f"{level:.3f}" for level in midlevels(QUANTILES))
    settings: ClassVar[dict[str, Any]] = {
        "train_metric_name": f"multi_pinball({levels})",
        "val_metric_name": f"multi_pinball({levels})",
    }

    def _keep(self, found: Vector, t: Vector) -> None:
        self.factor = choose_factor(np.sort(found, 1).astype(np.float64), t, 1e-3)

    def law(self, X: pd.DataFrame) -> Law:
        found = np.sort(np.asarray(self.model.predict(self._frame(X)), np.float64), 1)
        return sample_law(self.shift + self.scale * found, 1e-3 * self.scale, self.factor)


class TabM(RealMLP):
    """TabM at its default settings (TabM-D, pytabkit)."""

    model_name = "TabM_D"
