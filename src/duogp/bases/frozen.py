"""The frozen posterior: all that does not depend on x, computed once.

Every Gaussian basis, whatever its whitening and its number of inducing sets, is in the end

    mean      f̄(x)     = k_m(x, Z_m) a
    residual  r(x, x′) = k(x, x′) − k_r(x, Z_r) Wᵀ W k_r(Z_r, x′)
    explained e(x, x′) = k_e(x, Z_e) Tᵀ T k_e(Z_e, x′)

so prediction, joint covariances and function samples are written here, once, for all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from duogp.bases.frozen_products import SymmetricForm, WeighedMean
from duogp.bases.many_rows import ManyRows, Precision
from duogp.bases.marginals import Marginals, TotalMarginals
from duogp.kernels.base import Kernel
from duogp.numerics.factorisation import norm2, project

#: Held while a form for many rows is made, once for each: threads that ask at the same time wait for one of
#: them. Of the module, so that posteriors can be copied and pickled.
MAKING = threading.Lock()


@dataclass(frozen=True, eq=False)
class Probe:
    """x ↦ k(Z, x). Parts that share a probe share its evaluation."""

    kernel: Kernel
    points: Tensor  # [..., M, d]

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernel(self.points.to(x.dtype), x)


@dataclass(frozen=True, eq=False)
class FrozenPosterior:
    """A posterior frozen into kernel evaluations and matrix products. Shapes lead with [R, latent]."""

    prior: Kernel
    mean_probe: Probe
    mean_weights: Tensor  # a  [..., M_m]
    residual_probe: Probe
    residual_root: Tensor  # W  [..., r, M_r]
    residual_jitter: Tensor  # variance added to each point of the residual probe, [..., M_r] or [..., 1]
    explained_probe: Probe
    explained_root: Tensor  # T  [..., s, M_e]
    _made: dict[tuple[str, bool], ManyRows] = field(default_factory=dict, init=False, repr=False)

    def mean(self, x: Tensor) -> Tensor:
        """The mean of f at x [..., n, d], [..., latent, n], without the variances."""
        return self._mean(x)

    def marginals(self, x: Tensor) -> Marginals:
        """Mean, residual and explained variance of f at x [..., n, d], each [..., latent, n]."""
        k = self._evaluate(x)
        return Marginals(
            mean=project(k[self.mean_probe], self.mean_weights),
            residual=self.prior.diag(x) - norm2(self.residual_root @ k[self.residual_probe]),
            explained=norm2(self.explained_root @ k[self.explained_probe]),
        )

    def total_marginals(self, x: Tensor) -> TotalMarginals:
        """Mean and variance [..., latent, n] at x [..., n, d], by one product, not two, where probes agree.

        k(x, x) + k_e TᵀT k_e − k_r WᵀW k_r = k(x, x) + k(x, Z) C k(Z, x),    C = TᵀT − WᵀW
        """
        if self.residual_probe is not self.explained_probe:
            f = self.marginals(x)
            return TotalMarginals(f.mean, f.variance)
        k = self._change.columns(x)  # of unit variance, which a mean on the same points can weigh too
        mean = self._mean.weigh(k) if self.mean_probe is self.explained_probe else self._mean(x)
        return TotalMarginals(mean, self.prior.diag(x) + self._change.at(k))

    @cached_property
    def _mean(self) -> WeighedMean:
        return WeighedMean.of(self.mean_probe.kernel, self.mean_probe.points, self.mean_weights)

    @cached_property
    def _change(self) -> SymmetricForm:
        """C = TᵀT − WᵀW: from the prior variance to the posterior one."""
        C = self.explained_root.mT @ self.explained_root - self.residual_root.mT @ self.residual_root
        return SymmetricForm.of(self.explained_probe.kernel, self.explained_probe.points, C)

    def many_rows(self, precision: Precision = "float64", *, in_parts: bool = True) -> ManyRows:
        """The same marginals by fewer operations, for rows without gradients; made once, at some cost."""
        key = precision, in_parts
        if key not in self._made:
            with MAKING, torch.no_grad():
                if key not in self._made:
                    self._made[key] = ManyRows.of(self, precision, in_parts=in_parts)
        return self._made[key]

    def joint(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean [..., n], residual covariance and explained covariance [..., n, n]."""
        k = self._evaluate(x)
        phi = self.residual_root @ k[self.residual_probe]
        psi = self.explained_root @ k[self.explained_probe]
        mean = project(k[self.mean_probe], self.mean_weights)
        return mean, self.prior(x, x) - phi.mT @ phi, psi.mT @ psi

    def sample_paths(
        self, num: int, generator: torch.Generator | None = None, num_features: int = 1024
    ) -> Callable[[Tensor], Tensor]:
        """Functions drawn from the posterior (Matheron's rule), evaluated anywhere at linear cost.

        f = f̄ + k_e(·, Z_e) Tᵀ ξ + [ g − k_r(·, Z_r) WᵀW (g(Z_r) + √jitter η) ],  g ~ prior, random features.
        The bracket has exactly the residual covariance of g's kernel; the random features are the only
        approximation. Returns x ↦ [num, ..., n].
        """
        dtype, device = self.mean_weights.dtype, self.mean_weights.device

        def normal(*shape: int) -> Tensor:
            draw = torch.randn(
                shape,
                generator=generator,
                dtype=dtype,
                device="cpu" if generator is None else generator.device,
            )
            return draw.to(device)

        z = self.residual_probe.points.to(dtype)
        features = self.prior.prior_features(num_features, generator)
        phi_z = features(z)  # [..., M_r, F]
        batch = self.mean_weights.shape[:-1]
        w = normal(num, *batch, phi_z.shape[-1])
        g_z = (phi_z @ w.unsqueeze(-1)).squeeze(-1) + self.residual_jitter.sqrt() * normal(
            num, *batch, z.shape[-2]
        )
        correction = (self.residual_root.mT @ (self.residual_root @ g_z.unsqueeze(-1))).squeeze(-1)
        xi = normal(num, *batch, self.explained_root.shape[-2])
        lift = (self.explained_root.mT @ xi.unsqueeze(-1)).squeeze(-1)

        def evaluate(x: Tensor) -> Tensor:
            x = x.to(dtype)
            k = self._evaluate(x)
            # All draws by one product, unless each has inputs of its own (a layer of a deep GP).
            each = weighed if x.dim() == w.dim() else project
            mean = project(k[self.mean_probe], self.mean_weights)
            explained = each(k[self.explained_probe], lift)
            return mean + explained + each(features(x).mT, w) - each(k[self.residual_probe], correction)

        return evaluate

    def _evaluate(self, x: Tensor) -> dict[Probe, Tensor]:
        probes = {self.mean_probe, self.residual_probe, self.explained_probe}
        return {probe: probe(x) for probe in probes}


def weighed(k: Tensor, draws: Tensor) -> Tensor:
    """kᵀa for every a of the draws [num, ..., M], by one product: [num, ..., n]."""
    return (draws.movedim(0, -2) @ k).movedim(-2, 0)
