"""Separate: Z_μ for the mean, Z_σ for the covariance (PPGPR-MFD, Jankowiak et al. 2020).

    mean φ_μᵀm    residual k − ‖φ_σ‖²    explained ‖L_Sᵀφ_σ‖²    ½mᵀm + KL(0, S ‖ I)

With one kernel this is a process and its ELBO a true bound (MATH §11 A1); with a mean kernel of its own
it is not.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from duogp.bases.base import Basis, with_density_offset
from duogp.bases.frozen import FrozenPosterior, Probe
from duogp.bases.marginals import Features
from duogp.kernels.base import Kernel
from duogp.numerics.factorisation import Factor, Numerics, norm2
from duogp.variational import Q


class SeparateFactors(NamedTuple):
    """Factors of the covariances of the mean's points and of the covariance's points."""

    mean: Factor
    covariance: Factor


class Separate(Basis):
    """q.mean on Z_μ, S on Z_σ. ``mean_kernel``: of the mean; the covariance's where None."""

    has_closed_form = True
    mean_shares_features = False

    def __init__(
        self,
        kernel: Kernel,
        mean_inducing: Tensor,
        inducing: Tensor,
        q: Q,
        mean_kernel: Kernel | None = None,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.mean_kernel = kernel if mean_kernel is None else mean_kernel
        self.mean_inducing = nn.Parameter(mean_inducing)  # Z_μ
        self.inducing = nn.Parameter(inducing)  # Z_σ
        self.q = q

    def factors(self, numerics: Numerics) -> SeparateFactors:
        z_mean, z = self.mean_inducing.double(), self.inducing.double()
        return SeparateFactors(
            mean=numerics.factor(self.mean_kernel(z_mean, z_mean)),
            covariance=numerics.factor(self.kernel(z, z)),
        )

    def features(self, x: Tensor, factors: SeparateFactors) -> Features:
        phi_mean = factors.mean.whiten(self.mean_kernel(self.mean_inducing, x))
        phi = factors.covariance.whiten(self.kernel(self.inducing, x))
        return Features(mean=phi_mean, explained=phi, residual=self.kernel.diag(x) - norm2(phi))

    def kl(self, factors: SeparateFactors, q: Q) -> Tensor:
        return with_density_offset(q.penalty(), q, factors.mean.half_log_det())

    def kernels(self) -> dict[str, Kernel]:
        shared = self.mean_kernel is self.kernel
        return super().kernels() | ({} if shared else {"mean": self.mean_kernel})

    def start_from(self, source: Basis) -> None:
        if self.mean_inducing.shape == source.inducing.shape:
            self.mean_inducing.data.copy_(source.inducing)
        super().start_from(source)

    def frozen(self, factors: SeparateFactors) -> FrozenPosterior:
        probe = Probe(self.kernel, self.inducing.detach())
        mean, covariance = factors
        return FrozenPosterior(
            prior=self.kernel,
            mean_probe=Probe(self.mean_kernel, self.mean_inducing.detach()),
            mean_weights=(mean.L_inv.mT @ self.q.mean.to(mean.L).unsqueeze(-1)).squeeze(-1),  # L_μ⁻ᵀ m
            residual_probe=probe,
            residual_root=covariance.L_inv,
            residual_jitter=covariance.jitter.unsqueeze(-1),
            explained_probe=probe,
            explained_root=self.q.root().to(covariance.L).mT @ covariance.L_inv,
        )
