"""`Drawing`: joint covariances, draws and functions drawn from the posterior of a fitted GP."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.likelihoods import Likelihood
from duogp.methods import Method
from duogp.posterior.draws import draws_count, require_memory, require_seed
from duogp.posterior.incoming import Incoming
from duogp.posterior.sampling import root_of_joint


class Drawing(Incoming):
    """What a fitted GP says about several rows together."""

    JOINT_ROWS = 2000  # up to which `sample` factorises joint covariances

    method: Method

    @property
    @abstractmethod
    def _likelihood(self) -> Likelihood:
        """The likelihood in float64, for prediction."""

    @torch.no_grad()
    def covariance(self, X: Any) -> NDArray[np.float64]:
        """Of the functions at all rows in the units of the targets, [outputs, n, n]."""
        if len(getattr(self.model, "hidden", ())):
            raise ValueError(f"{self.method.name!r} has no joint Gaussian over rows: use draws")
        if self.model.likelihood.target != "real":
            raise ValueError(
                "a covariance is for likelihoods whose mean is the latent function: use draws instead"
            )
        _, residual, explained = self.posterior.joint(self._inputs(X)[None, None])
        covariance = (residual + explained)[0]  # [latents, n, n]
        if self.model.mixing is not None:
            weight = self.model.mixing.weight[0].to(covariance)
            covariance = torch.einsum("pq,qij->pij", weight.square(), covariance)
        outputs = len(self.y_scaler.scale)
        values = covariance[:outputs].cpu().numpy()  # without the latent function of a log noise
        values = (
            np.broadcast_to(values, (outputs, *values.shape[1:])) * self.y_scaler.scale[:, None, None] ** 2
        )
        return 0.5 * (values + values.transpose(0, 2, 1))

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
        features for the prior); ``"auto"`` is joint up to 2,000 rows, of a deep model up to 300.
        ``observation_noise`` adds the learned noise and, where it is known row by row, ``noise``.
        """
        if observation_noise:
            self._require_noise(noise, "sample(observation_noise=True)")
        if kind not in ("auto", "joint", "pathwise"):
            raise ValueError(f"kind must be 'auto', 'joint' or 'pathwise', got {kind!r}")
        n, x, generator = draws_count(n), self._inputs(X), _generator(seed)
        require_memory(n, len(x))
        if kind == "joint" or (kind == "auto" and len(x) <= self.JOINT_ROWS):
            draws = self._joint_draws(x[None, None], n, generator)
        else:
            evaluate = self._path_draws(n, generator)
            draws = torch.cat([evaluate(part[None, None]) for part in x.split(self._chunk_rows())], -1)
        draws = self._mixed(draws)  # [n, outputs, rows]
        if not observation_noise:
            return self._draws_to_user(draws)
        density = self._likelihood.bind(self._row_noise(noise, len(x)))
        values = density.sample(draws.unsqueeze(1), generator)[:, 0]
        if self.classes is not None:
            return self.classes[values[:, 0].long().cpu().numpy()]
        return self._draws_to_user(values)

    def sample_paths(
        self, n: int = 1, *, seed: int | None = None, num_features: int = 1024
    ) -> Callable[[Any], NDArray]:
        """A callable of n functions drawn from the posterior: rows [m, d] to [n, m] or [n, m, outputs].

        It may be called several times, with any rows; the functions stay the same.
        """
        with torch.no_grad():
            evaluate = self._path_draws(draws_count(n), _generator(seed), num_features)

        @torch.no_grad()
        def paths(X: Any) -> NDArray[np.float64]:
            return self._draws_to_user(self._mixed(evaluate(self._inputs(X)[None, None])))

        return paths

    def _mixed(self, draws: Tensor) -> Tensor:
        """Draws of latent functions [n, latents, rows] as draws of what the likelihood sees."""
        return draws if self.model.mixing is None else self.model.mixing.mix(draws)

    def _joint_draws(self, x: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """n joint draws of the latent functions at rows x [1, 1, rows, d]: [n, latents, rows]."""
        mean, L = root_of_joint(self.posterior, x)
        xi = torch.randn(n, *mean.shape, generator=generator, dtype=torch.float64).to(x.device)
        return (mean + (L @ xi.unsqueeze(-1)).squeeze(-1))[:, 0] + self.model.mean(x)[0]

    def _path_draws(
        self, n: int, generator: torch.Generator, num_features: int = 1024
    ) -> Callable[[Tensor], Tensor]:
        """n functions drawn from the posterior: x [1, 1, rows, d] ↦ [n, latents, rows]."""
        paths = self.posterior.sample_paths(n, generator, num_features)
        return lambda x: paths(x)[:, 0] + self.model.mean(x)[0]

    def _draws_to_user(self, draws: Tensor) -> NDArray[np.float64]:
        if self.classes is not None:  # latent functions, not of the targets' kind
            values = draws.mT.cpu().numpy()
            return values[..., 0] if values.shape[-1] == 1 else values
        draws = draws[..., : len(self.y_scaler.scale), :]  # a log noise behind them is not asked for
        values = draws.mT.cpu().numpy() * self.y_scaler.scale + self.y_scaler.shift  # [n, rows, outputs]
        return values[..., 0] if self.single_output else values


def _generator(seed: int | None) -> torch.Generator:
    generator = torch.Generator()
    if (given := require_seed(seed)) is None:
        generator.seed()
    else:
        generator.manual_seed(given)
    return generator
