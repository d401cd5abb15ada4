"""Coupled: one set of inducing points for mean and covariance (Titsias 2009, Hensman et al. 2013).

mean φᵀm    residual k − ‖φ‖²    explained ‖L_Sᵀφ‖²    KL(m, S ‖ I),    φ = L⁻¹ k(Z, x)
"""

from __future__ import annotations

from torch import Tensor, nn

from duogp.bases.base import Basis, with_density_offset
from duogp.bases.frozen import LinearForm, Probe
from duogp.bases.marginals import Features, Marginals, Penalties, Reading
from duogp.fused.coupled import marginals_in_one
from duogp.kernels.base import Kernel
from duogp.numerics.factorisation import Factor, Numerics, norm2
from duogp.variational import CholeskyQ, Q


class Coupled(Basis):
    def __init__(self, kernel: Kernel, inducing: Tensor, q: Q) -> None:
        super().__init__()
        self.kernel = kernel
        self.inducing = nn.Parameter(inducing)  # Z [R, latent or 1, M, d]
        self.q = q

    def factors(self, numerics: Numerics) -> Factor:
        z = self.inducing.double()
        return numerics.factor(self.kernel(z, z))

    def evaluate(
        self,
        x: Tensor,
        factors: Factor | None,
        numerics: Numerics,
        *,
        with_omega: bool = False,
        reading: Reading = "parts",
    ) -> tuple[Marginals, Penalties]:
        """A training step with a free S needs neither features nor factors afterwards: all of it in one."""
        if factors is not None or self.keep_record or type(self.q) is not CholeskyQ:
            return super().evaluate(x, factors, numerics, with_omega=with_omega, reading=reading)
        root = self.q.root()
        f = marginals_in_one(self.kernel, self.inducing, x, self.q.mean, root, numerics, reading=reading)
        return f, Penalties(self.q.penalty(root).sum(-1))

    def features(self, x: Tensor, factors: Factor) -> Features:
        phi = factors.whiten(self.kernel(self.inducing, x))
        return Features(mean=phi, explained=phi, residual=self.kernel.diag(x) - norm2(phi))

    def q_of(self, factors: Factor) -> Q:
        return self.q.bind(factors, self.inducing)

    def kl(self, factors: Factor, q: Q) -> Tensor:
        return with_density_offset(q.penalty(), q, factors.half_log_det())

    def linear_form(self, factors: Factor) -> LinearForm:
        probe = Probe(self.kernel, self.inducing.detach())
        return LinearForm(
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
