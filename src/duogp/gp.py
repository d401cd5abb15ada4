"""A fitted model: predictions, densities and samples in the user's units."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.bases import Conditional, LinearForm, Separate, clamp_variance
from duogp.data.scaling import Scaler
from duogp.data.validation import as_matrix, as_row_vector, as_target, column_names
from duogp.likelihoods import GaussianLikelihood
from duogp.methods import Method
from duogp.model import Model
from duogp.prediction import Prediction
from duogp.settings import Settings
from duogp.training.history import History

#: Kernel columns held at once during prediction, in bytes.
CHUNK_BYTES = 256 * 2**20
#: Rows up to which `sample` factorises the joint covariance; beyond it draws functions (pathwise).
JOINT_ROWS = 2000


class GP:
    """What `duogp.fit` returns. Everything that does not depend on the new rows is computed once."""

    def __init__(
        self,
        model: Model,
        *,
        method: Method,
        settings: Settings,
        columns: NDArray[np.bool_],
        x_scaler: Scaler,
        y_scaler: Scaler,
        single_output: bool,
        history: History,
        known_noise: bool = False,
        column_names: list[str] | None = None,
    ) -> None:
        self.model = model.eval()
        self.method = method
        self.settings = settings
        self.columns = columns
        self.x_scaler = x_scaler
        self.y_scaler = y_scaler
        self.single_output = single_output
        self.history = history
        self.known_noise = known_noise  # all of the noise was given row by row, none was learned
        self.column_names = column_names
        self._form: LinearForm | None = None

    def __repr__(self) -> str:
        parts = {
            "method": self.method.name,
            "inputs": len(self.columns),
            "outputs": len(self.y_scaler.scale),
            "inducing": len(self.inducing_points),
            "solver": self.history.solver,
        }
        return f"GP({', '.join(f'{name}={value!r}' for name, value in parts.items())})"

    # -- prediction ------------------------------------------------------------------------------------------

    @property
    def posterior(self) -> LinearForm:
        """The frozen posterior of f in scaled units, without the prior mean."""
        if self._form is None:
            with torch.no_grad():
                self._form = self.model.linear_form(torch.float64)
        return self._form

    @torch.no_grad()
    def predict(self, X: Any, *, noise: Any = None) -> Prediction:
        """Mean and variances of new rows.

        ``noise``: their known noise variances, where the fit was given some; without it the prediction of
        such a model is of f, not of an observation.
        """
        x = self._inputs(X)
        parts = []
        for piece in x.split(self._chunk_rows(), dim=0):
            piece = piece[None, None]  # [1, 1, n, d]
            f = self.posterior.marginals(piece)
            prior = self.posterior.prior.diag(piece)
            mean = f.mean + self.model.mean(piece)
            residual = clamp_variance(f.residual, prior)
            parts.append(torch.stack([v.expand_as(mean)[0] for v in (mean, residual, f.explained)]))
        mean, residual, explained = torch.cat(parts, -1).mT.cpu().numpy()  # each [n, outputs]
        scale = self.y_scaler.scale
        learned = self._learned_noise()
        row_noise = np.zeros((len(mean), 1))
        if noise is not None:
            row_noise = as_row_vector(noise, len(mean), "noise")[:, None]
        return Prediction(
            mean=self._shape(mean * scale + self.y_scaler.shift),
            residual=self._shape(residual * scale**2),
            explained=self._shape(explained * scale**2),
            noise=self._shape(learned * scale**2 + row_noise),
        )

    def log_density(self, X: Any, y: Any, *, noise: Any = None) -> NDArray[np.float64]:
        """log p(y | x, data) of each row (summed over outputs), in the user's units."""
        self._require_noise(noise, "log_density")
        prediction = self.predict(X, noise=noise)
        target = as_target(y, len(prediction), "y")
        if target.size != prediction.mean.size:
            raise ValueError(f"y has shape {target.shape}, predictions have {prediction.mean.shape}")
        target = target.reshape(prediction.mean.shape)
        z2 = (target - prediction.mean) ** 2 / prediction.variance
        value = -0.5 * (np.log(2 * np.pi * prediction.variance) + z2)
        return value if self.single_output else value.sum(-1)

    # -- samples ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(
        self,
        X: Any,
        n: int = 1,
        *,
        seed: int | None = None,
        kind: str = "auto",
        observation_noise: bool = False,
        noise: Any = None,
    ) -> NDArray[np.float64]:
        """n joint draws of f at the rows of X: [n, rows] (or [n, rows, outputs]).

        ``kind="joint"`` factorises the joint covariance, ``"pathwise"`` draws functions (linear cost, random
        features for the prior); ``"auto"`` is joint up to 2,000 rows. ``observation_noise`` adds the learned
        noise and, where it is known row by row, ``noise``.
        """
        if observation_noise:
            self._require_noise(noise, "sample(observation_noise=True)")
        if kind not in ("auto", "joint", "pathwise"):
            raise ValueError(f"kind must be 'auto', 'joint' or 'pathwise', got {kind!r}")
        n = _count(n)
        x = self._inputs(X)
        generator = _generator(seed)
        if kind == "joint" or (kind == "auto" and len(x) <= JOINT_ROWS):
            draws = self._joint_draws(x, n, generator)
        else:
            evaluate = self.posterior.sample_paths(n, generator)
            draws = torch.cat([evaluate(part[None, None])[:, 0] for part in x.split(self._chunk_rows())], -1)
        draws = draws + self.model.mean(x[None, None])[0]  # [n, outputs, rows]
        if observation_noise:
            variance = np.broadcast_to(self._learned_noise()[:, None], draws.shape[1:])
            if noise is not None:
                variance = (
                    variance + as_row_vector(noise, len(x), "noise") / self.y_scaler.scale[:, None] ** 2
                )
            std = torch.as_tensor(np.sqrt(variance), device=x.device)
            draws = draws + std * torch.randn(draws.shape, generator=generator, dtype=x.dtype).to(x.device)
        return self._draws_to_user(draws)

    def sample_paths(
        self, n: int = 1, *, seed: int | None = None, num_features: int = 1024
    ) -> Callable[[Any], NDArray]:
        """n functions drawn from the posterior: call the result with any rows, as often as you like."""
        with torch.no_grad():
            evaluate = self.posterior.sample_paths(_count(n), _generator(seed), num_features)

        @torch.no_grad()
        def paths(X: Any) -> NDArray[np.float64]:
            x = self._inputs(X)[None, None]
            return self._draws_to_user(evaluate(x)[:, 0] + self.model.mean(x)[0])

        return paths

    def _joint_draws(self, x: Tensor, n: int, generator: torch.Generator) -> Tensor:
        mean, residual, explained = self.posterior.joint(x[None, None])
        covariance = (residual + explained).double()
        scale = self.posterior.prior.diag(x[None, None]).mean(-1).expand(covariance.shape[:-2])
        eye = torch.eye(len(x), dtype=covariance.dtype, device=x.device)
        jitter = 1e-10
        while True:
            L, info = torch.linalg.cholesky_ex(covariance + (jitter * scale)[..., None, None] * eye)
            if not bool((info != 0).any()):
                break
            if jitter > 1e-2:
                raise ValueError(
                    "the joint covariance of these rows cannot be factorised: use kind='pathwise'"
                )
            jitter *= 10
        xi = torch.randn(n, *mean.shape, generator=generator, dtype=torch.float64).to(x.device)
        return (mean + (L @ xi.unsqueeze(-1)).squeeze(-1))[:, 0]

    # -- what was learned ------------------------------------------------------------------------------------

    @torch.no_grad()
    def hyperparameters(self) -> dict[str, Any]:
        """Learned values in scaled units: noise variance, kernels, prior mean."""
        basis = self.model.basis
        kernel = _plain(basis.kernel.describe())
        out: dict[str, Any] = {"noise": _squeeze(self._learned_noise().tolist()), "kernel": kernel}
        out["lengthscale"] = _find(kernel, "lengthscale")
        if isinstance(basis, Conditional) or (
            isinstance(basis, Separate) and basis.mean_kernel is not basis.kernel
        ):
            out["mean_kernel"] = _plain(basis.mean_kernel.describe())
            out["lengthscale_mean"] = _find(out["mean_kernel"], "lengthscale")
            out["lengthscale_covariance"] = out.pop("lengthscale")
        out["mean"] = {
            name: _squeeze(p.tolist()) for name, p in self.model.mean.named_parameters() if p.numel() <= 1000
        }
        return out

    @property
    def inducing_points(self) -> NDArray[np.float64]:
        """The points that carry the covariance, [M, d] in the units of X (columns that were dropped: NaN)."""
        inducing = self.model.basis.inducing
        assert isinstance(inducing, Tensor)
        points = inducing[0, 0].detach().double().cpu().numpy()
        out = np.full((len(points), len(self.columns)), np.nan)
        out[:, self.columns] = self.x_scaler.inverse(points)
        return out

    def num_variational_parameters(self) -> int:
        return self.model.basis.num_variational_parameters()

    # -- helpers ---------------------------------------------------------------------------------------------

    def _inputs(self, X: Any) -> Tensor:
        """Rows in scaled units on the model's device, float64."""
        names = column_names(X)
        if names is not None and self.column_names is not None and names != self.column_names:
            raise ValueError(f"X: {_column_difference(names, self.column_names)}")
        array = as_matrix(X, "X", min_rows=1)
        if array.shape[1] != len(self.columns):
            raise ValueError(
                f"X has {array.shape[1]} columns, but the model was fitted on {len(self.columns)}"
            )
        scaled = self.x_scaler.transform(array[:, self.columns].astype(np.float64))
        return torch.as_tensor(scaled, dtype=torch.float64, device=self.model.beta1.device)

    def _require_noise(self, noise: Any, what: str) -> None:
        if self.known_noise and noise is None:
            raise ValueError(f"{what} needs noise=: this model was fitted with known noise, and learned none")

    def _chunk_rows(self) -> int:
        size = max(self.posterior.mean_weights.shape[-1], self.posterior.residual_root.shape[-1])
        return max(256, CHUNK_BYTES // (8 * 4 * size * len(self.y_scaler.scale)))

    def _learned_noise(self) -> NDArray[np.float64]:
        """Learned noise variance of each output in scaled units."""
        likelihood = self.model.likelihood
        assert isinstance(likelihood, GaussianLikelihood)
        return likelihood.noise()[0].detach().double().cpu().numpy()

    def _shape(self, value: NDArray) -> NDArray[np.float64]:
        value = np.broadcast_to(value, (len(value), len(self.y_scaler.scale))).astype(np.float64)
        return value[:, 0] if self.single_output else value

    def _draws_to_user(self, draws: Tensor) -> NDArray[np.float64]:
        values = draws.mT.cpu().numpy() * self.y_scaler.scale + self.y_scaler.shift  # [n, rows, outputs]
        return values[..., 0] if self.single_output else values


def _count(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise ValueError(f"n must be a positive integer, got {n!r}")
    return int(n)


def _column_difference(given: list[str], expected: list[str]) -> str:
    missing = [name for name in expected if name not in given]
    strange = [name for name in given if name not in expected]
    if not missing and not strange:
        return f"the columns are those of the fit in another order; expected {', '.join(expected[:8])}, ..."
    parts = [
        f"{what} {', '.join(names[:8])}"
        for what, names in (("missing", missing), ("unknown", strange))
        if names
    ]
    return f"the columns are not those of the fit: {'; '.join(parts)}"


def _generator(seed: int | None) -> torch.Generator:
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator


def _squeeze(value: Any) -> Any:
    """Nested lists without their leading dimensions of size one."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return _squeeze(value) if isinstance(value, list) and value and not isinstance(value[0], dict) else value


def _find(description: Any, key: str) -> Any:
    """The first value of that name in a nested description."""
    if isinstance(description, dict):
        if key in description:
            return description[key]
        description = list(description.values())
    if isinstance(description, list):
        for part in description:
            if isinstance(part, dict | list) and (found := _find(part, key)) is not None:
                return found
    return None
