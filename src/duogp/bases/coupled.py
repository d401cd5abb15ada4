"""Coupled: one set of inducing points for mean and covariance (Titsias 2009, Hensman et al. 2013).

mean φᵀm    residual k − ‖φ‖²    explained ‖L_Sᵀφ‖²    KL(m, S ‖ I),    φ = L⁻¹ k(Z, x)
"""

from __future__ import annotations

from torch import Tensor, nn

from duogp.bases.base import Basis, with_density_offset
from duogp.bases.frozen import FrozenPosterior, Probe
from duogp.bases.marginals import Features
from duogp.kernels.base import Kernel
from duogp.numerics.factorisation import Factor, Numerics, norm2
from duogp.variational import Q


class Coupled(Basis):
    """One set of inducing points Z, one q(u) = N(m, S) in whitened coordinates."""

    has_closed_form = True
    pays_to_compile = True

    def __init__(self, kernel: Kernel, inducing: Tensor, q: Q) -> None:
        super().__init__()
        self.kernel = kernel
        self.inducing = nn.Parameter(inducing)  # Z [R, latent or 1, M, d]
        self.q = q

    def factors(self, numerics: Numerics) -> Factor:
        z = self.inducing.double()
        return numerics.factor(self.kernel(z, z))

    def features(self, x: Tensor, factors: Factor) -> Features:
        phi = factors.whiten(self.kernel(self.inducing, x))
        return Features(mean=phi, explained=phi, residual=self.kernel.diag(x) - norm2(phi))

    def q_of(self, factors: Factor) -> Q:
        return self.q.bind(factors, self.inducing)

    def kl(self, factors: Factor, q: Q) -> Tensor:
        return with_density_offset(q.penalty(), q, factors.half_log_det())

    def frozen(self, factors: Factor) -> FrozenPosterior:
        probe = Probe(self.kernel, self.inducing.detach())
        return FrozenPosterior(
            prior=self.kernel,
            mean_probe=probe,
            mean_weights=(factors.L_inv.mT @ self.q.mean.to(factors.L).unsqueeze(-1)).squeeze(-1),  # L⁻ᵀ m
            residual_probe=probe,
            residual_root=factors.L_inv,
            residual_jitter=factors.jitter.unsqueeze(-1),
            explained_probe=probe,
            explained_root=self.q_of(factors).root().to(factors.L).mT @ factors.L_inv,  # L_Sᵀ L⁻¹
        )

    def whitening_factor(self, numerics: Numerics) -> Factor:
        return self.factors(numerics)
