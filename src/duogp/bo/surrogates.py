"""Surrogates, the models of TuRBO: fit to the evaluations, lengthscales, draws at candidates.

Inputs come from the cube [0, 1]^d and are mapped to √12 (x − ½), whose coordinates have variance one over the
cube: a step of the optimiser is then of the same size for an inducing point and for a lengthscale. Values are
standardised by their median and standard deviation at every fit.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from duogp.bo.candidates import Floats
from duogp.bo.choice import AUTO, EXACT, SPARSE, exact_is_affordable, reads_only_sparse
from duogp.bo.refit import STEPS, first_fit, is_surprised, refit
from duogp.io import load as load_model
from duogp.json_files import read_object
from duogp.kernels import Deep, Scale, Stationary
from duogp.likelihoods import GaussianLikelihood
from duogp.methods import METHODS
from duogp.methods.settings import Settings
from duogp.models.model import Model
from duogp.numerics.parameters import Positive, Transform
from duogp.posterior.gp import GP
from duogp.posterior.prediction import Prediction
from duogp.training import Progression

#: Standard deviations of a uniform variable that make up its range.
SPREAD = math.sqrt(12.0)
#: Intervals of the hyperparameters, as in TuRBO; lengthscales in units of the cube.
LENGTHSCALES, OUTPUT_SCALES, NOISES = (0.005, 2.0), (0.05, 20.0), (5e-4, 0.2)
FIRST_LENGTHSCALE, FIRST_NOISE = 0.5, 5e-3
#: Least noise of the exact GP from so many rows a dimension on: then it can follow a function without noise,
#: where TuRBO's own interval ends at 2 % of the values' standard deviation, and nothing finer could be told
#: apart near an optimum. Fewer rows cannot tell whether there is noise.
EXACT_NOISE, EXACT_NOISE_ROWS = 1e-6, 10
#: Rows from which on refits take minibatches, unless the user has chosen a solver: a closed form, with all
#: rows in every step, then costs more than it gains.
MANY_ROWS = 1000
MINIBATCHES: dict[str, Any] = {
    "solver": "stochastic",
    "batch_size": 250,
    "learning_rate": 0.02,
    "dtype": "float32",
}
#: Epochs of the first fit and of a refit with a network, which overfits a few thousand rows unless it is
#: stopped: as in the latent-space optimisation of molecules by Maus et al. (2022).
FIRST_EPOCHS, EPOCHS = 20, 2
NETWORKS: dict[str, Any] = {"batch_size": 128, "learning_rate": 1e-2, "epochs": FIRST_EPOCHS}
#: Folder and file of a saved surrogate.
MODEL, UNITS = "model", "units.json"
#: Rows that draws are evaluated at together: temporaries then stay in a CPU's cache.
CHUNK = 1024


@dataclass(frozen=True, kw_only=True)
class Surrogate(ABC):
    """A model of values on the cube, in units of (y − centre) / scale."""

    rows: int = 0  # that it was fitted to; 0 before the first fit
    centre: float = 0.0
    scale: float = 1.0

    @abstractmethod
    def fit(self, X: Floats, y: Floats, seed: int) -> Self:
        """A new surrogate fitted to all rows X [n, d] and y [n], started from this one."""

    @abstractmethod
    def draw(self, X: Floats, n: int, seed: int) -> Floats:
        """n joint draws of observations at the rows of X: [n, rows]."""

    @abstractmethod
    def lengthscales(self) -> Floats | None:
        """Of the covariance kernel, one for each coordinate, [d]; None where it has none."""

    def save(self, folder: Path) -> None:
        """Write the state that the next fit starts from; nothing, where that does not depend on this one."""

    def load(self, folder: Path) -> Self:
        """The surrogate that `save` wrote."""
        return self


@dataclass(frozen=True)
class GPSurrogate(Surrogate):
    """A GP of the registry, refitted from its present parameters; "auto": exact, and sparse for many rows.

    New values are predicted before they are learned: an exact GP that they surprise is fitted anew.
    """

    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    first_steps: int | None = None
    steps: int | None = None
    gp: GP | None = None

    @classmethod
    def of(cls, method: str | None = None, **settings: Any) -> GPSurrogate:
        """A surrogate with TuRBO's settings, replaced by those of the user.

        ``steps`` of a refit (50; with a network two epochs) and ``first_steps`` of the first fit;
        ``minibatch``: rows of a step, since the ``batch_size`` of an optimisation is that of a proposal.
        """
        auto = method is None or method == AUTO
        if auto and reads_only_sparse(settings):
            auto, method = False, SPARSE
        entry = METHODS[EXACT if method is None or auto else method]
        first, steps = settings.pop("first_steps", None), settings.pop("steps", None)
        if "minibatch" in settings:
            settings["batch_size"] = settings.pop("minibatch")
        own = {
            "kernel": "matern52",
            "initial_lengthscale": FIRST_LENGTHSCALE * SPREAD,
            "initial_noise": FIRST_NOISE,
            "validation_fraction": 0.0,
            "early_stopping": False,
            "standardize": False,
            # Hyperparameters return to their intervals after every step, which L-BFGS does not expect.
            "optimizer": "adam",
            "tolerance": 0.0,
        }
        if not entry.is_baseline and entry.recipe.has_omega and entry.objective == "elbo":
            # Without validation rows the two kernels are held together by Ω in full, that of single rows.
            own |= {"beta2": 1.0, "omega": "rows"}
        if entry.has_network or entry.is_deep:  # features have a scale of their own
            del own["initial_lengthscale"]
        if entry.has_network:
            own |= NETWORKS
        Settings.of(own | settings)  # errors are raised here, not after the initial design
        return cls(AUTO if auto else entry.name, own | settings, first, steps)

    def fit(self, X: Floats, y: Floats, seed: int) -> GPSurrogate:
        centre, scale = standard_units(y)
        u, z = _spread_out(X), (y - centre) / scale
        method = self._method_of(len(y))
        floor = self.settings.get("noise_floor", least_noise(method, *X.shape))
        if self.gp is None or self._is_surprised(X, y) or self._had_more_noise(floor):
            settings = {"random_state": seed, "noise_floor": floor, **self.settings}
            if (steps := self.first_steps) is not None:
                settings |= {"steps": steps, "epochs": None}
            gp = first_fit(u, z, method, callbacks=[keep_in_bounds], **settings)
        else:
            changes = dict(MINIBATCHES) if self._has_outgrown_its_closed_form(len(y), method) else {}
            changes["noise_floor"] = floor
            steps = self._steps(len(y))
            own: dict[str, Any] = {
                "steps": steps,
                "callbacks": [keep_in_bounds],
                "seed": seed,
                "method": method,
            }
            gp = refit(self.gp, u, z, **own, **changes)
        return replace(self, gp=gp, rows=len(y), centre=centre, scale=scale)

    def _method_of(self, rows: int) -> str:
        if self.method != AUTO:
            return self.method
        device = Settings.of(self.settings).torch_device
        return EXACT if exact_is_affordable(rows, device, refits=True) else SPARSE

    def _is_surprised(self, X: Floats, y: Floats) -> bool:
        """Whether the values since the last fit are farther off than the model thought possible.

        Asked where a new fit is cheap, of the exact GP; β₂ = 1 keeps decoupled kernels from overfitting.
        """
        assert self.gp is not None
        if not self.gp.model.basis.points_are_rows or len(y) >= MANY_ROWS:
            return False
        new = slice(self.rows, None)
        return is_surprised(self.gp, _spread_out(X[new]), (y[new] - self.centre) / self.scale)

    def _had_more_noise(self, floor: float) -> bool:
        """Whether the least noise has become less: parameters are relative to it."""
        assert self.gp is not None
        return self.gp.settings.noise_floor > floor

    def _steps(self, rows: int) -> int:
        if self.steps is not None:
            return self.steps
        if self.method == AUTO or not METHODS[self.method].has_network:
            return STEPS
        return EPOCHS * -(-rows // min(rows, self.settings["batch_size"]))

    def _has_outgrown_its_closed_form(self, rows: int, method: str) -> bool:
        assert self.gp is not None
        solved = self.gp.history.solver == "closed-form" and not METHODS[method].recipe.points_are_rows
        return rows >= MANY_ROWS and solved and "solver" not in self.settings

    def draw(self, X: Floats, n: int, seed: int) -> Floats:
        assert self.gp is not None
        paths = self.gp.sample_paths(n, seed=seed)
        u = _spread_out(X)
        values = np.concatenate([paths(u[i : i + CHUNK]) for i in range(0, len(u), CHUNK)], 1)
        same_everywhere = isinstance(self.gp.model.likelihood, GaussianLikelihood)
        prediction = self.gp.predict(u[:1] if same_everywhere else u)
        assert isinstance(prediction, Prediction)
        noise = np.random.default_rng(seed).standard_normal(values.shape)
        values = values + np.sqrt(prediction.noise) * noise
        return values * self.scale + self.centre

    def lengthscales(self) -> Floats | None:
        assert self.gp is not None
        found = ard_lengthscales(self.gp.model)
        return None if found is None or not self.gp.columns.all() else found / SPREAD

    def save(self, folder: Path) -> None:
        assert self.gp is not None
        folder.mkdir(parents=True, exist_ok=True)
        self.gp.save(folder / MODEL)
        units = {"rows": self.rows, "centre": self.centre, "scale": self.scale}
        (folder / UNITS).write_text(json.dumps(units))  # floats survive JSON to the last bit

    def load(self, folder: Path) -> GPSurrogate:
        gp = load_model(folder / MODEL)
        known = read_object(folder / UNITS)
        wanted = {"rows": int, "centre": float, "scale": float}
        if known.keys() != wanted.keys() or not all(type(known[n]) is kind for n, kind in wanted.items()):
            raise ValueError(f"{folder / UNITS}: it was changed or damaged: {known!r}")
        return replace(self, gp=gp, **known)


@dataclass(frozen=True)
class BoTorchSurrogate(Surrogate):
    """BoTorch's exact GP with the settings of its TuRBO tutorial: Matérn-5/2, ARD, fitted anew each time."""

    model: Any = None

    def fit(self, X: Floats, y: Floats, seed: int) -> BoTorchSurrogate:
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import SingleTaskGP
        from gpytorch.constraints import Interval
        from gpytorch.kernels import MaternKernel, ScaleKernel
        from gpytorch.likelihoods import GaussianLikelihood as Noise
        from gpytorch.mlls import ExactMarginalLogLikelihood

        centre, scale = float(y.mean()), float(y.std()) or 1.0
        x, z = torch.as_tensor(X), torch.as_tensor((y - centre) / scale).unsqueeze(-1)
        lengths = Interval(0.005, 4.0)
        kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=X.shape[1], lengthscale_constraint=lengths))
        noise = Noise(noise_constraint=Interval(1e-8, 1e-3))
        model = SingleTaskGP(x, z, covar_module=kernel, likelihood=noise, outcome_transform=None)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return replace(self, model=model, rows=len(y), centre=centre, scale=scale)

    def draw(self, X: Floats, n: int, seed: int) -> Floats:
        """Joint draws [n, m] at all candidates X [m, d], by a factorisation as in the tutorial."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            values = self.model.posterior(torch.as_tensor(X)).rsample(torch.Size([n]))
        return values.squeeze(-1).numpy() * self.scale + self.centre

    def lengthscales(self) -> Floats | None:
        return self.model.covar_module.base_kernel.lengthscale.detach().double().numpy().reshape(-1)


def least_noise(method: str, rows: int, dims: int) -> float:
    """The floor of the noise variance in the standardised values, where the user gives none."""
    exact = METHODS[method].recipe.points_are_rows
    return EXACT_NOISE if exact and rows >= EXACT_NOISE_ROWS * dims else NOISES[0]


def standard_units(y: Floats) -> tuple[float, float]:
    """Median and standard deviation of the values [n]; 1 in place of a standard deviation of zero."""
    scale = float(y.std())
    return float(np.median(y)), scale if scale > 1e-6 else 1.0


def ard_lengthscales(model: Model) -> Floats | None:
    """Lengthscales [d] of the covariance kernel, if it is stationary with one for each input; else None."""
    kernel: Any = model.basis.kernel
    if hasattr(model, "hidden"):
        return None
    while isinstance(kernel, Scale):
        kernel = kernel.kernel
    if not isinstance(kernel, Stationary) or not kernel.ard:
        return None
    return kernel.lengthscale().detach().double().cpu().numpy().reshape(-1)


@torch.no_grad()
def keep_in_bounds(progress: Progression) -> None:
    """Project hyperparameters onto TuRBO's intervals after an epoch; lengthscales of features have none."""
    parts = list(progress.model.modules())
    on_features = hasattr(progress.model, "hidden") or any(isinstance(part, Deep) for part in parts)
    for part in parts:
        if isinstance(part, Scale) and part.variance.raw.requires_grad:
            _clamp(part.variance, *OUTPUT_SCALES)
        elif isinstance(part, GaussianLikelihood) and part.learns_noise:
            _clamp(part.noise, part.noise.floor, NOISES[1])
        elif isinstance(part, Stationary) and not on_features:
            _clamp(part.lengthscale, *(SPREAD * bound for bound in LENGTHSCALES))


def _clamp(parameter: Any, low: float, high: float) -> None:
    """Clamp the raw values, so that those inside the interval do not change in the last bit."""
    parameter.raw.clamp_(*_raw_ends(parameter.transform, parameter.floor, low, high))


@lru_cache
def _raw_ends(transform: Transform, floor: float, low: float, high: float) -> tuple[float, float]:
    """The ends of an interval of a `Positive` before its transformation, cached."""
    ends = torch.tensor([max(low, floor * (1 + 1e-6)), high], dtype=torch.float64)
    first, last = Positive(ends, floor=floor, transform=transform).raw.tolist()
    return first, last


def _spread_out(X: Floats) -> Floats:
    return SPREAD * (X - 0.5)
